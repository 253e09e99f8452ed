//! Who a process runs as and a file belongs to, from `/etc/passwd` and `/etc/group`.
//!
//! Read anew for every call: users come and go with what runs in the sandbox, and the files are
//! small. Directories over the network (LDAP and the like) are not asked.

use std::{
    collections::HashMap,
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use wire::connect::{Code, Error};

/// Somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All groups, the primary one included.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: PathBuf,
}

/// Why there is nobody of that name.
pub(crate) fn unknown(name: &str) -> Error {
    Error::new(Code::Unauthenticated, format!("invalid username: '{name}'"))
}

/// Finds a user by name.
pub(crate) fn find(name: &str) -> Result<User, Error> {
    find_in(name, Path::new("/etc/passwd"), Path::new("/etc/group"))
}

fn find_in(name: &str, passwd: &Path, group: &Path) -> Result<User, Error> {
    let read = |path: &Path| match std::fs::read(path) {
        Ok(text) => Ok(text),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(why) => Err(Error::new(
            Code::Internal,
            format!("read {}: {why}", path.display()),
        )),
    };
    let text = read(passwd)?;
    let entry = lines(&text).find(|fields| fields[0] == name.as_bytes() && fields.len() >= 6);
    let entry = match entry {
        Some(fields) => fields,
        // An image without /etc/passwd still has its first user.
        None if name == "root" => lines(b"root::0:0::/root").next().unwrap_or_default(),
        // Images may name their user by number, with or without an entry.
        None if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) => {
            by_number(&text, name.as_bytes())
        }
        None => return Err(unknown(name)),
    };
    let (Some(uid), Some(gid)) = (number(entry[2]), number(entry[3])) else {
        return Err(unknown(name));
    };
    let mut groups = vec![gid];
    for fields in lines(&read(group)?) {
        let [_, _, id, members] = fields[..] else {
            continue;
        };
        let Some(id) = number(id) else { continue };
        let is_member = members.split(|b| *b == b',').any(|m| m == entry[0]);
        if is_member && !groups.contains(&id) {
            groups.push(id);
        }
    }
    let home = PathBuf::from(OsString::from_vec(entry[5].to_vec()));
    let home = if home.as_os_str().is_empty() {
        PathBuf::from("/")
    } else {
        home
    };
    Ok(User {
        name: name.to_owned(),
        uid,
        gid,
        groups,
        home,
    })
}

/// The entry of a number, or one made up for it.
fn by_number<'a>(passwd: &'a [u8], number: &'a [u8]) -> Vec<&'a [u8]> {
    let known = lines(passwd).find(|fields| fields.len() >= 6 && fields[2] == number);
    known.unwrap_or_else(|| vec![number, b"", number, number, b"", b"/"])
}

/// The names behind numbers, for a listing.
#[derive(Debug)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    pub(crate) fn read() -> Self {
        let map = |path: &str| {
            let text = std::fs::read(path).unwrap_or_default();
            let mut names = HashMap::new();
            for fields in lines(&text) {
                if let Some(id) = fields.get(2).and_then(|field| number(field)) {
                    // The first line of a number wins, as in the C library.
                    names
                        .entry(id)
                        .or_insert_with(|| String::from_utf8_lossy(fields[0]).into_owned());
                }
            }
            names
        };
        Self {
            users: map("/etc/passwd"),
            groups: map("/etc/group"),
        }
    }

    pub(crate) fn user(&self, uid: u32) -> String {
        self.users
            .get(&uid)
            .cloned()
            .unwrap_or_else(|| uid.to_string())
    }

    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups
            .get(&gid)
            .cloned()
            .unwrap_or_else(|| gid.to_string())
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    text.split(|b| *b == b'\n')
        .filter(|line| !line.is_empty() && line[0] != b'#')
        .map(|line| line.split(|b| *b == b':').collect())
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn users_have_their_groups_and_home() {
        let passwd = file(b"# people\nroot:x:0:0::/root:/bin/sh\nuser:x:1000:1000:A,B:/home/user:/bin/bash\nbad:x:y:1::/:\n\xff:x:5:5::/:\nlost:x:7:7:::/bin/sh\n");
        let group =
            file(b"sudo:x:27:admin,user\nuser:x:1000:\ndocker:x:99:user\nnear:x:98:user2\n");
        let find = |name| find_in(name, passwd.path(), group.path());
        let user = find("user").unwrap();
        assert_eq!((user.uid, user.gid), (1000, 1000));
        assert_eq!(user.groups, [1000, 27, 99]);
        assert_eq!(user.home, Path::new("/home/user"));
        assert_eq!(find("lost").unwrap().home, Path::new("/"));
        // By number, as images may: with and without an entry.
        let user = find("1000").unwrap();
        assert_eq!((user.uid, user.groups.len()), (1000, 3));
        assert_eq!(find("4242").unwrap().home, Path::new("/"));
        for unknown in ["bad", "nobody", "", "use", "+5", "99999999999"] {
            let why = find(unknown).unwrap_err();
            assert_eq!(why.code, Code::Unauthenticated);
            assert_eq!(why.message, format!("invalid username: '{unknown}'"));
        }
    }

    #[test]
    fn an_image_without_passwd_has_root() {
        let nowhere = Path::new("/nonexistent/passwd");
        assert_eq!(find_in("root", nowhere, nowhere).unwrap().uid, 0);
        assert!(find_in("user", nowhere, nowhere).is_err());
    }
}
