//! Calling a runtime: in the sandbox's cgroup where the runtime would not go there by itself, and
//! for a `create` in a mount namespace of its own, where the root filesystem is attached.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, OFlags, openat},
    mount::{MountPropagationFlags, OpenTreeFlags, mount_change, open_tree},
    process::{
        Signal, WaitId, WaitIdOptions, pidfd_send_signal, set_parent_process_death_signal, setsid,
        umask, waitid,
    },
};

use super::{Kind, failed};
use crate::{
    cgroups::Entry,
    child::{attach, beneath},
    error::{Doing as _, Result},
    kernel::{
        clone::{Cloned, clone_with},
        exec::{self, Program},
    },
};

/// How long a call may take. A gVisor starts in a fifth of a second on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Directories that every host has, everybody may pass through, and nobody misses for a moment: a
/// root is attached there, seen by one process. A runtime looks for it as a user of the sandbox,
/// who cannot pass through the data directory.
const STAGES: [&str; 5] = ["/mnt", "/media", "/srv", "/opt", "/home"];

/// Where a root can be attached without covering what the runtime needs.
pub(super) fn stage(needed: &[&Path]) -> Result<PathBuf> {
    let usable = |stage: &PathBuf| {
        let is_directory = fs::symlink_metadata(stage).is_ok_and(|m| m.is_dir());
        is_directory && !needed.iter().any(|path| path.starts_with(stage))
    };
    let found = STAGES.into_iter().map(PathBuf::from).find(usable);
    let none = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("none of {STAGES:?} is there"),
        )
    };
    found.ok_or_else(none).doing("find a place for the root")
}

/// A path as an argument.
pub(super) fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    let not_text = || io::Error::new(io::ErrorKind::InvalidInput, "a path that is not UTF-8");
    text.ok_or_else(not_text)
        .doing("name a path to the runtime")
}

/// What is attached for a call.
#[derive(Debug)]
pub(super) struct Attached<'a> {
    pub(super) stage: &'a Path,
    /// The root, and what is mounted into it.
    pub(super) mounts: &'a [OwnedFd],
    /// Where the others go.
    pub(super) targets: Vec<&'a CStr>,
    /// A directory of the root that stays visible where a mount covers it.
    pub(super) pierced: Option<&'a CStr>,
}

/// A runtime, and whom it is called for.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) kind: Kind,
    pub(super) program: &'a Path,
    /// Its directory in the sandbox's.
    pub(super) bundle: &'a Path,
    pub(super) entry: Option<&'a Entry>,
}

/// All that the child needs, prepared before the clone: see `child`.
struct Script<'a> {
    doors: &'a [OwnedFd],
    stage: Option<CString>,
    attached: Option<&'a Attached<'a>>,
    program: Program,
}

impl Call<'_> {
    /// Calls it, and waits for its end.
    pub(super) fn run(&self, words: &[&str], attached: Option<&Attached<'_>>) -> Result<()> {
        let doing = words.first().copied().unwrap_or_default();
        let log = self.bundle.join("log.json");
        let script = Script {
            doors: self.entry.map_or(&[], |entry| &entry.doors),
            stage: attached
                .map(|attached| cstring(attached.stage.as_os_str().as_bytes()))
                .transpose()?,
            attached,
            program: self.prepare(words, &log)?,
        };
        let cgroup = self.entry.map(|entry| entry.unified.as_fd());
        let child = clone(attached.is_some(), cgroup, &script).doing("start the runtime")?;
        let status = wait(&child)?;
        if status == 0 {
            return Ok(());
        }
        Err(failed(self.kind, doing, last_error(&log, status)))
    }

    fn prepare(&self, words: &[&str], log: &Path) -> Result<Program> {
        let (log, state) = (text(log)?, text(&self.bundle.join("state"))?);
        let mut args = vec![text(self.program)?, "--root".into(), state];
        args.extend(["--log".into(), log, "--log-format".into(), "json".into()]);
        args.extend(
            self.kind
                .options()
                .iter()
                .map(|option| (*option).to_owned()),
        );
        args.extend(words.iter().map(|word| (*word).to_owned()));
        let args = args.iter().map(|arg| cstring(arg.as_bytes()));
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        Ok(Program::new(
            cstring(self.program.as_os_str().as_bytes())?,
            args.collect::<Result<_>>()?,
            vec![cstring(path.as_bytes())?],
        ))
    }
}

fn cstring(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes)
        .map_err(io::Error::from)
        .doing("prepare the runtime's arguments")
}

#[expect(
    unsafe_code,
    reason = "the child's script keeps the promise that a clone asks for"
)]
fn clone(private: bool, cgroup: Option<BorrowedFd<'_>>, script: &Script<'_>) -> io::Result<Cloned> {
    let namespaces = if private { libc::CLONE_NEWNS } else { 0 };
    // SAFETY: `child` makes system calls on what the script holds and ends in exec or exit; it
    // allocates nothing and takes no lock.
    unsafe { clone_with(namespaces, cgroup, || child(script)) }
}

/// The child: a copy of one thread of the server, so nothing here allocates, locks or panics.
fn child(script: &Script<'_>) {
    let code = match set_up(script) {
        Err(errno) => errno.raw_os_error(),
        Ok(()) => script.program.execute().raw_os_error().unwrap_or(1),
    };
    // Out of reach for what runtimes end with.
    exec::exit_now(128 | code);
}

fn set_up(script: &Script<'_>) -> rustix::io::Result<()> {
    // A call without a server has nobody to tell.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    for door in script.doors {
        rustix::io::write(door, b"0")?;
    }
    setsid()?;
    umask(Mode::from_raw_mode(0o022));
    if let (Some(attached), Some(stage)) = (script.attached, &script.stage) {
        attach_all(attached, stage)?;
    }
    // The first process inherits these from the runtime.
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let null = openat(CWD, c"/dev/null", flags, Mode::empty())?;
    exec::use_as_stdio(null.as_raw_fd()).map_err(|_| rustix::io::Errno::BADF)?;
    exec::default_signals();
    Ok(())
}

fn attach_all(attached: &Attached<'_>, stage: &CStr) -> rustix::io::Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change(c"/", private)?;
    let [root, others @ ..] = attached.mounts else {
        return Err(rustix::io::Errno::BADF);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let at = openat(CWD, stage, flags, Mode::empty())?;
    attach(root.as_fd(), at.as_fd())?;
    let pierced = match attached.pierced {
        None => None,
        Some(path) => {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            Some((open_tree(root.as_fd(), path, flags)?, path))
        }
    };
    for (mount, target) in others.iter().zip(&attached.targets) {
        let target = beneath(root.as_fd(), target)?;
        attach(mount.as_fd(), target.as_fd())?;
    }
    if let Some((visible, path)) = pierced {
        let target = beneath(root.as_fd(), path)?;
        attach(visible.as_fd(), target.as_fd())?;
    }
    Ok(())
}

/// The exit status, as a shell would show it.
fn wait(child: &Cloned) -> Result<i32> {
    let patience = Timespec::try_from(PATIENCE).ok();
    let ended = loop {
        let mut ended = [PollFd::from_borrowed_fd(child.pidfd.as_fd(), PollFlags::IN)];
        match poll(&mut ended, patience.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.is_ok_and(|ready| ready > 0),
        }
    };
    if !ended {
        // It may end by itself just now.
        let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
    }
    let status = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED)
        .doing("wait for the runtime")?;
    if !ended {
        return Err(io::Error::from(io::ErrorKind::TimedOut)).doing("wait for the runtime");
    }
    let code = |status: rustix::process::WaitIdStatus| {
        let killed = status.terminating_signal().map(|signal| 128 + signal);
        status.exit_status().or(killed)
    };
    Ok(status.and_then(code).unwrap_or(1))
}

/// What the runtime has logged last, for people.
fn last_error(log: &Path, status: i32) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let message = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(line.get("msg")?.as_str()?.to_owned())
    };
    match text.lines().rev().find_map(message) {
        Some(message) => message,
        None if status > 128 => {
            let error = io::Error::from_raw_os_error(status & 0x7f);
            format!("it could not be started, or was killed: {error}")
        }
        None => format!("it ended with {status} and without a word"),
    }
}
