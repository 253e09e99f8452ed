//! Ids that more than one record has, which should not be.

use proptest::prelude::*;

use super::*;
use crate::Writer;

fn shared(name: &str, version: u64) -> Route {
    Route {
        id: Some(id("shared")),
        ..route("a", name, version)
    }
}

fn holder(table: &Table) -> Option<String> {
    table.lookup("shared").map(|r| r.name.to_string())
}

#[test]
fn the_newest_record_has_the_id_whichever_came_first() {
    for order in [[("old", 5), ("new", 7)], [("new", 7), ("old", 5)]] {
        let table = Table::default();
        for (name, version) in order {
            table.apply(Writer::Peer, up(&shared(name, version)), NOW);
        }
        assert_eq!(holder(&table).as_deref(), Some("new"));
        assert_eq!(table.stats().contested_ids, 1);
    }
}

#[test]
fn when_the_newest_goes_the_next_has_it_and_then_nobody() {
    let table = Table::default();
    for (name, version) in [("one", 1), ("two", 2), ("three", 3)] {
        table.apply(Writer::Watch, up(&shared(name, version)), NOW);
    }
    table.apply(Writer::Watch, gone("a", "three", 4), NOW);
    assert_eq!(holder(&table).as_deref(), Some("two"));
    // A new delivery under another id gives the shared one up, too.
    table.apply(Writer::Watch, up(&route("a", "two", 5)), NOW);
    assert_eq!(holder(&table).as_deref(), Some("one"));
    assert_eq!(table.stats().contested_ids, 0);
    table.apply(Writer::Watch, gone("a", "one", 6), NOW);
    assert_eq!(holder(&table), None);
    assert_index_is_exact(&table);
}

#[test]
fn a_displaced_record_that_goes_leaves_the_holder_alone() {
    let table = Table::default();
    table.apply(Writer::Watch, up(&shared("old", 5)), NOW);
    table.apply(Writer::Watch, up(&shared("new", 7)), NOW);
    table.apply(Writer::Watch, gone("a", "old", 8), NOW);
    assert_eq!(holder(&table).as_deref(), Some("new"));
    assert_index_is_exact(&table);
}

#[test]
fn a_kept_connection_of_the_displaced_record_is_refused() {
    let table = Table::default();
    let old = shared("old", 5);
    table.apply(Writer::Watch, up(&old), NOW);
    let new = Route {
        uid: uid(2),
        ..shared("new", 7)
    };
    table.apply(Writer::Watch, up(&new), NOW);
    assert!(table.check("shared", old.uid, old.epoch).is_err());
    assert!(table.check("shared", new.uid, new.epoch).is_ok());
}

#[test]
fn a_contested_id_with_a_withheld_address_loses_no_record() {
    let table = Table::default();
    let old = shared("old", 5);
    table.apply(Writer::Watch, up(&old), NOW);
    table.report_stale(&id("shared"), old.uid, old.version);
    table.apply(Writer::Watch, up(&shared("new", 7)), NOW);
    table.apply(Writer::Watch, gone("a", "new", 8), NOW);
    assert_eq!(table.lookup("shared").as_deref(), Some(&old));
    assert_index_is_exact(&table);
}

/// Few names and fewer ids, so that most records collide.
fn step() -> impl Strategy<Value = (u8, u64, Option<u8>, bool, bool)> {
    (
        0..5u8,
        1..40u64,
        proptest::option::of(0..3u8),
        any::<bool>(),
        any::<bool>(),
    )
}

proptest! {
    #[test]
    fn the_index_is_exact_after_every_step(steps in proptest::collection::vec(step(), 1..80)) {
        let table = Table::default();
        for (key, version, shared, delete, snapshot) in steps {
            let name = format!("n{key}");
            let said = Route {
                id: shared.map(|n| id(&format!("s{n}"))),
                uid: uid(u128::from(version % 3)),
                ..route("a", &name, version)
            };
            if delete && snapshot {
                table.replace_all(listing(v(version), [said]), NOW);
            } else if delete {
                table.apply(Writer::Peer, gone("a", &name, version), NOW);
            } else {
                table.apply(Writer::Watch, up(&said), NOW);
            }
            assert_index_is_exact(&table);
        }
    }
}
