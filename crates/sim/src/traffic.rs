//! Requests: the real decisions of a gateway, the real flights, and a pretence of what is inside.
//!
//! What is not here is bytes. A request is looked up, passes or parks, is woken for, and goes in;
//! there it needs some time of a workload that *runs*. The checker hears when it was asked, when it
//! was inside which delivery, and how it ended.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use control::{ActivitySource, Followers, Waiters};
use gateway::{Passage, Wake, Watch, passage};
use kit::Entropy;
use model::{Key, Sandbox, SandboxId, Version};
use parking_lot::Mutex;
use plan::idle::Activity;
use routes::{Route, State, WakeError};
use runtime::{WorkloadState, fake::FakeRuntime};
use tokio::time::Instant;

use crate::{
    checker::Checker,
    gateway::{Gateway, WAKE_TIMEOUT},
    plant::Plant,
};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an answer from inside.
    Served,
    /// It was told why not.
    Refused(Refusal),
    /// Its gateway died with it.
    Crashed,
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such sandbox.
    NotFound,
    /// The gateway does not know yet.
    NotSynced,
    /// What is inside gave no answer.
    NoAnswer,
    /// It was not woken.
    NotWoken(WakeError),
    /// It came while the sandbox was being closed, and was told then that there is none.
    Closed,
}

/// One request, from its coming to its end.
pub async fn request(gateway: Arc<Gateway>, id: SandboxId, number: usize, world: Around) {
    world.checker.asked(number, &id);
    let ending = tokio::select! {
        biased;
        () = gateway.dead.cancelled() => Ending::Crashed,
        ending = handle(&gateway, &id, &world) => match ending {
            Ok(()) => Ending::Served,
            Err(refusal) => Ending::Refused(refusal),
        },
    };
    world.checker.answered(number, ending);
}

/// What a request needs of the world.
#[derive(Clone, Debug)]
pub struct Around {
    /// The truth of what is inside.
    pub runtime: Arc<FakeRuntime>,
    /// Hears.
    pub checker: Arc<Checker>,
    /// How long things take.
    pub entropy: Arc<Entropy>,
    /// A defect on purpose.
    pub plant: Option<Plant>,
}

async fn handle(gateway: &Gateway, id: &SandboxId, world: &Around) -> Result<(), Refusal> {
    if !gateway.is_synced() {
        return Err(Refusal::NotSynced);
    }
    let route = gateway.lookup(id).ok_or(Refusal::NotFound)?;
    let is_lost = world.plant == Some(Plant::LostClosing) && !route.wake_on_traffic;
    let route = match passage(&route) {
        Passage::Forward => route,
        Passage::Park if route.is_closing && is_lost => return Err(Refusal::Closed),
        Passage::NotFound => {
            if world.plant == Some(Plant::UninvitedWake) && route.state == State::Paused {
                gateway.write_resume(&route).await;
            }
            return Err(Refusal::NotFound);
        }
        // Nobody here hears of a sandbox before its record says that it is ready.
        Passage::Park if route.state == State::Creating => return Err(Refusal::NotFound),
        Passage::Park => {
            let _held = gateway.activity.park(&route, u32::MAX);
            let deadline = Instant::now() + WAKE_TIMEOUT;
            let woken = gateway.wake(&route, deadline).await;
            let woken = woken.map_err(|error| match error {
                WakeError::NotFound if route.is_closing => Refusal::Closed,
                error => Refusal::NotWoken(error),
            })?;
            if !woken.is_delivery(route.uid, route.epoch) || woken.state != State::Running {
                return Err(Refusal::NotFound);
            }
            world.checker.woken(&woken);
            woken
        }
    };
    let held = gateway.activity.open(&route, u32::MAX);
    let held = held.ok_or(Refusal::NotFound)?;
    let _inside = world.checker.goes_in(gateway.name, &route);
    let answer = inside(gateway, &route, world);
    if world.plant == Some(Plant::NoWatch) {
        return answer.await;
    }
    let watch = Watch {
        routes: &gateway.table,
        wake: gateway,
        timeout: WAKE_TIMEOUT,
    };
    match watch.answer(&route, &held, answer).await {
        Ok(answer) => answer,
        Err(error) => Err(Refusal::NotWoken(error)),
    }
}

/// Dials, and waits until what is inside has run for as long as the answer takes.
async fn inside(gateway: &Gateway, route: &Route, world: &Around) -> Result<(), Refusal> {
    let gone = Refusal::NoAnswer;
    let id = route.id.as_ref().ok_or(gone)?;
    // The way there takes a moment, in which it can become another's.
    tokio::time::sleep(Duration::from_micros(world.entropy.below(3_000) as u64)).await;
    gateway
        .table
        .check(id, route.uid, route.epoch)
        .map_err(|_| Refusal::NotFound)?;
    let first = world.runtime.facts(route.uid).ok_or(gone)?;
    world.checker.reached(gateway.name, route, first.epoch);
    let mut left = match world.entropy.below(8) {
        0 => Duration::from_millis(world.entropy.below(60_000) as u64),
        1 => Duration::from_millis(world.entropy.below(2_000) as u64),
        _ => Duration::from_millis(world.entropy.below(50) as u64),
    };
    loop {
        let step = left
            .min(Duration::from_millis(250))
            .max(Duration::from_millis(1));
        tokio::time::sleep(step).await;
        let now = world.runtime.facts(route.uid).ok_or(gone)?;
        // Whatever it was connected to is gone.
        if now.epoch != first.epoch || now.container_id != first.container_id {
            return Err(gone);
        }
        match now.state {
            WorkloadState::Running if left.is_zero() => return Ok(()),
            WorkloadState::Running => left = left.saturating_sub(step),
            WorkloadState::Frozen => {}
            WorkloadState::Cut | WorkloadState::Exited { .. } => return Err(gone),
        }
    }
}

/// All gateways, as control asks for them.
#[derive(Clone, Debug, Default)]
pub struct Fronts {
    /// Those that live.
    pub gateways: Arc<Mutex<Vec<Arc<Gateway>>>>,
    /// A defect on purpose.
    pub plant: Option<Plant>,
}

impl Fronts {
    fn all(&self) -> Vec<Arc<Gateway>> {
        self.gateways.lock().clone()
    }

    fn one(&self, gateway: &Gateway, sandbox: &Sandbox) -> Activity {
        if !gateway.is_synced() {
            return Activity::Unknown;
        }
        let used = gateway.activity.of(sandbox.uid());
        match used.filter(|used| used.epoch == sandbox.spec.epoch) {
            Some(used) if used.open > 0 && self.plant != Some(Plant::ForgetfulUse) => {
                Activity::InUse
            }
            used => Activity::Quiet {
                last: used.map(|used| used.last),
                watched: gateway.activity.watched(),
            },
        }
    }
}

#[async_trait]
impl ActivitySource for Fronts {
    fn activity(&self, sandbox: &Sandbox) -> Activity {
        Activity::union(self.all().iter().map(|gateway| self.one(gateway, sandbox)))
    }

    async fn drained(&self, sandbox: &Sandbox) {
        for gateway in self.all() {
            let (uid, epoch) = (sandbox.uid(), sandbox.spec.epoch);
            gateway.activity.drained(uid, epoch).await;
        }
    }
}

#[async_trait]
impl Followers for Fronts {
    async fn seen_by_all(&self, _: &Key, version: Version) -> bool {
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut all = true;
        for gateway in self.all() {
            all &= gateway.watched.wait_for(version, deadline).await;
        }
        all || self.plant == Some(Plant::UnheardClosing)
    }
}

impl Waiters for Fronts {
    fn awake(&self, sandbox: &Sandbox) {
        for gateway in self.all() {
            gateway.hears_awake(sandbox);
        }
    }
}

#[async_trait]
impl Wake for Gateway {
    async fn wake(&self, route: &Route, deadline: Instant) -> Result<Arc<Route>, WakeError> {
        if self.plant == Some(Plant::LostWake) && route.state == State::Pausing {
            return Err(WakeError::NotFound);
        }
        if self.plant == Some(Plant::EagerWake) {
            self.write_resume(route).await;
        }
        // Until it has its own picture it knows nobody to wake.
        let flights = self.flights.get().ok_or(WakeError::Failed)?;
        let waking = flights.wake(route, deadline);
        match self.old_news(route) {
            Some(said) => tokio::join!(waking, async { flights.awake(&said) }).0,
            None => waking.await,
        }
    }
}
