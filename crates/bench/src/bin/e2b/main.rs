//! The E2B API as its users feel it, on real sandboxes: create to the agent's first answer beside
//! what the engine itself takes plus one durable write, create to the first command's output, kill,
//! list, the same by the Python SDK, a fork of many beside as many creates, start of the server and
//! its memory.
//!
//! It needs root, python3 with venv, and `cargo build --release -p dormouse -p dormouse-agent`
//! before it.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod forks;
mod sdk;

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bench::{
    Result, Samples, Target,
    http::Api,
    server::{Server, programs},
    verdict,
};
use model::{
    Epoch, Generation, OperationId, Uid,
    workload::{Arming, Fence, WorkloadSpec},
};
use runtime::Runtime as _;
use runtime_local::{LocalRuntime, Options};

const ROUNDS: usize = 150;
const PER_CALLER: usize = 40;
const MANY: usize = 10_000;

fn main() -> Result<()> {
    let programs = programs()?;
    start_up(&programs)?;
    let server = Server::start(&programs, "local")?;
    server.memory("idle server, resident")?;
    let api = server.api();
    let plain = one_caller(&programs, &api)?;
    for callers in [8, 32] {
        several(&api, callers, plain)?;
    }
    sdk::measure(&server, plain)?;
    forks::measure(&server)?;
    server.memory("the same after all that, resident")?;
    drop(server);
    pages(&programs)
}

/// From the start of the process to the first answered request, on an empty directory and on one
/// that was used before.
fn start_up(programs: &Path) -> Result<()> {
    let (mut first, mut again) = (Samples::default(), Samples::default());
    for _ in 0..5 {
        let begun = Instant::now();
        let server = Server::start(programs, "local")?;
        server.api().list()?;
        first.record(begun.elapsed());
        let home = server.stop()?;
        let begun = Instant::now();
        let server = Server::start_in(home, programs, "local")?;
        server.api().health()?;
        again.record(begun.elapsed());
    }
    first.print("start to first answer, empty directory");
    again.print("start to first answer, used directory");
    let seconds = first.quantile(0.5).as_secs_f64();
    verdict(
        "start on an empty directory, in seconds",
        seconds,
        Target::AtMost(0.3),
    );
    Ok(())
}

/// One caller, with the engine's own create and a durable write in turns.
fn one_caller(programs: &Path, api: &Api) -> Result<Duration> {
    let engine = Engine::open(programs)?;
    let [mut own, mut create, mut output, mut kill, mut list] =
        std::array::from_fn(|_| Samples::default());
    for round in 0..ROUNDS {
        own.record(engine.round(round)?);
        let begun = Instant::now();
        let made = api.create()?;
        api.first_answer(&made)?;
        create.record(begun.elapsed());
        timed(&mut list, || api.list())?;
        timed(&mut kill, || api.kill(&made))?;
        let begun = Instant::now();
        let made = api.create()?;
        api.run_echo(&made)?;
        output.record(begun.elapsed());
        api.kill(&made)?;
    }
    own.print("engine: create, agent armed, durable write");
    create.print("API: create to the agent's first answer");
    output.print("API: create to the first command's output");
    kill.print("API: kill");
    list.print("API: list");
    for (quantile, name) in [(0.5, "p50"), (0.99, "p99")] {
        let ratio = ratio(create.quantile(quantile), own.quantile(quantile));
        let name = format!("create through the API / engine + write, {name}");
        verdict(&name, ratio, Target::AtMost(1.5));
    }
    Ok(create.quantile(0.5))
}

/// Several callers at once.
fn several(api: &Api, callers: usize, alone: Duration) -> Result<()> {
    let begun = Instant::now();
    let all: Vec<_> = std::thread::scope(|scope| {
        let work = || {
            let mut took = Samples::default();
            for _ in 0..PER_CALLER {
                let begun = Instant::now();
                let made = api.create()?;
                api.first_answer(&made)?;
                took.record(begun.elapsed());
                api.kill(&made)?;
            }
            Ok(took)
        };
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(work)).collect();
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<Samples>>| {
            thread.join().map_err(|_| "a caller panicked")?
        };
        threads.into_iter().map(end).collect::<Result<_>>()
    })?;
    let mut took = Samples::default();
    all.iter().for_each(|one| took.merge(one));
    took.print(&format!("API: create to first answer, {callers} callers"));
    let rate = (callers * PER_CALLER) as f64 / begun.elapsed().as_secs_f64();
    let serial = 1.0 / alone.as_secs_f64();
    println!("{callers} callers: {rate:.0} create + kill a second; 1 caller creates {serial:.0}");
    Ok(())
}

/// A page of a list among ten and among ten thousand.
fn pages(programs: &Path) -> Result<()> {
    let server = Server::start(programs, "fake")?;
    let api = server.api();
    let measure = || -> Result<Samples> {
        let mut took = Samples::default();
        for _ in 0..300 {
            timed(&mut took, || api.page())?;
        }
        Ok(took)
    };
    fill(&api, 10)?;
    let few = measure()?;
    fill(&api, MANY - 10)?;
    // What making so many has set off goes on for a while.
    std::thread::sleep(Duration::from_secs(10));
    let many = measure()?;
    few.print("API: a page of 10 among 10");
    many.print("API: a page of 10 among 10,000");
    let ratio = ratio(many.quantile(0.5), few.quantile(0.5));
    verdict(
        "a page among 10,000 / among 10, p50",
        ratio,
        Target::AtMost(1.5),
    );
    let resident = server.resident()?;
    println!("server with 10,000 sandboxes, resident: {resident:.0} MB");
    Ok(())
}

fn fill(api: &Api, count: usize) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let work = || {
            while next.fetch_add(1, Ordering::Relaxed) < count {
                api.create()?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..32).map(|_| scope.spawn(work)).collect();
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().map_err(|_| "a caller panicked")?
        };
        threads.into_iter().try_for_each(end)
    })
}

/// The engine in this process, and a file to write to durably.
struct Engine {
    threads: tokio::runtime::Runtime,
    runtime: LocalRuntime,
    log: File,
    _home: tempfile::TempDir,
}

impl Engine {
    fn open(programs: &Path) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let options = Options::agent(programs.join("dormouse-agent"));
        Ok(Self {
            threads: tokio::runtime::Runtime::new()?,
            runtime: LocalRuntime::open(home.path().join("data"), options)?,
            log: File::create(home.path().join("log"))?,
            _home: home,
        })
    }

    /// How long a create takes until its agent has answered, with one durable write.
    fn round(&self, number: usize) -> Result<Duration> {
        let at = |generation| Fence {
            uid: Uid::from_random(number as u128 + 1),
            generation: Generation(generation),
            operation: OperationId(1),
        };
        let spec = WorkloadSpec {
            images: [("main", "base")].into_iter().collect(),
            sudo: true,
            ..WorkloadSpec::default()
        };
        let arming = Arming {
            epoch: Epoch(1),
            user: Some("user".into()),
            ..Arming::default()
        };
        self.threads.block_on(async {
            let begun = Instant::now();
            self.runtime.create(at(1), &spec).await?;
            self.runtime.arm(at(1), &arming).await?;
            self.write()?;
            let took = begun.elapsed();
            self.runtime.delete(at(2)).await?;
            Ok(took)
        })
    }

    fn write(&self) -> io::Result<()> {
        (&self.log).write_all(&[7; 4096])?;
        self.log.sync_data()
    }
}

fn timed<T>(samples: &mut Samples, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let done = work()?;
    samples.record(begun.elapsed());
    Ok(done)
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}
