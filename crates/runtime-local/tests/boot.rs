//! Commands of templates, run by the real agent. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use std::time::Duration;

use model::{Epoch, hook::Hook, template::RuntimeClass, workload::Secret};
use runtime::{
    Arming, Boot, BootFailure, Booting, Facts, Fence, Observed, Runtime as _, RuntimeError,
    WorkloadSpec,
};
use runtime_local::Options;
use support::{
    Host,
    agent::{agent, client, host, sh},
    fence, fence_of, images, options, spec,
};
use wire::connect::Code;

fn shell(script: &str) -> Vec<Box<str>> {
    ["/bin/sh", "-c", script].map(Into::into).into()
}

fn with(start: &str, ready: &str) -> WorkloadSpec {
    let words = |script: &str| match script {
        "" => Vec::new(),
        script => shell(script),
    };
    WorkloadSpec {
        boot: Some(Box::new(Boot {
            start: words(start),
            ready: words(ready),
            env: [("COLOUR", "blue")].into_iter().collect(),
            user: Some("user".into()),
            workdir: Some("/tmp".into()),
        })),
        ..spec()
    }
}

async fn boot(host: &Host, at: Fence) -> Result<(), RuntimeError> {
    loop {
        match host.runtime().boot(at).await? {
            Booting::Done => return Ok(()),
            Booting::UnderWay => {}
        }
    }
}

async fn facts(host: &Host, at: Fence) -> Facts {
    match host.runtime().inspect(at.uid).await.unwrap() {
        Observed::Present(facts) => facts,
        other => panic!("{other:?}"),
    }
}

fn owner() -> Arming {
    Arming {
        epoch: Epoch(1),
        env: [("GREETING", "hello")].into_iter().collect(),
        token: Some(Secret::new("mine")),
        user: Some("user".into()),
        workdir: None,
    }
}

/// A host that waits this long for commands.
fn impatient(timeout: Duration) -> Host {
    let unique = options();
    Host::with(Options {
        first_uid: unique.first_uid,
        ranges: unique.ranges,
        startup_timeout: timeout,
        ..Options::agent(agent())
    })
}

#[tokio::test]
async fn sandboxes_of_the_agent_keep_the_ports_promises() {
    let host = host();
    runtime::conformance::run_commands(host.runtime(), images()).await;
}

#[tokio::test]
async fn the_start_command_runs_as_the_template_says_and_goes_on() {
    for class in [RuntimeClass::Native, RuntimeClass::Runc] {
        let host = host();
        let at = fence(1, 1);
        let spec = WorkloadSpec {
            class,
            ..with(
                "echo $COLOUR $(id -un) $(pwd) > /tmp/seen; exec sleep 1000",
                "test -e /tmp/seen",
            )
        };
        host.runtime().create(at, &spec).await.unwrap();
        boot(&host, at).await.unwrap();
        // Nobody is served before the first delivery.
        let inside = client(host.runtime(), at.uid);
        let early = sh(&inside, "true").await.unwrap_err();
        assert_eq!(early.code(), Some(Code::Unauthenticated), "{early:?}");
        host.runtime().arm(at, &owner()).await.unwrap();
        let owner = inside.with_token(&"mine".into()).unwrap();
        let said = sh(
            &owner,
            "cat /tmp/seen; pgrep -c sleep; echo $GREETING$COLOUR",
        )
        .await;
        assert_eq!(said.unwrap(), "blue user /tmp\n1\nhello\n", "{class:?}");
        host.runtime().delete(at).await.unwrap();
    }
}

#[tokio::test]
async fn who_is_given_it_without_a_token_needs_none() {
    let host = host();
    let at = fence(1, 1);
    let spec = with("true", "");
    host.runtime().create(at, &spec).await.unwrap();
    boot(&host, at).await.unwrap();
    let open = Arming {
        token: None,
        ..owner()
    };
    host.runtime().arm(at, &open).await.unwrap();
    let inside = client(host.runtime(), at.uid);
    assert_eq!(sh(&inside, "echo in").await.unwrap(), "in\n");
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn another_server_goes_on_where_one_died_and_starts_nothing_twice() {
    let mut host = host();
    let at = fence(1, 1);
    let spec = with(
        "echo x >> /tmp/starts; exec sleep 1000",
        "test -e /tmp/go && test -e /tmp/starts",
    );
    host.runtime().create(at, &spec).await.unwrap();
    assert_eq!(host.runtime().boot(at).await, Ok(Booting::UnderWay));
    host.reopen();
    assert!(!facts(&host, at).await.booted);
    assert_eq!(host.runtime().boot(at).await, Ok(Booting::UnderWay));
    let pid = host.runtime().first_process(at.uid).unwrap();
    std::fs::create_dir(format!("/proc/{pid}/root/tmp/go")).unwrap();
    boot(&host, at).await.unwrap();
    host.reopen();
    assert!(facts(&host, at).await.booted, "what is up is known to be");
    let starts = std::fs::read_to_string(host.upper(at.uid).join("tmp/starts"));
    assert_eq!(starts.unwrap(), "x\n");
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn what_fails_says_which_command_and_how() {
    let limits = [60, 10, 10].map(Duration::from_secs);
    let cases = [
        (
            with("echo no port >&2; exit 3", "false"),
            BootFailure::StartCommand,
            "exit status 3: no port",
        ),
        (
            with("exec sleep 1000", "echo not yet; false"),
            BootFailure::Deadline,
            "exit status 1: not yet",
        ),
        (
            with("exec sleep 1000", "sleep 1000"),
            BootFailure::Deadline,
            "not within 10s",
        ),
    ];
    for ((spec, expected, words), limit) in cases.into_iter().zip(limits) {
        let host = impatient(limit);
        let at = fence(1, 1);
        host.runtime().create(at, &spec).await.unwrap();
        let failed = boot(&host, at).await.unwrap_err();
        let RuntimeError::NotReady { failure, detail } = &failed else {
            panic!("{failed:?}");
        };
        assert_eq!(*failure, expected);
        assert!(detail.contains(words), "{detail}");
        assert!(!failed.is_retryable());
        assert!(!facts(&host, at).await.booted);
        host.runtime().delete(at).await.unwrap();
    }
    let host = impatient(Duration::from_secs(60));
    for (field, expected) in [
        ("start", BootFailure::StartCommand),
        ("ready", BootFailure::ReadyCommand),
    ] {
        let mut spec = with("exec sleep 1000", "true");
        let boot_of = spec.boot.as_mut().unwrap();
        let command = if field == "start" {
            &mut boot_of.start
        } else {
            &mut boot_of.ready
        };
        *command = vec!["/no/such/program".into()];
        let at = fence(10, 1);
        host.runtime().create(at, &spec).await.unwrap();
        let failed = boot(&host, at).await.unwrap_err();
        assert!(
            matches!(failed, RuntimeError::NotReady { failure, .. } if failure == expected),
            "{failed:?}"
        );
        host.runtime().delete(fence_of(at.uid, 2, 1)).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_removed_while_it_comes_up_is_gone() {
    let host = host();
    let at = fence(1, 1);
    let spec = with("exec sleep 1000", "false");
    host.runtime().create(at, &spec).await.unwrap();
    assert_eq!(host.runtime().boot(at).await, Ok(Booting::UnderWay));
    let later = fence_of(at.uid, 2, 1);
    host.runtime().delete(later).await.unwrap();
    assert_eq!(
        host.runtime().inspect(at.uid).await.unwrap(),
        Observed::Absent
    );
}

#[tokio::test]
async fn hooks_of_an_old_container_do_not_go_on_in_the_new_one() {
    let host = host();
    let (first, second) = (fence(1, 1), fence(1, 2));
    host.runtime().create(first, &spec()).await.unwrap();
    host.runtime().arm(first, &owner()).await.unwrap();
    let script = "echo again >> /tmp/tried; exit 1";
    let hook = Hook {
        required: true,
        retries: 100,
        ..Hook::exec("stubborn", &["/bin/sh", "-c", script])
    };
    let under_way = host.runtime().run_hooks(first, &[hook]).await.unwrap();
    assert_eq!(under_way, Booting::UnderWay);
    let inside = client(host.runtime(), first.uid);
    let inside = inside.with_token(&"mine".into()).unwrap();
    let tried = "until grep -q again /tmp/tried 2>/dev/null; do sleep 0.05; done";
    sh(&inside, tried).await.unwrap();
    host.runtime().reset(second, None).await.unwrap();
    let next = Arming {
        epoch: Epoch(2),
        ..owner()
    };
    host.runtime().arm(second, &next).await.unwrap();
    // Longer than it would have waited for its next try.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let seen = sh(&inside, "ls /tmp/tried 2>/dev/null || echo nothing").await;
    assert_eq!(seen.unwrap(), "nothing\n");
    host.runtime().delete(second).await.unwrap();
}
