//! What changed lately, in the order in which this table took it.
//!
//! A peer that is behind asks for what is newer than some version. Each change has a *stamp*, one
//! more than the last; a key has one entry, that of its last change. Who was told everything up to
//! a stamp asks from there on, so a change is told once however far behind the asker's version
//! stays.
//!
//! The entries are bounded. What falls out leaves two marks: its version, below which nobody who
//! names a version alone is answered, and its stamp, the same for who names one.

use std::collections::BTreeMap;

use model::Version;

use crate::graves::Key;

/// The last change of each of the keys that changed last.
#[derive(Debug)]
pub(crate) struct Recent {
    max: usize,
    last: u64,
    entries: BTreeMap<u64, (Version, Key)>,
    /// A full snapshot covers this and what is older.
    settled: Version,
    /// The newest version, and the last stamp, that fell out.
    lost: (Version, u64),
}

impl Recent {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            last: 0,
            entries: BTreeMap::new(),
            settled: Version::ZERO,
            lost: (Version::ZERO, 0),
        }
    }

    /// The stamp of the last change.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// A key changed to this version; answers the stamp of that.
    pub(crate) fn note(&mut self, before: Option<u64>, key: Key, version: Version) -> u64 {
        if let Some(before) = before {
            self.entries.remove(&before);
        }
        self.last += 1;
        if version > self.settled {
            self.entries.insert(self.last, (version, key));
            while self.entries.len() > self.max {
                if let Some((stamp, (version, _))) = self.entries.pop_first() {
                    self.lost = (self.lost.0.max(version), stamp);
                }
            }
        }
        self.last
    }

    /// A key is not known any more.
    pub(crate) fn forget(&mut self, stamp: u64) {
        self.entries.remove(&stamp);
    }

    /// A full snapshot at this version is about to be taken.
    pub(crate) fn settle(&mut self, version: Version) {
        self.settled = version;
        self.entries.retain(|_, (of, _)| *of > version);
        if self.lost.0 <= version {
            // What fell out is covered, too.
            self.lost = (Version::ZERO, 0);
        }
    }

    /// The keys that changed to something newer than a version, and after a stamp; nothing if some
    /// of them may have fallen out.
    pub(crate) fn after(
        &self,
        version: Version,
        stamp: Option<u64>,
    ) -> Option<impl Iterator<Item = &Key>> {
        // A stamp that was never given is another life's.
        let stamp = stamp.filter(|stamp| (self.lost.1..=self.last).contains(stamp));
        if stamp.is_none() && version < self.lost.0 {
            return None;
        }
        let later = self.entries.range(stamp.map_or(0, |stamp| stamp + 1)..);
        Some(
            later
                .filter(move |(_, (of, _))| *of > version)
                .map(|(_, (_, key))| key),
        )
    }
}
