//! Small files that survive a crash whole: old content or new, never half.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Replaces a file: write beside it, fsync, rename, fsync the directory.
///
/// # Errors
/// If any step fails; the old content is then still there.
pub fn write_file(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut beside = name.to_owned();
    beside.push(".new");
    let beside = directory.join(beside);
    // A leftover of a crash may have another mode; it holds nothing that anybody was promised.
    match fs::remove_file(&beside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&beside, path)?;
    File::open(directory)?.sync_all()
}
