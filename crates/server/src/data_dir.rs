//! The data directory: whose it is, who may read it, and that one server at a time uses it.
//!
//! ```text
//! lock                who has it now
//! handover            where a server comes that is to replace it   0600
//! token               bearer token of the first user           0600
//! pki/ca.crt          what clients trust
//! pki/ca.key          what signs the server's certificate      0600
//! kubeconfig          address, ca.crt and token for clients    0600
//! FORMAT, store/      records (store-redb)
//! ```

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{
            DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep};

/// Bits of a mode that let anybody but the owner in.
const OTHERS: u32 = 0o077;
/// How often it is looked whether a lock is free.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What only we put into a directory.
const MARKS: [&str; 2] = ["FORMAT", "lock"];

/// Another process has the data directory.
#[derive(Debug, thiserror::Error)]
#[error(
    "the data directory {} is in use by {holder}: stop it, or choose another directory with \
     --data-dir", directory.display()
)]
pub(crate) struct InUse {
    directory: PathBuf,
    /// Which one, as far as it said so.
    pub(crate) holder: String,
}

/// A data directory that this process has to itself.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    // Held open: the lock goes with the process, however it ends.
    lock: File,
}

impl DataDir {
    /// Takes a directory, made if it is not there.
    ///
    /// # Errors
    /// If it is somebody else's, in use, or not usable; then nothing in it was changed.
    pub(crate) fn take(path: &Path) -> anyhow::Result<Self> {
        ensure_private_directory(path)?;
        let lock = lock(path)?;
        Ok(Self {
            path: path.to_owned(),
            lock,
        })
    }

    /// Takes a directory whose holder has died, and whose lock may outlive it for a moment.
    ///
    /// # Errors
    /// If it is still in use after that time, or not usable.
    pub(crate) async fn take_within(path: &Path, patience: Duration) -> anyhow::Result<Self> {
        let deadline = Instant::now() + patience;
        loop {
            match Self::take(path) {
                Err(error) if error.is::<InUse>() && Instant::now() < deadline => {
                    sleep(LOOK_AGAIN).await;
                }
                taken => return taken,
            }
        }
    }

    /// Gives the directory back before the process ends.
    pub(crate) fn release(self) {
        // Said aloud: a process that was just forked has the file too, until it executes something.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "the lock on the data directory is released when this process ends");
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where something in it is.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory of certificates, made if it is not there.
    pub(crate) fn ensure_pki(&self) -> anyhow::Result<PathBuf> {
        let path = self.join("pki");
        ensure_private_directory(&path)?;
        Ok(path)
    }
}

/// The text of a secret, `None` if there is no such file.
///
/// # Errors
/// If anybody but the owner could have read it: it may no longer be a secret, and only a person
/// can tell.
pub(crate) fn read_secret(path: &Path) -> anyhow::Result<Option<String>> {
    let mut file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| format!("open {}", path.display()))?,
    };
    let mode = file.metadata()?.permissions().mode();
    if mode & OTHERS != 0 {
        bail!(
            "{path} has mode {mode:04o}, so others may have read it: delete it to have a new one \
             made, or run `chmod 600 {path}` to keep it",
            path = path.display(),
            mode = mode & 0o7777,
        );
    }
    let mut text = String::new();
    file.read_to_string(&mut text)
        .with_context(|| format!("read {}", path.display()))?;
    Ok(Some(text))
}

/// Writes a file that only its owner may read.
pub(crate) fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    kit::durable::write_file(path, text.as_bytes(), 0o600)
        .with_context(|| format!("write {}", path.display()))
}

fn ensure_private_directory(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .with_context(|| {
                    format!("make the data directory {shown} (choose another with --data-dir)")
                });
        }
        Err(e) => {
            return Err(e).with_context(|| format!("look at the data directory {shown}"));
        }
        Ok(found) if !found.is_dir() => {
            bail!("{shown} is not a directory: choose another with --data-dir")
        }
        Ok(found) if found.permissions().mode() & OTHERS == 0 => {}
        Ok(found) => {
            // Only a directory that is ours, or nobody's yet, may be closed to others: somebody
            // who says `--data-dir /tmp` must not lose it.
            let mut entries =
                fs::read_dir(path).with_context(|| format!("list the data directory {shown}"))?;
            let ours = MARKS.iter().any(|mark| path.join(mark).exists())
                || path.file_name().is_some_and(|name| name == "pki");
            if !ours && entries.next().is_some() {
                bail!(
                    "{shown} is open to others and holds files that are not Dormouse's: \
                     choose an empty or new directory with --data-dir"
                );
            }
            fs::set_permissions(path, Permissions::from_mode(0o700)).with_context(|| {
                format!("close the data directory {shown} to others (run `chmod 700 {shown}`)")
            })?;
            tracing::warn!(
                directory = %shown,
                "had mode {:04o} and is now 0700: secrets live here",
                found.permissions().mode() & 0o7777
            );
        }
    }
    // A directory without its own permission to list or enter would fail later and less clearly.
    fs::read_dir(path)
        .map(|_| ())
        .with_context(|| format!("list the data directory {shown}"))
}

fn lock(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut said = String::new();
            let _ = file.read_to_string(&mut said);
            let holder = holder(said.trim(), &file);
            return Err(InUse {
                directory: directory.to_owned(),
                holder,
            }
            .into());
        }
        Err(TryLockError::Error(e)) => {
            return Err(e).with_context(|| format!("lock {}", path.display()));
        }
    }
    // Only for the message above; the lock itself is the kernel's.
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// Who has a lock, by the number that it wrote there. That is one of its own PID namespace; here it may be
/// nobody's, or some other process's.
fn holder(pid: &str, lock: &File) -> String {
    match pid {
        "" => "another process".to_owned(),
        pid if has_open(pid, lock) => format!("process {pid}"),
        _ => "another process, which cannot be seen from here".to_owned(),
    }
}

/// Whether a process has a file open, as far as this one may know, and not only as this process does to ask.
fn has_open(pid: &str, file: &File) -> bool {
    let asks = (pid == std::process::id().to_string()).then(|| file.as_raw_fd().to_string());
    let (Ok(wanted), Ok(open)) = (file.metadata(), fs::read_dir(format!("/proc/{pid}/fd"))) else {
        return false;
    };
    open.flatten()
        .filter(|entry| entry.file_name().to_str() != asks.as_deref())
        .filter_map(|entry| fs::metadata(entry.path()).ok())
        .any(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_new_directory_is_private_and_an_empty_open_one_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let new = root.path().join("a/b");
        drop(DataDir::take(&new).unwrap());
        assert_eq!(mode(&new), 0o700);

        set_mode(&new, 0o755);
        drop(DataDir::take(&new).unwrap());
        assert_eq!(mode(&new), 0o700, "ours by its lock file");

        let empty = root.path().join("empty");
        fs::create_dir(&empty).unwrap();
        set_mode(&empty, 0o755);
        drop(DataDir::take(&empty).unwrap());
        assert_eq!(mode(&empty), 0o700);
    }

    #[test]
    fn a_directory_with_the_files_of_others_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        set_mode(root.path(), 0o755);
        File::create(root.path().join("thesis.tex")).unwrap();
        let refusal = DataDir::take(root.path()).unwrap_err().to_string();
        assert!(refusal.contains("not Dormouse's"), "{refusal}");
        assert_eq!(mode(root.path()), 0o755);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_second_taker_hears_who_has_it() {
        let root = tempfile::tempdir().unwrap();
        let held = DataDir::take(root.path()).unwrap();
        let refusal = DataDir::take(root.path()).unwrap_err().to_string();
        let pid = format!("in use by process {}", std::process::id());
        assert!(refusal.contains(&pid), "{refusal}");
        drop(held);
        DataDir::take(root.path()).unwrap();
    }

    #[test]
    fn a_number_that_is_not_of_the_one_who_has_it_is_not_told() {
        let lock = tempfile::tempfile().unwrap();
        let own = std::process::id().to_string();
        let unseen = "another process, which cannot be seen from here";
        assert_eq!(holder(&own, &lock), unseen, "who asks has the same number");
        let again = lock.try_clone().unwrap();
        assert_eq!(holder(&own, &again), format!("process {own}"));
        assert_eq!(holder("1", &lock), unseen, "some other process here");
        assert_eq!(holder("0", &lock), unseen, "nobody here");
        assert_eq!(holder("", &lock), "another process");
    }

    #[test]
    fn a_secret_that_others_could_read_is_refused_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("token");
        assert_eq!(read_secret(&path).unwrap(), None);
        write_secret(&path, "x").unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(read_secret(&path).unwrap().as_deref(), Some("x"));
        set_mode(&path, 0o640);
        let refusal = read_secret(&path).unwrap_err().to_string();
        assert!(
            refusal.contains("0640") && refusal.contains("chmod 600"),
            "{refusal}"
        );
    }
}
