//! Tombstones, and when they may go.
//!
//! ```text
//!            retention over, watch behind          watch passes it
//!   young ─────────────────────────────▶ waiting ──────────────────▶ collected
//!     └───────────── retention over, watch has passed it ──────────────▲
//! ```
//!
//! Each tombstone has exactly one entry, so nothing has to be scanned: every mutation looks at a
//! few of the oldest. The two queues are apart because a delete far ahead of the watch must not
//! hold up those behind it.

use std::{collections::BTreeMap, time::Duration};

use model::{Name, Namespace, Version};

/// Names one burial; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

pub(crate) type Key = (Namespace, Name);

#[derive(Debug)]
struct Young {
    until: Duration,
    version: Version,
    key: Key,
}

/// Every tombstone of a table, by when it may go.
#[derive(Debug)]
pub(crate) struct Graves {
    retention: Duration,
    max: usize,
    last: u64,
    young: BTreeMap<Ticket, Young>,
    waiting: BTreeMap<(Version, Ticket), Key>,
}

impl Graves {
    pub(crate) fn new(retention: Duration, max: usize) -> Self {
        Self {
            retention,
            max,
            last: 0,
            young: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.waiting.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    pub(crate) fn bury(&mut self, key: Key, version: Version, now: Duration) -> Ticket {
        self.last += 1;
        let ticket = Ticket(self.last);
        let until = now.saturating_add(self.retention);
        self.young.insert(
            ticket,
            Young {
                until,
                version,
                key,
            },
        );
        ticket
    }

    /// A newer delete of a key that has a tombstone: the version rises, the retention does not
    /// start again, so repeated deletes cannot keep one for ever.
    pub(crate) fn advance(&mut self, ticket: Ticket, from: Version, to: Version) {
        if let Some(young) = self.young.get_mut(&ticket) {
            young.version = to;
        } else if let Some(key) = self.waiting.remove(&(from, ticket)) {
            self.waiting.insert((to, ticket), key);
        }
    }

    /// The key lives again, or a snapshot settled it.
    pub(crate) fn forget(&mut self, ticket: Ticket, version: Version) {
        if self.young.remove(&ticket).is_none() {
            self.waiting.remove(&(version, ticket));
        }
    }

    /// The next tombstone that may be collected, or none within a few steps' work.
    ///
    /// Beyond the limit the retention is cut short: what the own watch has passed is covered by
    /// the floor, and the retention is only a margin on top of that.
    pub(crate) fn collect(&mut self, now: Duration, watched: Version) -> Option<(Key, Version)> {
        if let Some(first) = self.waiting.first_entry()
            && first.key().0 <= watched
        {
            let ((version, _), key) = first.remove_entry();
            return Some((key, version));
        }
        let crowded = self.len() > self.max;
        let first = self.young.first_entry()?;
        if first.get().until > now && !crowded {
            return None;
        }
        let (ticket, Young { version, key, .. }) = first.remove_entry();
        if version <= watched {
            return Some((key, version));
        }
        self.waiting.insert((version, ticket), key);
        None
    }
}
