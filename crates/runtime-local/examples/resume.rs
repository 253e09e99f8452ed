#![allow(clippy::all, clippy::disallowed_methods, clippy::unwrap_used)]
use std::{fs::{self, File}, io::{self, Write}, path::{Path, PathBuf}, time::{Duration, Instant}};
use model::{Generation, OperationId, Uid};
use runtime::{Fence, Runtime as _, WorkloadSpec};
use runtime_local::{LocalRuntime, Options};
const MIB: usize = 1 << 20;
fn fence(number: u128, generation: u64) -> Fence {
    Fence { uid: Uid::from_random(number + 1), generation: Generation(generation), operation: OperationId(1) }
}
fn make_image(at: &Path, mib: usize) -> io::Result<()> {
    for d in ["dev", "proc", "sys", "tmp", "run", "etc", "data"] { fs::create_dir_all(at.join(d))?; }
    File::create(at.join("etc/passwd"))?.write_all(b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")?;
    for n in 0..mib / 10 { fill(&at.join(format!("data/{n}")), 10 * MIB, n as u64)?; }
    Ok(())
}
fn fill(at: &Path, length: usize, seed: u64) -> io::Result<()> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length { state ^= state << 13; state ^= state >> 7; state ^= state << 17; bytes.extend(state.to_le_bytes()); }
    File::create(at)?.write_all(&bytes[..length])
}
fn main() {
    let rounds: u128 = std::env::var("ROUNDS").map_or(60, |r| r.parse().unwrap());
    let program = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in("/work/main/target/release").unwrap();
    let _ = program;
    let mut options = Options::new("/work/main/target/x86_64-unknown-linux-musl/agent/dormouse-agent");
    options.init_args = ["--pid1", "--user", "user"].map(str::to_owned).into();
    options.network = None;
    let image = dir.path().join("large");
    make_image(&image, 100).unwrap();
    options.images.insert("large".into(), image);
    let data: PathBuf = dir.path().join("data");
    let rt = LocalRuntime::open(&data, options).unwrap();
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let create = |at: Fence, from| {
        let spec = WorkloadSpec { images: [("main", "large")].into_iter().collect(), from, ..WorkloadSpec::default() };
        threads.block_on(rt.create(at, &spec)).unwrap();
    };
    let first = fence(10_000, 1);
    create(first, None);
    fill(&data.join("sandboxes").join(first.uid.to_string()).join("upper/changed"), MIB, 7).unwrap();
    let layer = threads.block_on(async { rt.freeze(first).await.unwrap(); rt.capture(first, None).await.unwrap().digest });
    threads.block_on(rt.delete(first)).unwrap();
    let (mut cold, mut resumed): (Vec<Duration>, Vec<Duration>) = (vec![], vec![]);
    for round in 0..rounds {
        for (samples, from) in [(&mut cold, None), (&mut resumed, Some(layer.clone()))] {
            let at = fence(20_000 + round, 1 + u64::from(from.is_some()));
            let kind = from.is_some();
            marks_clear();
            let begun = Instant::now();
            create(at, from);
            let took = begun.elapsed();
            if round >= 5 { samples.push(took); }
            marks_print(kind, begun, took);
            threads.block_on(rt.delete(at)).unwrap();
        }
    }
    cold.sort(); resumed.sort();
    let p50 = |v: &Vec<Duration>| v[v.len() / 2].as_secs_f64() * 1e3;
    println!("cold create p50 {:.2} p10 {:.2} | resume p50 {:.2} p10 {:.2} | ratio {:.2}", p50(&cold), cold[cold.len()/10].as_secs_f64()*1e3, p50(&resumed), resumed[resumed.len()/10].as_secs_f64()*1e3, p50(&resumed) / p50(&cold));
}
//MARKS
fn marks_clear() {}
fn marks_print(_: bool, _: Instant, _: Duration) {}
