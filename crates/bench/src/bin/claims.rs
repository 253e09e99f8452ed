//! Claims of warm sandboxes as callers feel them, through the HTTP API: on a runtime that costs
//! nothing, beside one raw durable write and one round trip; by many callers at once; and on real
//! sandboxes, beside a cold create. Then a used sandbox made new again, beside another one.
//!
//! It needs root, and `cargo build --release -p dormouse -p dormouse-agent` before it.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    collections::BTreeSet,
    io::Write as _,
    path::Path,
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

const MEMBERS: usize = 2_000;
const ALONE: usize = 300;
const CALLERS: usize = 256;
const REAL: usize = 20;
const ROUNDS: usize = 100;

fn main() -> Result<()> {
    let programs = programs()?;
    let server = Server::start(&programs, "fake")?;
    fill(&server, MEMBERS)?;
    alone(&server.api())?;
    together(&server.api())?;
    drop(server);
    real(&programs)?;
    recycle(&programs)
}

/// Makes a pool and waits until all of its members are idle.
fn fill(server: &Server, members: usize) -> Result<()> {
    server.apply(&format!(
        "apiVersion: dormouse.dev/v1alpha1\n\
         kind: SandboxPool\n\
         metadata: {{name: warm, namespace: default}}\n\
         spec: {{template: base, minIdle: {members}, maxIdle: {members}, max: {members}}}\n"
    ))?;
    let begun = Instant::now();
    loop {
        let idle = server.get("sandboxpool", "warm")?["status"]["idle"].as_u64();
        if idle == Some(members as u64) {
            println!(
                "{members} members idle after {}",
                bench::human(begun.elapsed())
            );
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(120) {
            return Err(format!("only {idle:?} of {members} members are idle").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One caller, with what it cannot do without in turns.
fn alone(api: &Api) -> Result<()> {
    let mut log = tempfile::tempfile()?;
    let [mut claim, mut write, mut trip] = std::array::from_fn(|_| Samples::default());
    for _ in 0..ALONE {
        write.time(|| {
            log.write_all(&[7; 4096])?;
            Ok(log.sync_data()?)
        })?;
        trip.time(|| api.health())?;
        claim.time(|| api.create_from("warm"))?;
    }
    claim.print("a warm claim through the API");
    write.print("one raw append and fdatasync");
    trip.print("one round trip");
    let needed = write.quantile(0.5) + trip.quantile(0.5);
    for (q, most) in [(0.5, 3.0), (0.99, 8.0)] {
        verdict(
            &format!("claim / write + round trip, p{:.0}", q * 100.0),
            claim.quantile(q).as_secs_f64() / needed.as_secs_f64(),
            Target::AtMost(most),
        );
    }
    Ok(())
}

/// The rest of the pool among many: every sandbox goes to one of them.
fn together(api: &Api) -> Result<()> {
    let left = MEMBERS - ALONE;
    let begun = Instant::now();
    let ids = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let share = left / CALLERS + usize::from(caller < left % CALLERS);
                scope.spawn(move || {
                    let claim = |_| Ok(api.create_from("warm")?.id().to_owned());
                    (0..share).map(claim).collect::<Result<Vec<_>>>()
                })
            })
            .collect();
        let mut all = Vec::new();
        for caller in callers {
            all.extend(caller.join().map_err(|_| "a caller panicked")??);
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(all)
    })?;
    let took = begun.elapsed();
    println!(
        "{CALLERS} callers: {left} claims, {:.0} a second",
        left as f64 / took.as_secs_f64()
    );
    let distinct: BTreeSet<_> = ids.iter().collect();
    let doubled = ids.len() - distinct.len();
    verdict("handed out twice", doubled as f64, Target::AtMost(0.0));
    Ok(())
}

/// Real sandboxes: from the claim to the output of a first command, then from a pool that is empty.
fn real(programs: &Path) -> Result<()> {
    let server = Server::start(programs, "local")?;
    let api = server.api();
    let [mut cold, mut warm, mut drained] = std::array::from_fn(|_| Samples::default());
    for _ in 0..ROUNDS {
        let made = cold.time(|| api.create())?;
        api.kill(&made)?;
    }
    fill(&server, REAL)?;
    let mut kept = Vec::new();
    for _ in 0..REAL {
        kept.push(warm.time(|| {
            let made = api.create_from("warm")?;
            api.run_echo(&made)?;
            Ok(made)
        })?);
    }
    for _ in 0..ROUNDS {
        let made = drained.time(|| api.create_from("warm"))?;
        api.kill(&made)?;
    }
    warm.print("a warm claim to a command's output");
    cold.print("a cold create");
    drained.print("a claim of a drained pool");
    verdict(
        "drained pool / cold create, p99",
        drained.quantile(0.99).as_secs_f64() / cold.quantile(0.99).as_secs_f64(),
        Target::AtMost(2.0),
    );
    kept.iter().try_for_each(|made| api.kill(made))
}

/// A used sandbox made new with proof, beside its end and another one.
fn recycle(programs: &Path) -> Result<()> {
    let home = tempfile::tempdir()?;
    let options = Options::agent(programs.join("dormouse-agent"));
    let threads = tokio::runtime::Runtime::new()?;
    let runtime = LocalRuntime::open(home.path().join("data"), options)?;
    let at = |operation| Fence {
        uid: Uid::from_random(1),
        generation: Generation(1),
        operation: OperationId(operation),
    };
    let spec = WorkloadSpec {
        images: [("main", "base")].into_iter().collect(),
        ..WorkloadSpec::default()
    };
    let arming = |epoch| Arming {
        epoch: Epoch(epoch),
        ..Arming::default()
    };
    let [mut reset, mut anew] = std::array::from_fn(|_| Samples::default());
    threads.block_on(async {
        let mut operation = 1;
        for round in 0..2 * ROUNDS {
            if round % 2 == 0 {
                runtime.create(at(operation), &spec).await?;
            }
            runtime
                .arm(at(operation), &arming(1 + round as u32))
                .await?;
            operation += 1;
            let begun = Instant::now();
            if round % 2 == 0 {
                runtime.reset(at(operation), None).await?;
                reset.record(begun.elapsed());
            } else {
                runtime.delete(at(operation)).await?;
                operation += 1;
                runtime.create(at(operation), &spec).await?;
                anew.record(begun.elapsed());
                operation += 1;
                runtime.delete(at(operation)).await?;
                operation += 1;
            }
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    reset.print("a used sandbox made new, with proof");
    anew.print("its end and another one");
    for q in [0.5, 0.99] {
        println!(
            "made new / another one, p{:.0}: {:.2}",
            q * 100.0,
            reset.quantile(q).as_secs_f64() / anew.quantile(q).as_secs_f64()
        );
    }
    Ok(())
}
