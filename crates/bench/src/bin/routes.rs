//! Route lookups at a million routes: with nobody writing, and with 10,000 updates a second.
//!
//! Each lookup is timed alone and nothing is subtracted, so every number includes the clock's own
//! cost. Ids are made anew for each lookup, as a gateway parses them from a host: the table's copy
//! is as cold as it is there. Quiet and busy rounds alternate, so that a noisy machine disturbs
//! both alike.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    error::Error,
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use bench::{Samples, Target, human, resident_bytes, verdict};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use routes::{
    Address, Deletion, Gate, Limits, Message, Route, Snapshot, State, Table, TokenHash, Writer,
};

const ROUTES: u64 = 1_000_000;
const TEAMS: u64 = 100;
const UPDATES_PER_SECOND: f64 = 10_000.0;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn Error>> {
    let before = resident_bytes("self")?;
    let started = Instant::now();
    let table = Table::new(Limits::default());
    let empty = Snapshot {
        version: Version::from_u64(1),
        routes: Vec::new(),
    };
    table.replace_all(empty, Duration::ZERO);
    for n in 0..ROUTES {
        table.apply(
            Writer::Watch,
            Message::from(route(n, 0, 2 + n)),
            Duration::ZERO,
        );
    }
    let built = started.elapsed();
    let bytes = resident_bytes("self")?.saturating_sub(before) / ROUTES;
    println!(
        "{ROUTES} routes in {} teams, built in {}",
        TEAMS,
        human(built)
    );

    let mut world = World {
        table,
        version: AtomicU64::new(2 + ROUTES),
        updates: 0,
        busy: 0.0,
    };
    let (mut quiet, mut busy) = (Samples::default(), Samples::default());
    let mut seeds = SmallRng::seed_from_u64(1);
    for _ in 0..ROUNDS {
        world.round(false, &mut quiet, &mut seeds);
        world.round(true, &mut busy, &mut seeds);
    }
    quiet.print("lookup, no writer");
    busy.print("lookup, 10,000 updates/s");
    let churned = resident_bytes("self")?.saturating_sub(before) / ROUTES;
    let again = Snapshot {
        version: Version::from_u64(world.version.load(Ordering::Relaxed)),
        routes: world.table.routes(),
    };
    let started = Instant::now();
    world.table.replace_all(again, Duration::ZERO);
    println!(
        "a full snapshot that changes nothing took {}",
        human(started.elapsed())
    );
    println!(
        "the writer made {:.0} updates/s",
        world.updates as f64 / world.busy
    );

    let nanos = |d: Duration| d.as_nanos() as f64;
    let p50 = nanos(quiet.quantile(0.5)).max(nanos(busy.quantile(0.5)));
    verdict(
        "lookup p50, the worse, in us",
        p50 / 1e3,
        Target::AtMost(1.0),
    );
    let ratio = nanos(busy.quantile(0.99)) / nanos(quiet.quantile(0.99));
    verdict("lookup p99, busy over quiet", ratio, Target::AtMost(5.0));
    verdict(
        "resident bytes of a route",
        bytes as f64,
        Target::AtMost(512.0),
    );
    verdict(
        "the same after the updates",
        churned as f64,
        Target::AtMost(512.0),
    );
    Ok(())
}

struct World {
    table: Table,
    version: AtomicU64,
    updates: u64,
    busy: f64,
}

impl World {
    fn round(&mut self, busy: bool, samples: &mut Samples, seeds: &mut SmallRng) {
        let (reader, writer) = (seeds.next_u64(), seeds.next_u64());
        let done = AtomicBool::new(false);
        let started = Instant::now();
        let updates = thread::scope(|scope| {
            let writes =
                busy.then(|| scope.spawn(|| write(&self.table, &self.version, &done, writer)));
            read(&self.table, samples, reader);
            done.store(true, Ordering::Release);
            writes.map_or(0, |thread| thread.join().unwrap_or(0))
        });
        if busy {
            self.updates += updates;
            self.busy += started.elapsed().as_secs_f64();
        }
    }
}

fn read(table: &Table, samples: &mut Samples, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        for _ in 0..64 {
            let id = sandbox_id(random.random_range(0..ROUTES), 0);
            let asked = Instant::now();
            let found = table.lookup(&id);
            samples.record(asked.elapsed());
            black_box(found);
        }
    }
}

/// Mostly changes of state; some deliveries under a new id, and some deletes and creations. Every
/// route that leaves comes back, so the table stays as large as it is.
fn write(table: &Table, versions: &AtomicU64, done: &AtomicBool, seed: u64) -> u64 {
    let mut random = SmallRng::seed_from_u64(seed);
    let started = Instant::now();
    let mut updates = 0;
    while !done.load(Ordering::Acquire) {
        let now = started.elapsed();
        let due = (now.as_secs_f64() * UPDATES_PER_SECOND) as u64;
        while updates < due {
            let n = random.random_range(0..ROUTES);
            let next = || versions.fetch_add(1, Ordering::Relaxed) + 1;
            let messages = match updates % 20 {
                0 => {
                    let (_, namespace, name) = names(n);
                    let version = Version::from_u64(next());
                    let deletion = Deletion {
                        namespace,
                        name,
                        version,
                    };
                    vec![
                        Message::Delete(deletion),
                        Message::from(route(n, 0, next())),
                    ]
                }
                1 => vec![
                    Message::from(route(n, 1, next())),
                    Message::from(route(n, 0, next())),
                ],
                _ => vec![Message::from(Route {
                    state: State::Paused,
                    ..route(n, 0, next())
                })],
            };
            for message in messages {
                table.apply(Writer::Watch, message, now);
                updates += 1;
            }
            table.watch_passed(Version::from_u64(versions.load(Ordering::Relaxed)), now);
        }
        thread::sleep(Duration::from_micros(500));
    }
    updates
}

/// Every text is a copy of its own, as in a decoded message.
fn names(n: u64) -> (u128, Namespace, Name) {
    let namespace = Namespace::new(format!("team-{:04}", n % TEAMS)).expect("a DNS label");
    let name = Name::new(format!("sandbox-{n:08}")).expect("a DNS label");
    (u128::from(n) + 1, namespace, name)
}

fn sandbox_id(n: u64, delivery: u64) -> SandboxId {
    // Spread over the whole range, as random ids are.
    let bits = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    SandboxId::from_random(bits ^ u128::from(delivery))
}

fn route(n: u64, delivery: u64, version: u64) -> Route {
    let (uid, namespace, name) = names(n);
    Route {
        version: Version::from_u64(version),
        epoch: Epoch(1 + u32::try_from(delivery).unwrap_or(u32::MAX)),
        uid: Uid::from_random(uid),
        owner: Some(Namespace::new(&namespace).expect("a DNS label")),
        namespace,
        name,
        id: Some(sandbox_id(n, delivery)),
        state: State::Running,
        address: Some(Address::Netns),
        wake_on_traffic: true,
        is_closing: false,
        agent: Gate::Token(TokenHash([7; 32])),
        traffic: Gate::Token(TokenHash([9; 32])),
        mask_host: None,
    }
}
