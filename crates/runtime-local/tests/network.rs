//! Sandboxes of the engine and the network: connected when they are made, adopted by the next
//! server, gone without a trace. What a policy does to packets is tested where it is made.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]
#![expect(unsafe_code, reason = "a thread leaves its network namespace")]

mod support;

use std::{future::Future, net::TcpStream, process::Command, time::Duration};

use model::sandbox::{NetworkPolicy, Resources};
use runtime::{Observed, Runtime as _, RuntimeError, WorkloadSpec, WorkloadState};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use support::{Host, fence, spec};

/// Runs on a host of its own, whose loopback has addresses of the internet: what reaches them was
/// let through to beyond the sandbox.
fn on_a_host_of_its_own(test: impl Future<Output = ()>) {
    // SAFETY: descriptors stay shared; only the network namespace is another.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("these tests need root");
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    shell("ip link set lo up");
    threads.block_on(test);
}

fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command}: {said}");
    said
}

/// Another namespace behind this one, with a server in it.
struct Internet(std::process::Child);

impl Internet {
    fn new() -> Self {
        let server = "ip link set lo up; ip address add 203.0.113.10/32 dev lo; ip address add 203.0.113.20/32 dev lo; \
                      exec python3 -m http.server 7000";
        let child = Command::new("unshare")
            .args(["--net", "sh", "-c", server])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).ok();
        let own = namespace("thread-self");
        wait_until("it has left", || {
            namespace(&pid.to_string()).is_some_and(|other| Some(other) != own)
        });
        shell(&format!(
            "ip link add up0 type veth peer name net0 netns {pid} && ip address add 203.0.113.254/24 dev up0 && \
             ip link set up0 up && nsenter --net --target {pid} sh -c 'ip address add 203.0.113.1/24 dev net0 && ip link set net0 up'"
        ));
        let server = "203.0.113.1:7000".parse().unwrap();
        wait_until("it listens", || {
            TcpStream::connect_timeout(&server, Duration::from_millis(100)).is_ok()
        });
        Self(child)
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let tries = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        is_so()
    });
    assert!(tries, "not in time: {what}");
}

impl Drop for Internet {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn reaches(host: &Host, uid: model::Uid, address: &str) -> bool {
    let script = format!(
        "import socket; s = socket.create_connection(('{address}', 7000), 3); s.send(b'GET / HTTP/1.0\\r\\n\\r\\n'); assert s.recv(4) == b'HTTP'"
    );
    host.run(uid, 1000, &["/usr/bin/python3", "-c", &script])
        .code
        == 0
}

fn links() -> usize {
    shell("ip -o link | grep -c ' dm' || true")
        .trim()
        .parse()
        .unwrap()
}

async fn wait_for_links(count: usize) {
    for _ in 0..3000 {
        if links() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{}", shell("ip link"));
}

fn only(allowed: &str) -> NetworkPolicy {
    NetworkPolicy {
        allow_out: vec![allowed.into()],
        deny_out: vec!["0.0.0.0/0".into()],
        ..NetworkPolicy::default()
    }
}

#[test]
fn a_sandbox_is_connected_and_its_policy_changes_while_it_runs_and_outlives_the_server() {
    on_a_host_of_its_own(async {
        let _internet = Internet::new();
        let mut host = Host::new();
        let at = fence(1, 1);
        host.runtime().create(at, &spec()).await.unwrap();
        assert!(reaches(&host, at.uid, "203.0.113.10"));
        assert!(reaches(&host, at.uid, "203.0.113.20"));
        assert_eq!(
            host.sh(at.uid, "cat /etc/resolv.conf"),
            "nameserver 100.87.0.1\n"
        );

        let policy = only("203.0.113.10");
        host.runtime().set_network(at, Some(&policy)).await.unwrap();
        assert!(reaches(&host, at.uid, "203.0.113.10"));
        assert!(!reaches(&host, at.uid, "203.0.113.20"));

        host.reopen();
        let Observed::Present(facts) = host.runtime().inspect(at.uid).await.unwrap() else {
            panic!("it is there");
        };
        assert_eq!(facts.network.as_deref(), Some(&policy));
        assert!(reaches(&host, at.uid, "203.0.113.10"));
        assert!(!reaches(&host, at.uid, "203.0.113.20"));

        // Another namespace; what its last owner said of the network is gone.
        host.runtime().reset(fence(1, 2), None).await.unwrap();
        assert!(reaches(&host, at.uid, "203.0.113.10"));
        assert!(reaches(&host, at.uid, "203.0.113.20"));
        let closed = host.runtime().set_network(fence(1, 3), Some(&policy));
        closed.await.unwrap();
        assert!(!reaches(&host, at.uid, "203.0.113.20"));

        host.runtime().delete(fence(1, 4)).await.unwrap();
        wait_for_links(0).await;
        host.runtime = None;
        assert_eq!(shell("nft list ruleset"), "");
    });
}

#[test]
fn the_link_of_a_sandbox_whose_record_is_gone_is_removed_by_the_next_server() {
    on_a_host_of_its_own(async {
        let mut host = Host::new();
        let at = fence(1, 1);
        host.runtime().create(at, &spec()).await.unwrap();
        assert_eq!(links(), 1);
        host.runtime = None;
        let state = host.data.join(format!("sandboxes/{}/state.json", at.uid));
        let record = std::fs::read(&state).unwrap();
        std::fs::remove_file(&state).unwrap();
        let runtime = host.reopen();
        assert_eq!(links(), 0);
        assert_eq!(runtime.inspect(at.uid).await.unwrap(), Observed::Partial);
        runtime.delete(at).await.unwrap();
        drop(record);
    });
}

#[test]
fn what_is_left_of_a_data_directory_that_is_gone_is_removed_by_any_other_server() {
    on_a_host_of_its_own(async {
        let mut host = Host::new();
        let mut other = Host::new();
        let (kept, away) = (host.data.clone(), host.data.with_file_name("away"));
        let (at, instance) = (fence(1, 1), host.instance());
        host.runtime().create(at, &spec()).await.unwrap();
        let pid = host.runtime().first_process(at.uid).unwrap();
        let is_there = || {
            let listed = shell("nft list tables").contains(&instance);
            let alive = std::fs::read_to_string(format!("/proc/{pid}/status"))
                .is_ok_and(|status| !status.contains("State:\tZ"));
            let mounts = support::cgroup_mounts();
            let mut cgroups = mounts.iter().map(|at| at.join("dormouse").join(&instance));
            let all = [listed, alive, links() == 1, cgroups.any(|at| at.exists())];
            assert!(all == [true; 4] || all == [false; 4], "{all:?}");
            listed
        };
        // Its server runs, whatever became of its files.
        std::fs::rename(&kept, &away).unwrap();
        other.reopen();
        assert!(is_there());
        // Its server may start again.
        std::fs::rename(&away, &kept).unwrap();
        host.runtime = None;
        other.reopen();
        assert!(is_there());
        std::fs::rename(&kept, &away).unwrap();
        other.reopen();
        assert!(!is_there());
    });
}

#[test]
fn a_directory_that_was_moved_keeps_its_sandboxes() {
    on_a_host_of_its_own(async {
        let mut host = Host::new();
        let (at, later) = (fence(1, 1), fence(1, 2));
        let resources = Resources {
            cpu_millis: None,
            memory_mib: None,
            disk_mib: Some(64),
        };
        let limited = WorkloadSpec {
            resources: Some(resources),
            ..spec()
        };
        host.runtime().create(at, &limited).await.unwrap();
        let pid = host.runtime().first_process(at.uid);
        host.runtime = None;
        let moved = host.data.with_file_name("moved");
        std::fs::rename(&host.data, &moved).unwrap();
        host.data = moved;
        host.reopen();
        assert_eq!(host.runtime().first_process(at.uid), pid);
        assert_eq!(host.sh(at.uid, "echo lives"), "lives\n");
        host.runtime().freeze(later).await.unwrap();
        host.runtime().capture(later, None).await.unwrap();
        host.runtime().delete(later).await.unwrap();
    });
}

#[test]
fn a_copy_of_a_directory_has_files_and_none_of_the_processes() {
    on_a_host_of_its_own(async {
        let (host, mut copy) = (Host::new(), Host::new());
        let (at, later) = (fence(1, 1), fence(1, 2));
        host.runtime().create(at, &spec()).await.unwrap();
        let pid = host.runtime().first_process(at.uid);
        let (from, to) = (host.data.clone(), copy.data.clone());
        let mut copied = async || {
            copy.runtime = None;
            shell(&format!(
                "rm -r {to} && cp -a {from} {to}",
                to = to.display(),
                from = from.display()
            ));
            copy.reopen();
            let Observed::Present(seen) = copy.runtime().inspect(at.uid).await.unwrap() else {
                panic!("its files are there");
            };
            copy.runtime().delete(later).await.unwrap();
            (seen.state, copy.instance())
        };
        let (state, instance) = copied().await;
        assert_eq!(state, WorkloadState::Cut, "it runs elsewhere");
        assert_ne!(instance, host.instance());
        assert_eq!(host.runtime().first_process(at.uid), pid);
        assert_eq!(host.sh(at.uid, "echo lives"), "lives\n");
        host.run(at.uid, 0, &["exit", "0"]);
        let (state, _) = copied().await;
        assert_eq!(state, WorkloadState::Cut, "it has ended elsewhere");
        host.runtime().delete(later).await.unwrap();
    });
}

#[test]
fn a_policy_that_cannot_be_kept_is_refused_by_name() {
    on_a_host_of_its_own(async {
        let host = Host::new();
        let refused = |result: Result<(), RuntimeError>| {
            assert!(
                matches!(&result, Err(RuntimeError::Impossible { field: "network.allowOut", reason }) if reason.contains("allowOut[0]")),
                "{result:?}"
            );
        };
        let bad = only("2001:db8::1");
        let with = WorkloadSpec {
            network: Some(Box::new(bad.clone())),
            ..spec()
        };
        refused(host.runtime().create(fence(1, 1), &with).await.map(drop));
        host.runtime().create(fence(1, 1), &spec()).await.unwrap();
        refused(host.runtime().set_network(fence(1, 2), Some(&bad)).await);
    });
}

#[test]
fn thirty_sandboxes_at_once_are_all_connected() {
    on_a_host_of_its_own(async {
        let _internet = Internet::new();
        let mut options = support::options();
        options.ranges = support::MOST;
        let host = Host::with(options);
        let mut tasks = tokio::task::JoinSet::new();
        for number in 1..=30 {
            let runtime = host.runtime().clone();
            tasks.spawn(async move { runtime.create(fence(number, 1), &spec()).await });
        }
        while let Some(made) = tasks.join_next().await {
            made.unwrap().unwrap();
        }
        assert_eq!(links(), 30);
        for number in 1..=30 {
            assert!(
                reaches(&host, fence(number, 1).uid, "203.0.113.10"),
                "{number}"
            );
        }
        for number in 1..=30 {
            host.runtime().delete(fence(number, 1)).await.unwrap();
        }
        wait_for_links(0).await;
    });
}
