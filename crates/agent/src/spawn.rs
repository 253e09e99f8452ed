//! Starting a program as somebody, somewhere, with or without a terminal.

#![expect(
    unsafe_code,
    reason = "what happens between fork and exec, as another user in another session, has no safe form"
)]

use std::{
    collections::BTreeMap,
    ffi::CString,
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, process::CommandExt as _},
    },
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Gid, Pid, Uid},
    pty::OpenptFlags,
    termios::Winsize,
};
use tokio::sync::oneshot;
use wire::process::{ProcessConfig, PtySize};

use crate::{
    children::{Children, Exit},
    settings::can_be_set,
    users::User,
};

/// What a terminal has when a client does not say.
const DEFAULT_SIZE: PtySize = PtySize { cols: 80, rows: 24 };

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: Pid,
    pub(crate) exit: oneshot::Receiver<Exit>,
    pub(crate) io: Io,
}

/// Its ends on this side.
#[derive(Debug)]
pub(crate) enum Io {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    Pty(OwnedFd),
}

/// How a program's ends are to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ends {
    Pipes { stdin: bool },
    Pty(Option<PtySize>),
}

/// Starts a program. The caller has checked that `cwd` is a directory.
pub(crate) fn spawn(
    children: &Children,
    config: &ProcessConfig,
    user: &User,
    cwd: &Path,
    env: BTreeMap<String, String>,
    ends: Ends,
) -> io::Result<Spawned> {
    let mut command = Command::new(&config.cmd);
    command.args(&config.args).env_clear();
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    } else {
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
    }
    command
        .env("HOME", &user.home)
        .env("USER", &user.name)
        .env("LOGNAME", &user.name);
    for (key, value) in env.into_iter().chain(config.envs.clone()) {
        if !can_be_set(&key, &value) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("environment variable {key:?} cannot be set"),
            ));
        }
        command.env(key, value);
    }

    let terminal = match ends {
        Ends::Pipes { stdin } => {
            command
                .stdin(if stdin { Stdio::piped() } else { Stdio::null() })
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            None
        }
        Ends::Pty(size) => {
            let (ours, theirs) = open_terminal(size, user)?;
            command
                .stdin(theirs.try_clone()?)
                .stdout(theirs.try_clone()?)
                .stderr(theirs);
            Some(ours)
        }
    };
    prepare(&mut command, user, cwd, terminal.is_some())?;

    let (child, pid, exit) = children.spawn(&mut command)?;
    // The command holds the other side of a terminal; it ends with it.
    drop(command);
    let io = match terminal {
        Some(terminal) => Io::Pty(terminal),
        None => pipes(child)?,
    };
    Ok(Spawned { pid, exit, io })
}

fn pipes(child: Child) -> io::Result<Io> {
    let (Some(stdout), Some(stderr)) = (child.stdout, child.stderr) else {
        return Err(io::Error::other("a started program has no pipes"));
    };
    Ok(Io::Pipes {
        stdin: child.stdin.map(OwnedFd::from),
        stdout: stdout.into(),
        stderr: stderr.into(),
    })
}

/// Both sides of a new terminal: ours, then the program's.
fn open_terminal(size: Option<PtySize>, user: &User) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&ours)?;
    rustix::pty::unlockpt(&ours)?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    // Programs that open their terminal by name need it to be theirs. Not owning it is no reason
    // not to start.
    rustix::fs::fchown(&theirs, Some(Uid::from_raw(user.uid)), None).ok();
    resize(&ours, size.unwrap_or(DEFAULT_SIZE))?;
    Ok((ours, theirs))
}

/// Sets the size of a terminal; the kernel tells who is in the foreground.
pub(crate) fn resize(terminal: &OwnedFd, size: PtySize) -> io::Result<()> {
    let clamp = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    let size = Winsize {
        ws_row: clamp(size.rows),
        ws_col: clamp(size.cols),
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// Everything between fork and exec.
fn prepare(command: &mut Command, user: &User, cwd: &Path, terminal: bool) -> io::Result<()> {
    let cwd = CString::new(cwd.as_os_str().as_bytes())?;
    let groups: Vec<Gid> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // An agent that is not root can only start programs as itself: then there is nothing to change.
    let become_user = rustix::process::geteuid() != uid || rustix::process::geteuid().is_root();
    let after_fork = move || -> io::Result<()> {
        // A session of its own: `kill 0` in a script does not reach the agent.
        rustix::process::setsid()?;
        if terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        // The sandbox should lose a program before its agent. Where /proc is not there, so be it.
        if let Ok(file) =
            rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY, Mode::empty())
        {
            rustix::io::write(&file, b"100").ok();
        }
        if become_user {
            rustix::thread::set_thread_groups(&groups)?;
            rustix::thread::set_thread_gid(gid)?;
            rustix::thread::set_thread_uid(uid)?;
        }
        rustix::process::chdir(cwd.as_c_str())?;
        Ok(())
    };
    // SAFETY: the closure runs in the child after fork and before exec. It only makes system calls
    // by rustix, on values prepared before the fork, and allocates nothing; the child has a single
    // thread, so the calls that change one thread's ids change the process's.
    unsafe { command.pre_exec(after_fork) };
    Ok(())
}
