//! What `base` is made of, in one short text: the same text, the same programs.
//!
//! The host's packages are read from their database and not from the files, which are too many to
//! look at each time. Directories that every installation touches are looked at, too, for programs
//! that came without a package. Nothing of it changes by a restart of the host.

use std::{fs, io, os::unix::fs::MetadataExt as _};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Databases of packages, of which a host has one.
const PACKAGES: [&str; 4] = [
    "/var/lib/dpkg/status",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/var/lib/rpm/rpmdb.sqlite",
    "/lib/apk/db/installed",
];
const DIRECTORIES: [&str; 4] = ["/usr", "/usr/bin", "/usr/sbin", "/usr/lib"];
const RELEASE: &str = "/usr/lib/os-release";

/// Computes fingerprints, and again only when something has changed.
#[derive(Debug)]
pub(crate) struct Fingerprint {
    generated: [u8; 32],
    last: Mutex<Option<(Vec<Looked>, Box<str>)>>,
}

/// What a look at a file shows without reading it.
type Looked = Option<(u64, u64, i64, i64)>;

impl Fingerprint {
    /// For a root with these generated files.
    pub(crate) fn of(generated: &str) -> Self {
        Self {
            generated: Sha256::digest(generated).into(),
            last: Mutex::default(),
        }
    }

    /// The fingerprint as the host is now.
    pub(crate) fn now(&self) -> io::Result<Box<str>> {
        let all = DIRECTORIES.iter().chain([&RELEASE]).chain(&PACKAGES);
        let looked: Vec<_> = all.map(|path| look(path)).collect();
        let mut last = self.last.lock();
        if let Some((then, fingerprint)) = &*last
            && *then == looked
        {
            return Ok(fingerprint.clone());
        }
        let mut hash = Sha256::new_with_prefix(self.generated);
        for path in DIRECTORIES {
            hash.update(format!("{path} {:?}\n", look(path)));
        }
        for path in [RELEASE].iter().chain(&PACKAGES) {
            match fs::File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(mut file) => {
                    hash.update(path);
                    io::copy(&mut file, &mut hash)?;
                }
            }
        }
        let fingerprint: Box<str> = format!("{:x}", hash.finalize()).into();
        *last = Some((looked, fingerprint.clone()));
        Ok(fingerprint)
    }
}

fn look(path: &str) -> Looked {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_host_has_the_same_fingerprint_and_other_files_another() {
        let (one, two) = (Fingerprint::of("a"), Fingerprint::of("a"));
        let first = one.now().unwrap();
        assert_eq!(first.len(), 64);
        assert_eq!(one.now().unwrap(), first);
        assert_eq!(two.now().unwrap(), first);
        assert_ne!(Fingerprint::of("b").now().unwrap(), first);
    }
}
