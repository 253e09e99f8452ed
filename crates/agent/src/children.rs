//! The processes that are children of this one: started, signalled and reaped in one place.
//!
//! A number is free for another process as soon as its process is reaped. Starting, signalling and
//! reaping therefore happen under one lock: a signal reaches the process that was meant or none,
//! and a child that ends at once is known before it is reaped.

use std::{
    collections::HashMap,
    io,
    process::{Child, Command},
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait, waitpid};
use tokio::sync::oneshot;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal {
        number: i32,
        dumped: bool,
    },
    /// It was reaped by somebody else.
    Lost,
}

/// The children.
#[derive(Debug)]
pub(crate) struct Children {
    waiting: Mutex<HashMap<Pid, oneshot::Sender<Exit>>>,
    /// Whether everything that ends is ours to reap.
    all: bool,
}

impl Children {
    pub(crate) fn new(all: bool) -> Self {
        Self {
            waiting: Mutex::default(),
            all,
        }
    }

    /// Starts a process.
    pub(crate) fn spawn(
        &self,
        command: &mut Command,
    ) -> io::Result<(Child, Pid, oneshot::Receiver<Exit>)> {
        let mut waiting = self.waiting.lock();
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let (ended, end) = oneshot::channel();
        waiting.insert(pid, ended);
        Ok((child, pid, end))
    }

    /// Signals a child that has not been reaped. Says whether there was one.
    pub(crate) fn signal(&self, pid: Pid, signal: Signal) -> bool {
        let waiting = self.waiting.lock();
        waiting.contains_key(&pid) && kill_process(pid, signal).is_ok()
    }

    /// Signals every child.
    pub(crate) fn signal_all(&self, signal: Signal) {
        let waiting = self.waiting.lock();
        for pid in waiting.keys() {
            // One that has ended by itself in between is not missed.
            kill_process(*pid, signal).ok();
        }
    }

    /// Whether everything that ends is reaped here, as by the first process.
    pub(crate) const fn reaps_all(&self) -> bool {
        self.all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Takes leave of whatever has ended. To be called after every SIGCHLD.
    pub(crate) fn reap(&self) {
        let mut waiting = self.waiting.lock();
        if self.all {
            while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                if let Some(ended) = waiting.remove(&pid) {
                    ended.send(exit_of(status)).ok();
                }
            }
            return;
        }
        let pids: Vec<Pid> = waiting.keys().copied().collect();
        for pid in pids {
            let exit = match waitpid(Some(pid), WaitOptions::NOHANG) {
                Ok(None) | Err(rustix::io::Errno::INTR) => continue,
                Ok(Some((_, status))) => exit_of(status),
                Err(_) => Exit::Lost,
            };
            if let Some(ended) = waiting.remove(&pid) {
                ended.send(exit).ok();
            }
        }
    }
}

fn exit_of(status: rustix::process::WaitStatus) -> Exit {
    if let Some(code) = status.exit_status() {
        Exit::Code(code)
    } else if let Some(number) = status.terminating_signal() {
        Exit::Signal {
            number,
            dumped: status.as_raw() & 0x80 != 0,
        }
    } else {
        Exit::Lost
    }
}

/// What Go calls a signal; clients compare the text.
pub(crate) fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        16 => "stack fault",
        24 => "CPU time limit exceeded",
        25 => "file size limit exceeded",
        31 => "bad system call",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
