//! Durable writes of the embedded store against the least that durability costs on this disk: a raw
//! append of 4 KiB and an fdatasync, measured on the same file system in turns with the store.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bench::{Samples, Target, human, verdict};
use kit::{Clock, Entropy, SystemClock, Tasks};
use model::{
    Metadata, Name, Namespace, Object, Sandbox, SandboxId, StringMap, Timestamp, Version,
    lifecycle::Phase,
    meta::{Condition, ConditionStatus},
    sandbox::{Owner, Resources, SANDBOX_FINALIZER, SandboxSpec},
};
use store::{Change, Draft, Half, Query, Record, Store};
use store_redb::{Options, RedbStore};

const RECORDS: usize = 10_000;
const MANY: usize = 100_000;
const WRITERS: usize = 256;
/// Short turns and many, so that a disk that others use disturbs both sides alike.
const ROUNDS: usize = 40;
const WRITES_PER_ROUND: usize = 100;
const CROWD_TIME: Duration = Duration::from_millis(300);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Beside the program: the file system that is built on, never one in memory.
    let program = std::env::current_exe()?;
    let directory = tempfile::tempdir_in(program.parent().unwrap_or(Path::new(".")))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let open = |name: &str| {
        RedbStore::open(
            &directory.path().join(name),
            Arc::clone(&clock),
            Arc::new(Entropy::seeded(1)),
            Options::default(),
        )
    };

    let store = Arc::new(open("store")?);
    let mut records = fill(&store, RECORDS).await?;
    println!(
        "one record takes {} bytes; the store holds {RECORDS}",
        records[0].size()
    );
    let mut raw_file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(directory.path().join("raw"))?;

    let (mut raw, mut single) = (Samples::default(), Samples::default());
    let mut crowd = (0, Duration::ZERO);
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let mut raw_now = Samples::default();
        append_raw(&mut raw_file, &*clock, &mut raw_now)?;
        let mut single_now = Samples::default();
        for i in 0..WRITES_PER_ROUND {
            let at = (round * WRITES_PER_ROUND + i) * 7919 % RECORDS;
            let change = next_change(&records[at], i);
            let began = clock.monotonic();
            records[at] = store.update(change).await?;
            single_now.record(clock.monotonic() - began);
        }
        let (count, took) = write_in_a_crowd(&store, &mut records, &clock).await;
        let crowd_rate = count as f64 / took.as_secs_f64();
        let raw_rate = 1.0 / raw_now.quantile(0.5).as_secs_f64();
        ratios.push((
            single_now.quantile(0.5).as_secs_f64() / raw_now.quantile(0.5).as_secs_f64(),
            crowd_rate / raw_rate,
        ));
        crowd = (crowd.0 + count, crowd.1 + took);
        raw.merge(&raw_now);
        single.merge(&single_now);
    }
    raw.print("raw: append 4 KiB + fdatasync");
    single.print("store: durable compare-and-set, one writer");
    let rate = crowd.0 as f64 / crowd.1.as_secs_f64();
    println!(
        "{:<44} {rate:>8.0} writes/s",
        format!("store: {WRITERS} writers")
    );
    let (single_ratios, crowd_ratios): (Vec<_>, Vec<_>) = ratios.into_iter().unzip();
    let (low, middle, high) = spread(single_ratios);
    verdict(
        "one writer / raw, p50, median of rounds",
        middle,
        Target::AtMost(2.0),
    );
    println!("{:<44} {low:>8.2} to {high:.2}", "  over all rounds");
    let p99 = single.quantile(0.99).as_secs_f64() / raw.quantile(0.99).as_secs_f64();
    println!("{:<44} {p99:>8.2}", "one writer / raw, p99");
    let (low, middle, high) = spread(crowd_ratios);
    verdict(
        "256 writers / raw, rate, median of rounds",
        middle,
        Target::AtLeast(5.0),
    );
    println!("{:<44} {low:>8.2} to {high:.2}", "  over all rounds");

    measure_reads(&store, &records, &*clock).await?;
    drop(store);
    measure_reopening(&open, &*clock).await?;
    Ok(())
}

fn append_raw(file: &mut File, clock: &dyn Clock, samples: &mut Samples) -> std::io::Result<()> {
    let block = vec![0xa5; 4096];
    for _ in 0..WRITES_PER_ROUND {
        let began = clock.monotonic();
        file.write_all(&block)?;
        file.sync_data()?;
        samples.record(clock.monotonic() - began);
    }
    Ok(())
}

/// Each writer changes records of its own, one after another, as fast as it is answered. It keeps
/// what it was answered, as a controller keeps its cache.
async fn write_in_a_crowd(
    store: &Arc<RedbStore>,
    records: &mut [Arc<Record>],
    clock: &Arc<dyn Clock>,
) -> (usize, Duration) {
    let tasks = Tasks::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut shares: Vec<Vec<(usize, Arc<Record>)>> = vec![Vec::new(); WRITERS];
    for (n, record) in records.iter().enumerate() {
        // Neighbours belong to different writers, and no writer goes in the order of the keys.
        shares[n * 7919 % records.len() % WRITERS].push((n, Arc::clone(record)));
    }
    let began = clock.monotonic();
    let writers: Vec<_> = shares
        .into_iter()
        .map(|mut mine| {
            let store = Arc::clone(store);
            let stop = Arc::clone(&stop);
            tasks.spawn(async move {
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    let at = done * 17 % mine.len();
                    let change = next_change(&mine[at].1, done);
                    let Ok(written) = store.update(change).await else {
                        break;
                    };
                    mine[at].1 = written;
                    done += 1;
                }
                (done, mine)
            })
        })
        .collect();
    tokio::time::sleep(CROWD_TIME).await;
    stop.store(true, Ordering::Relaxed);
    let mut count = 0;
    for writer in writers {
        let Ok((done, mine)) = writer.await else {
            continue;
        };
        count += done;
        for (n, record) in mine {
            records[n] = record;
        }
    }
    (count, clock.monotonic() - began)
}

async fn measure_reads(
    store: &RedbStore,
    records: &[Arc<Record>],
    clock: &dyn Clock,
) -> Result<(), store::StoreError> {
    let mut gets = Samples::default();
    for i in 0..20_000 {
        let key = records[i * 7919 % records.len()].key();
        let began = clock.monotonic();
        store.get(&key).await?;
        gets.record(clock.monotonic() - began);
    }
    gets.print("get, on the caller's thread");
    let mut finds = Samples::default();
    for i in 0..2_000 {
        let id = records[i * 7919 % records.len()]
            .fields
            .get("spec.sandboxId");
        let query = Query::kind(records[0].kind).field("spec.sandboxId", id.unwrap_or_default());
        let began = clock.monotonic();
        store.list(&query).await?;
        finds.record(clock.monotonic() - began);
    }
    finds.print("list of one by an indexed field");
    let mut lists = Samples::default();
    for _ in 0..20 {
        let began = clock.monotonic();
        store.list(&Query::kind(records[0].kind)).await?;
        lists.record(clock.monotonic() - began);
    }
    lists.print(&format!("list of all {}", records.len()));
    Ok(())
}

async fn measure_reopening(
    open: &impl Fn(&str) -> Result<RedbStore, store_redb::OpenError>,
    clock: &dyn Clock,
) -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(open("many")?);
    fill(&store, MANY).await?;
    drop(store);
    let began = clock.monotonic();
    let store = open("many")?;
    println!(
        "{:<44} {}",
        format!("reopen with {MANY} records"),
        human(clock.monotonic() - began)
    );
    let began = clock.monotonic();
    let found = store
        .list(&Query::kind(<SandboxSpec as model::Spec>::KIND))
        .await?;
    println!(
        "{:<44} {}",
        format!("then list all {}", found.records.len()),
        human(clock.monotonic() - began)
    );
    Ok(())
}

/// The lowest, the middle and the highest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (
        values[0],
        values[values.len() / 2],
        values[values.len() - 1],
    )
}

/// Creates sandboxes such as a busy installation has, many at a time.
async fn fill(
    store: &Arc<RedbStore>,
    count: usize,
) -> Result<Vec<Arc<Record>>, Box<dyn std::error::Error>> {
    let tasks = Tasks::default();
    let mut records = Vec::with_capacity(count);
    for chunk in (0..count).collect::<Vec<_>>().chunks(1024) {
        let creates: Vec<_> = chunk
            .iter()
            .map(|n| {
                let store = Arc::clone(store);
                let draft = Draft::of(&sandbox(*n));
                tasks.spawn(async move { store.create(draft).await })
            })
            .collect();
        for create in creates {
            records.push(create.await??);
        }
    }
    Ok(records)
}

/// The next status of a sandbox that is in use: only the time of its last activity moves.
fn next_change(current: &Record, n: usize) -> Change {
    let stamp = format!(
        "\"lastActiveAt\":\"2026-01-01T00:00:{:02}.{:06}Z\"",
        n % 60,
        n % 1_000_000
    );
    let status = &current.status;
    let status = match (status.find("\"lastActiveAt\""), status.rfind('}')) {
        (Some(at), _) => format!("{}{stamp}{}", &status[..at], &status[at + stamp.len()..]),
        (None, Some(end)) => format!("{},{stamp}}}", &status[..end]),
        (None, None) => status.to_string(),
    };
    Change {
        key: current.key(),
        uid: current.meta.uid,
        expected: current.meta.resource_version.unwrap_or(Version::ZERO),
        half: Half::Status {
            status: status.into(),
        },
        fields: current.fields.clone(),
    }
}

fn sandbox(n: usize) -> Sandbox {
    let team = Namespace::new(format!("team-{}", n % 50)).expect("a valid namespace");
    let name = Name::new(format!("sandbox-{n}")).expect("a valid name");
    let mut meta = Metadata::new(Some(team.clone()), name);
    meta.finalizers = vec![SANDBOX_FINALIZER.into()];
    meta.labels.insert("app", "agent");
    let env: StringMap = (0..4)
        .map(|i| (format!("VARIABLE_{i}"), format!("value-{i}-of-sandbox-{n}")))
        .collect();
    let spec = SandboxSpec {
        template: Name::new("base").ok(),
        pool: Name::new(format!("pool-{}", n % 10)).ok(),
        env,
        resources: Some(Resources {
            cpu_millis: Some(2000),
            memory_mib: Some(512),
            disk_mib: Some(1024),
        }),
        owner: Some(Owner {
            team,
            user: Some("e2b_0123456789abcdef".into()),
            key: None,
        }),
        sandbox_id: Some(SandboxId::from_random(n as u128 * 0x9e37_79b9_7f4a_7c15)),
        wake_on_traffic: true,
        ..SandboxSpec::default()
    };
    let mut sandbox = Object::new(meta, spec);
    sandbox.status.phase = Phase::Running;
    sandbox.status.conditions = ["Ready", "Routed"]
        .map(|kind| Condition {
            kind: kind.into(),
            status: ConditionStatus::True,
            reason: "Started".into(),
            message: "the workload answers".into(),
            last_transition_time: Timestamp::from_micros(1_767_225_600_000_000),
            observed_generation: model::Generation(1),
        })
        .into();
    sandbox
}
