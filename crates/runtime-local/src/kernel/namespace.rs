//! What a namespace is called.
#![expect(
    unsafe_code,
    reason = "NS_GET_MNTNS_ID is an ioctl that no library wraps yet"
)]

use std::{fs::File, io, os::fd::AsRawFd as _};

/// `_IOR(0xb7, 5, u64)`
const NS_GET_MNTNS_ID: libc::c_ulong =
    (2 << 30) | ((size_of::<u64>() as libc::c_ulong) << 16) | (0xb7 << 8) | 5;

/// The mount namespace of this thread, as no other is called until the host boots: numbers of the files
/// in `/proc` are given again.
pub(crate) fn mounts() -> io::Result<u64> {
    let namespace = File::open("/proc/thread-self/ns/mnt")?;
    let mut id = 0_u64;
    // SAFETY: the kernel writes as many bytes as the request number says, into a number that lives across
    // the call.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_MNTNS_ID, &raw mut id) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_mounts_of_its_own_says_so() {
        let here = mounts().unwrap();
        assert_eq!(mounts().unwrap(), here);
        let there = std::thread::spawn(|| {
            // SAFETY: the thread shares no memory of other mounts, and ends right after.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
            mounts().unwrap()
        });
        assert_ne!(there.join().unwrap(), here);
    }
}
