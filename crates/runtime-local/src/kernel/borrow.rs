//! A clone that borrows the server's memory until it executes its program.
//!
//! A copy would take page tables for all that the server holds, and take them down again at the
//! exec: with half a gigabyte that is fifteen milliseconds for each sandbox. The child borrows
//! instead, on a stack of its own, and the thread that made it sleeps until it has executed or
//! ended (`CLONE_VFORK`), so that nothing the child reads can go away. What must be done for it
//! meanwhile is done by another thread, which finds the child in a [`Newborn`].
//!
//! `CLONE_VFORK` matters once more: where memory runs out, the kernel ends everybody who shares
//! the memory of its victim, but takes no victim from between a vfork and its exec. So no limit of
//! a sandbox can end the server.
#![expect(
    unsafe_code,
    reason = "no library wraps clone3, and a child on another stack cannot be written without assembly"
)]

use std::{
    arch::asm,
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

use super::clone::{CLONE_CLEAR_SIGHAND, CLONE_INTO_CGROUP, Cloned, HeldSignals, NAMESPACES};

/// A child that may be there already. The kernel fills it in before the child runs.
#[derive(Debug)]
pub(crate) struct Newborn {
    pid: AtomicI32,
    pidfd: AtomicI32,
}

impl Newborn {
    pub(crate) const fn expected() -> Self {
        Self {
            pid: AtomicI32::new(0),
            pidfd: AtomicI32::new(-1),
        }
    }

    /// Its process id. Somebody who has heard of the child knows that it is there.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.load(Ordering::Acquire)
    }

    /// Its end, unless it is spared: whoever waits for it must go on.
    pub(crate) const fn doomed(&self) -> Doomed<'_> {
        Doomed(self)
    }

    fn kill(&self) {
        let pidfd = self.pidfd.load(Ordering::Acquire);
        if pidfd >= 0 {
            // SAFETY: whoever made the child has this descriptor, and sleeps.
            let pidfd = unsafe { BorrowedFd::borrow_raw(pidfd) };
            // It has ended already if this fails.
            let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
        }
    }
}

/// Ends a child when it is dropped.
#[derive(Debug)]
pub(crate) struct Doomed<'a>(&'a Newborn);

impl Doomed<'_> {
    pub(crate) fn spare(self) {
        mem::forget(self);
    }
}

impl Drop for Doomed<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Clones this process into new namespaces and a cgroup; the child runs `child` and nothing else.
/// Returns when it has executed a program or ended.
///
/// # Safety
/// Other threads may hold any lock, the allocator's included, while the child runs. `child` must
/// not allocate, lock, panic or return: only system calls on what was prepared before. Its memory
/// is the server's.
pub(crate) unsafe fn clone_into<F: FnOnce()>(
    cgroup: BorrowedFd<'_>,
    newborn: &Newborn,
    child: F,
) -> io::Result<Cloned> {
    let stack = Stack::new()?;
    let mut child = Some(child);
    // SAFETY: the structure is plain integers, for which zero is a valid value.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.flags = NAMESPACES as u64
        | (libc::CLONE_VM | libc::CLONE_VFORK) as u64
        | (libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID) as u64
        | CLONE_CLEAR_SIGHAND
        | CLONE_INTO_CGROUP;
    args.pidfd = newborn.pidfd.as_ptr() as u64;
    args.parent_tid = newborn.pid.as_ptr() as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;
    args.stack = stack.bottom as u64;
    args.stack_size = STACK as u64;

    // A signal handler of the server must not run in the child: it would speak to the server's
    // own pipes. All signals are held from before the clone until the child's exec.
    let held = HeldSignals::hold();
    // SAFETY: `args`, the stack and all that `child` borrows live until the child needs them no
    // more, because this thread sleeps so long.
    let result = unsafe { clone3(&args, run::<F>, (&raw mut child).cast()) };
    drop(held);
    if result < 0 {
        let errno = i32::try_from(-result).unwrap_or(libc::EINVAL);
        return Err(io::Error::from_raw_os_error(errno));
    }
    Ok(Cloned {
        pid: newborn.pid(),
        // SAFETY: the kernel has stored a new descriptor here that nobody else owns.
        pidfd: unsafe { OwnedFd::from_raw_fd(newborn.pidfd.load(Ordering::Acquire)) },
    })
}

/// What the child does.
extern "C" fn run<F: FnOnce()>(child: *mut libc::c_void) -> ! {
    // SAFETY: the caller has put it there, and nobody else touches it any more.
    let child = unsafe { (*child.cast::<Option<F>>()).take() };
    if let Some(child) = child {
        child();
    }
    super::exec::exit_now(127)
}

type Entry = extern "C" fn(*mut libc::c_void) -> !;

/// The call itself: the child begins at `entry`, on the stack that `args` name.
///
/// # Safety
/// As for [`clone_into`], and the stack must be large enough for `entry`.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(args: &libc::clone_args, entry: Entry, argument: *mut libc::c_void) -> isize {
    let result: isize;
    // SAFETY: the child never comes back to this frame, and the parent finds all registers but
    // the named ones as it left them.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {argument}",
            "call {entry}",
            "ud2",
            "2:",
            argument = in(reg) argument,
            entry = in(reg) entry,
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") ptr::from_ref(args),
            in("rsi") size_of_val(args),
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// See above.
///
/// # Safety
/// See above.
#[cfg(target_arch = "aarch64")]
unsafe fn clone3(args: &libc::clone_args, entry: Entry, argument: *mut libc::c_void) -> isize {
    let result: isize;
    // SAFETY: the child never comes back to this frame, and the parent finds all registers but
    // the named one as it left them.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, {argument}",
            "blr {entry}",
            "brk #1",
            "2:",
            argument = in(reg) argument,
            entry = in(reg) entry,
            inlateout("x0") ptr::from_ref(args) => result,
            in("x1") size_of_val(args),
            in("x8") libc::SYS_clone3,
        );
    }
    result
}

/// Far more than the child's calls need.
const STACK: usize = 256 << 10;
const PAGE: usize = 64 << 10;

/// A stack with a page below it that nobody may touch.
struct Stack {
    mapping: *mut libc::c_void,
    bottom: *mut libc::c_void,
}

impl Stack {
    fn new() -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: new memory at an address of the kernel's choice, and its lowest part closed.
        unsafe {
            let mapping = libc::mmap(ptr::null_mut(), PAGE + STACK, protection, flags, -1, 0);
            if mapping == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let stack = Self {
                mapping,
                bottom: mapping.byte_add(PAGE),
            };
            if libc::mprotect(mapping, PAGE, libc::PROT_NONE) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(stack)
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and no child is on it any more.
        unsafe {
            libc::munmap(self.mapping, PAGE + STACK);
        }
    }
}
