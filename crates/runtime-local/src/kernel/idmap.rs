//! `mount_setattr`: attributes of a mount that is not attached yet, its id mapping among them.
#![expect(unsafe_code, reason = "rustix does not wrap mount_setattr")]

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// Attributes of a mount.
pub(crate) mod attribute {
    pub(crate) const READ_ONLY: u64 = 0x1;
    pub(crate) const NO_SUID: u64 = 0x2;
    pub(crate) const NO_DEV: u64 = 0x4;
    pub(crate) const NO_EXEC: u64 = 0x8;
    pub(super) const IDMAP: u64 = 0x10_0000;
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Sets attributes of a mount, and maps its ids by a user namespace where one is given.
pub(crate) fn set_attributes(
    mount: BorrowedFd<'_>,
    set: u64,
    user_namespace: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let attr = MountAttr {
        set: set | user_namespace.map_or(0, |_| attribute::IDMAP),
        clear: 0,
        propagation: 0,
        user_namespace: user_namespace.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: the path is an empty string and the structure, of the size that is named, lives
    // across the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
