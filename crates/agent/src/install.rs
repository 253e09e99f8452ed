//! Bringing the agent to where a sandbox finds it.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Copies the program that runs to a path, and gives it other names. Who looks there finds all of it
/// or nothing.
///
/// # Errors
/// If it cannot be read or written, or no path is given.
pub fn install<S: AsRef<OsStr>>(paths: impl IntoIterator<Item = S>) -> io::Result<()> {
    let mut paths = paths.into_iter();
    let first = paths.next().ok_or_else(|| {
        let why = "install needs a path to copy to";
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })?;
    let (first, new) = (Path::new(&first), beside(&first));
    fs::copy("/proc/self/exe", &new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    fs::rename(&new, first)?;
    for other in paths {
        let new = beside(&other);
        fs::hard_link(first, &new)?;
        fs::rename(&new, Path::new(&other))?;
    }
    Ok(())
}

/// Where it is made ready.
fn beside(path: &impl AsRef<OsStr>) -> PathBuf {
    let mut new = path.as_ref().to_owned();
    new.push(".new");
    PathBuf::from(new)
}
