//! User ids: each sandbox has 65,536 of the host's for itself, so that what it owns belongs to
//! nobody else.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::error::{Result, impossible};

/// How many ids a sandbox has.
pub(crate) const IDS: u32 = images::layer::ids::COUNT;

/// The ids of one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range(u32);

impl Range {
    /// The range that begins at this id of the host.
    pub(crate) const fn starting(first: u32) -> Self {
        Self(first)
    }

    /// The id on the host of root inside.
    pub(crate) const fn first(self) -> u32 {
        self.0
    }

    /// The id on the host of an id inside.
    pub(crate) const fn outside(self, inside: u32) -> Option<u32> {
        images::layer::Ids::From(self.0).outside(inside)
    }

    /// As the kernel reads it: inside, outside, how many.
    pub(crate) fn map(self) -> String {
        format!("0 {} {IDS}\n", self.0)
    }
}

/// Hands ranges out. Which are taken is known from the sandboxes' records.
#[derive(Debug)]
pub(crate) struct Ranges {
    first: u32,
    count: u32,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    numbers: BTreeSet<u32>,
    /// Where the search begins: a range that was given back rests as long as possible.
    next: u32,
}

impl Ranges {
    pub(crate) fn new(first: u32, count: u32) -> Self {
        Self {
            first,
            count: count.min((u32::MAX - first) / IDS),
            taken: Mutex::default(),
        }
    }

    /// A range nobody has.
    pub(crate) fn take(&self) -> Result<Range> {
        let mut taken = self.taken.lock();
        let from = taken.next;
        let number = (from..self.count)
            .chain(0..from.min(self.count))
            .find(|n| !taken.numbers.contains(n))
            .ok_or_else(|| {
                impossible(
                    "sandbox",
                    format!("all {} ranges of user ids are taken", self.count),
                )
            })?;
        taken.numbers.insert(number);
        taken.next = number + 1;
        Ok(Range(self.first + number * IDS))
    }

    /// Notes a range that a record speaks of.
    pub(crate) fn adopt(&self, range: Range) {
        if let Some(number) = self.number(range) {
            self.taken.lock().numbers.insert(number);
        }
    }

    /// Takes a range back. Nothing may be left that belongs to its ids.
    pub(crate) fn give_back(&self, range: Range) {
        if let Some(number) = self.number(range) {
            self.taken.lock().numbers.remove(&number);
        }
    }

    fn number(&self, range: Range) -> Option<u32> {
        let offset = range.0.checked_sub(self.first)?;
        (offset % IDS == 0 && offset / IDS < self.count).then_some(offset / IDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_given_back_rests_until_the_others_were_used() {
        let ranges = Ranges::new(1 << 20, 3);
        let first = ranges.take().unwrap();
        ranges.give_back(first);
        assert_ne!(ranges.take().unwrap(), first);
        assert_ne!(ranges.take().unwrap(), first);
        assert_eq!(ranges.take().unwrap(), first);
        assert!(ranges.take().is_err(), "all are taken");
    }

    #[test]
    fn an_adopted_range_is_not_handed_out() {
        let ranges = Ranges::new(1 << 20, 2);
        ranges.adopt(Range::starting(1 << 20));
        assert_eq!(ranges.take().unwrap(), Range::starting((1 << 20) + IDS));
        assert!(ranges.take().is_err());
    }
}
