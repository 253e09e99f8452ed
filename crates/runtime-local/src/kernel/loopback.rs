//! Brings the loopback interface up, which has its address by itself then.
#![expect(
    unsafe_code,
    reason = "interface flags are set by an ioctl on a C structure"
)]

use std::{io, mem, os::fd::AsRawFd as _};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Brings `lo` of this network namespace up.
pub(crate) fn bring_up() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: the structure is plain data, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request names the interface and carries its flags, and lives across the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
