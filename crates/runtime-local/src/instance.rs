//! What an engine is called on its host.
//!
//! Its cgroups, links and policy carry that name, and the next server of the same data directory finds
//! them by it. It belongs to the directory, not to its path: containers that share the host's cgroups may
//! each have one at the same path, and none may take the sandboxes of another for its own. So it is drawn
//! once and kept there, with the device, the number and the birth of the directory: a copy is another one.
//!
//! Servers of before made it of the path. As long as sandboxes run that one of them has made, it stays.

use std::{
    fmt,
    fs::{self, Metadata},
    io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use kit::Entropy;
use sha2::{Digest as _, Sha256};

use crate::error::{Doing as _, EngineError, Result};

/// Letters of a name: six bytes, which fit into the names of tables and links.
const LENGTH: usize = 12;

/// A name, and the directory that it was given to.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    name: String,
    device: u64,
    inode: u64,
    /// When the directory was made, where that is known: numbers are given again.
    born: Option<u128>,
}

impl Kept {
    /// For a directory, by a name.
    fn new(name: String, directory: &Metadata) -> Self {
        let born = directory.created().ok();
        let born = born.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self {
            name,
            device: directory.dev(),
            inode: directory.ino(),
            born: born.map(|since| since.as_nanos()),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let name = words.next()?;
        let is_name = name.len() == LENGTH && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_name.then_some(Self {
            name: name.to_owned(),
            device: words.next()?.parse().ok()?,
            inode: words.next()?.parse().ok()?,
            born: words.next().map(str::parse).transpose().ok()?,
        })
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.device, self.inode)?;
        match self.born {
            Some(born) => writeln!(f, " {born}"),
            None => writeln!(f),
        }
    }
}

/// The name of the engine of a data directory; one that has none gets one. `runs` answers whether a
/// sandbox runs by a name.
pub(crate) fn open(
    data: &Path,
    entropy: &Entropy,
    runs: impl Fn(&str, &str) -> Result<bool>,
) -> Result<String> {
    let directory = fs::metadata(data).doing(format!("look at {}", data.display()))?;
    let is_used = |name: &str| {
        let mut all = sandboxes(data)?
            .into_iter()
            .map(|sandbox| runs(name, &sandbox));
        all.find(|runs| !matches!(runs, Ok(false)))
            .unwrap_or(Ok(false))
    };
    let before = of_path(data);
    let runs_as_before = is_used(&before)?;
    let kept = read(data)?
        .filter(|kept| *kept == Kept::new(kept.name.clone(), &directory) && kept.name != before);
    let name = match kept {
        Some(kept) if !runs_as_before => return Ok(kept.name),
        Some(kept) if is_used(&kept.name)? => {
            let both = format!(
                "sandboxes of {} run by two names, {} and {before}: a server of before was here in \
                 between. End those that it has made, by it, and start again",
                data.display(),
                kept.name
            );
            return Err(EngineError::InUse(both.into()));
        }
        _ if runs_as_before => before,
        Some(_) | None => draw(entropy),
    };
    let text = Kept::new(name.clone(), &directory).to_string();
    let file = file(data);
    kit::durable::write_file(&file, text.as_bytes(), 0o600)
        .doing(format!("write {}", file.display()))?;
    Ok(name)
}

/// The name that is kept in a data directory, if there is one that can be read.
pub(crate) fn kept(data: &Path) -> Option<String> {
    read(data).ok().flatten().map(|kept| kept.name)
}

fn file(data: &Path) -> PathBuf {
    data.join("run/instance")
}

fn read(data: &Path) -> Result<Option<Kept>> {
    let file = file(data);
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.doing(format!("read {}", file.display()))?,
    };
    let damaged = || EngineError::Damaged {
        what: file.display().to_string().into(),
        how: "sandboxes that run are found by it. Remove it if none of this directory does".into(),
    };
    Kept::parse(&text).map(Some).ok_or_else(damaged)
}

fn draw(entropy: &Entropy) -> String {
    let mut bytes = [0; LENGTH / 2];
    entropy.fill(&mut bytes);
    hex(&bytes)
}

fn of_path(data: &Path) -> String {
    hex(&Sha256::digest(data.as_os_str().as_bytes())[..LENGTH / 2])
}

/// What the sandboxes of a directory are called.
fn sandboxes(data: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(data.join("sandboxes")).doing("list the sandboxes")?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<io::Result<_>>().doing("list the sandboxes")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        let data = tempfile::tempdir().unwrap();
        for name in ["run", "sandboxes"] {
            fs::create_dir(data.path().join(name)).unwrap();
        }
        data
    }

    fn name(data: &Path) -> String {
        open(data, &Entropy::from_os(), |_, _| Ok(false)).unwrap()
    }

    #[test]
    fn a_directory_has_the_same_name_wherever_it_is_moved() {
        let disk = tempfile::tempdir().unwrap();
        let (here, there) = (disk.path().join("here"), disk.path().join("there"));
        fs::create_dir_all(here.join("run")).unwrap();
        fs::create_dir(here.join("sandboxes")).unwrap();
        let drawn = name(&here);
        fs::rename(&here, &there).unwrap();
        assert_eq!(name(&there), drawn);
        assert_eq!(kept(&there), Some(drawn));
        assert_eq!(kept(&here), None);
    }

    #[test]
    fn a_copy_has_a_name_of_its_own() {
        let (one, copy) = (directory(), directory());
        let drawn = name(one.path());
        fs::copy(file(one.path()), file(copy.path())).unwrap();
        let own = name(copy.path());
        assert_ne!(own, drawn);
        assert_eq!(name(copy.path()), own);
        assert_eq!(name(one.path()), drawn);
    }

    #[test]
    fn a_directory_is_called_by_its_path_as_long_as_a_sandbox_runs_by_that() {
        let data = directory();
        let before = of_path(data.path());
        let while_running = || {
            let runs = |name: &str, sandbox: &str| Ok(name == before && sandbox == "one");
            open(data.path(), &Entropy::from_os(), runs).unwrap()
        };
        let drawn = while_running();
        assert_ne!(drawn, before, "nothing is there that could run");
        // A server of before was here in between.
        fs::create_dir(data.path().join("sandboxes/one")).unwrap();
        assert_eq!(name(data.path()), drawn, "it does not run");
        assert_eq!(while_running(), before);
        assert_eq!(while_running(), before);
        assert_ne!(name(data.path()), before, "others may have it too");
    }

    #[test]
    fn a_directory_whose_sandboxes_run_by_two_names_is_refused() {
        let data = directory();
        fs::create_dir(data.path().join("sandboxes/one")).unwrap();
        let drawn = name(data.path());
        let said = open(data.path(), &Entropy::from_os(), |_, _| Ok(true)).unwrap_err();
        assert!(
            matches!(&said, EngineError::InUse(text) if text.contains(&drawn)),
            "{said}"
        );
        assert_eq!(name(data.path()), drawn, "nothing was changed");
    }

    #[test]
    fn a_name_that_cannot_be_read_is_not_replaced() {
        let data = directory();
        for text in [
            "",
            "../../etc/abcd 1 2",
            "0123456789ab",
            "0123456789ab one 2",
        ] {
            kit::durable::write_file(&file(data.path()), text.as_bytes(), 0o600).unwrap();
            let said = open(data.path(), &Entropy::from_os(), |_, _| Ok(false)).unwrap_err();
            assert!(matches!(said, EngineError::Damaged { .. }), "{said}");
            assert_eq!(fs::read_to_string(file(data.path())).unwrap(), text);
        }
    }
}
