//! What a path in a call means.
//!
//! `~` is the user's home, a relative path starts there, an empty one is the default directory.
//! `.`, `..` and doubled slashes are resolved by text alone, as envd does it.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use wire::connect::{Code, Error};

use crate::users::User;

/// The absolute path that `path` means to `user`.
pub(crate) fn resolve(path: &[u8], user: &User, workdir: &str) -> Result<PathBuf, Error> {
    let home = user.home.as_os_str().as_bytes();
    if path.contains(&0) {
        return Err(Error::new(
            Code::InvalidArgument,
            "path contains a zero byte",
        ));
    }
    let joined = match path {
        [] if workdir.is_empty() => home.to_vec(),
        [] => return resolve(workdir.as_bytes(), user, ""),
        [b'/', ..] => path.to_vec(),
        [b'~'] => home.to_vec(),
        [b'~', b'/', rest @ ..] => [home, b"/", rest].concat(),
        [b'~', ..] => {
            return Err(Error::new(
                Code::InvalidArgument,
                format!(
                    "cannot expand the home of another user: '{}'",
                    String::from_utf8_lossy(path)
                ),
            ));
        }
        _ => [home, b"/", path].concat(),
    };
    Ok(clean(&joined))
}

/// Resolves `.`, `..` and doubled slashes of an absolute path.
fn clean(path: &[u8]) -> PathBuf {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    let mut out = vec![b'/'];
    out.extend_from_slice(&parts.join(&b'/'));
    PathBuf::from(OsString::from_vec(out))
}

/// The last part of a path, in characters; `/` for the root.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(
        || "/".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            name: "user".to_owned(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            home: "/home/user".into(),
        }
    }

    #[test]
    fn paths_mean_what_they_mean_to_envd() {
        for (path, workdir, meant) in [
            ("", "", "/home/user"),
            ("", "/code", "/code"),
            ("", "~/x", "/home/user/x"),
            ("a/b", "/code", "/home/user/a/b"),
            ("~", "", "/home/user"),
            ("~/a", "", "/home/user/a"),
            ("/a//b/./c/../d/", "", "/a/b/d"),
            ("/../..", "", "/"),
            ("../other", "", "/home/other"),
            ("./a", "", "/home/user/a"),
            (" spaced ", "", "/home/user/ spaced "),
        ] {
            assert_eq!(
                resolve(path.as_bytes(), &user(), workdir).unwrap(),
                Path::new(meant),
                "{path:?} in {workdir:?}"
            );
        }
        assert_eq!(
            resolve(b"/a\xff", &user(), "")
                .unwrap()
                .as_os_str()
                .as_bytes(),
            b"/a\xff"
        );
    }

    #[test]
    fn other_homes_and_zero_bytes_are_refused() {
        for bad in [&b"~root"[..], b"~root/x", b"/a\0b"] {
            assert_eq!(
                resolve(bad, &user(), "").unwrap_err().code,
                Code::InvalidArgument
            );
        }
    }
}
