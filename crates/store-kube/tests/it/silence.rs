//! Connections whose packets get lost without a word, on a network of the test's own. Needs root, `ip`
//! and `nft`.

use std::{process::Command, thread, time::Duration};

use cluster_kube::{Call, Cluster};
use http::Method;
use model::{Name, Sandbox, Spec as _, sandbox::SandboxSpec};
use standin_kube::Fault;
use store::{Outcome, Query, Store as _, StoreError, StoreExt as _};
use tokio::time::timeout;

use crate::{
    cluster::{Lab, store_of},
    faults::{next_change, sandbox, watch_from_now},
};

/// Within this a dead connection is known to be one. Requests are given up on after twice that.
const NOTICED: Duration = Duration::from_secs(30);
/// Longer than a dead connection is waited for.
const SLOW: Duration = Duration::from_secs(10);
const API_SERVER: u16 = 6443;

/// Runs a test on a network of its own, which is gone with it.
#[expect(unsafe_code, reason = "a thread leaves its network namespace")]
fn apart(test: impl Future<Output = ()> + Send + 'static) {
    let ran = thread::spawn(|| {
        // SAFETY: descriptors stay shared; only the network namespace is another. The threads of the
        // runtime are started from here, so they are in it, too.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
            .expect("this test needs root");
        sh("ip link set lo up");
        connect_from("20000 29999");
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(test);
    });
    if let Err(panic) = ran.join() {
        std::panic::resume_unwind(panic);
    }
}

/// From which ports connections are opened from now on.
fn connect_from(ports: &str) {
    sh(&format!(
        "echo {ports} > /proc/sys/net/ipv4/ip_local_port_range"
    ));
}

/// From now on all packets of the connections that there are get lost. New ones work.
fn lose_what_is_open() {
    sh("nft 'add table ip lost ; \
             add chain ip lost in { type filter hook input priority 0 ; } ; \
             add rule ip lost in tcp sport 20000-29999 drop ; \
             add rule ip lost in tcp dport 20000-29999 drop'");
    connect_from("30000 39999");
}

#[track_caller]
fn sh(line: &str) {
    let ran = Command::new("sh").args(["-ec", line]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "this test needs root and {line}: {said}"
    );
}

fn gets(cluster: &Cluster) -> u64 {
    let get = Call {
        verb: "get",
        resource: "sandboxes".into(),
    };
    cluster.tally().0.get(&get).copied().unwrap_or(0)
}

#[test]
fn reads_and_watches_outlive_connections_that_are_lost_without_a_word() {
    apart(async {
        let lab = Lab::standin_at(API_SERVER).await;
        let (reader, writer) = (lab.connect(), lab.connect());
        let (reading, writing) = (store_of(&reader), store_of(&writer));
        let mut watch = watch_from_now(&reading).await;
        let made = writing.create_object(&sandbox("box")).await.unwrap();
        let seen = next_change(&mut *watch).await.unwrap();
        assert_eq!(seen.version(), made.version());
        let found: Option<Sandbox> = reading.find(&made.key()).await.unwrap();
        assert!(found.is_some());
        let before = gets(&reader);

        lose_what_is_open();
        let other = lab.store();
        let unheard = other.create_object(&sandbox("unheard")).await.unwrap();
        let key = made.key();
        let read = timeout(NOTICED, reading.find::<SandboxSpec>(&key));
        let written = timeout(NOTICED, writing.update_spec(&made));
        let (read, written, seen) = tokio::join!(read, written, next_change(&mut *watch));
        let read: Option<Sandbox> = read.expect("a read hangs").unwrap();
        assert!(read.is_some());
        assert_eq!(
            gets(&reader) - before,
            2,
            "it took no connection that was lost"
        );
        assert_eq!(seen.unwrap().version(), unheard.version());
        // Nobody can tell whether it has arrived, so it is not repeated.
        match written.expect("a write hangs") {
            Err(StoreError::Unavailable { outcome, .. }) => assert_eq!(outcome, Outcome::Unknown),
            other => panic!("{other:?}"),
        }
        // All others that were kept are known by now, or found dead one by one.
        let next = Name::new("unheard").unwrap();
        let key = model::Key { name: next, ..key };
        let read = timeout(NOTICED, writing.find::<SandboxSpec>(&key)).await;
        assert!(read.expect("a read hangs").unwrap().is_some());
    });
}

#[tokio::test]
async fn an_api_server_that_is_slow_is_not_taken_for_dead() {
    let lab = Lab::standin().await;
    let cluster = lab.connect();
    let store = store_of(&cluster);
    store.create_object(&sandbox("box")).await.unwrap();
    let before = cluster.tally();
    let faults = lab.api_server().faults();
    faults.next(1, &Method::GET, "sandboxes", Fault::Delay(SLOW));
    let listed = store.list(&Query::kind(SandboxSpec::KIND)).await.unwrap();
    assert_eq!(listed.records.len(), 1);
    let sent: u64 = cluster.tally().since(&before).0.values().sum();
    assert_eq!(sent, 1);
}
