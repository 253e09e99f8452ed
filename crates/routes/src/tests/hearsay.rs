//! What peers say is good until the own watch or an own list knows better.

use std::thread;

use super::*;
use crate::{Ignored, Outcome, Resync, Writer};

fn listed(version: u64, routes: impl IntoIterator<Item = Route>) -> Table {
    let table = Table::default();
    table.replace_all(listing(v(version), routes), NOW);
    table
}

#[test]
fn a_peers_word_goes_when_the_own_watch_has_passed_it_without_bringing_it() {
    let table = listed(10, [route("a", "kept", 4)]);
    table.apply(Writer::Peer, up(&route("a", "lost", 12)), NOW);
    table.apply(Writer::Peer, up(&route("a", "kept", 13)), NOW);
    table.apply(Writer::Peer, up(&route("a", "ahead", 20)), NOW);
    assert!(!table.watch_passed(v(11), NOW));
    assert_eq!(content(&table).len(), 3);
    table.apply(Writer::Watch, up(&route("a", "kept", 13)), NOW);
    assert!(table.watch_passed(v(13), NOW), "the store is listed again");
    assert_eq!(
        content(&table),
        [route("a", "ahead", 20), route("a", "kept", 13)]
    );
    assert_eq!(table.stats().counts.refuted, 1);
    assert_index_is_exact(&table);
    // Said again it is no more true.
    let again = table.apply(Writer::Peer, up(&route("a", "lost", 12)), NOW);
    assert_eq!(again, Outcome::Ignored(Ignored::Passed));
    assert!(!table.watch_passed(v(14), NOW), "once is enough");
}

#[test]
fn a_word_that_a_newer_one_of_its_key_replaced_is_not_missed() {
    let table = listed(10, []);
    table.apply(Writer::Peer, up(&route("a", "box", 12)), NOW);
    table.apply(Writer::Peer, up(&route("a", "box", 14)), NOW);
    table.apply(Writer::Watch, up(&route("a", "box", 12)), NOW);
    assert!(!table.watch_passed(v(12), NOW));
    assert_eq!(content(&table), [route("a", "box", 14)]);
    table.apply(Writer::Watch, up(&route("a", "box", 14)), NOW);
    assert!(!table.watch_passed(v(14), NOW));
    assert_eq!(content(&table), [route("a", "box", 14)]);
    assert_eq!(table.stats().counts.refuted, 0);
}

#[test]
fn an_own_list_below_a_peers_snapshot_is_told_from_one_below_an_own_list() {
    let table = Table::default();
    table.adopt(listing(v(90), [route("a", "lost", 80)]), NOW);
    assert!(table.synced());
    let own = || listing(v(50), [route("a", "box", 5)]);
    assert_eq!(table.replace_all(own(), NOW), Resync::OlderThanTold);
    assert_eq!(content(&table), [route("a", "lost", 80)]);
    let confirmed = listing(v(90), [route("a", "lost", 80)]);
    table.replace_all(confirmed, NOW);
    assert_eq!(table.replace_all(own(), NOW), Resync::Older);
}

#[test]
fn what_only_a_peer_has_told_is_not_given_on() {
    let table = Table::default();
    table.adopt(listing(v(90), [route("a", "box", 80)]), NOW);
    assert!(table.everything().is_none());
    table.apply(Writer::Peer, up(&route("a", "new", 95)), NOW);
    let changes = table.since(v(0), None).unwrap();
    assert_eq!(changes.messages, [up(&route("a", "new", 95))]);
    assert_eq!(changes.watched, Version::ZERO, "it vouches for nothing");
    table.replace_all(listing(v(91), [route("a", "box", 80)]), NOW);
    assert_eq!(table.everything().unwrap().snapshot.version, v(91));
    assert_eq!(table.since(v(91), None).unwrap().watched, v(91));
}

#[test]
fn a_peers_snapshot_at_or_below_the_own_watch_is_not_taken() {
    let table = listed(10, [route("a", "box", 4)]);
    table.apply(Writer::Watch, up(&route("a", "box", 12)), NOW);
    table.watch_passed(v(12), NOW);
    for version in [9, 12] {
        let old = listing(v(version), [route("a", "other", 9), route("a", "new", 13)]);
        assert_eq!(table.adopt(old, NOW), Resync::Older);
    }
    assert_eq!(
        content(&table),
        [route("a", "box", 12), route("a", "new", 13)],
        "what is newer than it is a word like any other"
    );
    assert!(table.everything().is_some());
}

#[test]
fn a_peers_snapshot_does_not_overrule_what_the_own_watch_said() {
    let other = |name, version| Route {
        epoch: Epoch(9),
        ..route("a", name, version)
    };
    let table = listed(10, [route("a", "box", 8), route("a", "gone", 9)]);
    table.apply(Writer::Watch, up(&route("a", "new", 12)), NOW);
    table.watch_passed(v(12), NOW);
    let theirs = listing(
        v(20),
        [
            other("box", 8),
            other("new", 12),
            other("strange", 11),
            route("a", "later", 15),
        ],
    );
    let resync = table.adopt(theirs, NOW);
    assert_eq!(
        resync,
        Resync::Taken {
            changed: 1,
            deleted: 1,
            newer: 0
        }
    );
    assert_eq!(
        content(&table),
        [
            route("a", "box", 8),
            route("a", "later", 15),
            route("a", "new", 12)
        ]
    );
    assert_index_is_exact(&table);
}

#[test]
fn a_watch_that_has_passed_a_peers_snapshot_calls_for_a_list() {
    let table = listed(10, [route("a", "box", 8)]);
    table.adopt(listing(v(20), []), NOW);
    assert!(!table.watch_passed(v(19), NOW));
    assert!(table.watch_passed(v(20), NOW));
    table.replace_all(listing(v(20), [route("a", "box", 8)]), NOW);
    assert_eq!(content(&table), [route("a", "box", 8)]);
    assert!(!table.watch_passed(v(21), NOW));
}

#[test]
fn a_snapshot_that_is_taken_while_others_write_ends_as_if_they_had_come_before_or_after() {
    const MANY: u64 = 5_000;
    let named = |n: u64| format!("n{n}");
    let table = Table::default();
    let theirs = listing(v(MANY), (1..=MANY).map(|n| route("a", &named(n), n)));
    thread::scope(|scope| {
        scope.spawn(|| table.adopt(theirs, NOW));
        // One of three is replaced, one is gone, one is said again as it was long ago.
        for n in 1..=MANY {
            let message = match n % 3 {
                0 => up(&route("a", &named(n), MANY + n)),
                1 => gone("a", &named(n), MANY + n),
                _ => up(&route("a", &format!("old{n}"), n)),
            };
            table.apply(Writer::Peer, message, NOW);
        }
    });
    assert!(table.synced());
    assert_eq!(table.watched(), v(MANY));
    let left: Vec<u64> = (1..=MANY).filter(|n| n % 3 != 1).collect();
    assert_eq!(table.stats().routes, left.len());
    for n in left {
        let version = if n % 3 == 0 { MANY + n } else { n };
        let found = table.find(&ns("a"), &name(&named(n))).unwrap();
        assert_eq!(found.version, v(version));
    }
    assert_index_is_exact(&table);
    let newer = table.since(v(MANY), None).unwrap().messages;
    assert_eq!(newer.len() as u64, MANY / 3 + MANY.div_ceil(3));
}

#[test]
fn many_routes_of_a_snapshot_push_nothing_out_of_what_is_told_to_others() {
    let limits = crate::Limits {
        max_recent: 2,
        ..crate::Limits::default()
    };
    let table = Table::new(limits);
    let theirs = (1..=9).map(|n| route("a", &format!("n{n}"), n));
    table.adopt(listing(v(9), theirs), NOW);
    table.apply(Writer::Peer, up(&route("a", "new", 10)), NOW);
    let changes = table.since(v(0), None).unwrap();
    assert_eq!(changes.messages, [up(&route("a", "new", 10))]);
}
