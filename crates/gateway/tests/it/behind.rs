//! Clients who say how far they have come, before a gateway that has not come as far.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use gateway::Progress;
use model::Version;
use routes::State;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::{
    client::{get, once},
    sandbox::program,
    waking::Script,
    world::{Setup, World},
};

/// As far as the test says.
#[derive(Debug)]
struct Said(watch::Sender<u64>);

#[async_trait]
impl Progress for Said {
    fn has_reached(&self, version: Version) -> bool {
        *self.0.borrow() >= version.to_u64()
    }

    async fn reach(&self, version: Version, deadline: Instant) -> bool {
        let mut said = self.0.subscribe();
        let reached = said.wait_for(|said| *said >= version.to_u64());
        timeout_at(deadline, reached).await.is_ok()
    }
}

fn world() -> (World, Arc<Said>, Arc<Script>) {
    let said = Arc::new(Said(watch::channel(10).0));
    let script = Arc::new(Script::default());
    let world = World::with(Setup {
        progress: said.clone(),
        wake: script.clone(),
        ..Setup::default()
    });
    (world, said, script)
}

#[tokio::test]
async fn a_request_whose_client_has_seen_more_waits_until_that_is_known() {
    let (world, said, _) = world();
    let program = program(world.ip, 0).await;
    let host = format!("{}-box.sbx.test", program.port);
    let asked = get("/mirror", &[("Host", &host), ("Dormouse-Version", "12")]);
    let asking = tokio::spawn(once(world.address(), asked));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!asking.is_finished());
    world.apply(world.route("box"));
    said.0.send_replace(12);
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test]
async fn what_is_known_of_the_sandbox_itself_is_enough() {
    let (world, _, _) = world();
    let program = program(world.ip, 0).await;
    let route = world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", program.port);
    let version = route.version.to_string();
    let asked = get(
        "/mirror",
        &[("Host", &host), ("Dormouse-Version", &version)],
    );
    assert_eq!(once(world.address(), asked).await.status, 200);
}

#[tokio::test]
async fn who_has_seen_what_never_comes_is_told_to_come_again_and_wakes_nobody() {
    let (world, _, script) = world();
    let mut asleep = world.route("box");
    (asleep.state, asleep.wake_on_traffic) = (State::Paused, true);
    world.apply(asleep);
    let headers = [("Host", "80-box.sbx.test"), ("Dormouse-Version", "99")];
    let answer = once(world.address(), get("/", &headers)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(script.calls.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_version_that_is_none_is_refused_by_the_name_of_its_header() {
    let (world, _, _) = world();
    world.apply(world.route("box"));
    for bad in ["soon", "-1", "18446744073709551616", ""] {
        let headers = [("Host", "80-box.sbx.test"), ("Dormouse-Version", bad)];
        let answer = once(world.address(), get("/", &headers)).await;
        assert_eq!(answer.status, 400, "{bad}");
        assert!(answer.body.contains("Dormouse-Version"), "{bad}");
    }
}
