//! The first process between its clone and the init program.
//!
//! It borrows the server's memory, whose locks other threads hold and let go: nothing here
//! allocates, locks or panics. All it needs was prepared in a [`Script`] before the clone, and
//! what goes wrong is reported as two numbers.

use std::{
    convert::Infallible,
    ffi::CStr,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

use libc::sock_filter;
use rustix::{
    fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid, openat, openat2},
    mount::{
        MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        mount_change, move_mount, open_tree, unmount,
    },
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send},
    process::{Resource, Rlimit, chdir, fchdir, pivot_root, setrlimit, setsid, umask},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
        set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{
    kernel::{
        exec::{self, Program},
        idmap::{attribute, set_attributes},
        loopback,
    },
    mounts::fresh,
};

/// How many mounts the server can hand over.
pub(crate) const MAX_MOUNTS: usize = 8;

/// Everything the first process will need.
pub(crate) struct Script<'a> {
    /// The child's end of the connection to the server.
    pub(crate) socket: BorrowedFd<'a>,
    /// Files to write a zero to: see `Cgroup::doors`.
    pub(crate) doors: &'a [OwnedFd],
    /// A directory of the host to attach the new root at; only this process sees it there.
    pub(crate) attach_at: &'a CStr,
    /// What is mounted into the root, in order.
    pub(crate) mounts: &'a [Mount<'a>],
    /// A directory of the root that stays visible where a mount covers it.
    pub(crate) pierced: Option<&'a CStr>,
    pub(crate) hostname: &'a [u8],
    pub(crate) rlimits: &'a [(Resource, Rlimit)],
    /// Capabilities that root keeps.
    pub(crate) keep: CapabilitySet,
    pub(crate) no_new_privs: bool,
    pub(crate) filter: &'a [sock_filter],
    pub(crate) program: &'a Program,
}

/// One mount into the new root.
#[derive(Debug)]
pub(crate) enum Mount<'a> {
    /// The next that the server has handed over.
    Received { target: &'a CStr },
    /// A filesystem of the sandbox's own namespaces.
    Fresh {
        kind: &'a CStr,
        options: &'a [(&'a CStr, Option<&'a CStr>)],
        attributes: MountAttrFlags,
        target: &'a CStr,
    },
    /// The same again, read-only.
    ReadOnly { target: &'a CStr },
    /// A file of the root again, in place of another.
    InPlaceOf { target: &'a CStr, file: &'a CStr },
    /// A directory that is not to be read.
    HiddenDirectory { target: &'a CStr },
}

/// What the child was doing: the first of the two numbers it reports.
macro_rules! stages {
    ($($name:ident = $text:literal),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Stage { $($name),+ }

        impl Stage {
            pub(crate) fn describe(number: u8) -> &'static str {
                $(if number == Self::$name as u8 { return $text; })+
                "doing something unknown"
            }
        }
    };
}

stages! {
    Limits = "going under its limits",
    Descriptors = "closing descriptors",
    Receive = "waiting for the server",
    Session = "starting a session",
    Ids = "becoming root of the user namespace",
    Cgroup = "making the cgroup namespace",
    Root = "attaching the root filesystem",
    Mounts = "mounting into the root filesystem",
    Hide = "hiding kernel files",
    Pivot = "changing to the root filesystem",
    Hostname = "setting the host name",
    Loopback = "bringing the loopback interface up",
    Rlimits = "setting resource limits",
    Stdio = "opening /dev/null",
    Privileges = "giving up privileges",
    Filter = "loading the system call filter",
    Proof = "waiting until its files are proven",
    Execute = "executing the init program",
}

/// A failure as the child reports it.
#[derive(Debug)]
pub(crate) struct Failure(Stage, i32);

impl Failure {
    pub(crate) const SIZE: usize = 5;

    fn bytes(&self) -> [u8; Self::SIZE] {
        let [a, b, c, d] = self.1.to_le_bytes();
        [self.0 as u8, a, b, c, d]
    }

    /// What a report says: what was being done, and the error.
    pub(crate) fn read(bytes: [u8; Self::SIZE]) -> (&'static str, io::Error) {
        let [stage, a, b, c, d] = bytes;
        let errno = i32::from_le_bytes([a, b, c, d]);
        (Stage::describe(stage), io::Error::from_raw_os_error(errno))
    }
}

trait At<T> {
    fn at(self, stage: Stage) -> Result<T, Failure>;
}

impl<T> At<T> for rustix::io::Result<T> {
    fn at(self, stage: Stage) -> Result<T, Failure> {
        self.map_err(|errno| Failure(stage, errno.raw_os_error()))
    }
}

impl<T> At<T> for io::Result<T> {
    fn at(self, stage: Stage) -> Result<T, Failure> {
        self.map_err(|error| Failure(stage, error.raw_os_error().unwrap_or(0)))
    }
}

/// Runs the script; ends in the init program or in the child's death.
pub(crate) fn run(script: &Script<'_>) -> ! {
    // The server waits to hear that this process is there. If it does not, nobody can be told.
    if let Err(errno) = send(script.socket, b"?", SendFlags::NOSIGNAL) {
        exec::exit_now(errno.raw_os_error());
    }
    // Before anything else it could be charged for, and while the doors are open.
    let limited = (script.doors.iter())
        .try_for_each(|door| rustix::io::write(door, b"0").map(drop))
        .at(Stage::Limits);
    if let Err(failure) = exec::keep_only(script.socket.as_raw_fd()).at(Stage::Descriptors) {
        // No way is left to tell.
        exec::exit_now(failure.1);
    }
    let socket = exec::SERVER;
    let Err(failure) = limited.and_then(|()| perform(script, socket));
    // The server may be gone; then nobody needs to know.
    let _ = send(socket, &failure.bytes(), SendFlags::NOSIGNAL);
    exec::exit_now(127)
}

fn perform(script: &Script<'_>, socket: BorrowedFd<'_>) -> Result<Infallible, Failure> {
    let mut received = receive(socket).at(Stage::Receive)?;
    setsid().at(Stage::Session)?;
    umask(Mode::from_raw_mode(0o022));

    // While this is still the host's root, whose directories may be closed to all others.
    let attach_at = openat(
        CWD,
        script.attach_at,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .at(Stage::Root)?;
    set_thread_groups(&[]).at(Stage::Ids)?;
    let root = Some(Gid::ROOT);
    set_thread_res_gid(root, root, root).at(Stage::Ids)?;
    let root = Some(Uid::ROOT);
    set_thread_res_uid(root, root, root).at(Stage::Ids)?;
    exec::unshare_cgroup().at(Stage::Cgroup)?;

    let root = next(&mut received).at(Stage::Root)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change(c"/", private).at(Stage::Root)?;
    attach(root.as_fd(), attach_at.as_fd()).at(Stage::Root)?;
    let pierced = match script.pierced {
        None => None,
        Some(path) => {
            let visible = open_tree(root.as_fd(), path, CLONE).at(Stage::Mounts)?;
            Some((visible, path))
        }
    };
    let mut empty = None;
    for mount in script.mounts {
        mount_into(root.as_fd(), mount, &mut received, &mut empty)?;
    }
    if let Some((visible, path)) = pierced {
        let target = beneath(root.as_fd(), path).at(Stage::Mounts)?;
        attach(visible.as_fd(), target.as_fd()).at(Stage::Mounts)?;
    }

    fchdir(root.as_fd()).at(Stage::Pivot)?;
    // The old root ends up on top of the new one, and is taken away from there.
    pivot_root(c".", c".").at(Stage::Pivot)?;
    unmount(c".", UnmountFlags::DETACH).at(Stage::Pivot)?;
    chdir(c"/").at(Stage::Pivot)?;

    rustix::system::sethostname(script.hostname).at(Stage::Hostname)?;
    loopback::bring_up().at(Stage::Loopback)?;
    for (resource, limit) in script.rlimits {
        setrlimit(*resource, *limit).at(Stage::Rlimits)?;
    }
    let null = openat(
        CWD,
        c"/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .at(Stage::Stdio)?;
    exec::use_as_stdio(null.as_raw_fd()).at(Stage::Stdio)?;

    give_up_privileges(script)?;
    wait_for_word(socket).at(Stage::Proof)?;
    exec::default_signals();
    Err(script.program.execute()).at(Stage::Execute)
}

/// Waits until the server has set everything up, and takes the mounts it hands over.
fn receive(socket: BorrowedFd<'_>) -> io::Result<[Option<OwnedFd>; MAX_MOUNTS]> {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_MOUNTS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8];
    let message = recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if message.bytes == 0 {
        // The server has died.
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut received = [const { None }; MAX_MOUNTS];
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            for (slot, fd) in received.iter_mut().zip(fds) {
                *slot = Some(fd);
            }
        }
    }
    Ok(received)
}

/// Waits until the server lets it run.
fn wait_for_word(socket: BorrowedFd<'_>) -> io::Result<()> {
    match recv(socket, &mut [0_u8], RecvFlags::empty())? {
        // The server has died.
        (_, 0) => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn next(received: &mut [Option<OwnedFd>; MAX_MOUNTS]) -> rustix::io::Result<OwnedFd> {
    received
        .iter_mut()
        .find_map(Option::take)
        .ok_or(rustix::io::Errno::BADF)
}

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

fn mount_into(
    root: BorrowedFd<'_>,
    mount: &Mount<'_>,
    received: &mut [Option<OwnedFd>; MAX_MOUNTS],
    empty: &mut Option<OwnedFd>,
) -> Result<(), Failure> {
    match mount {
        Mount::Received { target } => {
            let mount = next(received).at(Stage::Mounts)?;
            let target = beneath(root, target).at(Stage::Mounts)?;
            attach(mount.as_fd(), target.as_fd()).at(Stage::Mounts)
        }
        Mount::Fresh {
            kind,
            options,
            attributes,
            target,
        } => {
            let mount = fresh(kind, options, *attributes).at(Stage::Mounts)?;
            let target = beneath(root, target).at(Stage::Mounts)?;
            attach(mount.as_fd(), target.as_fd()).at(Stage::Mounts)
        }
        Mount::ReadOnly { target } => {
            let target = beneath(root, target).at(Stage::Hide)?;
            let again = open_tree(target.as_fd(), c"", CLONE | EMPTY_PATH).at(Stage::Hide)?;
            let attributes =
                attribute::READ_ONLY | attribute::NO_SUID | attribute::NO_DEV | attribute::NO_EXEC;
            set_attributes(again.as_fd(), attributes, None).at(Stage::Hide)?;
            attach(again.as_fd(), target.as_fd()).at(Stage::Hide)
        }
        Mount::InPlaceOf { target, file } => {
            let file = beneath(root, file).at(Stage::Hide)?;
            let file = open_tree(file.as_fd(), c"", CLONE | EMPTY_PATH).at(Stage::Hide)?;
            let target = beneath(root, target).at(Stage::Hide)?;
            attach(file.as_fd(), target.as_fd()).at(Stage::Hide)
        }
        Mount::HiddenDirectory { target } => {
            let target = beneath(root, target).at(Stage::Hide)?;
            // One empty filesystem serves for all of them.
            let mount = match empty {
                Some(first) => open_tree(first.as_fd(), c"", CLONE | EMPTY_PATH).at(Stage::Hide)?,
                None => fresh(c"tmpfs", EMPTY_OPTIONS, EMPTY_ATTRIBUTES).at(Stage::Hide)?,
            };
            attach(mount.as_fd(), target.as_fd()).at(Stage::Hide)?;
            empty.get_or_insert(mount);
            Ok(())
        }
    }
}

const EMPTY_OPTIONS: &[(&CStr, Option<&CStr>)] = &[
    (c"size", Some(c"4k")),
    (c"nr_inodes", Some(c"2")),
    (c"mode", Some(c"555")),
];
const EMPTY_ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

const EMPTY_PATH: OpenTreeFlags = OpenTreeFlags::AT_EMPTY_PATH;

/// Opens a mount point. An image may have planted a link there, which would lead out of the new
/// root: until the pivot the host's files are still around.
pub(crate) fn beneath(root: BorrowedFd<'_>, path: &CStr) -> rustix::io::Result<OwnedFd> {
    openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
}

pub(crate) fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", target, c"", flags)
}

fn give_up_privileges(script: &Script<'_>) -> Result<(), Failure> {
    if script.no_new_privs {
        set_no_new_privs(true).at(Stage::Privileges)?;
    }
    clear_ambient_capability_set().at(Stage::Privileges)?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if script.keep.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // The kernel knows no more than this.
            Err(rustix::io::Errno::INVAL) => break,
            other => other.at(Stage::Privileges)?,
        }
    }
    // Where new privileges are allowed, loading a filter takes CAP_SYS_ADMIN: before it is gone.
    exec::load_filter(script.filter).at(Stage::Filter)?;
    let sets = CapabilitySets {
        effective: script.keep,
        permitted: script.keep,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).at(Stage::Privileges)
}
