//! Requests that OpenSSH added, as far as its clients and sshfs are better with them.

use std::{ffi::OsString, fs, os::unix::ffi::OsStringExt as _, path::PathBuf};

use crate::{
    LONGEST,
    attributes::{Attributes, Links},
    codec::{Reader, packet},
    requests::{Answer, MOST_READ, Session, named, path, real_path},
    status::Failure,
};

const REPLY: u8 = 201;

/// Those that are there, with their versions.
pub(crate) const ADVERTISED: [(&str, &str); 7] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];

pub(crate) fn perform(
    session: &mut Session,
    id: u32,
    r: &mut Reader<'_>,
) -> Result<Answer, Failure> {
    match r.string()? {
        b"posix-rename@openssh.com" => fs::rename(path(r)?, path(r)?)?,
        b"hardlink@openssh.com" => fs::hard_link(path(r)?, path(r)?)?,
        b"fsync@openssh.com" => session.handles.file(r.string()?)?.0.sync_all()?,
        b"lsetstat@openssh.com" => {
            let path = path(r)?;
            Attributes::read(r)?.apply(path, Links::Meant)?;
        }
        b"statvfs@openssh.com" => return space(id, r),
        b"limits@openssh.com" => {
            let longest = LONGEST as u64;
            let mut answer = packet(REPLY);
            answer
                .u32(id)
                .u64(longest)
                .u64(MOST_READ.into())
                .u64(MOST_READ.into())
                .u64(0);
            return Ok(Answer::Packet(answer.finish()));
        }
        b"expand-path@openssh.com" => return Ok(named(id, &real_path(&expand(r.string()?))?)),
        _ => return Err(Failure::Unsupported),
    }
    Ok(Answer::Done)
}

/// How much room there is.
fn space(id: u32, r: &mut Reader<'_>) -> Result<Answer, Failure> {
    let seen = rustix::fs::statvfs(path(r)?)?;
    let mut answer = packet(REPLY);
    answer.u32(id);
    // Read-only and no set-user-id are the only flags there are.
    let flags = seen.f_flag.bits() & 3;
    for number in [
        seen.f_bsize,
        seen.f_frsize,
        seen.f_blocks,
        seen.f_bfree,
        seen.f_bavail,
        seen.f_files,
        seen.f_ffree,
        seen.f_favail,
        seen.f_fsid,
        flags,
        seen.f_namemax,
    ] {
        answer.u64(number);
    }
    Ok(Answer::Packet(answer.finish()))
}

/// A path with a `~` at its beginning: the user's own home only.
fn expand(text: &[u8]) -> PathBuf {
    let home = || std::env::var_os("HOME").unwrap_or_else(|| "/".into());
    match text {
        b"" => ".".into(),
        b"~" => home().into(),
        [b'~', b'/', rest @ ..] => PathBuf::from(home()).join(OsString::from_vec(rest.to_vec())),
        other => OsString::from_vec(other.to_vec()).into(),
    }
}
