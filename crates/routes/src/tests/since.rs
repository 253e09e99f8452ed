//! What one table tells another that is behind makes the two equal.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Limits, Writer};

const RETENTION: Duration = Duration::from_secs(60);

fn table(max_recent: usize) -> Table {
    let table = Table::new(Limits {
        retention: RETENTION,
        max_recent,
        ..Limits::default()
    });
    table.replace_all(listing(Version::ZERO, []), NOW);
    table
}

/// One change of one of a few keys: the versions are those of one store.
fn message(at: usize, key: u8, is_delete: bool) -> Message {
    let (name, version) = (format!("n{key}"), at as u64 + 1);
    if is_delete {
        gone("t", &name, version)
    } else {
        up(&Route {
            id: Some(id(&format!("s{version}"))),
            ..route("t", &name, version)
        })
    }
}

/// Lets the first learn what the second knows, in the way the second can vouch for.
fn learn(from: &Table, to: &Table, told: Option<u64>, now: Duration) -> u64 {
    if let Some(changes) = from.since(to.watched(), told) {
        for message in changes.messages {
            to.apply(Writer::Peer, message, now);
        }
        return changes.stamp;
    }
    let all = from.everything().expect("a table that is synced");
    to.adopt(all.snapshot, now);
    for deletion in all.deletions {
        to.apply(Writer::Peer, Message::Delete(deletion), now);
    }
    all.stamp
}

#[derive(Clone, Debug)]
enum Step {
    /// The own watch delivers this many more.
    Watch(bool, usize),
    /// A peer tells of one of those that the watch has not delivered.
    Told(bool, usize),
    /// A list at how far the watch is.
    Relist(bool),
    /// The first asks the second, or the other way round.
    Learn(bool),
    /// Tombstones grow old.
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = proptest::bool::ANY;
    let step = prop_oneof![
        4 => (who, 1..8usize).prop_map(|(who, n)| Step::Watch(who, n)),
        4 => (who, 0..12usize).prop_map(|(who, n)| Step::Told(who, n)),
        1 => who.prop_map(Step::Relist),
        2 => who.prop_map(Step::Learn),
        1 => Just(Step::Wait),
    ];
    proptest::collection::vec(step, 0..40)
}

/// A table with its watch, and what a model says that it has been told.
struct Side {
    table: Table,
    watched: usize,
    known: BTreeMap<u8, usize>,
    told: Option<u64>,
}

impl Side {
    fn know(&mut self, at: usize, key: u8) {
        let known = self.known.entry(key).or_default();
        *known = at.max(*known);
    }

    fn step(&mut self, step: &Step, history: &[(u8, bool)], now: Duration) {
        match step {
            Step::Watch(_, count) => {
                for _ in 0..*count {
                    let Some((key, is_delete)) = history.get(self.watched) else {
                        return;
                    };
                    let message = message(self.watched, *key, *is_delete);
                    self.table.apply(Writer::Watch, message, now);
                    self.know(self.watched, *key);
                    self.watched += 1;
                    self.table.watch_passed(v(self.watched as u64), now);
                }
            }
            Step::Told(_, ahead) => {
                let at = self.watched + ahead;
                if let Some((key, is_delete)) = history.get(at) {
                    self.table
                        .apply(Writer::Peer, message(at, *key, *is_delete), now);
                    self.know(at, *key);
                }
            }
            Step::Relist(_) => {
                let last = history.iter().enumerate().take(self.watched);
                let last: BTreeMap<u8, (usize, bool)> =
                    last.map(|(at, (key, dead))| (*key, (at, *dead))).collect();
                let live = last.iter().filter(|(_, (_, dead))| !dead);
                let routes = live.map(|(key, (at, _))| match message(*at, *key, false) {
                    Message::Upsert(route) => Route::clone(&route),
                    Message::Delete(_) | Message::Unreadable(_) => unreachable!(),
                });
                let version = v(self.watched as u64);
                self.table.replace_all(listing(version, routes), now);
            }
            Step::Learn(_) | Step::Wait => {}
        }
    }
}

fn ask(from: &Side, to: &mut Side, history: &[(u8, bool)], now: Duration) {
    to.told = Some(learn(&from.table, &to.table, to.told, now));
    for (key, at) in &from.known {
        to.know(*at, *key);
    }
    let reached = to.table.watched().sequence() as usize;
    if reached > to.watched {
        // A full snapshot of the other's is as good as an own list, which follows and confirms it.
        check(to, history);
        to.watched = reached;
        to.step(&Step::Relist(true), history, now);
    }
}

fn check(side: &Side, history: &[(u8, bool)]) {
    let live = side.known.iter().filter(|(_, at)| !history[**at].1);
    let wanted: BTreeMap<String, u64> = live
        .map(|(key, at)| (format!("n{key}"), *at as u64 + 1))
        .collect();
    let found: BTreeMap<String, u64> = content(&side.table)
        .iter()
        .map(|r| (r.name.to_string(), r.version.sequence()))
        .collect();
    assert_eq!(found, wanted);
    assert_index_is_exact(&side.table);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn what_a_table_tells_makes_the_asker_know_all_that_it_knows(
        history in proptest::collection::vec((0..6u8, proptest::bool::weighted(0.4)), 1..40),
        steps in steps(),
        max_recent in 1..12usize,
    ) {
        let side = || Side {
            table: table(max_recent),
            watched: 0,
            known: BTreeMap::new(),
            told: None,
        };
        let (mut one, mut other) = (side(), side());
        let mut now = NOW;
        for step in &steps {
            match step {
                Step::Wait => now += RETENTION / 2,
                Step::Learn(true) => ask(&other, &mut one, &history, now),
                Step::Learn(false) => ask(&one, &mut other, &history, now),
                Step::Watch(true, _) | Step::Told(true, _) | Step::Relist(true) => {
                    one.step(step, &history, now);
                }
                Step::Watch(false, _) | Step::Told(false, _) | Step::Relist(false) => {
                    other.step(step, &history, now);
                }
            }
            check(&one, &history);
            check(&other, &history);
        }
        ask(&one, &mut other, &history, now);
        ask(&other, &mut one, &history, now);
        prop_assert_eq!(content(&one.table), content(&other.table));
    }
}

#[test]
fn tombstones_are_told_too() {
    let (near, far) = (table(100), table(100));
    for one in [&near, &far] {
        one.apply(Writer::Watch, up(&route("a", "box", 4)), NOW);
        one.watch_passed(v(4), NOW);
    }
    near.apply(Writer::Peer, gone("a", "box", 5), NOW);
    learn(&near, &far, None, NOW);
    assert_eq!(far.tombstones(), near.tombstones());
    assert_eq!(far.lookup("id-box"), None);
}

#[test]
fn who_was_told_is_not_told_again() {
    let (near, far) = (table(100), table(100));
    near.apply(Writer::Peer, up(&route("a", "one", 4)), NOW);
    let told = learn(&near, &far, None, NOW);
    near.apply(Writer::Peer, up(&route("a", "two", 5)), NOW);
    let again = near.since(far.watched(), Some(told)).unwrap();
    assert_eq!(again.messages, [up(&route("a", "two", 5))]);
    let nothing = near.since(far.watched(), Some(again.stamp)).unwrap();
    assert_eq!(nothing.messages, []);
    let all = near.since(far.watched(), None).unwrap();
    assert_eq!(all.messages.len(), 2, "who names no stamp is told all");
    let stranger = near.since(far.watched(), Some(u64::MAX)).unwrap();
    assert_eq!(
        stranger.messages.len(),
        2,
        "a stamp of another life is none"
    );
}

#[test]
fn a_table_does_not_vouch_for_what_it_has_forgotten() {
    let near = table(2);
    for n in 1..=4 {
        near.apply(Writer::Watch, up(&route("a", &format!("n{n}"), n)), NOW);
        near.watch_passed(v(n), NOW);
    }
    assert!(near.since(v(1), None).is_none(), "two fell out");
    assert_eq!(near.since(v(2), None).unwrap().messages.len(), 2);

    near.apply(Writer::Watch, gone("a", "n4", 5), NOW);
    near.watch_passed(v(5), 2 * RETENTION);
    assert_eq!(near.stats().tombstones, 0);
    assert!(
        near.since(v(4), None).is_none(),
        "its tombstone is collected"
    );
    assert!(near.since(v(5), None).is_some());

    near.replace_all(listing(v(9), []), NOW);
    assert!(near.since(v(8), None).is_none(), "a list settled it");
    near.distrust();
    assert!(near.since(v(9), None).is_none(), "it is not synced");
    assert!(near.everything().is_none());
}
