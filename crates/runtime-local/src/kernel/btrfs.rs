//! Subvolumes and their quotas.
#![expect(
    unsafe_code,
    reason = "btrfs is told what to do by ioctls on C structures"
)]

use std::{fs::File, io, os::fd::AsRawFd as _};

const MAGIC: libc::c_ulong = 0x94;
const WRITE: libc::c_ulong = 1;
const READ: libc::c_ulong = 2;

const fn number<T>(direction: libc::c_ulong, number: libc::c_ulong) -> libc::c_ulong {
    (direction << 30) | ((size_of::<T>() as libc::c_ulong) << 16) | (MAGIC << 8) | number
}

#[repr(C)]
struct VolumeArgs {
    fd: i64,
    name: [u8; 4088],
}

#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

#[repr(C)]
#[derive(Default)]
struct QuotaLimit {
    group: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

#[repr(C)]
struct QuotaCreate {
    create: u64,
    group: u64,
}

#[repr(C)]
struct Lookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

fn call<T>(file: &File, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: the structure is the one whose size the request carries, and lives across the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut *argument) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Makes an empty subvolume in a directory.
pub(crate) fn make_subvolume(parent: &File, name: &str) -> io::Result<()> {
    let mut args = VolumeArgs {
        fd: 0,
        name: [0; 4088],
    };
    let field = args.name.get_mut(..name.len());
    field
        .ok_or(io::ErrorKind::InvalidInput)?
        .copy_from_slice(name.as_bytes());
    call(parent, number::<VolumeArgs>(WRITE, 14), &mut args)
}

/// Counts what each subvolume takes: in the simple way where the kernel knows it, which costs
/// next to nothing, because sandboxes share nothing here.
pub(crate) fn use_quotas(top: &File) -> io::Result<()> {
    let enable = |command| {
        let mut control = QuotaControl { command, status: 0 };
        call(top, number::<QuotaControl>(READ | WRITE, 40), &mut control)
    };
    const SIMPLE: u64 = 4;
    const FULL: u64 = 1;
    match enable(SIMPLE).or_else(|_| enable(FULL)) {
        // They are in use already, since the last time.
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}

/// Limits what an opened subvolume may take.
pub(crate) fn limit(subvolume: &File, bytes: u64) -> io::Result<()> {
    let mut limit = QuotaLimit {
        flags: 1,
        max_referenced: bytes,
        ..QuotaLimit::default()
    };
    call(subvolume, number::<QuotaLimit>(READ, 43), &mut limit)
}

/// The number of an opened subvolume.
pub(crate) fn id(subvolume: &File) -> io::Result<u64> {
    let mut lookup = Lookup {
        tree: 0,
        object: 256,
        name: [0; 4080],
    };
    call(subvolume, number::<Lookup>(READ | WRITE, 18), &mut lookup)?;
    Ok(lookup.tree)
}

/// Forgets the quota of a subvolume that is gone.
pub(crate) fn forget_quota(top: &File, id: u64) -> io::Result<()> {
    let mut create = QuotaCreate {
        create: 0,
        group: id,
    };
    call(top, number::<QuotaCreate>(WRITE, 42), &mut create)
}
