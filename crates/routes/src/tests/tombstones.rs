//! Tombstones: when they go, and what still stands when they are gone.

use super::*;
use crate::{Ignored, Limits, Outcome, Writer};

const RETENTION: Duration = Duration::from_secs(60);
const AFTER: Duration = Duration::from_secs(61);

fn synced(max_tombstones: usize) -> Table {
    let table = Table::new(Limits {
        retention: RETENTION,
        max_tombstones,
        ..Limits::default()
    });
    table.replace_all(listing(Version::ZERO, []), NOW);
    table
}

#[test]
fn a_tombstone_goes_when_the_watch_has_passed_it_and_its_time_is_over() {
    let table = synced(100);
    table.apply(Writer::Peer, gone("a", "box", 5), NOW);
    table.apply(Writer::Watch, gone("a", "box", 5), NOW);
    table.watch_passed(v(5), NOW);
    assert_eq!(table.stats().tombstones, 1, "its time is not over");
    table.watch_passed(v(5), AFTER);
    assert_eq!(table.stats().tombstones, 0);
    assert_eq!(table.stats().floor, v(5));

    table.apply(Writer::Peer, gone("a", "box", 9), AFTER);
    table.watch_passed(v(8), 2 * AFTER);
    assert_eq!(table.stats().tombstones, 1, "the watch has not passed it");
    table.apply(Writer::Watch, gone("a", "box", 9), 2 * AFTER);
    table.watch_passed(v(9), 2 * AFTER);
    assert_eq!(table.stats().tombstones, 0);
}

#[test]
fn a_collected_tombstone_still_refuses_older_messages() {
    let table = synced(100);
    table.apply(Writer::Watch, up(&route("a", "box", 4)), NOW);
    table.apply(Writer::Watch, gone("a", "box", 5), NOW);
    table.watch_passed(v(5), AFTER);
    assert_eq!(table.stats().tombstones, 0);
    let below = Outcome::Ignored(Ignored::BelowFloor);
    assert_eq!(
        table.apply(Writer::Peer, up(&route("a", "box", 4)), 9 * AFTER),
        below
    );
    assert_eq!(
        table.apply(Writer::Peer, gone("a", "box", 5), 9 * AFTER),
        below
    );
    assert_eq!(
        table.stats().tombstones,
        0,
        "a late delete leaves no new tombstone"
    );
    table.apply(Writer::Peer, up(&route("a", "box", 6)), 9 * AFTER);
    assert!(table.lookup("id-box").is_some());
}

#[test]
fn only_a_full_snapshot_brings_back_what_is_below_the_floor() {
    let table = synced(100);
    table.apply(Writer::Watch, gone("a", "box", 5), NOW);
    table.watch_passed(v(5), AFTER);
    table.replace_all(listing(later_life(5), [route("a", "box", 4)]), AFTER);
    assert!(table.lookup("id-box").is_some());
}

#[test]
fn a_delete_far_ahead_of_the_watch_does_not_hold_up_the_others() {
    let table = synced(100);
    table.apply(Writer::Peer, gone("a", "far", 1 << 40), NOW);
    for n in 1..50 {
        table.apply(Writer::Watch, gone("a", &format!("n{n}"), n), NOW);
    }
    for _ in 0..50 {
        table.watch_passed(v(50), AFTER);
    }
    assert_eq!(table.stats().tombstones, 1);
    assert_eq!(table.stats().floor, v(49));
}

#[test]
fn repeated_deletes_do_not_prolong_a_tombstone() {
    let table = synced(100);
    for n in 1..10 {
        table.apply(Writer::Peer, gone("a", "box", n), Duration::from_secs(n));
    }
    table.apply(Writer::Watch, gone("a", "box", 9), NOW);
    table.watch_passed(v(9), AFTER);
    assert_eq!(table.stats().tombstones, 0);
    assert_eq!(table.stats().floor, v(9));
}

#[test]
fn a_waiting_tombstone_that_rises_is_collected_at_its_new_version() {
    let table = synced(100);
    table.apply(Writer::Peer, gone("a", "box", 5), NOW);
    table.watch_passed(v(1), AFTER);
    table.apply(Writer::Peer, gone("a", "box", 8), AFTER);
    table.watch_passed(v(7), AFTER);
    assert_eq!(table.stats().tombstones, 1);
    table.apply(Writer::Watch, gone("a", "box", 8), AFTER);
    table.watch_passed(v(8), AFTER);
    assert_eq!((table.stats().tombstones, table.stats().floor), (0, v(8)));
}

#[test]
fn an_unsynced_table_collects_nothing() {
    let table = synced(100);
    table.apply(Writer::Watch, gone("a", "box", 5), NOW);
    table.distrust();
    table.watch_passed(v(5), AFTER);
    assert_eq!(table.stats().tombstones, 1);
    table.replace_all(listing(v(6), []), AFTER);
    assert_eq!(table.stats().tombstones, 0, "the snapshot settles it");
    let late = table.apply(Writer::Peer, up(&route("a", "box", 4)), AFTER);
    assert_eq!(late, Outcome::Ignored(Ignored::Covered));
}

#[test]
fn a_storm_of_deletes_stays_within_the_limit_and_still_resurrects_nothing() {
    let table = synced(100);
    for n in 1..=5_000 {
        let name = format!("n{n}");
        table.apply(Writer::Watch, up(&route("a", &name, 2 * n)), NOW);
        table.apply(Writer::Watch, gone("a", &name, 2 * n + 1), NOW);
        table.watch_passed(v(2 * n + 1), NOW);
        assert!(table.stats().tombstones <= 101);
    }
    for n in 1..=5_000 {
        table.apply(Writer::Peer, up(&route("a", &format!("n{n}"), 2 * n)), NOW);
    }
    assert_eq!(content(&table), []);
}

#[test]
fn deletes_of_unknown_keys_ahead_of_the_watch_stay_within_the_limit() {
    let table = synced(100);
    for n in 1..=5_000 {
        table.apply(Writer::Peer, gone("a", &format!("n{n}"), 1_000 + n), NOW);
    }
    assert_eq!(table.stats().tombstones, 100);
    assert_eq!(table.stats().counts.too_many_tombstones, 4_900);
    // A record that is there is deleted all the same.
    table.apply(Writer::Watch, up(&route("a", "box", 5)), NOW);
    table.apply(Writer::Peer, gone("a", "box", 6), NOW);
    assert_eq!(table.lookup("id-box"), None);
}
