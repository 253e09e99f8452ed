//! The last steps of a child: descriptors, signals, the filter, the program. Nothing here
//! allocates.
#![expect(
    unsafe_code,
    reason = "a cloned child may only make plain system calls, which rustix keeps out of its safe part"
)]

use std::{
    ffi::CString,
    io,
    os::fd::{BorrowedFd, RawFd},
    ptr,
};

use libc::sock_filter;

/// A program with its arguments and environment, ready to be executed without allocating.
#[derive(Debug)]
pub(crate) struct Program {
    path: CString,
    /// Own the text that the pointers point to.
    _text: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
}

impl Program {
    /// A program; `args` begin with its name.
    pub(crate) fn new(path: CString, args: Vec<CString>, env: Vec<CString>) -> Self {
        let pointers = |text: &[CString]| {
            let mut all: Vec<_> = text.iter().map(|t| t.as_ptr()).collect();
            all.push(ptr::null());
            all
        };
        let (argv, envp) = (pointers(&args), pointers(&env));
        let mut text = args;
        text.extend(env);
        Self {
            path,
            _text: text,
            argv,
            envp,
        }
    }

    /// Becomes the program; returns only if that fails.
    pub(crate) fn execute(&self) -> io::Error {
        // SAFETY: the path and both lists end with a zero, and the text they point to is owned by
        // `self`; a CString's text does not move with it.
        unsafe {
            libc::execve(self.path.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr());
        }
        io::Error::last_os_error()
    }
}

/// Where [`keep_only`] puts the connection to the server.
// SAFETY: only the child uses this, between `keep_only`, which puts it there, and its exec.
pub(crate) const SERVER: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(3) };

/// Leaves the server's cgroup namespace for one whose root is the sandbox's own cgroup.
pub(crate) fn unshare_cgroup() -> io::Result<()> {
    // SAFETY: a cgroup namespace takes nothing away that the process holds.
    if unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Moves a descriptor to 3 and closes all above: the child keeps nothing of the server's.
pub(crate) fn keep_only(socket: RawFd) -> io::Result<()> {
    // SAFETY: only numbers are passed. The child owns its copy of the table, and nothing in it
    // uses any descriptor but this one afterwards.
    unsafe {
        if socket != 3 && libc::dup3(socket, 3, libc::O_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::syscall(libc::SYS_close_range, 4_u32, u32::MAX, 0_u32) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes a descriptor the three standard ones.
pub(crate) fn use_as_stdio(fd: RawFd) -> io::Result<()> {
    for standard in 0..3 {
        // SAFETY: only numbers are passed.
        if unsafe { libc::dup2(fd, standard) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What a program expects of signals: none ignored, none held. Handlers are gone since the clone.
pub(crate) fn default_signals() {
    // SAFETY: resetting to the default needs no handler, and the set is initialised by the call.
    unsafe {
        for signal in 1..32 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Puts a filter on this process and all that come from it. `no_new_privs` is the caller's
/// choice, who may have been asked to allow sudo.
pub(crate) fn load_filter(filter: &[sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel only reads the program, which lives across the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Ends the child without running anything of the server's.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns and touches no memory.
    unsafe { libc::_exit(code) }
}
