//! Whom to dial, and when.
//!
//! Wanted are the seeds, the members, and whoever has dialled this process. One that is not wanted
//! any more is forgotten when its link ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use rand_next::{RngExt as _, rngs::SmallRng};

use super::LinkId;
use crate::why::Why;

/// The first pause after a link that could not be made, and the longest.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);
/// When an address that led to this process, or to one with a link, is tried again.
const ELSEWHERE: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum State {
    /// To be dialled at this time.
    Waiting(Duration),
    Dialling,
    Linked(LinkId),
    /// It leads to this process or to one that has a link; to be looked at again.
    Elsewhere(Duration),
}

#[derive(Debug)]
struct Target {
    state: State,
    attempt: u32,
    /// It has dialled this process while it was being dialled.
    is_there: bool,
}

#[derive(Debug)]
pub(super) struct Targets {
    me: SocketAddr,
    pub(super) seeds: BTreeSet<SocketAddr>,
    known: BTreeMap<SocketAddr, Target>,
}

impl Targets {
    pub(super) fn new(me: SocketAddr) -> Self {
        Self {
            me,
            seeds: BTreeSet::new(),
            known: BTreeMap::new(),
        }
    }

    /// Those to dial now, given the others that are wanted.
    pub(super) fn due(
        &mut self,
        mut wanted: BTreeSet<SocketAddr>,
        most: usize,
        now: Duration,
    ) -> Vec<SocketAddr> {
        wanted.extend(&self.seeds);
        wanted.remove(&self.me);
        self.known.retain(|address, target| match target.state {
            State::Waiting(_) | State::Elsewhere(_) => wanted.contains(address),
            State::Dialling | State::Linked(_) => true,
        });
        for address in wanted {
            if self.known.len() >= most {
                break;
            }
            self.known.entry(address).or_insert(Target {
                state: State::Waiting(now),
                attempt: 0,
                is_there: false,
            });
        }
        let mut due = Vec::new();
        for (address, target) in &mut self.known {
            match target.state {
                State::Waiting(at) | State::Elsewhere(at) if at <= now => {
                    target.state = State::Dialling;
                    due.push(*address);
                }
                State::Waiting(_) | State::Elsewhere(_) | State::Dialling | State::Linked(_) => {}
            }
        }
        due
    }

    pub(super) fn next_wake(&self) -> Option<Duration> {
        let times = self.known.values().filter_map(|target| match target.state {
            State::Waiting(at) | State::Elsewhere(at) => Some(at),
            State::Dialling | State::Linked(_) => None,
        });
        times.min()
    }

    /// Whether there is a link to everybody.
    pub(super) fn all_linked(&self) -> bool {
        self.known.values().all(|target| match target.state {
            State::Linked(_) | State::Elsewhere(_) => true,
            State::Waiting(_) | State::Dialling => false,
        })
    }

    pub(super) fn connected(&mut self, to: SocketAddr, link: LinkId) {
        let target = self.known.entry(to).or_insert(Target {
            state: State::Dialling,
            attempt: 0,
            is_there: false,
        });
        target.state = State::Linked(link);
        target.is_there = false;
    }

    /// The one behind a link is who it should be.
    pub(super) fn worked(&mut self, to: SocketAddr) {
        if let Some(target) = self.known.get_mut(&to) {
            target.attempt = 0;
        }
    }

    /// Somebody who can be reached here has dialled: it is there, so it is not waited for.
    pub(super) fn met(&mut self, address: SocketAddr) {
        let Some(target) = self.known.get_mut(&address) else {
            return;
        };
        match target.state {
            State::Waiting(_) => {
                target.state = State::Waiting(Duration::ZERO);
                target.attempt = 0;
            }
            // It may have begun to listen after it was dialled.
            State::Dialling => target.is_there = true,
            State::Linked(_) | State::Elsewhere(_) => {}
        }
    }

    pub(super) fn failed(&mut self, to: SocketAddr, now: Duration, rng: &mut SmallRng) {
        let Some(target) = self.known.get_mut(&to) else {
            return;
        };
        if std::mem::take(&mut target.is_there) {
            target.attempt = 0;
            target.state = State::Waiting(now);
            return;
        }
        target.attempt = target.attempt.saturating_add(1);
        target.state = State::Waiting(now + pause(target.attempt, rng));
    }

    pub(super) fn ended(
        &mut self,
        to: SocketAddr,
        link: LinkId,
        did_work: bool,
        why: Why,
        now: Duration,
        rng: &mut SmallRng,
    ) {
        let is_it = |target: &&mut Target| matches!(target.state, State::Linked(l) if l == link);
        let Some(target) = self.known.get_mut(&to).filter(is_it) else {
            return;
        };
        if matches!(why, Why::Myself | Why::Double) {
            target.state = State::Elsewhere(now + ELSEWHERE);
            return;
        }
        target.attempt = if did_work {
            1
        } else {
            target.attempt.saturating_add(1)
        };
        target.state = State::Waiting(now + pause(target.attempt, rng));
    }
}

/// Longer each time, and never the same for two who lost the same link.
fn pause(attempt: u32, rng: &mut SmallRng) -> Duration {
    let whole = FIRST.saturating_mul(1 << attempt.min(7)).min(LONGEST);
    whole.mul_f64(rng.random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use rand_next::SeedableRng as _;

    use super::*;

    #[test]
    fn one_that_dials_while_it_is_dialled_in_vain_is_dialled_again_at_once_and_once() {
        let at = |n: u8| SocketAddr::from(([10, 0, 0, n], 7000));
        let (me, other, now) = (at(1), at(2), Duration::from_secs(1));
        let mut rng = SmallRng::seed_from_u64(1);
        let mut targets = Targets::new(me);
        targets.seeds = BTreeSet::from([other]);
        let due = |targets: &mut Targets| targets.due(BTreeSet::new(), 8, now);
        assert_eq!(due(&mut targets), [other]);
        targets.met(other);
        targets.failed(other, now, &mut rng);
        assert_eq!(due(&mut targets), [other]);
        targets.failed(other, now, &mut rng);
        assert_eq!(due(&mut targets), [], "now it waits");
    }
}
