//! Runs every test of the workspace in a process of its own, with a kill timer.
//!
//! `cargo test` has no timer: a test that hangs would hang CI. One process for each test means that
//! a hanging one can be killed with all that it started, alone, and is named. There are no
//! retries: a test that fails sometimes fails.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    command::{Stopwatch, cargo, root, run as run_command, show, target},
    kubectl,
};

/// A test that takes longer hangs. The longest sets up a Python environment of its own first, or waits
/// until another one has.
const LIMIT: Duration = Duration::from_secs(900);
/// How many run at once for each core: most wait more than they compute.
const PER_CORE: usize = 2;
const POLL: Duration = Duration::from_millis(5);

/// A program with tests in it.
#[derive(Clone, Debug)]
struct Binary {
    title: String,
    path: PathBuf,
    directory: PathBuf,
}

#[derive(Clone, Debug)]
struct Test {
    binary: Binary,
    name: String,
}

#[derive(Debug)]
enum Outcome {
    Passed,
    Ignored,
    Failed(String),
}

/// Builds and runs the tests whose name contains `filter`.
pub(crate) fn run(filter: Option<&str>) -> anyhow::Result<()> {
    let path = kubectl::path()?;
    let mut queue = VecDeque::new();
    let mut ignored = Vec::new();
    for binary in build()? {
        let left_out = list(&binary, &["--ignored"])?;
        for name in list(&binary, &[])? {
            if filter.is_some_and(|part| !name.contains(part)) {
                continue;
            }
            let test = Test {
                binary: binary.clone(),
                name,
            };
            if left_out.contains(&test.name) {
                ignored.push(test);
            } else {
                queue.push_back(test);
            }
        }
    }
    let total = queue.len();
    println!("running {total} tests, each in its own process, killed after {LIMIT:?}");
    let watch = Stopwatch::start();
    let queue = Mutex::new(queue);
    let done = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for worker in 0..cores * PER_CORE {
            let (queue, done, path) = (&queue, &done, &path);
            scope.spawn(move || {
                while let Some(test) = pop(queue, worker) {
                    let own = Stopwatch::start();
                    let outcome = run_one(&test, path)
                        .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
                    report(&test, &outcome, own.elapsed());
                    if let Ok(mut done) = done.lock() {
                        done.push((test, outcome));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.extend(ignored.into_iter().map(|test| (test, Outcome::Ignored)));
    if filter.is_none() {
        // Examples in the documentation are tests too; cargo has no way to run them one by one.
        run_command(cargo().args(["test", "--quiet", "--workspace", "--doc"]))?;
    }
    conclude(&done, total, watch)
}

/// The next test of a worker. Some take them from the end: neighbours are alike, and would all want the
/// processor or the same lock.
fn pop(queue: &Mutex<VecDeque<Test>>, worker: usize) -> Option<Test> {
    let mut queue = queue.lock().ok()?;
    if worker.is_multiple_of(2) {
        queue.pop_front()
    } else {
        queue.pop_back()
    }
}

fn build() -> anyhow::Result<Vec<Binary>> {
    let mut command = cargo();
    command
        .args(["test", "--workspace", "--all-targets", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = command.output().context("start cargo")?;
    if !output.status.success() {
        bail!("{}: {}", show(&command), output.status);
    }
    let mut binaries = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).context("read cargo's messages")?;
        let is_test = message["profile"]["test"].as_bool() == Some(true);
        let Some(path) = message["executable"].as_str().filter(|_| is_test) else {
            continue;
        };
        let manifest = PathBuf::from(message["manifest_path"].as_str().unwrap_or_default());
        let directory = manifest.parent().map_or_else(root, PathBuf::from);
        let package = directory
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let target = message["target"]["name"].as_str().unwrap_or_default();
        binaries.push(Binary {
            title: format!("{package}/{target}"),
            path: path.into(),
            directory,
        });
    }
    binaries.sort_by(|a, b| a.title.cmp(&b.title));
    Ok(binaries)
}

fn list(binary: &Binary, more: &[&str]) -> anyhow::Result<Vec<String>> {
    let output = Command::new(&binary.path)
        .args(["--list", "--format", "terse"])
        .args(more)
        .current_dir(&binary.directory)
        .output()
        .with_context(|| format!("list the tests of {}", binary.title))?;
    if !output.status.success() {
        bail!("list the tests of {}: {}", binary.title, output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

fn run_one(test: &Test, path: &OsString) -> anyhow::Result<Outcome> {
    // To a file: a pipe that nobody reads would stop a talkative test.
    let mut log = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(scratch(test)?)?;
    let mut child = Command::new(&test.binary.path)
        .args(["--exact", &test.name, "--nocapture"])
        .current_dir(&test.binary.directory)
        .env("CARGO_MANIFEST_DIR", &test.binary.directory)
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        // Its own group, so that what it started dies with it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {}", test.binary.title))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let watch = Stopwatch::start();
    let status: Option<ExitStatus> = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if watch.elapsed() > LIMIT {
            break None;
        }
        thread::sleep(POLL);
    };
    if let Some(group) = group {
        // Also after success: nothing that a test started may outlive it.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let verdict = match status {
        Some(status) if status.success() => return Ok(Outcome::Passed),
        Some(status) => format!("{status}"),
        None => {
            child.wait()?;
            format!("killed after {LIMIT:?}: it hangs")
        }
    };
    let mut text = String::new();
    log.rewind()?;
    // What it printed may be cut anywhere by the kill.
    let mut bytes = Vec::new();
    log.read_to_end(&mut bytes)?;
    text.push_str(&String::from_utf8_lossy(&bytes));
    Ok(Outcome::Failed(format!("{text}\n{verdict}")))
}

/// A new file in the build directory, gone as soon as it is open twice.
fn scratch(test: &Test) -> anyhow::Result<PathBuf> {
    let directory = target().join("tmp");
    std::fs::create_dir_all(&directory)?;
    let name: String = format!("{}-{}", test.binary.title, test.name)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let path = directory.join(format!("{name}.log"));
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        Ok(()) | Err(_) => Ok(path),
    }
}

fn report(test: &Test, outcome: &Outcome, took: Duration) {
    let word = match outcome {
        Outcome::Passed => "ok",
        Outcome::Ignored => "ignored",
        Outcome::Failed(_) => "FAILED",
    };
    println!(
        "{word:>6} {:>7.2}s  {} {}",
        took.as_secs_f64(),
        test.binary.title,
        test.name
    );
}

fn conclude(done: &[(Test, Outcome)], total: usize, watch: Stopwatch) -> anyhow::Result<()> {
    let mut failed = 0;
    let mut passed = 0;
    let mut ignored = 0;
    for (test, outcome) in done {
        match outcome {
            Outcome::Passed => passed += 1,
            Outcome::Ignored => ignored += 1,
            Outcome::Failed(text) => {
                failed += 1;
                println!("\n---- {} {}\n{text}", test.binary.title, test.name);
            }
        }
    }
    // A test that vanished is not a test that passed.
    failed += total - passed - failed;
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; finished in {:.1}s",
        watch.elapsed().as_secs_f64()
    );
    if failed > 0 {
        bail!("{failed} tests failed");
    }
    Ok(())
}
