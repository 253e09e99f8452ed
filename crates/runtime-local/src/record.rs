//! What is known of a sandbox on disk, so that a new server can go on with it.
//!
//! `state.json` says what it is; it is replaced whole, and durably before the sandbox counts as
//! made, because a writable layer must be found again after the host has crashed. That is done
//! beside its start, before its first process runs, as [`Stage::Starting`]; that it runs then is noted
//! in `process.json`, without a sync, because no process outlives the host. `ledger` says which
//! fence was last seen and which delivery it is armed for; it changes with every call, and is
//! overwritten in place without a sync: a crash of the server loses nothing of it, and after a
//! crash of the host no caller from before is left, and no process either.

use std::{
    fs::{self, OpenOptions},
    io,
    net::Ipv4Addr,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use images::Origin;
use model::{
    Digest, Epoch, Generation, OperationId, StringMap,
    sandbox::{NetworkPolicy, Resources},
    template::RuntimeClass,
    workload::Boot,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Doing as _, EngineError, Result},
    ranges::Range,
};

/// How far a sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Stage {
    /// Being made.
    Making,
    /// All of it that outlives a boot is made and on disk; its processes are being started.
    Starting,
    /// Made.
    Made,
    /// Its processes and its writable layer are being replaced.
    Restarting,
    /// Being removed.
    Removing,
}

/// Where the disks of sandboxes are, below the data directory.
pub(crate) const DISKS: &str = "disks/mounted";

/// A sandbox as it is on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) stage: Stage,
    /// The first of its user ids on the host.
    pub(crate) first_uid: u32,
    pub(crate) container_id: Box<str>,
    pub(crate) images: StringMap,
    /// What its writable layer lies on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layer: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resources: Option<Resources>,
    /// What it may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<Box<NetworkPolicy>>,
    /// Its address, while it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<Ipv4Addr>,
    /// What isolates it.
    #[serde(default)]
    pub(crate) class: RuntimeClass,
    /// Whether setuid programs inside may raise privileges, up to root inside.
    #[serde(default)]
    pub(crate) sudo: bool,
    /// What brings it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot: Option<Box<Boot>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<ProcessId>,
    /// The name of the engine that last started it; none if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<Box<str>>,
    /// The boot it was last started in.
    #[serde(default)]
    pub(crate) boot_id: Box<str>,
    /// How many processes were killed since its last start because memory ran out.
    #[serde(default)]
    pub(crate) oom_kills: u32,
    /// How the first process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
}

impl Record {
    pub(crate) const fn range(&self) -> Range {
        Range::starting(self.first_uid)
    }
}

/// A process that cannot be mistaken for another: numbers are reused, these three together not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    /// In clock ticks since boot.
    pub(crate) start_time: u64,
    pub(crate) boot_id: Box<str>,
}

/// What changes with every call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) generation: Generation,
    pub(crate) operation: OperationId,
    pub(crate) epoch: Epoch,
}

impl Ledger {
    const SIZE: usize = 28;

    fn bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.operation.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.0.to_le_bytes());
        let sum = checksum(&bytes[..20]);
        bytes[20..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// What was written last; nothing where the file is missing or torn.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_at_checked(20)?;
        if checksum(content).to_le_bytes() != sum {
            return None;
        }
        Some(Self {
            generation: Generation(u64::from_le_bytes(content[..8].try_into().ok()?)),
            operation: OperationId(u64::from_le_bytes(content[8..16].try_into().ok()?)),
            epoch: Epoch(u32::from_le_bytes(content[16..].try_into().ok()?)),
        })
    }

    pub(crate) const fn rank(self) -> (Generation, OperationId) {
        (self.generation, self.operation)
    }
}

/// FNV-1a: finds a torn write, guards against nobody.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The directory of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) const fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    /// A link to its own disk, if its disk space is limited.
    pub(crate) fn disk(&self) -> PathBuf {
        self.0.join("disk")
    }

    /// Below its own disk, if it has one. The link only says so: a data directory that was moved or copied
    /// has links to where it was.
    fn writable(&self, name: &str) -> PathBuf {
        let data = self.0.ancestors().nth(2);
        match (data, self.0.file_name()) {
            (Some(data), Some(uid)) if self.disk().is_symlink() => {
                data.join(DISKS).join(uid).join(name)
            }
            (_, _) => self.0.join(name),
        }
    }

    /// Its writable layer.
    pub(crate) fn upper(&self) -> PathBuf {
        self.writable("upper")
    }

    /// What the overlay needs beside it.
    pub(crate) fn work(&self) -> PathBuf {
        self.writable("work")
    }

    /// What it sees at `/run/dormouse`.
    pub(crate) fn inside(&self) -> PathBuf {
        self.0.join("inside")
    }

    /// What an OCI runtime is told about it and keeps of it.
    pub(crate) fn bundle(&self) -> PathBuf {
        self.0.join("oci")
    }

    /// Where its first process may say how it ended.
    pub(crate) fn exit_file(&self) -> PathBuf {
        self.0.join("exit")
    }

    /// Where what is too deep is put while it is removed.
    pub(crate) fn parking(&self) -> PathBuf {
        self.writable("parking")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// Its first process, once that runs.
    fn process(&self) -> PathBuf {
        self.0.join("process.json")
    }

    fn ledger(&self) -> PathBuf {
        self.0.join("ledger")
    }

    /// Whether the files of a restored layer are all on disk: see `settle`.
    fn mark(&self) -> PathBuf {
        self.0.join("settled")
    }

    /// Notes that they are not.
    pub(crate) fn make_mark(&self) -> Result<fs::File> {
        fs::File::create_new(self.mark()).doing("note that the sandbox's files are being restored")
    }

    /// The mark of files of which it is not known. None where there was nothing to restore.
    pub(crate) fn open_mark(&self) -> Option<fs::File> {
        let file = OpenOptions::new().write(true).open(self.mark()).ok()?;
        (file.metadata().ok()?.len() == 0).then_some(file)
    }

    pub(crate) fn remove_mark(&self) -> Result<()> {
        match fs::remove_file(self.mark()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).doing("remove the mark of restored files")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Replaces the record. Without a sync it survives the death of the server; with one, that of
    /// the host.
    pub(crate) fn write_record(&self, record: &Record, durably: bool) -> Result<()> {
        let text = serde_json::to_vec(record).map_err(io::Error::from);
        let text = text.doing("encode the sandbox's state")?;
        if durably {
            kit::durable::write_file(&self.state(), &text, 0o600)
        } else {
            replace(&self.state(), &text, 0o600)
        }
        .doing("write the sandbox's state")
    }

    /// Reads the record.
    pub(crate) fn read_record(&self) -> Result<Record> {
        let text = fs::read(self.state()).doing("read the sandbox's state")?;
        serde_json::from_slice(&text).map_err(|error| EngineError::Damaged {
            what: self.state().display().to_string().into(),
            how: error.to_string().into(),
        })
    }

    /// Notes the first process, beside the record: a new file costs nothing, while replacing one
    /// makes some filesystems write it out at once.
    pub(crate) fn write_process(&self, process: &ProcessId) -> Result<()> {
        use io::Write as _;
        let write = || {
            let text = serde_json::to_vec(process)?;
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(self.process())?;
            file.write_all(&text)
        };
        write().doing("note the first process")
    }

    /// The first process, if one was noted since the record was written.
    pub(crate) fn read_process(&self) -> Option<ProcessId> {
        serde_json::from_slice(&fs::read(self.process()).ok()?).ok()
    }

    pub(crate) fn remove_process(&self) -> Result<()> {
        match fs::remove_file(self.process()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).doing("remove the note of the first process")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn write_ledger(&self, ledger: Ledger) -> Result<()> {
        let write = || {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(self.ledger())?
                .write_all_at(&ledger.bytes(), 0)
        };
        write().doing("write the sandbox's ledger")
    }

    pub(crate) fn read_ledger(&self) -> Ledger {
        fs::read(self.ledger())
            .ok()
            .and_then(|bytes| Ledger::read(&bytes))
            .unwrap_or_default()
    }
}

/// Replaces a file whole, for everybody who sees this kernel's memory.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    use io::Write as _;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&beside)?;
    file.write_all(content)?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_ledger_says_nothing() {
        let ledger = Ledger {
            generation: Generation(7),
            operation: OperationId(9),
            epoch: Epoch(2),
        };
        let bytes = ledger.bytes();
        assert_eq!(Ledger::read(&bytes), Some(ledger));
        for cut in 0..bytes.len() {
            let mut torn = bytes;
            torn[cut] ^= 1;
            assert_eq!(Ledger::read(&torn), None, "byte {cut}");
            assert_eq!(Ledger::read(&bytes[..cut]), None, "first {cut} bytes");
        }
    }
}
