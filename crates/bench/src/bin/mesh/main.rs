//! A mesh of one replica of the API and three gateways, in one process over TLS on loopback.
//!
//! - A change on the replica until three gateways go by it, beside one round trip of a message of the
//!   same size over the same kind of connection.
//! - A partition that heals: how long, and how many rounds, until all tables are equal.
//! - 100,000 routes and 1,000 changes a second, beside the same changes by the watches alone: what
//!   the mesh adds in CPU, bytes and memory.
//! - A gateway that knows nothing, until it knows 100,000 routes, and how long changes take meanwhile
//!   beside how long they take while nobody joins.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod node;
mod relay;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Result, Samples, Target, human, verdict};
use kit::Tasks;
use model::Version;
use node::{Node, identity, message, snapshot};
use routes::{Message, State, Writer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep},
};

const ROUTES: u64 = 100_000;
const CHANGES: u64 = 1_000;
const SAMPLES: u64 = 3_000;
const LOAD: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        latency().await?;
        healing().await?;
        load().await
    })
}

/// The size of a message on its way.
fn size_of(message: &Message) -> Result<usize> {
    Ok(serde_json::to_vec(message)?.len())
}

async fn latency() -> Result<()> {
    let tasks = Tasks::default();
    let nodes = Node::several(3, &tasks).await?;
    let api = Node::api(&nodes, &tasks).await?;
    let before = api.mesh.stats().bytes_sent;
    let idle = Duration::from_secs(5);
    sleep(idle).await;
    let sent = api.mesh.stats().bytes_sent - before;
    println!(
        "idle, each of 4: {:.0} bytes/s to 3 peers, before encryption",
        sent as f64 / idle.as_secs_f64()
    );

    let (mut seen, mut acked, mut raw) = <(Samples, Samples, Samples)>::default();
    let (sender, mut sightings) = mpsc::unbounded_channel::<Instant>();
    for node in &nodes {
        node.table.listen(Arc::new(node::Sighted(sender.clone())));
    }
    let mut echo = Echo::start(&tasks).await?;
    let body = vec![b'x'; size_of(&message(1, State::Paused, 2))?];
    for n in 0..SAMPLES {
        // Alternating, so that a noisy machine disturbs both alike.
        let begun = Instant::now();
        echo.round(&body).await?;
        raw.record(begun.elapsed());

        // One that sleeps: its table tells when readers can see it.
        let begun = Instant::now();
        api.mesh.say(message(1, State::Paused, 10 + n));
        let heard = api.mesh.heard(Version::from_u64(10 + n)).await;
        acked.record(begun.elapsed());
        if !heard {
            return Err("a gateway did not acknowledge in time".into());
        }
        // All three have seen it by now; who is told of it again in a round sees it earlier or later.
        while let Ok(at) = sightings.try_recv() {
            if at > begun {
                seen.record(at - begun);
            }
        }
        sleep(Duration::from_micros(500)).await;
    }
    raw.print("round trip over TLS");
    seen.print("change until a gateway goes by it (3 each)");
    acked.print("change until it is told that all 3 do");
    let ratio = |q: f64| acked.quantile(q).as_secs_f64() / raw.quantile(q).as_secs_f64();
    verdict(
        "told over a round trip, p50",
        ratio(0.5),
        Target::AtMost(6.0),
    );
    verdict(
        "told over a round trip, p99",
        ratio(0.99),
        Target::AtMost(10.0),
    );
    let _ = tasks.drain(Duration::from_secs(5)).await;
    Ok(())
}

/// One connection of the kind that peers have, and somebody who sends back what comes.
struct Echo(tokio_rustls::client::TlsStream<TcpStream>);

impl Echo {
    async fn start(tasks: &Tasks) -> Result<Self> {
        let identity = identity()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let to = listener.local_addr()?;
        let accepting = identity.clone();
        tasks.spawn(async move {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let mut stream = accepting.accept(stream).await?;
            let mut buffer = vec![0; 4096];
            loop {
                let count = stream.read(&mut buffer).await?;
                if count == 0 {
                    return std::io::Result::Ok(());
                }
                stream.write_all(&buffer[..count]).await?;
                stream.flush().await?;
            }
        });
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self(identity.connect(stream).await?))
    }

    async fn round(&mut self, body: &[u8]) -> Result<()> {
        self.0.write_all(body).await?;
        self.0.flush().await?;
        let mut back = vec![0; body.len()];
        self.0.read_exact(&mut back).await?;
        Ok(())
    }
}

async fn healing() -> Result<()> {
    const TIMES: usize = 10;
    const LOST: u64 = 1000;
    let tasks = Tasks::default();
    let (nodes, relays) = relay::behind(3, &tasks).await?;
    let (mut took, mut rounds) = (Samples::default(), Vec::new());
    for turn in 0..TIMES as u64 {
        for relay in &relays {
            relay.send_replace(false);
        }
        node::eventually(|| nodes.iter().all(|n| n.mesh.stats().dialled == 0)).await?;
        for n in 0..LOST {
            let node = &nodes[usize::try_from(n % 3)?];
            node.mesh
                .say(message(n, State::Running, 10 + turn * LOST + n));
        }
        for relay in &relays {
            relay.send_replace(true);
        }
        // From the first link on: how long it takes to dial again is another matter.
        node::eventually(|| nodes.iter().any(|n| n.mesh.stats().dialled > 0)).await?;
        let counted = |nodes: &[Node]| nodes.iter().map(|n| n.mesh.stats().counts.rounds).max();
        let (begun, before) = (Instant::now(), counted(&nodes));
        let first = Version::from_u64(10 + turn * LOST);
        let all = |node: &Node| {
            let routes = node.table.routes();
            routes.iter().filter(|r| r.version >= first).count() as u64 == LOST
        };
        node::eventually(|| nodes.iter().all(all)).await?;
        took.record(begun.elapsed());
        rounds.push(
            counted(&nodes)
                .zip(before)
                .map_or(0, |(now, then)| now - then),
        );
    }
    took.print("healed until 3 tables are equal, 1,000 lost");
    let worst = rounds.into_iter().max().unwrap_or_default();
    verdict(
        "rounds until they are, the worst",
        worst as f64,
        Target::AtMost(1.0),
    );
    let _ = tasks.drain(Duration::from_secs(5)).await;
    Ok(())
}

async fn load() -> Result<()> {
    let tasks = Tasks::default();
    let nodes = Node::several(3, &tasks).await?;
    let api = Node::api(&nodes, &tasks).await?;
    for node in &nodes {
        node.table.replace_all(snapshot(ROUTES), Duration::ZERO);
    }
    sleep(Duration::from_secs(2)).await;
    let mut version = ROUTES;
    let alone = run(&nodes, None, &mut version).await?;
    let with = run(&nodes, Some(&api), &mut version).await?;
    println!(
        "{ROUTES} routes, {CHANGES} changes/s: {:.3} CPU s/s by 3 watches alone, {:.3} with the mesh",
        alone.cpu, with.cpu
    );
    let changes = CHANGES as f64 * LOAD.as_secs_f64();
    println!(
        "sent {:.0} bytes a change by the writer, {:.0} by all; a message has {}",
        with.by_writer as f64 / changes,
        with.by_all as f64 / changes,
        size_of(&message(1, State::Paused, ROUTES * 2))?
    );
    println!(
        "memory: {:+.1} MB by 3 watches alone, {:+.1} MB with the mesh",
        alone.memory / 1e6,
        with.memory / 1e6
    );
    let added = (with.cpu - alone.cpu) / 4.0;
    verdict(
        "CPU s/s that the mesh adds to each of 4",
        added,
        Target::AtMost(0.1),
    );

    joining(&nodes, &api, &mut version).await?;
    let _ = tasks.drain(Duration::from_secs(5)).await;
    Ok(())
}

/// Gateways that know nothing join, one after the other; changes go on, and as many before each.
async fn joining(nodes: &[Node], api: &Node, version: &mut u64) -> Result<()> {
    const TIMES: usize = 3;
    let (mut quiet, mut busy, mut took) = <(Samples, Samples, Samples)>::default();
    let (mut all, mut unheard, mut worst) = (0, 0, Duration::ZERO);
    for _ in 0..TIMES {
        let tasks = Tasks::default();
        for _ in 0..CHANGES {
            change(api, version, &mut quiet).await;
        }
        let begun = Instant::now();
        let late = Node::joining(nodes, &tasks).await?;
        while !late.table.synced() {
            unheard += u64::from(!change(api, version, &mut busy).await);
            all += 1;
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("it never knows all".into());
            }
        }
        took.record(begun.elapsed());
        worst = worst.max(begun.elapsed());
        println!(
            "one that knew nothing knows {} routes after {}, of {:.1} MB",
            late.table.stats().routes,
            human(begun.elapsed()),
            late.mesh.stats().bytes_received as f64 / 1e6
        );
        late.mesh.leave().await;
        let _ = tasks.drain(Duration::from_secs(5)).await;
        let rest = nodes.len();
        node::eventually(|| api.mesh.stats().in_standing == rest).await?;
    }
    took.print("one that knew nothing until it knows all");
    verdict(
        "seconds until it does, the worst",
        worst.as_secs_f64(),
        Target::AtMost(3.0),
    );
    quiet.print("change until it is told that all do");
    busy.print("the same while one joins");
    println!("of {all} changes while one joined, {unheard} were not heard by everybody in time");
    let ratio = |q: f64| busy.quantile(q).as_secs_f64() / quiet.quantile(q).as_secs_f64();
    for (name, q) in [("p50", 0.5), ("p99", 0.99), ("the worst", 1.0)] {
        println!(
            "while one joins over while none does, {name:<12} {:>8.2}",
            ratio(q)
        );
    }
    Ok(())
}

/// Measures one change, and answers whether everybody has heard of it in time.
async fn change(api: &Node, version: &mut u64, samples: &mut Samples) -> bool {
    *version += 1;
    let begun = Instant::now();
    api.mesh
        .say(message(*version % ROUTES, State::Paused, *version));
    let heard = api.mesh.heard(Version::from_u64(*version)).await;
    samples.record(begun.elapsed());
    sleep(Duration::from_micros(500)).await;
    heard
}

struct Cost {
    cpu: f64,
    by_writer: u64,
    by_all: u64,
    memory: f64,
}

/// Changes at the rate; every watch tells of each twenty milliseconds later.
async fn run(nodes: &[Node], api: Option<&Node>, version: &mut u64) -> Result<Cost> {
    let bytes = |nodes: &[Node]| {
        let gateways: u64 = nodes.iter().map(|n| n.mesh.stats().bytes_sent).sum();
        let writer = api.map_or(0, |api| api.mesh.stats().bytes_sent);
        (writer, gateways + writer)
    };
    let (before, cpu) = (bytes(nodes), node::cpu_seconds());
    let resident = node::resident_bytes()?;
    let begun = Instant::now();
    let mut ticks = interval(Duration::from_millis(20));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut pending: Vec<Message> = Vec::new();
    while begun.elapsed() < LOAD {
        ticks.tick().await;
        for node in nodes {
            for message in pending.iter().cloned() {
                node.table.apply(Writer::Watch, message, begun.elapsed());
            }
            let passed = Version::from_u64(*version);
            node.table.watch_passed(passed, begun.elapsed());
        }
        pending.clear();
        for _ in 0..CHANGES / 50 {
            *version += 1;
            let changed = message(*version % ROUTES, State::Paused, *version);
            if let Some(api) = api {
                api.mesh.say(changed.clone());
            }
            pending.push(changed);
        }
    }
    let took = begun.elapsed().as_secs_f64();
    let after = bytes(nodes);
    Ok(Cost {
        cpu: (node::cpu_seconds() - cpu) / took,
        by_writer: after.0 - before.0,
        by_all: after.1 - before.1,
        memory: node::resident_bytes()? as f64 - resident as f64,
    })
}
