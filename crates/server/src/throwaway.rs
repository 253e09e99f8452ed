//! Directories of throw-away sandboxes, and what is left of those whose owner was killed.
//!
//! Each has a lock that its owner holds for as long as it lives. Whoever makes a new one first
//! looks at the others: a lock that can be taken belongs to nobody, and its sandboxes go.

use std::{
    fs::{self, File, Permissions, TryLockError},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use anyhow::Context as _;
use model::{Generation, OperationId, workload::Fence};
use runtime::Runtime as _;
use runtime_local::{LocalRuntime, Options};
use tempfile::TempDir;

const PREFIX: &str = "dormouse-run-";
const LOCK: &str = "lock";
/// More than any owner used.
const LAST: Generation = Generation(u64::MAX);

/// A directory that goes with this.
#[derive(Debug)]
pub(crate) struct Throwaway {
    directory: TempDir,
    _lock: File,
}

impl Throwaway {
    /// Makes one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let make = || {
            let directory = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(Permissions::from_mode(0o711))
                .tempdir()?;
            let lock = File::create_new(directory.path().join(LOCK))?;
            lock.lock()?;
            Ok::<_, io::Error>(Self {
                directory,
                _lock: lock,
            })
        };
        make().context("make a directory for the sandbox")
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the sandboxes whose owners are gone, with their directories. What cannot be removed is
/// left for the next time: it is nobody's fault who runs a command now.
pub(crate) async fn sweep(options: &Options) {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        if let Some(lock) = abandoned(&path) {
            if let Err(error) = remove(&path, options.clone()).await {
                tracing::debug!(path = %path.display(), %error, "an abandoned sandbox stays");
            }
            drop(lock);
        }
    }
}

/// The lock of a directory that is ours to remove and has no owner. Others may write where these
/// directories are, so what they made there is not looked into.
fn abandoned(path: &Path) -> Option<File> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    let only_ours = ours && metadata.mode() & 0o022 == 0;
    if !metadata.is_dir() || !only_ours {
        return None;
    }
    let lock = File::open(path.join(LOCK)).ok()?;
    match lock.try_lock() {
        Ok(()) => Some(lock),
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
    }
}

async fn remove(path: &Path, options: Options) -> anyhow::Result<()> {
    let engine = LocalRuntime::open(path, options)?;
    for (uid, _) in engine.list().await? {
        let fence = Fence {
            uid,
            generation: LAST,
            operation: OperationId(1),
        };
        engine.delete(fence).await?;
    }
    Ok(fs::remove_dir_all(path)?)
}
