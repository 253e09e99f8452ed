//! Clients who say how far they have come, before a gateway that has not come as far.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

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
    world::{Setup, World, eventually},
};

const LONG: Duration = Duration::from_secs(60);

/// As far as the test says.
#[derive(Debug)]
struct Said {
    version: watch::Sender<u64>,
    /// How many waited for more.
    waited: AtomicUsize,
}

#[async_trait]
impl Progress for Said {
    fn has_reached(&self, version: Version) -> bool {
        *self.version.borrow() >= version.to_u64()
    }

    async fn reach(&self, version: Version, deadline: Instant) -> bool {
        let mut said = self.version.subscribe();
        self.waited.fetch_add(1, Ordering::SeqCst);
        let reached = said.wait_for(|said| *said >= version.to_u64());
        timeout_at(deadline, reached).await.is_ok()
    }
}

fn world(patience: Duration) -> (World, Arc<Said>, Arc<Script>) {
    let said = Arc::new(Said {
        version: watch::channel(10).0,
        waited: AtomicUsize::new(0),
    });
    let script = Arc::new(Script::default());
    let mut setup = Setup {
        progress: said.clone(),
        wake: script.clone(),
        ..Setup::default()
    };
    setup.options.limits.version_patience = patience;
    (World::with(setup), said, script)
}

#[tokio::test]
async fn a_request_whose_client_has_seen_more_waits_until_that_is_known() {
    let (world, said, _) = world(LONG);
    let program = program(world.ip, 0).await;
    let host = format!("{}-box.sbx.test", program.port);
    let asked = get("/mirror", &[("Host", &host), ("Dormouse-Version", "12")]);
    let asking = tokio::spawn(once(world.address(), asked));
    eventually(|| said.waited.load(Ordering::SeqCst) == 1).await;
    assert!(!asking.is_finished());
    world.apply(world.route("box"));
    said.version.send_replace(12);
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test]
async fn what_is_known_of_the_sandbox_itself_is_enough() {
    let (world, _, _) = world(LONG);
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
    let (world, _, script) = world(Duration::from_secs(1));
    let mut asleep = world.route("box");
    (asleep.state, asleep.wake_on_traffic) = (State::Paused, true);
    world.apply(asleep);
    let headers = [("Host", "80-box.sbx.test"), ("Dormouse-Version", "99")];
    let answer = once(world.address(), get("/", &headers)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(script.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_version_that_is_none_is_refused_by_the_name_of_its_header() {
    let (world, _, _) = world(LONG);
    world.apply(world.route("box"));
    for bad in ["soon", "-1", "18446744073709551616", ""] {
        let headers = [("Host", "80-box.sbx.test"), ("Dormouse-Version", bad)];
        let answer = once(world.address(), get("/", &headers)).await;
        assert_eq!(answer.status, 400, "{bad}");
        assert!(answer.body.contains("Dormouse-Version"), "{bad}");
    }
}
