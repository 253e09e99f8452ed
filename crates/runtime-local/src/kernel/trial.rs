//! Children that execute nothing: they hold namespaces until they are let go, or try one thing and
//! say how it went.
#![expect(
    unsafe_code,
    reason = "a clone asks for a promise about its child, and the refused call has no wrapper"
)]

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
};

use libc::sock_filter;
use rustix::process::{
    Signal, WaitId, WaitIdOptions, pidfd_send_signal, set_parent_process_death_signal, waitid,
};

use super::{
    clone::{Cloned, clone_with},
    exec, loopback,
};

/// A child that waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Trial(Cloned);

impl Trial {
    /// Starts one in new namespaces, and in this cgroup if one is given.
    pub(crate) fn start(namespaces: i32, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        // SAFETY: the child makes system calls only, and never returns.
        unsafe { clone_with(namespaces, cgroup, wait_for_ever) }.map(Self)
    }

    /// Starts one in a user and a network namespace whose loopback interface is up.
    pub(crate) fn with_network(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let child = || {
            let up = exec::keep_only(theirs.as_raw_fd()).and_then(|()| loopback::bring_up());
            let said = match up {
                Ok(()) => 0,
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            let _ = rustix::io::write(exec::SERVER, &said.to_le_bytes());
            wait_for_ever();
        };
        let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNET;
        // SAFETY: the child makes system calls only, and never returns.
        let trial = Self(unsafe { clone_with(namespaces, cgroup, child) }?);
        drop(theirs);
        let mut said = [0; 4];
        if rustix::io::read(&ours, &mut said)? != said.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match i32::from_le_bytes(said) {
            0 => Ok(trial),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.0.pid
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = pidfd_send_signal(&self.0.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.0.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

fn wait_for_ever() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    loop {
        // All signals are held but the one that ends it.
        rustix::event::pause();
    }
}

/// Whether a child under this filter is refused a call that nobody is refused without it.
pub(crate) fn is_filtered(filter: &[sock_filter]) -> io::Result<bool> {
    let child = || {
        let refused = rustix::thread::set_no_new_privs(true).is_ok()
            && exec::load_filter(filter).is_ok()
            // SAFETY: an address that nobody has, which the call would only fail to read.
            && unsafe { libc::syscall(libc::SYS_swapoff, std::ptr::null::<u8>()) } < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
        exec::exit_now(i32::from(!refused));
    };
    // SAFETY: the child makes system calls only, and never returns.
    let cloned = unsafe { clone_with(0, None, child) }?;
    let ended = waitid(WaitId::PidFd(cloned.pidfd.as_fd()), WaitIdOptions::EXITED)?;
    Ok(ended.and_then(|status| status.exit_status()) == Some(0))
}
