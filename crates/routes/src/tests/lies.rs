//! Peers that say what is not so: a route that never was, a deletion of what lives.
//!
//! The own watch sees all of the store in order. Whatever peers say, nothing that the watch has passed
//! is other than it said, and once the store was listed because of a doubt the table holds what the
//! watch said and what peers say beyond it. Who says only what is so is never doubted.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Ignored, Limits, Outcome, Writer};

#[test]
fn a_deletion_that_the_own_watch_has_passed_without_bringing_it_hides_nothing_any_more() {
    let table = Table::default();
    table.replace_all(listing(v(10), [route("a", "box", 4)]), NOW);
    table.apply(Writer::Peer, gone("a", "box", 12), NOW);
    assert_eq!(table.lookup("id-box"), None, "it is believed for now");
    assert!(!table.watch_passed(v(11), NOW));
    assert!(table.watch_passed(v(12), NOW), "the store is listed again");
    assert_eq!(table.tombstones(), []);
    let again = table.apply(Writer::Peer, gone("a", "box", 12), NOW);
    assert_eq!(again, Outcome::Ignored(Ignored::Passed));
    table.replace_all(listing(v(12), [route("a", "box", 4)]), NOW);
    assert_eq!(content(&table), [route("a", "box", 4)]);
    let counts = table.stats().counts;
    assert_eq!((counts.refuted_deletes, counts.refuted), (1, 0));
    assert_eq!(table.stats().floor, Version::ZERO);
    assert_index_is_exact(&table);
}

#[test]
fn what_the_watch_said_below_a_false_deletion_is_found_by_the_list() {
    let table = Table::default();
    table.replace_all(listing(v(10), []), NOW);
    table.apply(Writer::Peer, gone("a", "box", 14), NOW);
    let hidden = table.apply(Writer::Watch, up(&route("a", "box", 12)), NOW);
    assert_eq!(hidden, Outcome::Ignored(Ignored::Older));
    assert!(!table.watch_passed(v(12), NOW));
    assert!(table.watch_passed(v(15), NOW));
    table.replace_all(listing(v(15), [route("a", "box", 12)]), NOW);
    assert_eq!(content(&table), [route("a", "box", 12)]);
}

#[test]
fn a_deletion_at_the_version_of_a_living_route_is_refuted_in_either_order() {
    for flip in [false, true] {
        let table = Table::default();
        table.replace_all(listing(v(10), []), NOW);
        let mut said = [
            (Writer::Watch, up(&route("a", "box", 12))),
            (Writer::Peer, gone("a", "box", 12)),
        ];
        if flip {
            said.reverse();
        }
        for (by, message) in said {
            table.apply(by, message, NOW);
        }
        assert_eq!(content(&table), []);
        assert!(table.watch_passed(v(12), NOW));
    }
}

#[test]
fn a_deletion_that_the_own_watch_confirms_stays() {
    let table = Table::default();
    table.replace_all(
        listing(v(10), [route("a", "box", 4), route("a", "two", 5)]),
        NOW,
    );
    table.apply(Writer::Peer, gone("a", "box", 12), NOW);
    table.apply(Writer::Peer, gone("a", "two", 13), NOW);
    let same = table.apply(Writer::Watch, gone("a", "box", 12), NOW);
    assert_eq!(same, Outcome::Ignored(Ignored::Duplicate));
    assert!(!table.watch_passed(v(12), NOW));
    // The watch knows of a later one of the other.
    table.apply(Writer::Watch, gone("a", "two", 14), NOW);
    assert!(!table.watch_passed(v(14), NOW));
    assert_eq!(table.stats().tombstones, 2);
    for late in [route("a", "box", 11), route("a", "two", 13)] {
        table.apply(Writer::Peer, up(&late), NOW);
    }
    assert_eq!(content(&table), []);
    assert_eq!(table.stats().counts.refuted_deletes, 0);
}

type Key = (Namespace, Name);
/// What is said of a key at a version; nothing if it is gone.
type Word = (Key, Version, Option<Route>);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The store changes a key: a new route, or none.
    Change(u8, bool),
    /// The own watch brings this many of the next changes.
    Watch(u8),
    /// A peer says what happened at this share of all there was.
    Push(u16),
    /// A peer says something of a key that nobody has written, so far before or beyond the newest version.
    Lie { key: u8, at: i8, is_gone: bool },
    /// Time passes.
    Seconds(u8),
    /// The store is listed.
    List,
}

fn step(lies: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4u8, proptest::bool::weighted(0.4)).prop_map(|(key, gone)| Step::Change(key, gone)),
        6 => (1..6u8).prop_map(Step::Watch),
        6 => any::<u16>().prop_map(Step::Push),
        lies => (0..4u8, -6..5i8, any::<bool>())
            .prop_map(|(key, at, is_gone)| Step::Lie { key, at, is_gone }),
        2 => (0..90u8).prop_map(Step::Seconds),
        1 => Just(Step::List),
    ]
}

fn key(number: u8) -> Key {
    (ns(&format!("t{}", number % 2)), name(&format!("n{number}")))
}

struct World {
    table: Table,
    now: Duration,
    minted: u128,
    /// What happened, at the versions from 1 on.
    history: Vec<Word>,
    /// How many of these the watch has brought, or a list.
    watched: usize,
    /// What peers said of each key.
    words: Vec<Word>,
    /// The store is to be listed, and was not yet.
    is_doubtful: bool,
}

impl World {
    fn new() -> Self {
        let table = Table::new(Limits {
            retention: Duration::from_secs(60),
            ..Limits::default()
        });
        table.replace_all(listing(Version::ZERO, []), NOW);
        Self {
            table,
            now: NOW,
            minted: 0,
            history: Vec::new(),
            watched: 0,
            words: Vec::new(),
            is_doubtful: false,
        }
    }

    fn passed(&self) -> Version {
        v(self.watched as u64)
    }

    fn route_of(&mut self, (space, name): &Key, version: Version) -> Route {
        self.minted += 1;
        Route {
            version,
            uid: uid(self.minted),
            id: Some(id(&format!("s{}", self.minted))),
            ..route(space.as_str(), name.as_str(), 1)
        }
    }

    fn tell(&self, by: Writer, (key, version, route): &Word) {
        let message = match route {
            Some(route) => Message::from(route.clone()),
            None => gone(key.0.as_str(), key.1.as_str(), version.to_u64()),
        };
        self.table.apply(by, message, self.now);
    }

    fn hear(&mut self, word: Word) {
        self.tell(Writer::Peer, &word);
        self.words.push(word);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Change(number, is_gone) => {
                let (key, version) = (key(number), v(self.history.len() as u64 + 1));
                let lives = |(of, _, route): &&Word| *of == key && route.is_some();
                let is_gone = is_gone && self.history.iter().rev().any(|word| lives(&word));
                let route = (!is_gone).then(|| self.route_of(&key, version));
                self.history.push((key, version, route));
            }
            Step::Watch(count) => {
                for _ in 0..count {
                    let Some(word) = self.history.get(self.watched).cloned() else {
                        return;
                    };
                    self.tell(Writer::Watch, &word);
                    self.watched += 1;
                    self.is_doubtful |= self.table.watch_passed(word.1, self.now);
                }
            }
            Step::Push(at) => {
                let at = usize::from(at) * self.history.len() / (usize::from(u16::MAX) + 1);
                if let Some(word) = self.history.get(at).cloned() {
                    self.hear(word);
                }
            }
            Step::Lie {
                key: of,
                at,
                is_gone,
            } => {
                let newest = self.history.len() as u64;
                let version = v(newest.saturating_add_signed(at.into()).max(1));
                let key = key(of);
                let route = (!is_gone).then(|| self.route_of(&key, version));
                self.hear((key, version, route));
            }
            Step::Seconds(count) => self.now += Duration::from_secs(count.into()),
            Step::List => self.list(),
        }
    }

    fn list(&mut self) {
        self.watched = self.history.len();
        let routes = self.told().into_values().filter_map(|(_, _, route)| route);
        let snapshot = listing(self.passed(), routes);
        self.table.replace_all(snapshot, self.now);
        self.is_doubtful = false;
    }

    /// What the own watch has told of each key.
    fn told(&self) -> BTreeMap<Key, Word> {
        let told = self.history[..self.watched].iter().cloned();
        told.map(|word| (word.0.clone(), word)).collect()
    }

    fn check(&self) {
        let (told, passed) = (self.told(), self.passed());
        let found = content(&self.table);
        for route in found.iter().filter(|route| route.version <= passed) {
            let key = (route.namespace.clone(), route.name.clone());
            let known = told.get(&key).and_then(|(_, _, route)| route.as_ref());
            assert_eq!(Some(route), known, "the watch has passed it");
        }
        assert_index_is_exact(&self.table);
        assert!(self.table.stats().floor <= passed);
        if self.is_doubtful {
            return;
        }
        let mut wanted = told;
        for word in self.words.iter().filter(|word| word.1 > passed) {
            let rank = |(_, version, route): &Word| (*version, route.is_none(), route.clone());
            let known = wanted.entry(word.0.clone()).or_insert_with(|| word.clone());
            if rank(word) > rank(known) {
                *known = word.clone();
            }
        }
        let wanted: Vec<Route> = wanted.into_values().filter_map(|(_, _, r)| r).collect();
        assert_eq!(found, wanted);
    }
}

fn run(steps: Vec<Step>) -> World {
    let mut world = World::new();
    for step in steps {
        world.step(step);
        world.check();
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn nothing_false_outlasts_the_own_watch_and_nothing_dead_returns(
        steps in proptest::collection::vec(step(4), 1..100),
    ) {
        let mut world = run(steps);
        // The watch catches up, a list follows if it doubts: all that is left is beyond it.
        world.step(Step::Watch(u8::MAX));
        world.check();
        if world.is_doubtful {
            world.list();
        }
        world.check();
    }

    #[test]
    fn who_says_only_what_is_so_is_never_doubted(
        steps in proptest::collection::vec(step(0), 1..100),
    ) {
        let mut world = run(steps);
        world.step(Step::Watch(u8::MAX));
        let counts = world.table.stats().counts;
        prop_assert!(!world.is_doubtful);
        prop_assert_eq!((counts.refuted, counts.refuted_deletes), (0, 0));
    }
}
