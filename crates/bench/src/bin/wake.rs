//! Waking as a client feels it, on real sandboxes: the first byte of a request that finds its
//! sandbox frozen, beside what it cannot do without: a proxied request, one raw thaw, and two
//! appends with their fdatasync. Then a thousand requests at once at one that sleeps.
//!
//! It needs root, and `cargo build --release -p dormouse -p dormouse-agent` before it.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bench::{
    Result, Samples, Target,
    cgroup::{set_frozen, unified},
    http::{Api, Made},
    server::{Server, programs},
    verdict,
};

const ROUNDS: usize = 300;
const AT_ONCE: usize = 1_000;

fn main() -> Result<()> {
    let server = Server::start(&programs()?, "local")?;
    let api = server.api();
    let made = api.create_sleeper()?;
    api.first_answer(&made)?;
    let needed = floor(&api, &made)?;
    let mut woken = Samples::default();
    for _ in 0..ROUNDS {
        api.pause(&made)?;
        let begun = Instant::now();
        api.answer(&made)?;
        woken.record(begun.elapsed());
    }
    woken.print("a request that wakes its sandbox");
    for (q, most) in [(0.5, 3.0), (0.99, 10.0)] {
        verdict(
            &format!("waking / what it needs, p{:.0}", q * 100.0),
            woken.quantile(q).as_secs_f64() / needed.as_secs_f64(),
            Target::AtMost(most),
        );
    }
    at_once(&server, &made)?;
    api.kill(&made)
}

/// What no wake can do without, each as it is half of the time.
fn floor(api: &Api, made: &Made) -> Result<Duration> {
    let mut frozen = Frozen::new()?;
    let mut log = tempfile::tempfile()?;
    let [mut proxied, mut thaw, mut append] = std::array::from_fn(|_| Samples::default());
    for _ in 0..ROUNDS {
        proxied.time(|| api.answer(made))?;
        frozen.freeze()?;
        thaw.time(|| frozen.thaw())?;
        append.time(|| append_durably(&mut log))?;
    }
    proxied.print("a request to a sandbox that is awake");
    thaw.print("one raw thaw");
    append.print("one raw append and fdatasync");
    let half = |samples: &Samples| samples.quantile(0.5);
    Ok(half(&proxied) + half(&thaw) + half(&append) * 2)
}

fn append_durably(log: &mut File) -> Result<()> {
    log.write_all(&[7; 512])?;
    Ok(log.sync_data()?)
}

/// All of them find it asleep: each is answered once, and it wakes once.
fn at_once(server: &Server, made: &Made) -> Result<()> {
    let api = server.api();
    let before = server.wakes(made.id())?;
    api.pause(made)?;
    let begun = Instant::now();
    let open: Vec<_> = (0..AT_ONCE)
        .map(|_| api.begin_answer(made))
        .collect::<Result<_>>()?;
    let mut answered = 0;
    for stream in open {
        answered += usize::from(Api::end_answer(stream)? == 204);
    }
    let took = begun.elapsed();
    println!(
        "{AT_ONCE} requests at once: {answered} answered in {}",
        bench::human(took)
    );
    verdict(
        "requests lost",
        (AT_ONCE - answered) as f64,
        Target::AtMost(0.0),
    );
    let wakes = server.wakes(made.id())? - before;
    verdict("wakes for all of them", wakes as f64, Target::AtMost(1.0));
    Ok(())
}

/// A process in a cgroup of its own.
struct Frozen {
    cgroup: PathBuf,
    child: Child,
}

impl Frozen {
    fn new() -> Result<Self> {
        let cgroup = unified()?.join(format!("dormouse-bench-{}", std::process::id()));
        fs::create_dir(&cgroup)?;
        let child = Command::new("sleep")
            .arg("3600")
            .stdin(Stdio::null())
            .spawn()?;
        let mut procs = File::options()
            .write(true)
            .open(cgroup.join("cgroup.procs"))?;
        procs.write_all(child.id().to_string().as_bytes())?;
        Ok(Self { cgroup, child })
    }

    fn freeze(&mut self) -> Result<()> {
        Ok(set_frozen(&self.cgroup, true)?)
    }

    fn thaw(&mut self) -> Result<()> {
        Ok(set_frozen(&self.cgroup, false)?)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Nothing is left to do about what does not go.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir(&self.cgroup);
    }
}
