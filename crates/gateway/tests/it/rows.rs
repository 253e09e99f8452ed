//! The table of answers of a gateway, one row for each.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use gateway::{Wake, WakeError};
use routes::{Gate, Route, State};
use tokio::time::Instant;

use crate::{
    client::{get, once},
    sandbox::program,
    world::{Setup, World},
};

/// Ends every wake in the way that the sandbox's name says.
#[derive(Debug)]
struct ByName;

#[async_trait]
impl Wake for ByName {
    async fn wake(&self, route: &Route, _: Instant) -> Result<Arc<Route>, WakeError> {
        let retry_after = Duration::from_secs(2);
        Err(match route.name.as_str() {
            "failed" => WakeError::Failed,
            "late" => WakeError::Timeout,
            "full" => WakeError::Overloaded { retry_after },
            "limit" => WakeError::TeamLimit { retry_after },
            _ => WakeError::NotFound,
        })
    }
}

#[tokio::test]
async fn what_the_gateway_finds_is_what_it_answers() {
    let world = World::with(Setup {
        wake: Arc::new(ByName),
        ..Setup::default()
    });
    let program = program(world.ip, 0).await;
    for id in ["gone", "failed", "late", "full", "limit"] {
        let mut asleep = world.route(id);
        (asleep.state, asleep.wake_on_traffic) = (State::Paused, true);
        world.apply(asleep);
    }
    let mut stays = world.route("stays");
    stays.state = State::Paused;
    world.apply(stays);
    let mut dead = world.route("dead");
    dead.state = State::Dead;
    world.apply(dead);
    let mut closed = world.secured("secured");
    closed.wake_on_traffic = true;
    closed.state = State::Paused;
    assert!(matches!(closed.agent, Gate::Token(_)));
    world.apply(closed);
    world.apply(world.route("runs"));
    let (open, unused) = (program.port, 9);
    for (what, address, status, retry) in [
        ("runs and answers", format!("{open}-runs"), 200, None),
        ("unknown", "80-never".into(), 502, None),
        ("killed or expired", "80-dead".into(), 502, None),
        ("asleep, not to be woken", "80-stays".into(), 502, None),
        ("gone while it was woken", "80-gone".into(), 502, None),
        ("nothing listens", format!("{unused}-runs"), 502, None),
        ("no token for the agent", "49983-secured".into(), 401, None),
        ("no token for traffic", "80-secured".into(), 403, None),
        ("waking failed", "80-failed".into(), 503, Some("5")),
        ("waking took too long", "80-late".into(), 503, Some("5")),
        ("too many wait", "80-full".into(), 503, Some("2")),
        ("the team's limit", "80-limit".into(), 429, Some("2")),
        ("a bad address", "99999-runs".into(), 400, None),
    ] {
        let host = format!("{address}.sbx.test");
        let answer = once(world.address(), get("/mirror", &[("Host", &host)])).await;
        assert_eq!(answer.status, status, "{what}");
        assert_eq!(answer.header("retry-after"), retry, "{what}");
    }
    let unsynced = World::with(Setup {
        is_synced: false,
        ..Setup::default()
    });
    let answer = once(unsynced.address(), get("/", &[("Host", "80-any.sbx.test")])).await;
    assert_eq!(answer.status, 503, "not synced yet");
}
