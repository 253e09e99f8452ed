//! What is left on this host of engines whose data directory was removed.
//!
//! Sandboxes outlive their server, and with them their processes, cgroups, links and policy. The next
//! server of the same data directory adopts them. Where the directory was removed instead, nobody ever
//! would: their files are gone, and no record leads to them. So every server that starts looks for
//! policy tables that no process owns and whose directory is not there, ends what belongs to them and
//! removes it.
//!
//! A directory that is not seen was not always removed: its disk may not be mounted now, or this process
//! may see other files. So a table says in which directory its data directory was, by number, device and mount
//! namespace, and only who sees that one judges.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use ::network::Left;

use crate::{cgroups::Cgroups, error::Result, instance, kernel::namespace};

/// What the table of an engine says: in which directory its data directory is, and which that is.
pub(crate) fn note(data: &Path) -> String {
    match (around(data), data.to_str()) {
        (Some(around), Some(data)) => format!("{around} {data}"),
        // Nobody will take it for one whose directory is gone.
        (_, _) => String::new(),
    }
}

/// The directory that something is in, as nobody else's is called: by the files that this process sees,
/// its device and its number.
fn around(path: &Path) -> Option<String> {
    let mounts = namespace::mounts().ok()?;
    let parent = fs::metadata(path.parent()?).ok()?;
    Some(format!("{mounts}/{}/{}", parent.dev(), parent.ino()))
}

/// Removes what engines have left below `parent` whose data directory is gone. What cannot be removed is
/// left for the next start.
pub(crate) fn sweep(parent: &str) {
    let left = match ::network::left() {
        Ok(left) => left,
        // Whether the kernel has what is needed is found out by whoever needs it.
        Err(error) => return tracing::debug!(%error, "nothing was looked for that engines left"),
    };
    for one in &left {
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
    let (was_in, data) = left.note.split_once(' ')?;
    let data = PathBuf::from(data);
    let is_seen = around(&data).is_some_and(|around| around == was_in);
    let looked = fs::symlink_metadata(&data);
    let is_gone = looked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        // Another one was made in its place.
        || instance::kept(&data).is_some_and(|name| name != left.instance);
    (is_seen && is_gone).then_some(data)
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
    fn a_directory_is_gone_if_another_one_is_in_its_place() {
        let disk = tempfile::tempdir().unwrap();
        let data = disk.path().join("data");
        fs::create_dir_all(data.join("run")).unwrap();
        let left = Left {
            instance: "0123456789ab".into(),
            note: note(&data),
        };
        let keep = |text: &[u8]| {
            kit::durable::write_file(&data.join("run/instance"), text, 0o600).unwrap();
        };
        keep(b"0123456789ab 1 2");
        assert_eq!(gone(&left), None);
        keep(b"ba9876543210 1 2");
        assert_eq!(gone(&left), Some(data));
    }
}
