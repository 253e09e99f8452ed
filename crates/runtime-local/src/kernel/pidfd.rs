//! How a process ended, asked of a pidfd by somebody who is not its parent.
#![expect(
    unsafe_code,
    reason = "PIDFD_GET_INFO is an ioctl that no library wraps yet"
)]

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// `struct pidfd_info` of Linux 6.15, where the exit code came in.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)`
const PIDFD_GET_INFO: libc::c_ulong =
    (3 << 30) | ((size_of::<PidfdInfo>() as libc::c_ulong) << 16) | (0xFF << 8) | 11;

/// The wait status of a process that has ended and was reaped by its parent, if the kernel still
/// knows it: from Linux 6.15, for a pidfd that was opened while it lived.
pub(crate) fn wait_status(pidfd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut info = PidfdInfo {
        mask: INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the structure has the size that the request number carries, and lives across the
    // call.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((info.mask & INFO_EXIT != 0).then_some(info.exit_code))
}
