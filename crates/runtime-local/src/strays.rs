//! What is left on this host of engines whose data directory was removed.
//!
//! Sandboxes outlive their server, and with them their processes, cgroups, links and policy. The next
//! server of the same data directory adopts them. Where the directory was removed instead, nobody ever
//! would: their files are gone, and no record leads to them. So every server that starts looks for
//! policy tables that no process owns and whose directory is not there, ends what belongs to them and
//! removes it.
//!
//! A directory that is not seen was not always removed: its disk may not be mounted now, or this process
//! may see other files. So a table says where its data directory was, and only who sees that place judges.
//! One that was a mount is not judged unless it is there, with another name in it.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use ::network::Left;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::{cgroups::Cgroups, error::Result, instance, kernel::namespace};

/// What the table of an engine says: where its data directory is, and which that is.
pub(crate) fn note(data: &Path) -> String {
    let place = Place::of(data).and_then(|place| Some((place, Directory::at(data).ok()?)));
    match (place, data.to_str()) {
        (Some((place, directory)), Some(data)) => format!("{place} {directory} {data}"),
        // Nobody will take it for one whose directory is gone.
        (_, _) => String::new(),
    }
}

/// Where a directory is, as no other place is called: the mounts that this process sees, and the device and
/// number of the directory around it.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    mounts: u64,
    device: u64,
    inode: u64,
}

impl Place {
    fn of(path: &Path) -> Option<Self> {
        let around = fs::metadata(path.parent()?).ok()?;
        Some(Self {
            mounts: namespace::mounts().ok()?,
            device: around.dev(),
            inode: around.ino(),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.mounts, self.device, self.inode)
    }
}

/// Which directory something is.
#[derive(Debug, PartialEq, Eq)]
struct Directory {
    device: u64,
    inode: u64,
    /// Something is mounted there, so that taking it away shows another one.
    is_mount: bool,
}

impl Directory {
    fn at(path: &Path) -> io::Result<Self> {
        let seen = fs::symlink_metadata(path)?;
        let more = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
        Ok(Self {
            device: seen.dev(),
            inode: seen.ino(),
            is_mount: more.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        })
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {}",
            self.device,
            self.inode,
            u8::from(self.is_mount)
        )
    }
}

/// What a table said.
#[derive(Debug)]
struct Note {
    place: Place,
    directory: Directory,
    data: PathBuf,
}

impl FromStr for Note {
    type Err = ();

    fn from_str(note: &str) -> Result<Self, ()> {
        let mut words = note.splitn(7, ' ');
        let mut number = || words.next().and_then(|word| word.parse().ok()).ok_or(());
        let place = Place {
            mounts: number()?,
            device: number()?,
            inode: number()?,
        };
        let directory = Directory {
            device: number()?,
            inode: number()?,
            is_mount: number()? != 0,
        };
        Ok(Self {
            place,
            directory,
            data: words.next().ok_or(())?.into(),
        })
    }
}

/// Removes what other engines than `own` have left below `parent` whose data directory is gone. What
/// cannot be removed is left for the next start.
pub(crate) fn sweep(parent: &str, own: &str) {
    let left = match ::network::left() {
        Ok(left) => left,
        // Whether the kernel has what is needed is found out by whoever needs it.
        Err(error) => return tracing::debug!(%error, "nothing was looked for that engines left"),
    };
    for one in left.iter().filter(|one| one.instance != own) {
        if let Some(data) = gone(one) {
            let data = data.display();
            match remove(one, parent) {
                Ok(None) => {}
                Ok(Some(sandboxes)) => tracing::info!(
                    %data,
                    sandboxes,
                    "removed what was left of a data directory that is gone"
                ),
                Err(error) => {
                    tracing::warn!(%data, %error, "what is left of a data directory that is gone");
                }
            }
        }
    }
}

/// The data directory that something was left of, if it is known and gone.
fn gone(left: &Left) -> Option<PathBuf> {
    let note: Note = left.note.parse().ok()?;
    if Place::of(&note.data)? != note.place {
        return None;
    }
    let has_another_name = || instance::kept(&note.data).is_some_and(|name| name != left.instance);
    let is_gone = match Directory::at(&note.data) {
        Err(error) => error.kind() == io::ErrorKind::NotFound && !note.directory.is_mount,
        // What was in it was removed.
        Ok(now) if now == note.directory => has_another_name(),
        // Another one was made in its place, unless one of them only covers the other.
        Ok(now) => !now.is_mount && !note.directory.is_mount && has_another_name(),
    };
    is_gone.then_some(note.data)
}

/// Ends the sandboxes of an engine, and answers how many there were; nothing if its directory is back.
fn remove(left: &Left, parent: &str) -> Result<Option<usize>> {
    let taken = left.take()?;
    // Nobody can start there from here on, so this holds.
    if gone(left).is_none() {
        return Ok(None);
    }
    let cgroups = Cgroups::open(Path::new(parent).join(&left.instance))?;
    let names = cgroups.names()?;
    for name in &names {
        let cgroup = cgroups.of(name);
        cgroup.kill()?;
        cgroup.remove()?;
    }
    taken.remove()?;
    Ok(Some(names.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_gone_only_for_who_sees_where_it_was() {
        let disk = tempfile::tempdir().unwrap();
        let (mounted, data) = (
            disk.path().join("mounted"),
            disk.path().join("mounted/data"),
        );
        fs::create_dir_all(&data).unwrap();
        let left = Left {
            instance: "0123456789ab".into(),
            note: note(&data),
        };
        assert_eq!(gone(&left), None, "it is there");
        // As a disk that is taken away, and leaves the empty place where it was mounted.
        let away = disk.path().join("away");
        fs::rename(&mounted, &away).unwrap();
        assert_eq!(gone(&left), None, "nothing is there");
        fs::create_dir(&mounted).unwrap();
        assert_eq!(gone(&left), None, "another one is there");
        fs::remove_dir(&mounted).unwrap();
        fs::rename(&away, &mounted).unwrap();
        fs::remove_dir(&data).unwrap();
        assert_eq!(gone(&left), Some(data));
    }

    #[test]
    fn a_directory_is_gone_if_another_one_was_made_in_its_place() {
        let disk = tempfile::tempdir().unwrap();
        let data = disk.path().join("data");
        let make = |name: &str| {
            fs::create_dir_all(data.join("run")).unwrap();
            let text = format!("{name} 1 2");
            let file = data.join("run/instance");
            kit::durable::write_file(&file, text.as_bytes(), 0o600).unwrap();
        };
        make("0123456789ab");
        let left = Left {
            instance: "0123456789ab".into(),
            note: note(&data),
        };
        assert_eq!(gone(&left), None, "it is there");
        make("ba9876543210");
        assert_eq!(gone(&left), Some(data.clone()), "it was emptied");
        fs::rename(&data, disk.path().join("away")).unwrap();
        make("ba9876543210");
        assert_eq!(gone(&left), Some(data.clone()), "it was replaced");
        // As one that was mounted, and lies below or beside what is seen now.
        let words: Vec<_> = left.note.split(' ').collect();
        let mounted = Left {
            note: [&words[..5], &["1"], &words[6..]].concat().join(" "),
            ..left
        };
        assert_eq!(gone(&mounted), None);
        fs::remove_dir_all(&data).unwrap();
        assert_eq!(gone(&mounted), None);
    }
}
