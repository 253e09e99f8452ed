//! What owners leave in a sandbox, and that none of it is there after a reset: one line for each.
//!
//! Every kind is planted for itself, and must be seen from outside before it counts: a plant that
//! cannot be seen would prove nothing.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod plants;
#[path = "../support/mod.rs"]
mod support;

use agent_client::{Client, Error, Event, StartOptions};
use model::{
    Epoch,
    sandbox::{NetworkPolicy, Resources},
    template::RuntimeClass,
    workload::Secret,
};
use plants::{PLANTS, Plant};
use runtime::{Arming, Boot, Booting, Fence, Runtime as _, RuntimeError, WorkloadSpec};
use runtime_local::Look;
use support::{
    Host,
    agent::{client, host},
    fence, fence_of, spec,
};
use wire::{
    connect::Code,
    process::{ProcessConfig, StartRequest},
};

const TOKEN: &str = "a-token-of-the-last-owner";

fn used(class: RuntimeClass) -> WorkloadSpec {
    WorkloadSpec {
        class,
        sudo: true,
        resources: Some(Resources {
            memory_mib: Some(256),
            cpu_millis: None,
            disk_mib: None,
        }),
        ..spec()
    }
}

/// A sandbox that is used and reset again and again.
struct Member {
    host: Host,
    at: Fence,
    epoch: u32,
    fresh: Look,
}

impl Member {
    async fn new(class: RuntimeClass) -> Self {
        Self::with(used(class)).await
    }

    async fn with(spec: WorkloadSpec) -> Self {
        let host = host();
        let at = fence(1, 1);
        host.runtime().create(at, &spec).await.unwrap();
        let fresh = host.runtime().look(at.uid).await.unwrap();
        Self {
            host,
            at,
            epoch: 0,
            fresh,
        }
    }

    /// Gives it to somebody.
    async fn claim(&mut self) -> Client {
        self.epoch += 1;
        let arming = Arming {
            epoch: Epoch(self.epoch),
            env: [("SECRET", "of the last owner")].into_iter().collect(),
            token: Some(Secret::new(TOKEN)),
            user: Some("user".into()),
            workdir: None,
        };
        self.host.runtime().arm(self.at, &arming).await.unwrap();
        let inside = client(self.host.runtime(), self.at.uid);
        inside.with_token(&TOKEN.into()).unwrap()
    }

    async fn look(&self) -> Look {
        self.host.runtime().look(self.at.uid).await.unwrap()
    }

    /// Takes it back.
    async fn release(&mut self) -> Result<(), RuntimeError> {
        self.at = fence_of(self.at.uid, 1, self.at.operation.0 + 1);
        self.host.runtime().reset(self.at, None).await
    }

    /// Takes it back, and looks for itself whether it is as it was.
    async fn release_clean(&mut self, after: &str) {
        let released = self.release().await;
        assert!(released.is_ok(), "{after}: {released:?}");
        let left = self.fresh.differences(&self.look().await);
        assert!(left.is_empty(), "{after} is still there: {left:#?}");
        // Its agent serves nobody, with whatever token, until it is told the next owner's.
        let inside = client(self.host.runtime(), self.at.uid);
        let last = inside.with_token(&TOKEN.into()).unwrap();
        let refused = loop {
            match support::agent::sh(&last, "env").await {
                // It may not listen yet.
                Err(error) if error.code().is_none() => tokio::task::yield_now().await,
                other => break other,
            }
        };
        let code = refused.as_ref().err().and_then(Error::code);
        assert_eq!(code, Some(Code::Unavailable), "{after}: {refused:?}");
    }
}

async fn run(client: &Client, user: &str, script: &str) -> i32 {
    let request = StartRequest {
        process: Some(ProcessConfig {
            cmd: "/bin/bash".to_owned(),
            // What stays behind must not hold on to what this waits for.
            args: vec![
                "-c".to_owned(),
                format!("exec </dev/null >/dev/null 2>&1\n{script}"),
            ],
            ..ProcessConfig::default()
        }),
        ..StartRequest::default()
    };
    let client = client.clone().as_user(user);
    let process = client.start(&request, StartOptions::default()).await;
    let ended = process.unwrap().wait(|_: Event| Ok::<(), Error>(()));
    ended.await.unwrap().exit_code
}

/// Plants one kind and makes sure that it can be seen.
async fn plant(member: &Member, owner: &Client, plant: &Plant) {
    let before = member.look().await;
    let code = run(owner, plant.user, plant.script).await;
    assert_eq!(code, 0, "{} could not be planted", plant.name);
    // What goes on in the background may take a moment to be there.
    for _ in 0..6000 {
        let seen = before.differences(&member.look().await);
        if seen.iter().any(|line| line.starts_with(plant.part)) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!(
        "{} is not seen in {}: {:#?}",
        plant.name,
        plant.part,
        before.differences(&member.look().await)
    );
}

async fn nothing_stays(class: RuntimeClass) {
    let mut member = Member::new(class).await;
    for kind in PLANTS {
        let owner = member.claim().await;
        plant(&member, &owner, kind).await;
        member.release_clean(kind.name).await;
        println!("{class:?}: {} ({}): gone", kind.name, kind.user);
    }
    assert!(PLANTS.len() >= 100, "{} kinds", PLANTS.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_an_owner_leaves_is_there_for_the_next() {
    nothing_stays(RuntimeClass::Native).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_an_owner_leaves_is_there_for_the_next_in_runc() {
    nothing_stays(RuntimeClass::Runc).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_host_did_for_an_owner_is_gone_too() {
    let mut member = Member::new(RuntimeClass::Native).await;
    // Frozen in the middle of something.
    let owner = member.claim().await;
    run(&owner, "user", "sleep 1000 & disown").await;
    member.host.runtime().freeze(member.at).await.unwrap();
    assert!(seen(&member, "cgroups").await);
    member.release_clean("a frozen sandbox").await;
    // What it may reach.
    member.claim().await;
    let closed = NetworkPolicy {
        internet_access: Some(false),
        ..NetworkPolicy::default()
    };
    let runtime = member.host.runtime();
    runtime.set_network(member.at, Some(&closed)).await.unwrap();
    member.release_clean("a policy for its network").await;
    let observed = member.host.runtime().inspect(member.at.uid).await.unwrap();
    assert!(
        matches!(&observed, runtime::Observed::Present(facts) if facts.network.is_none()),
        "{observed:?}"
    );
    // Memory that ran out.
    let owner = member.claim().await;
    run(
        &owner,
        "user",
        "head -c 600M /dev/zero | tail -c 600M >/dev/null; true",
    )
    .await;
    assert!(seen(&member, "cgroups").await, "nothing was killed");
    member.release_clean("killed processes").await;
    // Its settings.
    member.claim().await;
    assert!(seen(&member, "host").await);
    member.release_clean("settings").await;
    // What brought it up before anybody had it.
    let mut member = Member::with(WorkloadSpec {
        boot: Some(Box::new(Boot {
            start: ["/bin/sleep", "1000"].map(Into::into).into(),
            ..Boot::default()
        })),
        ..used(RuntimeClass::Native)
    })
    .await;
    let booted = member.host.runtime().boot(member.at).await.unwrap();
    assert_eq!(booted, Booting::Done);
    assert!(seen(&member, "processes").await);
    member.claim().await;
    assert!(seen(&member, "host").await);
    member.release_clean("a start command").await;
}

async fn seen(member: &Member, part: &str) -> bool {
    let differences = member.fresh.differences(&member.look().await);
    differences.iter().any(|line| line.starts_with(part))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_nobody_knows_fresh_is_not_handed_out_again() {
    let mut member = Member::new(RuntimeClass::Native).await;
    member.claim().await;
    member.host.reopen();
    let refused = member.release().await.unwrap_err();
    assert!(matches!(refused, RuntimeError::NotClean(_)), "{refused:?}");
    // Another of its kind teaches how they look.
    let mut other = Member {
        at: fence(2, 1),
        epoch: 0,
        fresh: Look::default(),
        host: member.host,
    };
    let runtime = other.host.runtime();
    runtime
        .create(other.at, &used(RuntimeClass::Native))
        .await
        .unwrap();
    other.fresh = other.look().await;
    other.claim().await;
    other.release_clean("a claim").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_sandboxes_of_a_kind_look_alike() {
    let host = host();
    let mut first = None;
    for number in 1..=3 {
        let at = fence(number, 1);
        host.runtime()
            .create(at, &used(RuntimeClass::Native))
            .await
            .unwrap();
        let look = host.runtime().look(at.uid).await.unwrap();
        for (part, lines) in look.parts().filter(|(part, _)| *part != "sockets") {
            assert!(!lines.is_empty(), "nothing is seen of {part}");
        }
        let first = first.get_or_insert_with(|| look.clone());
        assert_eq!(first.differences(&look), Vec::<String>::new());
    }
}
