//! Any interleaving, repetition and delay of what two writers say ends in the same table.
//!
//! The messages here are arbitrary: they need not come from a well-behaved store, versions
//! collide and contradict each other, ids are shared.

use proptest::prelude::*;

use super::*;
use crate::Writer;

#[derive(Clone, Debug)]
enum Said {
    Message(Writer, Message),
    Snapshot(Version, Vec<Route>),
}

fn any_route() -> impl Strategy<Value = Route> {
    let key = (0..2u8, 0..3u8);
    let delivery = (0..3u32, 0..3u128, proptest::option::of(0..4u8));
    let state = prop_oneof![
        Just(State::Running),
        Just(State::Paused),
        Just(State::Idle),
        Just(State::Unknown),
        Just(State::Dead)
    ];
    (key, 1..12u64, 0..2u16, delivery, state).prop_map(
        |((space, key), sequence, life, (epoch, owner, shared), state)| Route {
            version: Version::new(Incarnation(life), sequence),
            epoch: Epoch(epoch),
            uid: uid(owner),
            id: shared.map(|n| id(&format!("s{n}"))),
            state,
            ..route(&format!("t{space}"), &format!("n{key}"), 1)
        },
    )
}

fn any_message() -> impl Strategy<Value = Said> {
    let by = prop_oneof![Just(Writer::Peer), Just(Writer::Watch)];
    (by, any_route(), proptest::bool::weighted(0.3)).prop_map(|(by, route, delete)| {
        let message = if delete {
            let Route {
                namespace,
                name,
                version,
                ..
            } = route;
            Message::Delete(Deletion {
                namespace,
                name,
                version,
            })
        } else {
            Message::from(route)
        };
        Said::Message(by, message)
    })
}

fn any_snapshot(life: u16) -> impl Strategy<Value = Said> {
    (1..12u64, proptest::collection::vec(any_route(), 0..6)).prop_map(move |(sequence, routes)| {
        Said::Snapshot(Version::new(Incarnation(life), sequence), routes)
    })
}

/// Messages and at most one snapshot in each life of the store, and two orders of them, in which
/// some come twice.
fn orders() -> impl Strategy<Value = (Vec<Said>, Vec<Said>)> {
    let snapshots = (
        proptest::option::of(any_snapshot(0)),
        proptest::option::of(any_snapshot(1)),
    );
    (proptest::collection::vec(any_message(), 0..30), snapshots).prop_flat_map(
        |(messages, (first, second))| {
            let all: Vec<Said> = messages.into_iter().chain(first).chain(second).collect();
            (Just(all.clone()).prop_shuffle(), repeated(all))
        },
    )
}

fn repeated(all: Vec<Said>) -> impl Strategy<Value = Vec<Said>> {
    let times = proptest::collection::vec(1..3usize, all.len());
    times.prop_flat_map(move |times| {
        let said = all.iter().zip(times);
        let all: Vec<Said> = said
            .flat_map(|(s, n)| std::iter::repeat_n(s.clone(), n))
            .collect();
        Just(all).prop_shuffle()
    })
}

fn tell(order: &[Said]) -> Table {
    let table = Table::default();
    for said in order {
        match said {
            Said::Message(by, message) => {
                table.apply(*by, message.clone(), NOW);
            }
            Said::Snapshot(version, routes) => {
                table.replace_all(listing(*version, routes.clone()), NOW);
            }
        }
    }
    table
}

/// What a table will say to any message: its routes, its ids, and what it refuses.
fn assert_same(one: &Table, other: &Table) {
    assert_eq!(content(one), content(other));
    for n in 0..4 {
        let id = format!("s{n}");
        assert_eq!(one.lookup(&id), other.lookup(&id), "{id}");
    }
    assert_eq!(one.tombstones(), other.tombstones());
    assert_eq!(one.synced(), other.synced());
    assert_eq!(one.stats().base, other.stats().base);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_order_and_repetition_ends_in_the_same_table((one, other) in orders()) {
        let (one, other) = (tell(&one), tell(&other));
        assert_same(&one, &other);
        assert_index_is_exact(&one);
        assert_index_is_exact(&other);
    }

    #[test]
    fn hearing_everything_again_changes_nothing((order, _) in orders()) {
        let once = tell(&order);
        let twice = tell(&[order.clone(), order].concat());
        assert_same(&once, &twice);
    }
}
