//! A sandbox in memory: what its calls share, and what an inspection reads.

use std::{
    collections::BTreeMap,
    fs,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    sync::Arc,
    time::Duration,
};

use ::runtime::{Facts, Hooked, Observed, RuntimeError, WorkloadState};
use images::Origin;
use model::{
    Digest, Uid,
    sandbox::{Address, Via},
};
use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, WaitId, WaitIdOptions, waitid},
};

use crate::{
    error::{Doing as _, Result},
    kernel,
    record::{Ledger, ProcessId, Record, Stage},
};

/// The place of one uid. `work` is held by the one call that changes it; `seen` for moments only,
/// so that an inspection never waits for a capture.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) work: Mutex<()>,
    pub(crate) seen: Mutex<Option<Workload>>,
}

/// A sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) record: Record,
    pub(crate) ledger: Ledger,
    /// Its first process, while it is not known to have ended.
    pub(crate) process: Option<Process>,
    pub(crate) frozen: bool,
    /// Whether its commands have brought it up since its processes were last started.
    pub(crate) booted: bool,
    /// The hooks that were last run since then.
    pub(crate) hooked: Option<Hooked>,
}

/// A process of this boot.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    pub(crate) pidfd: Arc<OwnedFd>,
}

/// How long a killed process may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The exit code of a process whose end nobody saw.
pub(crate) const UNKNOWN_EXIT: i32 = -1;

impl Workload {
    /// What an inspection says.
    pub(crate) fn observed(&self) -> Observed {
        match self.record.stage {
            Stage::Making | Stage::Starting | Stage::Removing => Observed::Partial,
            Stage::Made | Stage::Restarting => Observed::Present(self.facts()),
        }
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts {
            state: self.state(),
            epoch: self.ledger.epoch,
            booted: self.booted,
            container_id: self.record.container_id.clone(),
            images: self.record.images.clone(),
            digests: self.digests(),
            hooked: self.hooked.clone(),
            layer: self.record.layer.clone(),
            network: self.record.network.clone(),
            address: Address {
                via: Via::NetworkNamespace,
                ip: None,
            },
            oom_kills: self.record.oom_kills,
            loss: None,
        }
    }

    /// What its root lies on, where that is an image.
    fn digests(&self) -> BTreeMap<Box<str>, Digest> {
        let Some(Origin::Image { digest }) = &self.record.origin else {
            return BTreeMap::new();
        };
        let containers = self.record.images.iter();
        containers
            .map(|(container, _)| (container.into(), digest.clone()))
            .collect()
    }

    pub(crate) fn state(&self) -> WorkloadState {
        match (&self.process, self.frozen) {
            (Some(_), false) => WorkloadState::Running,
            (Some(_), true) => WorkloadState::Frozen,
            (None, _) => match self.record.exit_code {
                Some(code) => WorkloadState::Exited { code },
                None => WorkloadState::Cut,
            },
        }
    }

    /// The sandbox, if it is whole and its first process lives.
    pub(crate) fn alive(&self, uid: Uid) -> Result<&Process, RuntimeError> {
        let wrong = |state| RuntimeError::WrongState {
            uid,
            state,
            needs: "delete it",
        };
        match self.record.stage {
            Stage::Making | Stage::Starting | Stage::Removing => {
                return Err(wrong("half-made"));
            }
            Stage::Made | Stage::Restarting => {}
        }
        self.process.as_ref().ok_or_else(|| wrong("exited"))
    }
}

impl Process {
    /// Finds a process that a record speaks of. A process that has the number of another now is
    /// told by its start; the start is read after the pidfd is held, so it cannot change hands in
    /// between.
    pub(crate) fn adopt(id: &ProcessId, boot_id: &str) -> Option<Self> {
        if *id.boot_id != *boot_id {
            return None;
        }
        let pid = Pid::from_raw(id.pid)?;
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
        if start_time(id.pid)? != id.start_time {
            return None;
        }
        Some(Self {
            id: id.clone(),
            pidfd: Arc::new(pidfd),
        })
    }

    /// Whether it has ended. Nobody is reaped, so its exit code can still be asked for.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// The exit code, if it has ended: 128 and the signal where one killed it.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        // Reaps it if it is a child of this server's.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(self.pidfd.as_fd()), ended) {
            Ok(None) => None,
            Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => code,
                (None, Some(signal)) => 128 + signal,
                (None, None) => UNKNOWN_EXIT,
            }),
            // It is somebody else's child since the server that made it has died.
            Err(_) => self
                .has_ended()
                .then(|| self.foreign_status().map_or(UNKNOWN_EXIT, from_wait_status)),
        }
    }

    /// The wait status of a process that somebody else reaps: the pidfd knows it after that, the
    /// list of processes before. In between it may be neither here nor there, so the pidfd is
    /// asked twice.
    fn foreign_status(&self) -> Option<i32> {
        let reaped = || {
            kernel::pidfd::wait_status(self.pidfd.as_fd())
                .ok()
                .flatten()
        };
        let zombie = || {
            let stat = stat_fields(self.id.pid)?;
            let field = |number: usize| stat.get(number - 3);
            let same = field(START_TIME)?.parse() == Ok(self.id.start_time);
            same.then(|| field(EXIT_STATUS)?.parse().ok()).flatten()
        };
        reaped().or_else(zombie).or_else(reaped)
    }

    /// Waits until it has ended, and reaps it if it is a child of this server's.
    pub(crate) fn wait(&self) -> Result<()> {
        if !self.ends_within(PATIENCE) {
            return Err(std::io::Error::from(std::io::ErrorKind::TimedOut))
                .doing("wait until the first process is gone");
        }
        self.exit_code();
        Ok(())
    }

    /// Whether it has ended, reaped or not, or does so soon.
    fn ends_within(&self, time: Duration) -> bool {
        let mut ended = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        loop {
            match poll(&mut ended, time.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.is_ok_and(|ready| ready > 0),
            }
        }
    }
}

fn from_wait_status(status: i32) -> i32 {
    let signal = status & 0x7f;
    if signal == 0 {
        (status >> 8) & 0xff
    } else {
        128 + signal
    }
}

/// Fields of `/proc/<pid>/stat`, counted from one.
const START_TIME: usize = 22;
const EXIT_STATUS: usize = 52;

/// The fields after the name, which is the second; none if the process is gone.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything, brackets and spaces included.
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// When a process started, in clock ticks since boot; none if it is gone.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    stat_fields(pid)?.get(START_TIME - 3)?.parse().ok()
}

/// The number of the host's own PID namespace, as the kernel has it from its start.
const HOST: u64 = 0xefff_fffc;

/// Which boot this is: of the host, or of the container that numbers this process. All processes go with
/// either.
pub(crate) fn boot_id() -> Result<Box<str>> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").doing("read the boot id")?;
    let namespace = fs::metadata("/proc/self/ns/pid").doing("look at the PID namespace")?;
    let number = namespace.ino();
    if number == HOST {
        return Ok(id.trim().into());
    }
    // Numbers of namespaces are given again, to one whose first process starts later.
    let begun = start_time(1).unwrap_or_default();
    Ok(format!("{}/{number}/{begun}", id.trim()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_becomes_a_shells_exit_code() {
        assert_eq!(from_wait_status(0x0700), 7);
        assert_eq!(from_wait_status(9), 137);
    }

    #[test]
    fn a_process_of_another_start_or_boot_is_another() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let boot = boot_id().unwrap();
        let id = ProcessId {
            pid,
            start_time: start_time(pid).unwrap(),
            boot_id: boot.clone(),
        };
        assert!(Process::adopt(&id, &boot).is_some());
        assert!(Process::adopt(&id, "another boot").is_none());
        let other = ProcessId {
            start_time: id.start_time + 1,
            ..id
        };
        assert!(Process::adopt(&other, &boot).is_none());
    }
}
