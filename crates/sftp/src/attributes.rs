//! What is known of a file, and what is to become of it.

use std::{
    fs::Metadata,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

use rustix::fs::{AtFlags, Timespec, Timestamps};
use wire::time::civil;

use crate::{
    codec::{Reader, Writer},
    status::Failure,
};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 1 << 31;

/// What a client says of a file; what it does not say is none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    size: Option<u64>,
    owner: Option<(u32, u32)>,
    permissions: Option<u32>,
    times: Option<(u32, u32)>,
}

/// Whether a link is meant or what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Followed,
    Meant,
}

impl Attributes {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Failure> {
        let flags = reader.u32()?;
        let has = |flag| flags & flag != 0;
        let mut read = Self::default();
        if has(SIZE) {
            read.size = Some(reader.u64()?);
        }
        if has(OWNER) {
            read.owner = Some((reader.u32()?, reader.u32()?));
        }
        if has(PERMISSIONS) {
            read.permissions = Some(reader.u32()?);
        }
        if has(TIMES) {
            read.times = Some((reader.u32()?, reader.u32()?));
        }
        if has(EXTENDED) {
            for _ in 0..reader.u32()? {
                reader.string()?;
                reader.string()?;
            }
        }
        Ok(read)
    }

    /// The permissions of what is made.
    pub(crate) fn mode(&self, otherwise: u32) -> u32 {
        self.permissions.unwrap_or(otherwise) & 0o7777
    }

    /// Makes it so.
    pub(crate) fn apply(&self, path: &Path, links: Links) -> Result<(), Failure> {
        let flags = match links {
            Links::Followed => AtFlags::empty(),
            Links::Meant => AtFlags::SYMLINK_NOFOLLOW,
        };
        if let (Some(size), Links::Followed) = (self.size, links) {
            let file = std::fs::OpenOptions::new().write(true).open(path)?;
            file.set_len(size)?;
        }
        if let Some(mode) = self.permissions {
            let mode = rustix::fs::Mode::from_raw_mode(mode & 0o7777);
            rustix::fs::chmodat(rustix::fs::CWD, path, mode, flags)?;
        }
        if let Some((accessed, modified)) = self.times {
            let times = timestamps(accessed, modified);
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags)?;
        }
        if let Some((user, group)) = self.owner {
            match links {
                Links::Followed => std::os::unix::fs::chown(path, Some(user), Some(group))?,
                Links::Meant => std::os::unix::fs::lchown(path, Some(user), Some(group))?,
            }
        }
        Ok(())
    }

    /// The same for what is open.
    pub(crate) fn apply_to(&self, file: &std::fs::File) -> Result<(), Failure> {
        if let Some(size) = self.size {
            file.set_len(size)?;
        }
        if let Some(mode) = self.permissions {
            rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(mode & 0o7777))?;
        }
        if let Some((accessed, modified)) = self.times {
            rustix::fs::futimens(file, &timestamps(accessed, modified))?;
        }
        if let Some((user, group)) = self.owner {
            std::os::unix::fs::fchown(file, Some(user), Some(group))?;
        }
        Ok(())
    }
}

fn timestamps(accessed: u32, modified: u32) -> Timestamps {
    let at = |seconds: u32| Timespec {
        tv_sec: seconds.into(),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: at(accessed),
        last_modification: at(modified),
    }
}

/// Seconds as the protocol has them: not before 1970, not after 2106.
fn seconds(at: i64) -> u32 {
    u32::try_from(at.max(0)).unwrap_or(u32::MAX)
}

/// Writes what is known of a file.
pub(crate) fn write(to: &mut Writer, metadata: &Metadata) {
    to.u32(SIZE | OWNER | PERMISSIONS | TIMES)
        .u64(metadata.size())
        .u32(metadata.uid())
        .u32(metadata.gid())
        .u32(metadata.mode())
        .u32(seconds(metadata.atime()))
        .u32(seconds(metadata.mtime()));
}

/// Writes that nothing is known.
pub(crate) fn write_none(to: &mut Writer) {
    to.u32(0);
}

/// A line as `ls -l` prints it, which clients show as it is.
pub(crate) fn line(name: &[u8], metadata: &Metadata) -> Vec<u8> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (kind, mode) = (metadata.file_type(), metadata.mode());
    let first = match () {
        () if kind.is_dir() => 'd',
        () if kind.is_symlink() => 'l',
        () if kind.is_char_device() => 'c',
        () if kind.is_block_device() => 'b',
        () if kind.is_fifo() => 'p',
        () if kind.is_socket() => 's',
        () => '-',
    };
    let bits = "rwxrwxrwx".chars().enumerate();
    let bits = bits.map(|(at, letter)| match mode & (0o400 >> at) {
        0 => '-',
        _ => letter,
    });
    let bits: String = bits.collect();
    let days = metadata.mtime().div_euclid(86_400);
    let minutes = metadata.mtime().rem_euclid(86_400) / 60;
    let (year, month, day) = civil(days);
    let month = MONTHS[usize::try_from(month - 1).unwrap_or_default() % 12];
    // The year says more of what is old, the time of what is new.
    let when = match year == civil(today()).0 {
        true => format!("{:02}:{:02}", minutes / 60, minutes % 60),
        false => format!("{year:5}"),
    };
    let mut text = format!(
        "{first}{bits} {:4} {:<8} {:<8} {:8} {month} {day:2} {when} ",
        metadata.nlink(),
        metadata.uid(),
        metadata.gid(),
        metadata.size(),
    )
    .into_bytes();
    text.extend_from_slice(name);
    text
}

fn today() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.div_euclid(86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(-1), (1969, 12, 31));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_772), (2026, 11, 15));
    }

    #[test]
    fn what_is_cut_off_is_a_bad_message() {
        let mut bytes = vec![0, 0, 0, 15];
        bytes.extend_from_slice(&[0; 28]);
        assert!(Attributes::read(&mut Reader(&bytes)).is_ok());
        for cut in 0..bytes.len() {
            let read = Attributes::read(&mut Reader(&bytes[..cut]));
            assert!(matches!(read, Err(Failure::BadMessage)), "{cut}");
        }
        // A count of extensions that nobody sent.
        let hostile = [0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert!(Attributes::read(&mut Reader(&hostile)).is_err());
    }
}
