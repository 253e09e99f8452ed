//! Names of images, as people write them.

use std::{fmt, str::FromStr};

use model::Digest;

use crate::error::{ImageError, Result};

/// The registry of names that do not say one.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Where the default registry really is.
const DEFAULT_HOST: &str = "registry-1.docker.io";

/// `registry/repository:tag@digest`, with what was left out filled in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    registry: Box<str>,
    repository: Box<str>,
    tag: Option<Box<str>>,
    digest: Option<Digest>,
}

impl Reference {
    /// Host and port by which it is known.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Host and port to connect to.
    #[must_use]
    pub fn host(&self) -> &str {
        if &*self.registry == DEFAULT_REGISTRY {
            DEFAULT_HOST
        } else {
            &self.registry
        }
    }

    /// The repository in the registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// What is asked for in the repository: a digest, or else a tag.
    #[must_use]
    pub fn version(&self) -> &str {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, Some(tag)) => tag,
            (None, None) => "latest",
        }
    }

    /// What it can only be, if it says so.
    #[must_use]
    pub const fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The same repository's image of this digest.
    #[must_use]
    pub fn at(&self, digest: Digest) -> Self {
        Self {
            tag: None,
            digest: Some(digest),
            ..self.clone()
        }
    }
}

/// The full name: two texts that mean the same print the same.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(f, "@{digest}"),
            (None, Some(tag)) => write!(f, ":{tag}"),
            (None, None) => f.write_str(":latest"),
        }
    }
}

impl FromStr for Reference {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |why| ImageError::Name {
            text: text.chars().take(256).collect::<String>().into(),
            why,
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                let wrong = |_| refuse("after @ stands sha256: and 64 hexadecimal digits");
                (rest, Some(Digest::new(digest).map_err(wrong)?))
            }
            None => (text, None),
        };
        let (registry, rest) = match rest.split_once('/') {
            Some((first, rest)) if is_host(first) => (first, rest),
            Some(_) | None => (DEFAULT_REGISTRY, rest),
        };
        let registry = match registry {
            "index.docker.io" | DEFAULT_HOST => DEFAULT_REGISTRY,
            other => other,
        };
        let host_ok = |c: char| c.is_ascii_alphanumeric() || "-.:[]_".contains(c);
        if !registry.chars().all(host_ok) {
            return Err(refuse("its registry is not a host and port"));
        }
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        let repository = if registry == DEFAULT_REGISTRY && !repository.contains('/') {
            format!("library/{repository}")
        } else {
            repository.to_owned()
        };
        if repository.len() > 255 || !repository.split('/').all(is_part) {
            return Err(refuse(
                "a repository is lower-case letters, digits, and single . _ - between them",
            ));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(refuse(
                "a tag is up to 128 letters, digits, and . _ - after the first",
            ));
        }
        Ok(Self {
            registry: registry.into(),
            repository: repository.into(),
            tag: tag.map(Into::into),
            digest,
        })
    }
}

/// Whether the first part of a name is a registry and not a part of the repository.
fn is_host(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':'])
}

fn is_part(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(|b| plain(*b));
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| plain(*b) || b"._-".contains(b))
        && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_mean_the_long_ones() {
        for (short, long) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12", "docker.io/library/python:3.12"),
            ("team/app", "docker.io/team/app:latest"),
            ("index.docker.io/team/app", "docker.io/team/app:latest"),
            ("localhost/app:1", "localhost/app:1"),
            ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest"),
            ("ghcr.io/a__b/c-d.e", "ghcr.io/a__b/c-d.e:latest"),
        ] {
            assert_eq!(short.parse::<Reference>().unwrap().to_string(), long);
            assert_eq!(long.parse::<Reference>().unwrap().to_string(), long);
        }
    }

    #[test]
    fn a_digest_wins_over_a_tag() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let both: Reference = format!("example.com/app:1@{digest}").parse().unwrap();
        assert_eq!(both.version(), digest);
        assert_eq!(both.to_string(), format!("example.com/app@{digest}"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "/",
            "a/",
            "/a",
            "A",
            "a b",
            "a:",
            "a:b c",
            "a@sha256:12",
            "a/../b",
            "-a",
            "a:..",
            "http://a/b",
            "exa mple.com/a",
            "a\n",
            "a..b",
            "é",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }
}
