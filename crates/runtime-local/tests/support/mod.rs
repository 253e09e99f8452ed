//! What the tests of this crate share.
#![allow(dead_code, reason = "no test uses all of it")]
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

pub(crate) mod agent;
pub(crate) mod leaks;

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    ops::Range,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use model::{Generation, OperationId, StringMap, Uid, template::RuntimeClass};
use runtime::{Fence, Runtime as _, WorkloadSpec};
use runtime_local::{LocalRuntime, Options, Step};
use serde::{Deserialize, Serialize};

pub(crate) const INIT: &str = env!("CARGO_BIN_EXE_dormouse-test-init");

/// A data directory with an engine on it. Dropping it ends every sandbox that a failed test left.
pub(crate) struct Host {
    pub(crate) data: PathBuf,
    pub(crate) runtime: Option<LocalRuntime>,
    /// User ids of its sandboxes.
    pub(crate) uids: Range<u32>,
    options: Options,
    _directory: tempfile::TempDir,
}

/// How many sandboxes there are user ids for in one claim.
pub(crate) const MOST: u32 = 64;

/// Options with user ids that no other test has, so that its processes can be counted.
pub(crate) fn options() -> Options {
    let mut options = Options::new(INIT);
    options.ranges = 4;
    options.first_uid = claim_uids();
    options
}

/// User ids for [`MOST`] sandboxes, which are this process's until it ends. The number of a process is
/// no way to share them out: two that run at once may be alike in as much of it as fits.
fn claim_uids() -> u32 {
    static CLAIMED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let directory = std::env::temp_dir().join("dormouse-test-uids");
    fs::create_dir_all(&directory).unwrap();
    for number in 0..256 {
        let claim = File::create(directory.join(number.to_string())).unwrap();
        if claim.try_lock().is_ok() {
            CLAIMED.lock().unwrap().push(claim);
            return 0x4000_0000 + number * MOST * 65_536;
        }
    }
    panic!("so many tests at once have no user ids");
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::with(options())
    }

    pub(crate) fn with(options: Options) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("dormouse-local-")
            .tempdir()
            .unwrap();
        let data = directory.path().join("data");
        let uids = options.first_uid..options.first_uid + options.ranges * 65_536;
        let runtime = LocalRuntime::open(&data, options.clone())
            .unwrap_or_else(|error| panic!("these tests need root and namespaces: {error}"));
        Self {
            data,
            runtime: Some(runtime),
            uids,
            options,
            _directory: directory,
        }
    }

    pub(crate) fn runtime(&self) -> &LocalRuntime {
        self.runtime.as_ref().unwrap()
    }

    /// Another server on the same data.
    pub(crate) fn reopen(&mut self) -> &LocalRuntime {
        self.runtime = None;
        self.runtime = Some(LocalRuntime::open(&self.data, self.options.clone()).unwrap());
        self.runtime()
    }

    pub(crate) fn upper(&self, uid: Uid) -> PathBuf {
        self.data
            .join("sandboxes")
            .join(uid.to_string())
            .join("upper")
    }

    /// The name of its cgroups.
    pub(crate) fn instance(&self) -> String {
        let kept = fs::read_to_string(self.data.join("run/instance")).unwrap();
        kept.split(' ').next().unwrap().to_owned()
    }

    /// Runs a program inside.
    pub(crate) fn run(&self, uid: Uid, as_user: u32, argv: &[&str]) -> Reply {
        let pid = self.runtime().first_process(uid).expect("it runs");
        run_in(pid, as_user, argv)
    }

    pub(crate) fn sh(&self, uid: Uid, script: &str) -> String {
        let reply = self.run(uid, 0, &["/bin/sh", "-c", script]);
        assert_eq!(reply.code, 0, "{script}: {}", reply.output);
        reply.output
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // One at a time has it open.
        self.runtime = None;
        let Ok(runtime) = LocalRuntime::open(&self.data, self.options.clone()) else {
            return;
        };
        // A test may drop this inside its own runtime.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let threads = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                threads.block_on(async {
                    for (uid, _) in runtime.list().await.unwrap_or_default() {
                        let fence = fence_of(uid, u64::MAX, u64::MAX);
                        if let Err(error) = runtime.delete(fence).await {
                            eprintln!("could not remove {uid}: {error}");
                        }
                    }
                });
            });
        });
    }
}

pub(crate) fn cgroup_mounts() -> Vec<PathBuf> {
    fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            fields[2]
                .starts_with("cgroup")
                .then(|| PathBuf::from(fields[1]))
        })
        .collect()
}

#[derive(Serialize)]
struct Request<'a> {
    uid: u32,
    argv: &'a [&'a str],
}

#[derive(Debug, Deserialize)]
pub(crate) struct Reply {
    pub(crate) code: i32,
    pub(crate) output: String,
}

pub(crate) fn run_in(pid: i32, uid: u32, argv: &[&str]) -> Reply {
    let path = format!("/proc/{pid}/root/tmp/control");
    let is_there = || Path::new(&format!("/proc/{pid}")).exists();
    let mut stream = (0..6000)
        .take_while(|_| is_there())
        .find_map(|_| {
            let stream = UnixStream::connect(&path).ok();
            if stream.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            stream
        })
        .expect("the first process is there and listens");
    let mut text = serde_json::to_string(&Request { uid, argv }).unwrap();
    text.push('\n');
    stream.write_all(text.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    serde_json::from_str(&reply).unwrap_or(Reply {
        code: -1,
        output: "no reply".into(),
    })
}

pub(crate) fn images() -> StringMap {
    [("main", "base")].into_iter().collect()
}

pub(crate) fn spec() -> WorkloadSpec {
    WorkloadSpec {
        images: images(),
        ..WorkloadSpec::default()
    }
}

pub(crate) fn fence(uid: u128, operation: u64) -> Fence {
    fence_of(Uid::from_random(uid), 1, operation)
}

pub(crate) fn fence_of(uid: Uid, generation: u64, operation: u64) -> Fence {
    Fence {
        uid,
        generation: Generation(generation),
        operation: OperationId(operation),
    }
}

/// Runs a server that dies at a step; if the verb never comes there, it just ends.
pub(crate) fn die(host: &Host, verb: &str, step: Step) {
    die_as(host, verb, step, RuntimeClass::Native);
}

/// The same, over a sandbox of this class.
pub(crate) fn die_as(host: &Host, verb: &str, step: Step, class: RuntimeClass) {
    let status = std::process::Command::new(INIT)
        .args(["die", verb])
        .arg(&host.data)
        .arg(format!("{step:?}"))
        .arg(host.uids.start.to_string())
        .arg(serde_json::to_string(&class).unwrap())
        .status()
        .unwrap();
    let killed = std::os::unix::process::ExitStatusExt::signal(&status);
    assert!(
        status.success() || killed == Some(9),
        "{verb} {step:?}: {status}"
    );
}
