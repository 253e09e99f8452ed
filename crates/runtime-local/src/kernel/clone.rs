//! `clone3` into a cgroup.
#![expect(
    unsafe_code,
    reason = "no library wraps clone3 with CLONE_INTO_CGROUP, and signals must be held across it"
)]

use std::{
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

/// Namespaces of a sandbox. The cgroup namespace is not among them: its root is taken from where
/// the process is while it is cloned, which is still the server's cgroup, so the child unshares it
/// afterwards.
pub(crate) const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET;

pub(super) const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
pub(super) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A process that was just cloned.
#[derive(Debug)]
pub(crate) struct Cloned {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
}

/// Clones this process into namespaces, and a cgroup where one is given; the child runs `child` and
/// nothing else, in a copy of this process's memory. For children that do not execute anything;
/// those that do borrow the memory: see `borrow`.
///
/// # Safety
/// Other threads may hold any lock, the allocator's included, at the moment of the clone. `child`
/// must not allocate, lock, panic or return: only system calls on what was prepared before.
pub(crate) unsafe fn clone_with(
    namespaces: i32,
    cgroup: Option<BorrowedFd<'_>>,
    child: impl FnOnce(),
) -> io::Result<Cloned> {
    let mut pidfd: i32 = -1;
    // SAFETY: the structure is plain integers, for which zero is a valid value.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.flags = namespaces as u64 | libc::CLONE_PIDFD as u64 | CLONE_CLEAR_SIGHAND;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }

    // A signal handler of the server must not run in the child: it would speak to the server's
    // own pipes. All signals are held from before the clone until the child's exec.
    let held = HeldSignals::hold();
    // SAFETY: `args` and `pidfd` live across the call, and without CLONE_VM the child has a copy
    // of this stack to go on with.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    match result {
        0 => {
            child();
            super::exec::exit_now(127)
        }
        -1 => {
            let error = io::Error::last_os_error();
            drop(held);
            Err(error)
        }
        pid => {
            drop(held);
            Ok(Cloned {
                pid: i32::try_from(pid).map_err(io::Error::other)?,
                // SAFETY: the kernel has stored a new descriptor here that nobody else owns.
                pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
            })
        }
    }
}

/// All signals held in this thread until dropped.
pub(super) struct HeldSignals(libc::sigset_t);

impl HeldSignals {
    pub(super) fn hold() -> Self {
        // SAFETY: both sets are initialised by the calls that are given them; neither call fails
        // with these arguments.
        unsafe {
            let mut all = mem::zeroed();
            let mut before = mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled in by `hold`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}
