//! What a sandbox can do to itself: each ends as a state that can be seen, and neither its
//! neighbour nor the engine notices.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use std::time::Duration;

use model::{Uid, sandbox::Resources};
use runtime::{Facts, Fence, Observed, Runtime as _, WorkloadSpec, WorkloadState};
use support::{Host, fence, leaks::Inventory, spec};

const MEMORY: u32 = 64;
const PIDS: u32 = 64;

/// A sandbox that is about to be misused, and one beside it.
struct Pair {
    host: Host,
    at: Fence,
    beside: Fence,
}

impl Pair {
    async fn new() -> Self {
        let mut options = support::options();
        options.limits.pids = PIDS;
        let (host, at, beside) = (Host::with(options), fence(1, 1), fence(2, 1));
        let limited = WorkloadSpec {
            resources: Some(Resources {
                cpu_millis: None,
                memory_mib: Some(MEMORY),
                disk_mib: None,
            }),
            ..spec()
        };
        for at in [at, beside] {
            host.runtime().create(at, &limited).await.unwrap();
        }
        Self { host, at, beside }
    }

    async fn facts(&self, uid: Uid) -> Facts {
        match self.host.runtime().inspect(uid).await.unwrap() {
            Observed::Present(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    async fn exit_code(&self) -> i32 {
        self.exit_code_of(self.at.uid).await
    }

    async fn exit_code_of(&self, uid: Uid) -> i32 {
        for _ in 0..12_000 {
            if let WorkloadState::Exited { code } = self.facts(uid).await.state {
                return code;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it did not end");
    }

    /// The neighbour works and makes files, a third one can be made, and all of them removed.
    async fn goes_on(self) {
        let Self { host, at, beside } = self;
        assert_eq!(host.sh(beside.uid, "echo x > /tmp/x && cat /tmp/x"), "x\n");
        let third = fence(3, 1);
        host.runtime().create(third, &spec()).await.unwrap();
        assert_eq!(host.sh(third.uid, "echo here"), "here\n");
        for at in [at, beside, third] {
            host.runtime().delete(at).await.unwrap();
        }
        let left = Inventory::take(&host);
        assert!(left.is_clear(), "{left:#?}");
    }
}

#[tokio::test]
async fn a_fork_bomb_is_its_own_problem() {
    let pair = Pair::new().await;
    let bomb = "b() { b | b & }; b; sleep 1";
    pair.host
        .run(pair.at.uid, 1000, &["background", "/bin/bash", "-c", bomb]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        pair.facts(pair.at.uid).await.state,
        WorkloadState::Running,
        "its first process has not ended"
    );
    pair.host.runtime().freeze(pair.at).await.unwrap();
    assert_eq!(pair.facts(pair.at.uid).await.state, WorkloadState::Frozen);
    pair.goes_on().await;
}

#[tokio::test]
async fn a_process_that_takes_too_much_memory_is_killed_and_counted() {
    let pair = Pair::new().await;
    assert_eq!(pair.facts(pair.at.uid).await.oom_kills, 0);
    let eat = "x = bytearray(1 << 20) * 1000";
    let reply = pair
        .host
        .run(pair.at.uid, 0, &["/usr/bin/python3", "-c", eat]);
    assert_ne!(reply.code, 0);
    let seen = pair.facts(pair.at.uid).await;
    assert_eq!(seen.state, WorkloadState::Running);
    assert_eq!(seen.oom_kills, 1);
    assert_eq!(pair.facts(pair.beside.uid).await.oom_kills, 0);
    pair.host.runtime().reset(pair.at, None).await.unwrap();
    assert_eq!(pair.facts(pair.at.uid).await.oom_kills, 0, "another start");
    pair.goes_on().await;
}

#[tokio::test]
async fn a_first_process_that_takes_too_much_memory_ends_and_the_reason_is_kept() {
    let mut pair = Pair::new().await;
    pair.host.run(pair.at.uid, 0, &["eat"]);
    assert_eq!(pair.exit_code().await, 137);
    assert!(pair.facts(pair.at.uid).await.oom_kills >= 1);
    pair.host.reopen();
    let seen = pair.facts(pair.at.uid).await;
    assert_eq!(seen.state, WorkloadState::Exited { code: 137 });
    assert!(seen.oom_kills >= 1);
    pair.goes_on().await;
}

#[tokio::test]
async fn a_first_process_cannot_be_killed_from_inside_and_is_seen_to_crash() {
    let pair = Pair::new().await;
    // The kernel drops signals that the first process of a namespace has no handler for.
    pair.host.sh(pair.at.uid, "kill -9 1; kill -TERM 1");
    assert_eq!(pair.facts(pair.at.uid).await.state, WorkloadState::Running);
    // But it can crash.
    pair.host.run(pair.at.uid, 0, &["abort"]);
    let code = pair.exit_code().await;
    assert!(code > 128, "{code} tells of a signal");
    assert_eq!(pair.facts(pair.at.uid).await.oom_kills, 0);
    pair.goes_on().await;
}

#[tokio::test]
async fn a_hundred_thousand_files_are_captured_and_removed() {
    let pair = Pair::new().await;
    let make = "import os\nfor d in range(100):\n  os.makedirs(f'/home/user/{d}')\n  for f in range(1000): os.close(os.open(f'/home/user/{d}/{f}', os.O_CREAT))";
    let reply = pair
        .host
        .run(pair.at.uid, 0, &["/usr/bin/python3", "-c", make]);
    assert_eq!(reply.code, 0, "{}", reply.output);
    pair.host.runtime().freeze(pair.at).await.unwrap();
    let captured = pair.host.runtime().capture(pair.at, None).await.unwrap();
    assert!(captured.size > 100_000 * 512);
    pair.goes_on().await;
}

#[tokio::test]
async fn one_process_without_descriptors_left_takes_none_from_others() {
    let pair = Pair::new().await;
    let take = "import os\nn = 0\ntry:\n  while True: os.dup(0); n += 1\nexcept OSError as e: print(e.errno, n > 1000)";
    let reply = pair
        .host
        .run(pair.at.uid, 1000, &["/usr/bin/python3", "-c", take]);
    assert_eq!(reply.output, "24 True\n", "too many open files");
    pair.goes_on().await;
}

#[tokio::test]
async fn a_limit_too_small_to_start_in_ends_nobody_else() {
    let pair = Pair::new().await;
    // The first process borrows the memory of this one until it executes its program: what is
    // killed for want of memory in between must not be this one.
    let none = WorkloadSpec {
        resources: Some(Resources {
            cpu_millis: None,
            memory_mib: Some(0),
            disk_mib: None,
        }),
        ..spec()
    };
    for operation in 1..10 {
        let at = fence(9, operation);
        let made = pair.host.runtime().create(at, &none).await;
        if made.is_ok() {
            // It cannot even say why it ended.
            let code = pair.exit_code_of(at.uid).await;
            assert!(code == 127 || code == 137, "{code}");
        }
        pair.host.runtime().delete(at).await.unwrap();
    }
    pair.goes_on().await;
}
