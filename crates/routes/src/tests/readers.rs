//! Readers while a writer churns.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
};

use super::*;
use crate::Writer;

const MEMBERS: u32 = 8;
/// How long the writer churns, and how long it goes on for a reader that has seen nothing yet.
const EPOCHS: [u32; 2] = [4_000, 400_000];

fn member(n: u32, epoch: u32, version: u64) -> Route {
    Route {
        uid: uid(u128::from(n) + 1),
        epoch: Epoch(epoch),
        id: Some(id(&format!("m{n}-e{epoch}"))),
        ..route("pool", &format!("member-{n}"), version)
    }
}

#[test]
fn readers_never_see_another_delivery_under_an_id_while_a_writer_churns() {
    let (table, done) = (Table::default(), AtomicBool::new(false));
    // The delivery of each member that may be served: an id below it must not resolve.
    let delivered: Vec<AtomicU32> = (0..MEMBERS).map(|_| AtomicU32::new(0)).collect();
    // Which of the readers have seen something.
    let served = [AtomicBool::new(false), AtomicBool::new(false)];
    let all_served = || served.iter().all(|one| one.load(Ordering::Acquire));
    thread::scope(|scope| {
        for (reader, has_served) in (0..).zip(&served) {
            let (table, done, delivered) = (&table, &done, &delivered);
            scope.spawn(move || {
                let mut n = reader;
                while !done.load(Ordering::Acquire) {
                    n = (n + 1) % MEMBERS;
                    let now = delivered[n as usize].load(Ordering::Acquire);
                    for epoch in now.saturating_sub(3)..now + 2 {
                        let asked = format!("m{n}-e{epoch}");
                        let Some(route) = table.lookup(&asked) else {
                            continue;
                        };
                        has_served.store(true, Ordering::Release);
                        assert_eq!(route.id.as_ref().unwrap().as_str(), asked);
                        assert!(route.is_delivery(uid(u128::from(n) + 1), Epoch(epoch)));
                        assert!(epoch >= now, "delivery {epoch} was over, {now} is on");
                    }
                }
            });
        }
        let mut version = 0;
        let mut next = || {
            version += 1;
            version
        };
        let [enough, most] = EPOCHS;
        for epoch in (1..most).take_while(|epoch| *epoch < enough || !all_served()) {
            for n in 0..MEMBERS {
                table.apply(Writer::Watch, up(&member(n, epoch, next())), NOW);
                delivered[n as usize].store(epoch, Ordering::Release);
                let paused = Route {
                    state: State::Paused,
                    ..member(n, epoch, next())
                };
                table.apply(Writer::Peer, up(&paused), NOW);
                match (epoch + n) % 3 {
                    0 => {
                        let gone = gone("pool", &format!("member-{n}"), next());
                        table.apply(Writer::Watch, gone, NOW);
                    }
                    1 => {
                        let idle = Route {
                            id: None,
                            ..member(n, epoch, next())
                        };
                        table.apply(Writer::Watch, up(&idle), NOW);
                    }
                    _ => {}
                }
            }
        }
        done.store(true, Ordering::Release);
    });
    assert!(all_served(), "the readers saw nothing");
    assert_index_is_exact(&table);
}

#[test]
fn an_update_under_the_same_id_is_never_a_moment_without_a_route() {
    let (table, done) = (Table::default(), AtomicBool::new(false));
    table.apply(Writer::Watch, up(&route("a", "box", 1)), NOW);
    thread::scope(|scope| {
        for _ in 0..2 {
            let (table, done) = (&table, &done);
            scope.spawn(move || {
                let mut seen = Version::ZERO;
                while !done.load(Ordering::Acquire) {
                    let version = table.lookup("id-box").expect("always there").version;
                    assert!(version >= seen, "a reader went back in time");
                    seen = version;
                }
            });
        }
        for version in 2..50_000 {
            table.apply(Writer::Watch, up(&route("a", "box", version)), NOW);
            if version % 1_000 == 0 {
                table.replace_all(listing(v(version), [route("a", "box", version)]), NOW);
            }
        }
        done.store(true, Ordering::Release);
    });
}
