//! The core alone, under a network that loses, repeats, reorders and cuts: whatever happens, tables
//! are equal after a few quiet rounds, nothing is resurrected, and what was reported as heard was.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod jobs;
mod world;

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use routes::{Message, Route};
use world::{End, KEYS, PROCESSES, Process, World, message};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_fate_of_frames_and_links_ends_in_equal_tables(
        steps in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 0..400),
        max_said in 1..20usize,
    ) {
        let mut world = World::new(max_said);
        for step in steps {
            world.step(step);
        }
        // The network heals; every watch still hangs.
        world.apart.clear();
        world.rounds(12);
        // Who goes by a peer's snapshot alone, and has no list of its own since, gives that to nobody.
        let vouches = |p: &Process| p.table.everything().is_some();
        let does_anybody = world.processes.iter().any(vouches);
        let do_all = world.processes.iter().all(vouches);
        for n in 0..PROCESSES {
            prop_assert!(!does_anybody || world.processes[n].table.synced(), "{}", n);
            let (one, other) = (world.content(0), world.content(n));
            prop_assert!(!do_all || one == other, "{one:?} {n}: {other:?}");
        }
        // The watches go on.
        for n in 0..PROCESSES {
            if !world.processes[n].table.synced() {
                world.list(n);
            }
            let rest = world.history.len();
            world.watch(n, rest);
        }
        world.rounds(6);
        // Who was late is waited for again after a while.
        let are_waited_for = |world: &World| {
            let mut each = world.processes.iter();
            each.all(|p| p.core.stats().in_standing == PROCESSES - 1)
        };
        let mut rounds = 0;
        while !are_waited_for(&world) {
            rounds += 1;
            prop_assert!(rounds < 40, "some are not waited for again");
            world.rounds(1);
        }
        for n in 0..PROCESSES {
            prop_assert_eq!(world.content(n), world.truth(), "{}", n);
            let stats = world.processes[n].core.stats();
            let all = PROCESSES - 1;
            prop_assert_eq!((stats.dialled, stats.in_standing), (all, all));
            prop_assert!(world.processes[n].waits.is_empty(), "a wait never ends");
        }
        // Who was taken for gone is known to be there again, sooner or later.
        let is_whole = |world: &World| {
            let mut each = world.processes.iter();
            each.all(|p| p.core.stats().alive == PROCESSES - 1)
        };
        let mut rounds = 0;
        while !is_whole(&world) {
            rounds += 1;
            prop_assert!(rounds < 200, "the members stay apart");
            world.rounds(1);
        }
        // And now everybody hears of a write.
        let before = world.said;
        world.write(0, 0, false);
        world.calm();
        prop_assert_eq!(world.said, before + 1);
    }
}

#[test]
fn a_partition_that_heals_is_repaired_by_the_first_question() {
    let mut world = World::new(1 << 10);
    world.rounds(2);
    for n in 1..PROCESSES {
        world.apart.extend([(0, n), (n, 0)]);
    }
    let ends: Vec<End> = world
        .links
        .keys()
        .filter(|(p, _)| *p == 0)
        .copied()
        .collect();
    for end in ends {
        world.cut(end);
    }
    world.rounds(10);
    for key in 0..KEYS {
        world.write(1, key, false);
        world.calm();
    }
    assert_eq!(world.content(0), BTreeMap::new());
    assert_eq!(world.content(3), world.truth());
    world.apart.clear();
    let rounds = world.processes[0].core.stats().counts.rounds;
    while world.content(0).is_empty() {
        world.pass(Duration::from_millis(100));
        world.calm();
    }
    assert_eq!(world.content(0), world.truth());
    let rounds = world.processes[0].core.stats().counts.rounds - rounds;
    assert!(
        rounds <= 5,
        "{rounds} rounds while it could dial nobody, none after"
    );
}

#[test]
fn a_process_that_does_not_acknowledge_is_waited_for_once() {
    let mut world = World::new(1 << 10);
    world.rounds(2);
    // Nothing reaches the last one any more, and nobody hears of that.
    let deaf = PROCESSES - 1;
    let deliver_others = |world: &mut World| {
        for _ in 0..1000 {
            let ends: Vec<End> = world
                .flying
                .keys()
                .filter(|(p, _)| *p != deaf)
                .copied()
                .collect();
            for end in ends {
                world.deliver(end);
            }
        }
    };
    world.write(0, 1, false);
    deliver_others(&mut world);
    assert_eq!(world.processes[0].waits.len(), 1, "it is waited for");
    world.pass(Duration::from_millis(100));
    assert_eq!(world.processes[0].waits.len(), 0, "for no longer than that");
    assert_eq!(world.processes[0].core.stats().counts.late, 1);
    world.write(0, 2, false);
    deliver_others(&mut world);
    assert_eq!(world.processes[0].waits.len(), 0, "and not again");
    assert_eq!(world.said, 0, "and nobody says that everybody has heard");
    // It takes what it was sent, and what comes then in time: it is one of those again.
    world.rounds(6);
    world.write(0, 3, false);
    assert_eq!(world.processes[0].waits.len(), 1);
    world.calm();
    assert_eq!(world.said, 1);
}

#[test]
fn a_process_that_always_acknowledges_late_is_waited_for_once_and_not_each_time_it_catches_up() {
    let mut world = World::new(1 << 10);
    world.rounds(2);
    for turn in 0..50 {
        world.write(0, turn % KEYS, false);
        // Whatever is on its way to anybody takes longer than is waited for.
        world.pass(Duration::from_millis(100));
        world.pass(Duration::from_millis(50));
        world.calm();
        assert_eq!(world.processes[0].waits.len(), 0);
    }
    let counts = world.processes[0].core.stats().counts;
    assert_eq!(counts.late, 3, "each of the others once");
    // Over other links it is still known for that.
    for end in world.links.keys().copied().collect::<Vec<_>>() {
        world.cut(end);
    }
    world.pass(Duration::from_millis(400));
    world.calm();
    let stats = world.processes[0].core.stats();
    assert_eq!((stats.dialled, stats.in_standing), (3, 0));
    // When they keep up they are waited for again.
    world.rounds(8);
    assert_eq!(world.processes[0].core.stats().in_standing, 3);
}

#[test]
fn equal_tables_tell_each_other_nothing() {
    let mut world = World::new(1 << 10);
    for key in 0..KEYS {
        world.write(0, key, false);
    }
    world.rounds(8);
    for n in 0..PROCESSES {
        let rest = world.history.len();
        world.watch(n, rest);
    }
    let told = |world: &World| -> u64 {
        let each = world.processes.iter().map(|p| p.core.stats().counts.told);
        each.sum()
    };
    let before = told(&world);
    world.rounds(12);
    assert_eq!(told(&world), before);
    // Also while every watch hangs: a change is told once by each to each.
    world.write(0, 1, false);
    world.rounds(12);
    let after = told(&world);
    world.rounds(12);
    assert_eq!(told(&world), after);
}

#[test]
fn a_member_that_nobody_was_told_of_is_found_by_the_others() {
    let mut world = World::with(1 << 10, false);
    world.rounds(20);
    for n in 0..PROCESSES {
        let stats = world.processes[n].core.stats();
        assert_eq!(stats.alive, PROCESSES - 1, "{n}");
        assert_eq!(stats.dialled, PROCESSES - 1, "{n}");
        assert_eq!(stats.unmet, 0, "{n}");
    }
}

#[test]
fn large_messages_go_in_frames_of_their_own_and_one_that_fits_in_none_ends_no_link() {
    let masked = |key, version, length| match message(key, version, false) {
        Message::Upsert(route) => Message::from(Route {
            mask_host: Some("a".repeat(length).into()),
            ..Route::clone(&route)
        }),
        Message::Delete(_) | Message::Unreadable(_) => unreachable!(),
    };
    let mut world = World::new(1 << 10);
    world.rounds(2);
    let many = (1..=200).map(|n| masked(n, u64::from(n), 2000));
    world.processes[0].core.say(many, world.now);
    world.perform(0);
    world.calm();
    for n in 0..PROCESSES {
        assert_eq!(world.content(n).len(), 200, "{n}");
    }
    let huge = masked(201, 201, 2 << 20);
    world.processes[0].core.say([huge], world.now);
    world.perform(0);
    world.rounds(4);
    let stats = world.processes[0].core.stats();
    assert_eq!((stats.dialled, stats.accepted), (3, 3));
    assert!(stats.counts.overflowed > 0);
    assert_eq!(stats.in_standing, 0, "they lack something");
    assert_eq!(world.content(0).len(), 201);
    assert_eq!(world.content(1).len(), 200);
}
