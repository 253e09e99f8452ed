//! A well-behaved store, a watch that sees all of it in order, and peers that push anything of it
//! at any time, for ever; while tombstones are collected, snapshots taken, backups restored.
//!
//! After every step the table must hold, for each key, exactly the newest thing it was told: no
//! more (a resurrection) and no less (the floor refused something live).

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Limits, Refused, Writer};

type Key = (Namespace, Name);
/// What became of a key at a version; none if it was deleted.
type Event = (Key, Version, Option<Route>);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The store changes a key: create, or else the change this number picks.
    Change(u8, u8),
    /// The own watch delivers this many of the next events, and says so or not.
    Watch(u8, bool),
    /// A peer pushes the event at this share of all there ever were.
    Push(u16),
    /// Time passes.
    Seconds(u8),
    /// The own watch is lost and the table takes a full snapshot of now.
    Relist,
    /// The store loses its last events and begins a new life.
    Restore(u8),
}

fn step(restore: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4u8, 0..8u8).prop_map(|(key, what)| Step::Change(key, what)),
        6 => (1..6u8, any::<bool>()).prop_map(|(n, told)| Step::Watch(n, told)),
        8 => any::<u16>().prop_map(Step::Push),
        3 => (0..90u8).prop_map(Step::Seconds),
        1 => Just(Step::Relist),
        restore => (0..6u8).prop_map(Step::Restore),
    ]
}

/// The store, its watch and the table, and what the table has to hold.
struct World {
    table: Table,
    now: Duration,
    life: u16,
    minted: u128,
    /// Every event of this life, and those of earlier lives that it kept.
    history: Vec<Event>,
    /// Events that a restore lost; peers may still push them.
    lost: Vec<Event>,
    /// How many of the history the watch has delivered.
    watched: usize,
    /// Events a peer pushed, by key: the newest of the current life.
    told: BTreeMap<Key, Event>,
}

impl World {
    fn new(max_tombstones: usize) -> Self {
        let limits = Limits {
            retention: Duration::from_secs(60),
            max_tombstones,
            ..Limits::default()
        };
        let table = Table::new(limits);
        table.replace_all(listing(Version::ZERO, []), NOW);
        Self {
            table,
            now: NOW,
            life: 0,
            minted: 0,
            history: Vec::new(),
            lost: Vec::new(),
            watched: 0,
            told: BTreeMap::new(),
        }
    }

    fn latest(events: &[Event]) -> BTreeMap<Key, Event> {
        events
            .iter()
            .map(|event| (event.0.clone(), event.clone()))
            .collect()
    }

    fn next_version(&self) -> Version {
        let last = self
            .history
            .last()
            .map_or(0, |(_, version, _)| version.sequence());
        Version::new(Incarnation(self.life), last + 1)
    }

    fn mint(&mut self) -> u128 {
        self.minted += 1;
        self.minted
    }

    fn change(&mut self, key: u8, what: u8) {
        let key = (ns(&format!("t{}", key % 2)), name(&format!("n{key}")));
        let version = self.next_version();
        let minted = self.mint();
        let now = Self::latest(&self.history)
            .remove(&key)
            .and_then(|(_, _, route)| route);
        let new = match (now, what) {
            (None, _) => Some(Route {
                version,
                uid: uid(minted),
                id: Some(id(&format!("s{minted}"))),
                ..route(key.0.as_str(), key.1.as_str(), 1)
            }),
            (Some(_), 0..=1) => None,
            // Given back to its pool, or delivered again.
            (Some(old), 2) => Some(Route {
                version,
                id: None,
                owner: None,
                state: State::Idle,
                ..old
            }),
            (Some(old), 3..=4) => Some(Route {
                version,
                epoch: old.epoch.next(),
                id: Some(id(&format!("s{minted}"))),
                state: State::Running,
                ..old
            }),
            (Some(old), 5) => Some(Route {
                version,
                state: State::Dead,
                ..old
            }),
            (Some(old), _) => Some(Route {
                version,
                state: State::Paused,
                ..old
            }),
        };
        self.history.push((key, version, new));
    }

    fn tell(&mut self, by: Writer, (key, version, route): &Event) {
        let message = match route {
            Some(route) => Message::from(route.clone()),
            None => Message::Delete(Deletion {
                namespace: key.0.clone(),
                name: key.1.clone(),
                version: *version,
            }),
        };
        self.table.apply(by, message, self.now);
    }

    fn relist(&mut self) {
        let version = self.next_version();
        let routes = Self::latest(&self.history)
            .into_values()
            .filter_map(|(_, _, route)| route);
        self.table.replace_all(listing(version, routes), self.now);
        self.watched = self.history.len();
        // The list has a version of its own; the store goes on after it.
        self.history
            .push(((ns("none"), name("none")), version, None));
        self.watched += 1;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Change(key, what) => self.change(key, what),
            Step::Watch(n, told) => {
                for _ in 0..n {
                    let Some(event) = self.history.get(self.watched).cloned() else {
                        break;
                    };
                    self.tell(Writer::Watch, &event);
                    self.watched += 1;
                    if told {
                        let is_doubtful = self.table.watch_passed(event.1, self.now);
                        assert!(!is_doubtful, "all that was said is so");
                    }
                }
            }
            Step::Push(at) => {
                let events = self.history.len() + self.lost.len();
                if events == 0 {
                    return;
                }
                let at = usize::from(at) * events / (usize::from(u16::MAX) + 1);
                if let Some(event) = self.history.get(at).cloned() {
                    let newest = self
                        .told
                        .entry(event.0.clone())
                        .or_insert_with(|| event.clone());
                    if event.1 > newest.1 {
                        *newest = event.clone();
                    }
                    self.tell(Writer::Peer, &event);
                } else {
                    let event = self.lost[at - self.history.len()].clone();
                    self.tell(Writer::Peer, &event);
                }
            }
            Step::Seconds(n) => self.now += Duration::from_secs(n.into()),
            Step::Relist => self.relist(),
            Step::Restore(n) => {
                let kept = self.history.len().saturating_sub(n.into());
                self.lost.extend(self.history.drain(kept..));
                self.life += 1;
                self.told.clear();
                self.relist();
            }
        }
    }

    fn expected(&self) -> BTreeMap<Key, Event> {
        let mut expected = Self::latest(&self.history[..self.watched]);
        for (key, event) in &self.told {
            let known = expected.entry(key.clone()).or_insert_with(|| event.clone());
            if event.1 > known.1 {
                *known = event.clone();
            }
        }
        expected
    }

    fn assert_exact(&self) {
        let live = |(_, _, route): Event| route.filter(|r| r.state != State::Dead);
        let expected: Vec<Route> = self.expected().into_values().filter_map(live).collect();
        assert_eq!(content(&self.table), expected);
        assert_index_is_exact(&self.table);
        // Every delivery there ever was: served if it is the current one, refused if not.
        for (_, _, route) in self.history.iter().chain(&self.lost) {
            let Some(old) = route else { continue };
            let Some(id) = &old.id else { continue };
            let current = expected.iter().find(|r| r.id.as_ref() == Some(id));
            match self.table.check(id, old.uid, old.epoch) {
                Ok(served) => {
                    assert_eq!(current, Some(&*served));
                    assert!(served.is_delivery(old.uid, old.epoch));
                }
                Err(Refused::NotFound) => assert_eq!(current, None),
                Err(Refused::OtherDelivery) => {
                    assert!(current.is_some_and(|now| !now.is_delivery(old.uid, old.epoch)));
                }
            }
        }
        let stats = self.table.stats();
        assert!(
            stats.floor <= stats.watched,
            "the floor may refuse only what the watch knows"
        );
    }
}

fn run(steps: Vec<Step>, max_tombstones: usize) -> World {
    let mut world = World::new(max_tombstones);
    for step in steps {
        world.step(step);
        world.assert_exact();
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nothing_is_resurrected_and_nothing_is_lost(
        steps in proptest::collection::vec(step(0), 1..120),
    ) {
        run(steps, 1_000);
    }

    #[test]
    fn nothing_of_a_lost_life_returns_after_a_restore(
        steps in proptest::collection::vec(step(1), 1..120),
    ) {
        run(steps, 1_000);
    }

    #[test]
    fn tombstones_are_all_collected_once_the_watch_and_time_have_passed(
        steps in proptest::collection::vec(step(0), 1..80),
    ) {
        let mut world = run(steps, 1_000);
        world.step(Step::Watch(255, true));
        world.now += Duration::from_secs(61);
        let last = world.next_version();
        for _ in 0..=world.table.stats().tombstones {
            world.table.watch_passed(last, world.now);
        }
        assert_eq!(world.table.stats().tombstones, 0);
        // And now every message there ever was, once more.
        for event in world.history.clone() {
            world.tell(Writer::Peer, &event);
        }
        world.assert_exact();
        assert_eq!(world.table.stats().tombstones, 0);
    }
}
