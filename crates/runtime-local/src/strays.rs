//! What is left on this host of engines whose data directory was removed.
//!
//! Sandboxes outlive their server, and with them their processes, cgroups, links and policy. The next
//! server of the same data directory adopts them. Where the directory was removed instead, nobody ever
//! would: their files are gone, and no record leads to them. So every server that starts looks for
//! policy tables that no process owns and whose directory is not there, ends what belongs to them and
//! removes it. A table says whose it is; who cannot see the same files does not judge.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ::network::Left;

use crate::{cgroups::Cgroups, engine::instance_of, error::Result};

/// What the table of an engine says: in whose files its data directory is, and which that is.
pub(crate) fn note(data: &Path) -> String {
    match (mounts(), data.to_str()) {
        (Some(mounts), Some(data)) => format!("{mounts} {data}"),
        // Nobody will take it for one whose directory is gone.
        (_, _) => String::new(),
    }
}

/// Which files this process sees.
fn mounts() -> Option<String> {
    let link = fs::read_link("/proc/thread-self/ns/mnt").ok()?;
    Some(link.to_str()?.to_owned())
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
                Ok(sandboxes) => tracing::info!(
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
    let (seen_in, data) = left.note.split_once(' ')?;
    let data = PathBuf::from(data);
    let is_ours = mounts().is_some_and(|mounts| mounts == seen_in);
    let is_its = instance_of(&data) == left.instance;
    let looked = fs::symlink_metadata(&data);
    let is_gone = looked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    (is_ours && is_its && is_gone).then_some(data)
}

/// Ends the sandboxes of an engine, and answers how many there were.
fn remove(left: &Left, parent: &str) -> Result<usize> {
    let cgroups = Cgroups::open(Path::new(parent).join(&left.instance))?;
    let names = cgroups.names()?;
    for name in &names {
        let cgroup = cgroups.of(name);
        cgroup.kill()?;
        cgroup.remove()?;
    }
    // Last: by it the rest is found again.
    ::network::remove_left(left)?;
    Ok(names.len())
}
