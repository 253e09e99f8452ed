//! What lives and deaths leave behind on the host: nothing, from the moment at which they are over. They
//! count the open descriptors of their process, so where they share one they run one at a time.

mod support;

use runtime::{Observed, Runtime as _, RuntimeError, WorkloadState};
use runtime_local::Step;
use support::{
    Host, die, fence,
    leaks::{Inventory, Networks, own_mounts},
    spec,
};

static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn a_server_killed_at_any_step_leaves_something_that_can_be_removed() {
    let _alone = ALONE.lock().await;
    own_mounts();
    let mut host = Host::new();
    let at = fence(1, 2);
    let before = Inventory::take(&host);
    for verb in ["create", "reset", "delete"] {
        for step in Step::ALL {
            let mut networks = Networks::default();
            if verb != "create" {
                host.runtime().create(at, &spec()).await.unwrap();
                networks.note(&host);
            }
            host.runtime = None;
            die(&host, verb, step);
            networks.note(&host);
            let runtime = host.reopen();
            let seen = runtime.inspect(at.uid).await.unwrap();
            match (&seen, verb, step) {
                (Observed::Absent, "delete", step) => {
                    // It was removed before, or never came to this step.
                    assert!(step < Step::Removing, "{step:?}");
                }
                (Observed::Absent, ..) => panic!("{verb} {step:?}: nothing was noted"),
                (Observed::Coming | Observed::Partial, ..) => {
                    let refused = runtime.freeze(at).await;
                    assert!(matches!(refused, Err(RuntimeError::WrongState { .. })));
                }
                (Observed::Present(facts), ..) => {
                    assert_eq!(facts.state, WorkloadState::Running, "{verb} {step:?}");
                }
            }
            runtime.delete(at).await.unwrap();
            let listed = runtime.list().await.unwrap();
            assert!(listed.is_empty(), "{verb} {step:?}: {listed:?}");
            let after = format!("{verb} {step:?}");
            before.assert_nothing_came(&host, &networks, &after).await;
        }
    }
}

#[tokio::test]
async fn fifty_lives_leave_nothing() {
    let _alone = ALONE.lock().await;
    own_mounts();
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    host.runtime().delete(at).await.unwrap();
    let before = Inventory::take(&host);
    for life in 0..50 {
        let mut networks = Networks::default();
        host.runtime().create(at, &spec()).await.unwrap();
        networks.note(&host);
        assert_eq!(networks.count(), 1);
        host.runtime().delete(at).await.unwrap();
        let after = format!("life {life}");
        before.assert_nothing_came(&host, &networks, &after).await;
    }
    assert!(before.is_clear());
}

#[tokio::test]
async fn an_engine_without_sandboxes_leaves_no_cgroup_and_makes_its_own_again() {
    let _alone = ALONE.lock().await;
    let mut host = Host::new();
    let parents = || -> Vec<_> {
        let all = support::cgroup_mounts().into_iter();
        all.map(|mount| mount.join("dormouse").join(host.instance()))
            .filter(|path| path.exists())
            .collect()
    };
    assert!(parents().len() >= 2);
    // By hand, as somebody who tidies up would.
    for parent in parents() {
        std::fs::remove_dir(parent).unwrap();
    }
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    host.runtime().delete(at).await.unwrap();
    assert!(parents().len() >= 2);
    let instance = host.instance();
    host.runtime = None;
    for mount in support::cgroup_mounts() {
        assert!(!mount.join("dormouse").join(&instance).exists());
    }
}
