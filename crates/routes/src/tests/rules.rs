//! Each rule of the table, one at a time.

use super::*;
use crate::{Ignored, Invalid, Outcome, Refused, Resync, StaleReport, Writer};

fn ignored(why: Ignored) -> Outcome {
    Outcome::Ignored(why)
}

fn applied(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Applied(_))
}

#[test]
fn an_upsert_applies_only_if_strictly_newer() {
    let table = Table::default();
    assert!(applied(&table.apply(
        Writer::Peer,
        up(&route("a", "box", 5)),
        NOW
    )));
    let again = table.apply(Writer::Peer, up(&route("a", "box", 5)), NOW);
    assert_eq!(again, ignored(Ignored::Duplicate));
    let older = table.apply(Writer::Watch, up(&route("a", "box", 4)), NOW);
    assert_eq!(older, ignored(Ignored::Older));
    assert!(applied(&table.apply(
        Writer::Peer,
        up(&route("a", "box", 6)),
        NOW
    )));
    assert_eq!(table.lookup("id-box").unwrap().version, v(6));
}

#[test]
fn a_change_names_what_was_there_before_and_after() {
    let table = Table::default();
    let (old, new) = (route("a", "box", 5), route("a", "box", 6));
    table.apply(Writer::Watch, up(&old), NOW);
    let Outcome::Applied(change) = table.apply(Writer::Watch, up(&new), NOW) else {
        panic!()
    };
    assert_eq!(
        (change.before.as_deref(), change.after.as_deref()),
        (Some(&old), Some(&new))
    );
    let Outcome::Applied(change) = table.apply(Writer::Watch, gone("a", "box", 7), NOW) else {
        panic!()
    };
    assert_eq!(
        (change.before.as_deref(), change.after.as_deref()),
        (Some(&new), None)
    );
}

#[test]
fn a_delete_applies_if_equal_or_newer_and_leaves_a_tombstone() {
    let table = Table::default();
    table.apply(Writer::Watch, up(&route("a", "box", 5)), NOW);
    let older = table.apply(Writer::Peer, gone("a", "box", 4), NOW);
    assert_eq!(older, ignored(Ignored::Older));
    assert!(applied(&table.apply(
        Writer::Peer,
        gone("a", "box", 5),
        NOW
    )));
    assert_eq!(table.lookup("id-box"), None);
    let late = table.apply(Writer::Watch, up(&route("a", "box", 5)), NOW);
    assert_eq!(late, ignored(Ignored::Older));
    assert!(applied(&table.apply(
        Writer::Watch,
        up(&route("a", "box", 6)),
        NOW
    )));
    assert_eq!(
        table.stats().tombstones,
        0,
        "a record and a tombstone never coexist"
    );
}

#[test]
fn a_delete_of_an_unknown_key_leaves_a_tombstone_too() {
    let table = Table::default();
    assert!(applied(&table.apply(
        Writer::Peer,
        gone("a", "box", 5),
        NOW
    )));
    let late = table.apply(Writer::Watch, up(&route("a", "box", 4)), NOW);
    assert_eq!(late, ignored(Ignored::Older));
    assert!(applied(&table.apply(
        Writer::Peer,
        gone("a", "box", 7),
        NOW
    )));
    let between = table.apply(Writer::Watch, up(&route("a", "box", 6)), NOW);
    assert_eq!(between, ignored(Ignored::Older));
    assert_eq!(table.stats().tombstones, 1);
}

#[test]
fn a_route_in_state_dead_is_a_delete_at_its_version() {
    let table = Table::default();
    table.apply(Writer::Watch, up(&route("a", "box", 5)), NOW);
    let dead = Route {
        state: State::Dead,
        ..route("a", "box", 5)
    };
    assert!(applied(&table.apply(Writer::Peer, up(&dead), NOW)));
    assert_eq!(content(&table), []);
    assert_eq!(table.stats().tombstones, 1);
}

#[test]
fn every_other_state_stays() {
    let table = Table::default();
    for (at, state) in [
        State::Paused,
        State::Pausing,
        State::Resuming,
        State::Creating,
        State::Idle,
    ]
    .into_iter()
    .enumerate()
    {
        let changed = Route {
            state,
            ..route("a", "box", 5 + at as u64)
        };
        assert!(applied(&table.apply(Writer::Watch, up(&changed), NOW)));
        assert_eq!(table.lookup("id-box").unwrap().state, state);
    }
}

#[test]
fn an_invalid_message_is_counted_and_changes_nothing() {
    let table = Table::default();
    table.apply(Writer::Watch, up(&route("a", "box", 5)), NOW);
    let before = content(&table);
    for (message, why) in [
        (up(&route("a", "box", 0)), Invalid::NoVersion),
        (gone("a", "box", 0), Invalid::NoVersion),
        (Message::Unreadable(Invalid::NoState), Invalid::NoState),
        (
            Message::Unreadable(Invalid::Incomplete),
            Invalid::Incomplete,
        ),
    ] {
        assert_eq!(
            table.apply(Writer::Peer, message, NOW),
            Outcome::Invalid(why)
        );
    }
    assert_eq!(content(&table), before);
    let counts = table.stats().counts;
    assert_eq!(
        (counts.no_version, counts.no_state, counts.incomplete),
        (2, 1, 1)
    );
}

#[test]
fn at_the_same_version_the_own_watch_outranks_a_peer_in_either_order() {
    let mine = Route {
        traffic: Gate::Closed,
        ..route("a", "box", 5)
    };
    let theirs = route("a", "box", 5);
    for flip in [false, true] {
        let table = Table::default();
        let mut messages = [(Writer::Watch, &mine), (Writer::Peer, &theirs)];
        if flip {
            messages.reverse();
        }
        for (by, said) in messages {
            table.apply(by, up(said), NOW);
        }
        assert_eq!(content(&table), std::slice::from_ref(&mine));
        assert_eq!(table.stats().counts.conflicts, 1);
    }
}

#[test]
fn a_peers_word_repeated_by_the_own_watch_outranks_other_peers() {
    let table = Table::default();
    let said = route("a", "box", 5);
    let greater = Route {
        epoch: Epoch(9),
        ..said.clone()
    };
    table.apply(Writer::Peer, up(&said), NOW);
    table.apply(Writer::Watch, up(&said), NOW);
    let other = table.apply(Writer::Peer, up(&greater), NOW);
    assert_eq!(other, ignored(Ignored::Conflict));
}

#[test]
fn at_the_same_version_and_writer_the_later_delivery_wins_in_either_order() {
    let first = route("a", "box", 5);
    let second = Route {
        epoch: Epoch(2),
        id: Some(id("id-new")),
        ..first.clone()
    };
    for messages in [[&first, &second], [&second, &first]] {
        let table = Table::default();
        for said in messages {
            table.apply(Writer::Peer, up(said), NOW);
        }
        assert_eq!(content(&table), std::slice::from_ref(&second));
        assert_eq!(table.lookup("id-box"), None);
    }
}

#[test]
fn a_recreated_namesake_survives_the_late_delete_of_its_predecessor() {
    let table = Table::default();
    let namesake = Route {
        uid: uid(2),
        id: Some(id("id-new")),
        ..route("a", "box", 9)
    };
    table.apply(Writer::Peer, up(&namesake), NOW);
    table.apply(Writer::Watch, up(&route("a", "box", 5)), NOW);
    table.apply(Writer::Watch, gone("a", "box", 7), NOW);
    assert_eq!(content(&table), [namesake]);
    assert_eq!(table.lookup("id-box"), None);
}

#[test]
fn namesakes_in_two_namespaces_are_two_sandboxes() {
    let table = Table::default();
    table.apply(
        Writer::Watch,
        up(&Route {
            id: Some(id("x")),
            ..route("a", "box", 5)
        }),
        NOW,
    );
    table.apply(
        Writer::Watch,
        up(&Route {
            id: Some(id("y")),
            ..route("b", "box", 6)
        }),
        NOW,
    );
    table.apply(Writer::Watch, gone("a", "box", 7), NOW);
    assert_eq!(table.lookup("x"), None);
    assert_eq!(table.lookup("y").unwrap().namespace, ns("b"));
    assert_eq!(table.find(&ns("a"), &name("box")), None);
    assert!(table.find(&ns("b"), &name("box")).is_some());
}

#[test]
fn a_new_delivery_ends_the_old_id_at_once() {
    let table = Table::default();
    let first = route("a", "box", 5);
    table.apply(Writer::Watch, up(&first), NOW);
    let idle = Route {
        id: None,
        owner: None,
        state: State::Idle,
        ..route("a", "box", 6)
    };
    table.apply(Writer::Watch, up(&idle), NOW);
    assert_eq!(
        table.check("id-box", first.uid, first.epoch),
        Err(Refused::NotFound)
    );

    let second = Route {
        epoch: Epoch(2),
        id: Some(id("second")),
        ..route("a", "box", 7)
    };
    table.apply(Writer::Watch, up(&second), NOW);
    assert!(table.check("second", second.uid, Epoch(2)).is_ok());
    table.apply(Writer::Peer, up(&first), NOW);
    assert_eq!(
        table.lookup("id-box"),
        None,
        "a late push of the first delivery"
    );
    assert_index_is_exact(&table);
}

#[test]
fn a_connection_of_another_delivery_is_refused_not_served() {
    let table = Table::default();
    let now = Route {
        epoch: Epoch(2),
        ..route("a", "box", 7)
    };
    table.apply(Writer::Watch, up(&now), NOW);
    assert_eq!(
        table.check("id-box", now.uid, Epoch(1)),
        Err(Refused::OtherDelivery)
    );
    assert_eq!(
        table.check("id-box", uid(2), Epoch(2)),
        Err(Refused::OtherDelivery)
    );
    assert_eq!(
        table.check("id-box", now.uid, Epoch(2)).as_deref(),
        Ok(&now)
    );
    assert_eq!(
        table.check("nobody", now.uid, Epoch(2)),
        Err(Refused::NotFound)
    );
}

#[test]
fn a_stale_report_cannot_evict_a_newer_address() {
    let table = Table::default();
    let (old, new) = (route("a", "box", 5), route("a", "box", 6));
    table.apply(Writer::Watch, up(&old), NOW);
    table.apply(Writer::Watch, up(&new), NOW);
    let report = table.report_stale(&id("id-box"), old.uid, old.version);
    assert_eq!(report, StaleReport::Superseded(Arc::new(new.clone())));
    assert_eq!(table.lookup("id-box").as_deref(), Some(&new));
    assert_eq!(
        table.report_stale(&id("id-box"), uid(2), v(6)),
        StaleReport::Gone
    );
    assert_eq!(
        table.report_stale(&id("nobody"), old.uid, v(6)),
        StaleReport::Gone
    );
}

#[test]
fn a_withheld_address_returns_with_a_newer_version_a_snapshot_or_the_stores_word() {
    let table = Table::default();
    let (x, known) = (id("id-box"), route("a", "box", 5));
    let address = || table.lookup(&x).unwrap().address;
    let withhold = |version| {
        assert_eq!(
            table.report_stale(&x, known.uid, version),
            StaleReport::Withheld
        );
        assert_eq!(address(), None);
    };
    table.apply(Writer::Watch, up(&known), NOW);

    withhold(v(5));
    table.apply(Writer::Peer, up(&known), NOW);
    assert_eq!(address(), None, "a repetition proves nothing");
    assert_eq!(
        content(&table),
        std::slice::from_ref(&known),
        "the record keeps its content"
    );

    assert!(!table.restore_address(&x, known.uid, v(4)));
    assert!(table.restore_address(&x, known.uid, v(5)));
    assert_eq!(address(), known.address);
    assert!(!table.restore_address(&x, known.uid, v(5)));

    withhold(v(5));
    table.replace_all(listing(v(5), [known.clone()]), NOW);
    assert_eq!(address(), known.address);

    withhold(v(5));
    table.apply(Writer::Watch, up(&route("a", "box", 6)), NOW);
    assert_eq!(address(), known.address);
}

#[test]
fn a_table_is_not_trusted_before_a_full_snapshot_nor_after_its_watch_was_lost() {
    let table = Table::default();
    table.apply(Writer::Peer, up(&route("a", "box", 5)), NOW);
    assert!(!table.synced());
    table.replace_all(listing(v(3), []), NOW);
    assert!(table.synced());
    table.distrust();
    assert!(!table.synced());
    assert_eq!(table.replace_all(listing(v(2), []), NOW), Resync::Older);
    assert!(!table.synced(), "an old snapshot is no ground for trust");
    table.replace_all(listing(v(3), []), NOW);
    assert!(table.synced());
}

#[test]
fn an_empty_new_store_is_a_full_snapshot() {
    let table = Table::default();
    table.replace_all(listing(Version::ZERO, []), NOW);
    assert!(table.synced());
    assert!(applied(&table.apply(
        Writer::Watch,
        up(&route("a", "box", 1)),
        NOW
    )));
}

#[test]
fn a_snapshot_deletes_what_it_lacks_and_leaves_what_is_newer() {
    let table = Table::default();
    for (name, version) in [("lost", 4), ("kept", 5), ("ahead", 12)] {
        table.apply(Writer::Peer, up(&route("a", name, version)), NOW);
    }
    table.apply(Writer::Peer, gone("a", "dead", 11), NOW);
    let dead = Route {
        state: State::Dead,
        ..route("a", "corpse", 9)
    };
    let list = [
        route("a", "kept", 8),
        route("a", "ahead", 6),
        route("a", "dead", 7),
        dead,
    ];
    let resync = table.replace_all(listing(v(10), list), NOW);
    assert_eq!(
        resync,
        Resync::Taken {
            changed: 1,
            deleted: 1,
            newer: 2
        }
    );
    assert_eq!(
        content(&table),
        [route("a", "ahead", 12), route("a", "kept", 8)]
    );
    let late = table.apply(Writer::Peer, up(&route("a", "lost", 10)), NOW);
    assert_eq!(late, ignored(Ignored::Covered));
    assert!(applied(&table.apply(
        Writer::Peer,
        up(&route("a", "lost", 11)),
        NOW
    )));
    assert_index_is_exact(&table);
}

#[test]
fn a_record_newer_than_its_list_is_taken_as_a_delta() {
    let table = Table::default();
    table.apply(Writer::Peer, gone("a", "box", 12), NOW);
    table.replace_all(
        listing(v(10), [route("a", "box", 11), route("a", "new", 13)]),
        NOW,
    );
    assert_eq!(content(&table), [route("a", "new", 13)]);
}

#[test]
fn an_invalid_record_in_a_snapshot_leaves_its_key_as_it_was() {
    let table = Table::default();
    table.apply(Writer::Watch, up(&route("a", "box", 5)), NOW);
    table.replace_all(listing(v(10), [route("a", "box", 0)]), NOW);
    assert_eq!(content(&table), [route("a", "box", 5)]);
    assert_eq!(table.stats().counts.no_version, 1);
}

#[test]
fn a_restored_store_overrules_the_writes_it_lost() {
    let table = Table::default();
    table.replace_all(
        listing(v(10), [route("a", "box", 5), route("a", "freed", 6)]),
        NOW,
    );
    table.apply(
        Writer::Watch,
        up(&Route {
            epoch: Epoch(2),
            ..route("a", "box", 80)
        }),
        NOW,
    );
    table.apply(Writer::Watch, gone("a", "freed", 81), NOW);
    // Restored from a backup taken at 50; its records keep their versions.
    let list = [route("a", "box", 5), route("a", "freed", 6)];
    table.replace_all(listing(later_life(51), list.clone()), NOW);
    assert_eq!(content(&table), list);
    let lost = Route {
        epoch: Epoch(2),
        ..route("a", "box", 80)
    };
    assert_eq!(
        table.apply(Writer::Peer, up(&lost), NOW),
        ignored(Ignored::Covered)
    );
    let deleted = table.apply(Writer::Peer, gone("a", "freed", 81), NOW);
    assert_eq!(deleted, ignored(Ignored::Covered));
    let new = Route {
        version: later_life(52),
        ..route("a", "box", 1)
    };
    assert!(applied(&table.apply(Writer::Peer, up(&new), NOW)));
}
