//! Registries, as they are configured: who we are to them, and which may be spoken to openly.

use std::{collections::BTreeMap, collections::BTreeSet, fmt, path::PathBuf, str::FromStr};

/// A user and the file of a password, by the registry's host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Users(pub(crate) BTreeMap<String, (String, PathBuf)>);

impl FromStr for Users {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = |part: &str| {
            format!(
                "`{part}` is not HOST=USER:FILE, as registry.example.com:5000=ci:/etc/dormouse/ci; \
                 the file holds the password"
            )
        };
        let mut users = BTreeMap::new();
        for part in parts(text) {
            let (host, rest) = part.split_once('=').ok_or_else(|| refuse(part))?;
            let (user, file) = rest.split_once(':').ok_or_else(|| refuse(part))?;
            let file = PathBuf::from(file);
            // A password that was written where the file belongs is not shown.
            if !file.is_absolute() {
                return Err(format!(
                    "the file of the password for {host} is named by its full path"
                ));
            }
            if !is_host(host) || user.is_empty() {
                return Err(refuse(part));
            }
            if users
                .insert(host.to_owned(), (user.to_owned(), file))
                .is_some()
            {
                return Err(format!("{host} is there twice"));
            }
        }
        Ok(Self(users))
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(host, (user, file)): (&String, &(String, PathBuf))| {
            format!("{host}={user}:{}", file.display())
        };
        f.write_str(&self.0.iter().map(one).collect::<Vec<_>>().join(","))
    }
}

/// Registries, by host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts(pub(crate) BTreeSet<String>);

impl FromStr for Hosts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let one = |part: &str| match is_host(part) {
            true => Ok(part.to_owned()),
            false => Err(format!("`{part}` is not a host and port, as 10.0.0.5:5000")),
        };
        parts(text).map(one).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<&str> = self.0.iter().map(String::as_str).collect();
        f.write_str(&hosts.join(","))
    }
}

/// Images that clients may choose, by how their names begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice(pub(crate) Vec<Box<str>>);

impl FromStr for Choice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let one = |part: &str| match part {
            "*" => Ok(part.into()),
            _ if model::validate::is_image_reference(part.trim_end_matches('/')) => Ok(part.into()),
            _ => Err(format!(
                "`{part}` is not an image, as ghcr.io/team/app, nor how some begin, as ghcr.io/team/, \
                 nor * for all"
            )),
        };
        parts(text).map(one).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// How layers are compressed that are handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing(pub(crate) images::Compression);

impl FromStr for Packing {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(images::Compression::None)),
            "gzip" => Ok(Self(images::Compression::Gzip)),
            "zstd" => Ok(Self(images::Compression::Zstd)),
            _ => Err(format!("`{text}` is not zstd, gzip or none")),
        }
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            images::Compression::None => "none",
            images::Compression::Gzip => "gzip",
            images::Compression::Zstd => "zstd",
        })
    }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

fn is_host(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]_".contains(c);
    !text.is_empty() && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_and_a_password_in_place_of_a_file_is_not_shown() {
        let text = "a.com=me:/secrets/a,b.com:5000=ci:/secrets/b";
        let users: Users = text.parse().unwrap();
        assert_eq!(users.to_string(), text);
        assert_eq!(users.0["b.com:5000"].0, "ci");
        assert_eq!("".parse::<Users>().unwrap().to_string(), "");
        let refused = "a.com=me:hunter2".parse::<Users>().unwrap_err();
        assert!(!refused.contains("hunter2"), "{refused}");
        for bad in [
            "a.com",
            "a.com=me",
            "=me:/x",
            "a.com=:/x",
            "a.com=a:/x,a.com=b:/y",
        ] {
            assert!(bad.parse::<Users>().is_err(), "{bad}");
        }
    }

    #[test]
    fn hosts_and_packings_are_read() {
        let hosts: Hosts = " b:1, a ".parse().unwrap();
        assert_eq!(hosts.to_string(), "a,b:1");
        assert!("http://a".parse::<Hosts>().is_err());
        assert_eq!("zstd".parse::<Packing>().unwrap().to_string(), "zstd");
        assert!("xz".parse::<Packing>().is_err());
    }
}
