//! The container engine beside the least that a container costs and beside `runc run`, in turns on
//! the same root filesystem with the same agent: from the call to the agent's first answer.
//!
//! Needs root, runc, and the agent as it is handed out:
//! `cargo build --profile agent -p dormouse-agent --target x86_64-unknown-linux-musl`.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod bare;
mod crowd;
mod health;
mod runc;
mod steps;
mod veth;

use std::{
    error::Error,
    fs::{self, File},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bench::{
    Samples, Target,
    cgroup::{set_frozen, unified},
    verdict,
};
use model::{Generation, OperationId, Uid, workload::WorkloadSpec};
use runtime::{Family, Fence, Inside as _, Runtime as _};
use runtime_local::{LocalRuntime, Options};
use steps::Steps;

const ROUNDS: usize = 200;
/// It is slow, and its ratio is far from its target.
const RUNC_EVERY: usize = 4;
const FREEZES: usize = 300;
const AGENT_ARGS: [&str; 3] = ["--pid1", "--user", "user"];

/// What every measurement shares.
struct Bench {
    runtime: LocalRuntime,
    threads: tokio::runtime::Runtime,
    home: OwnedFd,
    rootfs: PathBuf,
    data: PathBuf,
    steps: Steps,
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = data_directory()?;
    let bench = Bench::new(directory.path())?;
    // First times fill caches.
    for number in 0..5 {
        bench.start(number)?;
        bench.delete(number)?;
    }
    bench.steps.clear();
    bench.against_baselines()?;
    bench.freezing()?;
    crowd::concurrent(&bench)?;
    crowd::live(&bench)?;
    Ok(())
}

/// Beside the program: the file system that is built on, never one in memory.
fn data_directory() -> io::Result<tempfile::TempDir> {
    let program = std::env::current_exe()?;
    tempfile::tempdir_in(program.parent().unwrap_or(Path::new(".")))
}

fn fence(number: u128) -> Fence {
    Fence {
        uid: Uid::from_random(number + 1),
        generation: Generation(1),
        operation: OperationId(1),
    }
}

impl Bench {
    fn new(directory: &Path) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?;
        let target = program.ancestors().nth(2).unwrap_or(Path::new("."));
        let agent = format!(
            "{}-unknown-linux-musl/agent/dormouse-agent",
            std::env::consts::ARCH
        );
        let agent = target.join(agent);
        if !agent.is_file() {
            return Err(format!(
                "{} is missing: cargo build --profile agent -p dormouse-agent --target {}-unknown-linux-musl",
                agent.display(),
                std::env::consts::ARCH
            )
            .into());
        }
        let rootfs = directory.join("rootfs");
        make_rootfs(&rootfs, &agent)?;
        let steps = Steps::default();
        let mut options = Options::new(&agent);
        options.init_args = AGENT_ARGS.map(str::to_owned).into();
        options.images.insert("bench".into(), rootfs.clone());
        options.on_step = Some(steps.hook());
        let data = directory.join("data");
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()?;
        Ok(Self {
            runtime: LocalRuntime::open(&data, options)?,
            threads,
            home: File::open("/proc/self/ns/net")?.into(),
            rootfs,
            data: directory.into(),
            steps,
        })
    }

    /// From the call to the agent's first answer.
    fn start(&self, number: u128) -> Result<(), Box<dyn Error>> {
        let fence = fence(number);
        self.steps.begin();
        self.create(fence)?;
        self.steps.note("returned");
        health::wait(|| {
            self.runtime
                .socket(fence.uid, Family::V4)
                .map_err(io::Error::other)
        })?;
        self.steps.note("answered");
        Ok(())
    }

    fn create(&self, fence: Fence) -> Result<(), Box<dyn Error>> {
        let spec = WorkloadSpec {
            images: [("main", "bench")].into_iter().collect(),
            ..WorkloadSpec::default()
        };
        self.threads.block_on(self.runtime.create(fence, &spec))?;
        Ok(())
    }

    fn delete(&self, number: u128) -> Result<(), Box<dyn Error>> {
        Ok(self.threads.block_on(self.runtime.delete(fence(number)))?)
    }

    fn against_baselines(&self) -> Result<(), Box<dyn Error>> {
        let mut program = vec!["/agent"];
        program.extend(AGENT_ARGS);
        let mut host = bare::Host::new(&self.rootfs, &self.data.join("bare"))?;
        let mut runc = runc::Runc::new(&self.rootfs, &self.data.join("runc"), &program)?;
        let [
            mut engine,
            mut deleted,
            mut bare,
            mut ended,
            mut wired,
            mut runc_run,
            mut runc_end,
        ] = std::array::from_fn(|_| Samples::default());
        for round in 0..ROUNDS {
            timed(&mut engine, || self.start(0))?;
            timed(&mut deleted, || self.delete(0))?;
            for (with_veth, samples) in [(false, &mut bare), (true, &mut wired)] {
                let started = timed(samples, || {
                    let started = host.start(with_veth, &program)?;
                    health::wait(|| health::socket_in(started.pidfd.as_fd(), self.home.as_fd()))?;
                    Ok(started)
                })?;
                timed(&mut ended, || Ok(started.end()?))?;
            }
            if round % RUNC_EVERY == 0 {
                let started = timed(&mut runc_run, || {
                    let started = runc.start()?;
                    health::wait(|| health::socket_in(started.pidfd.as_fd(), self.home.as_fd()))?;
                    Ok(started)
                })?;
                timed(&mut runc_end, || Ok(started.end()?))?;
            }
        }
        println!("from the call to the agent's first answer");
        engine.print("engine");
        bare.print("bare clone3");
        wired.print("bare clone3 with a veth");
        runc_run.print("runc run");
        self.steps.print();
        compare("create / bare", &engine, &bare, 2.0);
        compare("create / bare with a veth", &engine, &wired, 2.0);
        compare("create / runc run", &engine, &runc_run, 0.25);
        println!("\nto the end");
        deleted.print("engine delete");
        ended.print("bare end");
        runc_end.print("runc delete --force");
        compare("delete / runc delete", &deleted, &runc_end, 0.25);
        Ok(())
    }

    fn freezing(&self) -> Result<(), Box<dyn Error>> {
        self.start(0)?;
        let pid = self.runtime.first_process(fence(0).uid);
        let cgroup = unified_cgroup(pid.ok_or("the sandbox has ended")?)?;
        let [mut freeze, mut thaw, mut raw_freeze, mut raw_thaw] =
            std::array::from_fn(|_| Samples::default());
        for _ in 0..FREEZES {
            // What was thawed a moment ago may not have left yet, and then need not stop again.
            let settle = || std::thread::sleep(Duration::from_millis(1));
            settle();
            timed(&mut raw_freeze, || Ok(set_frozen(&cgroup, true)?))?;
            timed(&mut raw_thaw, || Ok(set_frozen(&cgroup, false)?))?;
            settle();
            timed(&mut freeze, || {
                Ok(self.threads.block_on(self.runtime.freeze(fence(0)))?)
            })?;
            timed(&mut thaw, || {
                Ok(self.threads.block_on(self.runtime.thaw(fence(0)))?)
            })?;
        }
        self.delete(0)?;
        println!("\nfreezing one sandbox");
        freeze.print("engine freeze");
        raw_freeze.print("raw freeze and wait");
        thaw.print("engine thaw");
        raw_thaw.print("raw thaw and wait");
        compare("freeze / raw", &freeze, &raw_freeze, 3.0);
        compare("thaw / raw", &thaw, &raw_thaw, 3.0);
        Ok(())
    }
}

/// Measures one call.
fn timed<T>(
    samples: &mut Samples,
    call: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let begin = Instant::now();
    let result = call()?;
    samples.record(begin.elapsed());
    Ok(result)
}

fn compare(name: &str, ours: &Samples, theirs: &Samples, at_most: f64) {
    for q in [0.5, 0.99] {
        let ratio = ours.quantile(q).as_secs_f64() / theirs.quantile(q).as_secs_f64();
        let name = format!("{name}, p{:.0}", q * 100.0);
        verdict(&name, ratio, Target::AtMost(at_most));
    }
}

/// Directories, a user, and the agent where the baselines start it.
fn make_rootfs(rootfs: &Path, agent: &Path) -> io::Result<()> {
    for name in [
        "dev",
        "etc",
        "home/user",
        "proc",
        "root",
        "run",
        "sys",
        "tmp",
        "usr/bin",
    ] {
        fs::create_dir_all(rootfs.join(name))?;
    }
    let passwd = b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n";
    kit::durable::write_file(&rootfs.join("etc/passwd"), passwd, 0o644)?;
    fs::copy(agent, rootfs.join("agent"))?;
    Ok(())
}

fn unified_cgroup(pid: i32) -> io::Result<PathBuf> {
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let below = own.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(unified()?.join(below.unwrap_or_default()))
}
