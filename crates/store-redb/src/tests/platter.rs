//! A disk in memory that forgets, tears, fails and fills up as real ones do.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
};

use kit::Entropy;
use model::{Incarnation, Version};
use parking_lot::Mutex;
use redb::StorageBackend;

use crate::{
    disk::{Disk, Medium},
    engine,
};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;
/// What a file system allocates.
const BLOCK: u64 = 4096;

/// A disk; clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct Platter(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    dice: Entropy,
    /// What was there at the last sync.
    durable: Vec<u8>,
    /// What reads see.
    current: Vec<u8>,
    /// Contents of sectors since the last sync, oldest first. The disk may hold any of them.
    written: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    /// Lengths of the file since the last sync.
    lengths: Vec<usize>,
    /// Blocks that have room on the disk, and how many there is room for.
    allocated: BTreeSet<u64>,
    capacity: usize,
    /// Steps (writes and syncs) until the fault happens.
    countdown: Option<(usize, Fault)>,
    off: bool,
    steps: usize,
}

/// What happens at a chosen step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The power goes, and with it what was not synced.
    PowerCut,
    /// This one step fails, and what it was to write is lost in part.
    Error(io::ErrorKind),
}

impl Platter {
    /// A disk with an empty store on it.
    pub(super) fn new(seed: u64) -> Self {
        let platter = Self(Arc::new(Mutex::new(State {
            dice: Entropy::seeded(seed),
            durable: Vec::new(),
            current: Vec::new(),
            written: BTreeMap::new(),
            lengths: Vec::new(),
            allocated: BTreeSet::new(),
            capacity: usize::MAX,
            countdown: None,
            off: false,
            steps: 0,
        })));
        let medium = Medium(Box::new(platter.clone()));
        drop(engine::initialise(medium, Version::new(Incarnation(0), 0)).unwrap());
        platter
    }

    /// Does this to the step that comes after so many.
    pub(super) fn plan(&self, steps: usize, fault: Fault) {
        self.0.lock().countdown = Some((steps, fault));
    }

    /// How many steps there were.
    pub(super) fn steps(&self) -> usize {
        self.0.lock().steps
    }

    /// Whether the planned fault has happened.
    pub(super) fn is_past_its_fault(&self) -> bool {
        self.0.lock().countdown.is_none()
    }

    /// Gives the disk room for this many more blocks than are in use.
    pub(super) fn leave_room_for(&self, blocks: usize) {
        let mut state = self.0.lock();
        state.capacity = state.allocated.len() + blocks;
    }

    /// Cuts the power if that has not happened, and switches it on again.
    pub(super) fn power_cycle(&self) {
        let mut state = self.0.lock();
        state.lose_unsynced();
        state.countdown = None;
        state.off = false;
    }
}

impl State {
    /// Each sector holds what was synced or one of the contents written since; the file has one of
    /// the lengths it had since.
    fn lose_unsynced(&mut self) {
        let mut lengths = std::mem::take(&mut self.lengths);
        lengths.insert(0, self.durable.len());
        // Now and then everything or nothing arrived: cuts are most dangerous near a sync.
        let arrives = [0.0, 0.1, 0.5, 0.9, 1.0][self.dice.below(5)];
        let length = if self.dice.chance(arrives) {
            lengths[lengths.len() - 1]
        } else {
            lengths[self.dice.below(lengths.len())]
        };
        self.durable.resize(length, 0);
        for (sector, contents) in std::mem::take(&mut self.written) {
            if !self.dice.chance(arrives) {
                continue;
            }
            let content = contents[self.dice.below(contents.len())];
            let at = sector * SECTOR;
            if at < length {
                let end = (at + SECTOR).min(length);
                self.durable[at..end].copy_from_slice(&content[..end - at]);
            }
        }
        self.current = self.durable.clone();
    }

    /// Counts a step, and does what is planned for it.
    fn step(&mut self) -> io::Result<()> {
        if self.off {
            return Err(io::Error::other("the power is off"));
        }
        self.steps += 1;
        let Some((left, fault)) = &mut self.countdown else {
            return Ok(());
        };
        if *left > 0 {
            *left -= 1;
            return Ok(());
        }
        let fault = *fault;
        self.countdown = None;
        match fault {
            Fault::PowerCut => {
                self.off = true;
                Err(io::Error::other("the power is off"))
            }
            Fault::Error(kind) => {
                self.lose_unsynced();
                Err(kind.into())
            }
        }
    }
}

impl StorageBackend for Platter {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock();
        if state.off {
            return Err(io::Error::other("the power is off"));
        }
        let at = offset as usize;
        let content = state.current.get(at..at + out.len());
        out.copy_from_slice(content.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        let len = len as usize;
        state.current.resize(len, 0);
        state.lengths.push(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        let length = state.current.len();
        state.durable.resize(length, 0);
        let written = std::mem::take(&mut state.written);
        for sector in written.into_keys() {
            let range = (sector * SECTOR).min(length)..((sector + 1) * SECTOR).min(length);
            let State {
                durable, current, ..
            } = &mut *state;
            durable[range.clone()].copy_from_slice(&current[range]);
        }
        state.lengths.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        let blocks = offset / BLOCK..(offset + data.len() as u64).div_ceil(BLOCK);
        for block in blocks {
            if state.allocated.contains(&block) {
                continue;
            }
            if state.allocated.len() >= state.capacity {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.allocated.insert(block);
        }
        let at = offset as usize;
        let end = at + data.len();
        if state.current.len() < end {
            state.current.resize(end, 0);
            state.lengths.push(end);
        }
        state.current[at..end].copy_from_slice(data);
        for sector in at / SECTOR..end.div_ceil(SECTOR) {
            let mut content = [0; SECTOR];
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(state.current.len());
            content[..range.len()].copy_from_slice(&state.current[range]);
            state.written.entry(sector).or_default().push(content);
        }
        Ok(())
    }
}

impl Disk for Platter {
    fn open(&self) -> io::Result<Medium> {
        Ok(Medium(Box::new(self.clone())))
    }

    fn reopen(&self) -> io::Result<Medium> {
        self.open()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        // As a disk that others fill between the question and the write.
        Ok(u64::MAX)
    }

    fn path(&self) -> &Path {
        Path::new("platter")
    }
}
