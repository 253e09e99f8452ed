//! The kernel's own freezer, as a baseline.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

/// Where the unified tree is mounted.
///
/// # Errors
/// If it is not.
pub fn unified() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mount = mounts.lines().find_map(|line| {
        line.split(' ')
            .nth(1)
            .filter(|_| line.contains(" cgroup2 "))
    });
    mount
        .map(PathBuf::from)
        .ok_or_else(|| io::Error::other("no unified cgroup tree is mounted"))
}

/// Writes and asks until it is so.
///
/// # Errors
/// Those of the files.
pub fn set_frozen(cgroup: &Path, frozen: bool) -> io::Result<()> {
    let (value, line) = if frozen {
        (b"1", "frozen 1")
    } else {
        (b"0", "frozen 0")
    };
    File::options()
        .write(true)
        .open(cgroup.join("cgroup.freeze"))?
        .write_all(value)?;
    let mut events = File::open(cgroup.join("cgroup.events"))?;
    let mut text = String::new();
    loop {
        text.clear();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        if text.lines().any(|l| l == line) {
            return Ok(());
        }
        std::thread::yield_now();
    }
}
