//! A server that another one is about to replace: nothing is decided by its processor that the gateway's
//! entrance, the other one's by then, would decide otherwise.

use std::sync::Arc;

use ext_proc::Upstream;
use gateway::metrics::Outcome;
use routes::State;

use crate::{
    client::{get, once},
    sandbox::program,
    support::{ByName, Stage},
    world::Setup,
};

#[tokio::test]
async fn who_would_be_refused_or_wait_goes_on_to_the_gateway_once_it_is_left_to_that() {
    let setup = Setup {
        wake: Arc::new(ByName),
        ..Setup::default()
    };
    let stage = Stage::with(Upstream::Relay, setup).await;
    let program = program(stage.world.ip, 0).await;
    stage.world.apply(stage.world.route("runs"));
    let mut asleep = stage.world.route("wakes");
    (asleep.state, asleep.wake_on_traffic) = (State::Paused, true);
    stage.world.apply(asleep);
    let metrics = stage.server.metrics();
    let seen = || {
        let answered: u64 = Outcome::ALL.map(|one| metrics.answered(one)).iter().sum();
        (
            metrics.passed(),
            metrics.waited(),
            answered,
            metrics.undecided(),
        )
    };
    let host = |id: &str| format!("{}-{id}.sbx.test", program.port);
    let mut so_far = Vec::new();
    for is_left in [false, true] {
        if is_left {
            stage.server.leave_to_gateway().cancel();
        }
        for (id, status) in [("runs", 200), ("wakes", 200), ("never", 502)] {
            let asked = get("/echo", &[("Host", &host(id)), ("Connection", "close")]);
            let answer = once(stage.envoy.address, &asked).await;
            assert_eq!(answer.status, status, "{id} {is_left}");
        }
        so_far.push(seen());
    }
    assert_eq!(so_far, [(2, 1, 1, 0), (3, 1, 1, 2)]);
}
