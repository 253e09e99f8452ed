//! What is known about a file, a directory or a link.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use wire::{
    connect::{Code, Error},
    envd::METADATA_XATTR_PREFIX,
    filesystem::{EntryInfo, FileType},
    time::Timestamp,
};

use crate::{
    paths::name_of,
    users::{Names, User},
};

/// Describes what is at `path`, which is also how it is to be shown.
pub(crate) fn read(path: &Path, names: &Names) -> io::Result<EntryInfo> {
    describe(path, path, &fs::symlink_metadata(path)?, names)
}

/// Describes what is at `path` and shown as `shown`.
pub(crate) fn describe(
    path: &Path,
    shown: &Path,
    metadata: &Metadata,
    names: &Names,
) -> io::Result<EntryInfo> {
    let is_symlink = metadata.is_symlink();
    let (kind, mode, symlink_target) = if is_symlink {
        // One that leads nowhere leads to itself, and is nothing.
        let target = fs::canonicalize(path);
        let meant = target
            .as_ref()
            .ok()
            .and_then(|target| fs::metadata(target).ok());
        let target = target.unwrap_or_else(|_| shown.to_owned());
        let (kind, mode) = meant.map_or((FileType::Unspecified, 0), |meant| {
            (kind_of(&meant), meant.mode() & 0o777)
        });
        (kind, mode, Some(target.to_string_lossy().into_owned()))
    } else {
        (kind_of(metadata), metadata.mode() & 0o777, None)
    };
    Ok(EntryInfo {
        name: name_of(shown),
        kind: kind.into(),
        path: shown.to_string_lossy().into_owned(),
        size: i64::try_from(metadata.size()).unwrap_or(i64::MAX),
        mode,
        permissions: permissions(metadata),
        owner: names.user(metadata.uid()),
        group: names.group(metadata.gid()),
        modified_time: Some(Timestamp {
            seconds: metadata.mtime(),
            nanos: i32::try_from(metadata.mtime_nsec()).unwrap_or(0),
        }),
        symlink_target,
        metadata: if metadata.is_file() {
            attributes(path)
        } else {
            BTreeMap::new()
        },
        is_symlink,
    })
}

fn kind_of(metadata: &Metadata) -> FileType {
    if metadata.is_file() {
        FileType::File
    } else if metadata.is_dir() {
        FileType::Directory
    } else if metadata.is_symlink() {
        FileType::Symlink
    } else {
        FileType::Unspecified
    }
}

/// The way Go writes a mode: `drwxr-xr-x`, `Lrwxrwxrwx`, `dtrwxrwxrwx`, `urwxr-xr-x`.
fn permissions(metadata: &Metadata) -> String {
    let (mode, kind) = (metadata.mode(), metadata.file_type());
    let mut out = String::with_capacity(12);
    for (is, letter) in [
        (kind.is_dir(), 'd'),
        (kind.is_symlink(), 'L'),
        (kind.is_block_device() || kind.is_char_device(), 'D'),
        (kind.is_fifo(), 'p'),
        (kind.is_socket(), 'S'),
        (mode & 0o4000 != 0, 'u'),
        (mode & 0o2000 != 0, 'g'),
        (kind.is_char_device(), 'c'),
        (mode & 0o1000 != 0, 't'),
    ] {
        if is {
            out.push(letter);
        }
    }
    if out.is_empty() {
        out.push('-');
    }
    for (place, letter) in "rwxrwxrwx".chars().enumerate() {
        out.push(if mode & (0o400 >> place) != 0 {
            letter
        } else {
            '-'
        });
    }
    out
}

/// What was said about a file at its upload. A filesystem that keeps no such thing knows nothing.
fn attributes(path: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut names = vec![0; 4096];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::RANGE) => {
            names.resize(64 * 1024, 0);
            rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0)
        }
        Err(_) => 0,
    };
    for name in names[..length].split(|b| *b == 0) {
        let Some(key) = name.strip_prefix(METADATA_XATTR_PREFIX.as_bytes()) else {
            continue;
        };
        let mut value = vec![0; 4096];
        if let Ok(length) = rustix::fs::lgetxattr(path, name, &mut value[..]) {
            found.insert(
                String::from_utf8_lossy(key).into_owned(),
                String::from_utf8_lossy(&value[..length]).into_owned(),
            );
        }
    }
    found
}

/// Replaces everything that was said about a file. Touches nothing where there is nothing to do,
/// because every change is an event to who watches.
pub(crate) fn set_attributes(
    file: &fs::File,
    metadata: &BTreeMap<String, String>,
) -> io::Result<()> {
    use rustix::{fs::XattrFlags, io::Errno};
    let mut names = vec![0; 64 * 1024];
    let length = match rustix::fs::flistxattr(file, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(()),
        Err(why) => return Err(why.into()),
    };
    for name in names[..length].split(|b| *b == 0) {
        let Some(key) = name.strip_prefix(METADATA_XATTR_PREFIX.as_bytes()) else {
            continue;
        };
        let stays = std::str::from_utf8(key).is_ok_and(|key| metadata.contains_key(key));
        if !stays {
            rustix::fs::fremovexattr(file, name)?;
        }
    }
    for (key, value) in metadata {
        let name = format!("{METADATA_XATTR_PREFIX}{key}");
        match rustix::fs::fsetxattr(file, name.as_str(), value.as_bytes(), XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOTSUP) => return Ok(()),
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

/// Makes a directory and what is missing above it; what is made belongs to `user`.
pub(crate) fn ensure_dirs(path: &Path, user: &User) -> Result<(), Error> {
    let mut missing: Vec<PathBuf> = Vec::new();
    for dir in path.ancestors() {
        match fs::metadata(dir) {
            Ok(found) if found.is_dir() => break,
            Ok(_) => {
                return Err(Error::new(
                    Code::InvalidArgument,
                    format!("path is a file: {}", dir.display()),
                ));
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => missing.push(dir.to_owned()),
            Err(why) => return Err(error("stat", dir, &why)),
        }
    }
    for dir in missing.iter().rev() {
        match rustix::fs::mkdir(dir, rustix::fs::Mode::from_raw_mode(0o755)) {
            // Somebody else was as quick: it is theirs.
            Err(rustix::io::Errno::EXIST) => continue,
            Err(why) => return Err(error("create directory", dir, &why.into())),
            Ok(()) => {}
        }
        chown(dir, user).map_err(|why| error("chown", dir, &why))?;
    }
    Ok(())
}

fn chown(path: &Path, user: &User) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(user.uid), Some(user.gid))
}

/// What a failed operation on a path means to the caller.
pub(crate) fn error(operation: &str, path: &Path, why: &io::Error) -> Error {
    let shown = path.display();
    let code = match why.kind() {
        io::ErrorKind::NotFound => {
            return Error::new(Code::NotFound, format!("path '{shown}' does not exist"));
        }
        io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidFilename => Code::InvalidArgument,
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => Code::AlreadyExists,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Code::PermissionDenied
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
        _ if why.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            Code::FailedPrecondition
        }
        _ => Code::Internal,
    };
    Error::new(code, format!("{operation} '{shown}': {why}"))
}
