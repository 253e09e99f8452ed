//! What a pool has asked for and not seen yet.
//!
//! A pool decides from a cache, and a cache lags behind the writes of its own process. Until every
//! creation and deletion it asked for has been seen, a pool does not scale again; otherwise it
//! would ask for the same members twice. Expectations are sets of names and uids, not counts, so
//! that a duplicate or unrelated event fulfils nothing.
//!
//! A creation that failed is taken back at once: waiting for it would stall the pool. What is
//! never seen for any other reason stops counting after a while.

use std::{collections::BTreeMap, time::Duration};

use model::{Name, Uid};

/// How long an expectation holds a pool back at the most.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The open expectations of one pool. Times are monotonic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectations {
    creations: BTreeMap<Name, Duration>,
    deletions: BTreeMap<Uid, Duration>,
}

impl Expectations {
    /// Notes a creation, before it is asked for.
    pub fn expect_creation(&mut self, name: Name, now: Duration) {
        self.creations.insert(name, now);
    }

    /// Takes back a creation that is known not to have happened.
    pub fn creation_failed(&mut self, name: &Name) {
        self.creations.remove(name);
    }

    /// Notes a deletion, once it was asked for.
    pub fn expect_deletion(&mut self, uid: Uid, now: Duration) {
        self.deletions.insert(uid, now);
    }

    /// Drops what the members as seen now fulfil, and what has waited for too long.
    pub fn observe<'a>(&mut self, members: impl IntoIterator<Item = Seen<'a>>, now: Duration) {
        let fresh = |since: &Duration| now.saturating_sub(*since) < PATIENCE;
        self.creations.retain(|_, since| fresh(since));
        let mut still_there = BTreeMap::new();
        for member in members {
            self.creations.remove(member.name);
            if let Some(since) = self.deletions.get(&member.uid).filter(|_| !member.deleting) {
                still_there.insert(member.uid, *since);
            }
        }
        // What is not there any more has been deleted.
        still_there.retain(|_, since| fresh(since));
        self.deletions = still_there;
    }

    /// How many creations and deletions are still to be seen.
    #[must_use]
    pub fn open(&self) -> (usize, usize) {
        (self.creations.len(), self.deletions.len())
    }
}

/// A member as the cache shows it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its name.
    pub name: &'a Name,
    /// Its identity.
    pub uid: Uid,
    /// Whether its deletion was asked for.
    pub deleting: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u32) -> Name {
        Name::new(format!("m{n}")).unwrap()
    }

    fn seen(name: &Name, uid: u128, deleting: bool) -> Seen<'_> {
        Seen {
            name,
            uid: Uid::from_random(uid),
            deleting,
        }
    }

    #[test]
    fn a_creation_is_open_until_it_is_seen_or_has_failed() {
        let mut open = Expectations::default();
        open.expect_creation(name(1), Duration::ZERO);
        open.expect_creation(name(2), Duration::ZERO);
        open.observe([seen(&name(3), 3, false)], Duration::ZERO);
        assert_eq!(open.open(), (2, 0), "an unrelated member fulfils nothing");
        open.creation_failed(&name(2));
        open.observe([seen(&name(1), 1, false)], Duration::ZERO);
        assert_eq!(open.open(), (0, 0));
    }

    #[test]
    fn a_deletion_is_open_while_the_cache_still_shows_the_member_alive() {
        let mut open = Expectations::default();
        open.expect_deletion(Uid::from_random(1), Duration::ZERO);
        open.observe([seen(&name(1), 1, false)], Duration::ZERO);
        assert_eq!(open.open(), (0, 1));
        open.observe([seen(&name(1), 1, true)], Duration::ZERO);
        assert_eq!(open.open(), (0, 0), "marked is as good as gone");
        open.expect_deletion(Uid::from_random(1), Duration::ZERO);
        open.observe([], Duration::ZERO);
        assert_eq!(open.open(), (0, 0));
    }

    #[test]
    fn what_is_never_seen_stops_counting_after_a_while() {
        let mut open = Expectations::default();
        open.expect_creation(name(1), Duration::ZERO);
        open.observe([], PATIENCE - Duration::from_secs(1));
        assert_eq!(open.open(), (1, 0));
        open.observe([], PATIENCE);
        assert_eq!(open.open(), (0, 0));
    }
}
