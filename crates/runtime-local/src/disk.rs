//! Disk limits: writable layers that may only grow so far.
//!
//! A sandbox that asks for a limit has its writable layer in a subvolume of its own on a btrfs, with
//! a quota. The filesystem is in a sparse file of the data directory, made when it is first needed
//! and mounted from a loop device; sandboxes without a limit have nothing to do with it. It is
//! mounted in the host's namespace, because sandboxes outlive the server, and a new server finds it
//! so; after a restart of the host it is mounted again. Once no subvolume is left it goes away.
//!
//! ```text
//! disks/image ──loop──▶ disks/mounted/<uid>/{upper,work} ◀──link── sandboxes/<uid>/disk
//! ```

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use model::Uid;
use parking_lot::Mutex;
use rustix::{
    fs::statfs,
    mount::{UnmountFlags, unmount},
};

use crate::{
    error::{Doing as _, Result, impossible},
    kernel::btrfs,
    record::{DISKS, Place},
};

/// The field of a spec that this is about.
const FIELD: &str = "resources.diskMiB";
/// `BTRFS_SUPER_MAGIC`
const BTRFS: i64 = 0x9123_683e;
/// A btrfs smaller than this has no room for itself.
const SMALLEST: u64 = 1 << 30;
/// Fewer MiB have no room for a subvolume.
const LEAST_MIB: u32 = 1;

/// The disks of one engine.
#[derive(Debug)]
pub(crate) struct Disks {
    directory: PathBuf,
    /// Held while the filesystem comes or goes.
    mounting: Mutex<()>,
}

impl Disks {
    /// Mounts the filesystem again, if there is one.
    pub(crate) fn open(directory: PathBuf) -> Result<Self> {
        let disks = Self {
            directory,
            mounting: Mutex::default(),
        };
        if disks.image().exists() && !disks.is_mounted() {
            disks.mount()?;
        }
        Ok(disks)
    }

    fn image(&self) -> PathBuf {
        self.directory.join("image")
    }

    fn mounted(&self) -> PathBuf {
        self.directory.join("mounted")
    }

    fn is_mounted(&self) -> bool {
        statfs(self.mounted()).is_ok_and(|seen| seen.f_type == BTRFS)
    }

    /// Refuses what cannot be.
    pub(crate) fn admit(&self, mib: u32) -> Result<()> {
        if mib < LEAST_MIB {
            return Err(impossible(FIELD, "no sandbox can do with that little"));
        }
        if !self.is_mounted() && find_program("mkfs.btrfs").is_none() {
            return Err(impossible(
                FIELD,
                "this host cannot limit disk space: install btrfs-progs",
            ));
        }
        Ok(())
    }

    /// Gives a sandbox a disk of its own, empty.
    pub(crate) fn make(&self, uid: Uid, place: &Place, mib: u32) -> Result<()> {
        let alone = self.mounting.lock();
        self.ensure()?;
        let subvolume = self.mounted().join(uid.to_string());
        let parent = File::open(self.mounted()).doing("open the filesystem of limited disks")?;
        btrfs::make_subvolume(&parent, &uid.to_string()).doing("make the sandbox's disk")?;
        drop(alone);
        ensure_directory(&subvolume).doing("open the sandbox's disk")?;
        let disk = File::open(&subvolume).doing("open the sandbox's disk")?;
        btrfs::limit(&disk, u64::from(mib) << 20).doing("limit the sandbox's disk")?;
        let link = Path::new("../..").join(DISKS).join(uid.to_string());
        symlink(link, place.disk()).doing("link the sandbox's disk")
    }

    /// Takes an emptied disk away; nothing to do if there is none.
    pub(crate) fn remove(&self, uid: Uid, place: &Place) -> Result<()> {
        let subvolume = self.mounted().join(uid.to_string());
        let quota = File::open(&subvolume).ok().map(|disk| btrfs::id(&disk));
        match fs::remove_dir(&subvolume) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).doing("remove the sandbox's disk");
            }
            Ok(()) | Err(_) => {}
        }
        if let Some(Ok(id)) = quota
            && let Ok(top) = File::open(self.mounted())
        {
            // The kernel may still count what is being freed, or have removed it by itself.
            let _ = btrfs::forget_quota(&top, id);
        }
        match fs::remove_file(place.disk()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).doing("remove the link to the sandbox's disk")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The filesystem, made and mounted.
    fn ensure(&self) -> Result<()> {
        if self.is_mounted() {
            return Ok(());
        }
        if !self.image().exists() {
            self.format()?;
        }
        self.mount()
    }

    fn format(&self) -> Result<()> {
        for path in [self.directory.clone(), self.mounted()] {
            ensure_directory(&path).doing("make the directory of limited disks")?;
        }
        let host = rustix::fs::statvfs(&self.directory).doing("look at the host's disk")?;
        let size = (host.f_blocks * host.f_frsize).max(SMALLEST);
        let new = self.directory.join("image.new");
        let make = || {
            // A sparse file: it takes what is written to it.
            let file = File::create(&new)?;
            file.set_len(size)?;
            run(Command::new("mkfs.btrfs")
                .args(["--quiet", "--force", "--metadata", "single"])
                .arg(&new))?;
            file.sync_all()?;
            fs::rename(&new, self.image())
        };
        make().doing("make the filesystem of limited disks")
    }

    fn mount(&self) -> Result<()> {
        let mount = || {
            ensure_directory(&self.mounted())?;
            run(Command::new("mount")
                .args([
                    "-t",
                    "btrfs",
                    "-o",
                    "loop,noatime,nosuid,nodev,discard=async",
                ])
                .arg(self.image())
                .arg(self.mounted()))?;
            ensure_directory(&self.mounted())?;
            btrfs::use_quotas(&File::open(self.mounted())?)
        };
        mount().doing("mount the filesystem of limited disks")
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let empty = |path: PathBuf| fs::read_dir(path).is_ok_and(|mut all| all.next().is_none());
        // Busy, or not there: then it stays as it is.
        if self.is_mounted()
            && empty(self.mounted())
            && unmount(self.mounted(), UnmountFlags::empty()).is_ok()
        {
            let _ = fs::remove_file(self.image());
        }
    }
}

/// A directory that sandboxes find their own below, and cannot list.
fn ensure_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o711))
}

/// Runs a program to its end.
fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        let program = command.get_program().display().to_string();
        io::Error::new(error.kind(), format!("{program}: {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "{}: {}",
        output.status,
        said.trim()
    )))
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|program| Path::is_file(program))
}
