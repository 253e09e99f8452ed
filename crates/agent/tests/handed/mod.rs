//! The real program behind a socket that listens already, so that nobody else can take its port meanwhile.

use std::{
    ffi::OsStr,
    net::TcpListener,
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
};

/// Words of a shell that make what it was given to read descriptor 3 of a program.
pub(crate) const HAND_ON: &str = "exec 3<&0 </dev/null; exec \"$@\"";

/// A shell that hands on to this program.
pub(crate) fn shell(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", HAND_ON, "sh"]).arg(program);
    command
}

/// Starts a command that hands on. From then on only the program has the socket: it closes with it.
pub(crate) fn spawn(command: &mut Command, listener: TcpListener) -> Child {
    let child = command
        .args(["--listen-fd", "3"])
        .stdin(OwnedFd::from(listener))
        .spawn();
    command.stdin(Stdio::null());
    child.expect("start the agent")
}
