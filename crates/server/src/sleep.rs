//! What sleeping and waking need of several parts, none of which knows another: what the gateway saw
//! for control's timers, what it has heard for whoever waits for that, what control sees for flights,
//! flights for the gateway, quotas for flights, and for the API what a gateway knows first.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use auth::{Keys, Ledger, Reservation};
use cache::{RoutingCache, SandboxCache, Watched};
use claims::Desk;
use control::{ActivitySource, Followers, Waiters};
use model::{
    Key, Namespace, Sandbox, Spec as _, Version,
    lifecycle::{Traffic, traffic},
    sandbox::SandboxSpec,
};
use parking_lot::Mutex;
use plan::idle::Activity;
use routes::{Route, State, WakeError};
use tokio::time::Instant;
use wake::{Flights, Quota, Reserved, TeamLimit};

use crate::handover::earlier::Earlier;

/// How long one part waits for another to have heard of a change.
const FOLLOWING: Duration = Duration::from_secs(1);

/// The gateway, as control knows it: what it saw of use, what it has heard of records, and who waits
/// in it.
#[derive(Debug, Default)]
pub(crate) struct GatewayUse {
    /// The server that this one has replaced.
    earlier: Option<Earlier>,
    activity: OnceLock<gateway::Activity>,
    flights: OnceLock<Flights>,
    /// How far its routes have come.
    pub(crate) watched: Watched,
}

impl GatewayUse {
    /// With what is still inside a server that this one replaces.
    pub(crate) fn after(earlier: Option<Earlier>) -> Self {
        Self {
            earlier,
            ..Self::default()
        }
    }

    /// The gateway is about to start.
    pub(crate) fn opened(&self, activity: gateway::Activity) {
        let _ = self.activity.set(activity);
    }

    /// These are its flights.
    pub(crate) fn wakes_by(&self, flights: Flights) {
        let _ = self.flights.set(flights);
    }
}

impl Waiters for GatewayUse {
    fn awake(&self, sandbox: &Sandbox) {
        if let Some(flights) = self.flights.get() {
            flights.awake(sandbox);
        }
    }
}

#[async_trait]
impl ActivitySource for GatewayUse {
    /// Until the gateway has started nobody can say, and nobody is put to sleep.
    fn activity(&self, sandbox: &Sandbox) -> Activity {
        let Some(activity) = self.activity.get() else {
            return Activity::Unknown;
        };
        let used = activity.of(sandbox.uid());
        let here = match used.filter(|used| used.epoch == sandbox.spec.epoch) {
            Some(used) if used.open > 0 => Activity::InUse,
            used => Activity::Quiet {
                last: used.map(|used| used.last),
                watched: activity.watched(),
            },
        };
        let earlier = self.earlier.as_ref();
        let earlier = earlier.map(|one| one.activity(sandbox.uid(), sandbox.spec.epoch));
        Activity::union(earlier.into_iter().chain([here]))
    }

    async fn drained(&self, sandbox: &Sandbox) {
        let (uid, epoch) = (sandbox.uid(), sandbox.spec.epoch);
        if let Some(activity) = self.activity.get() {
            activity.drained(uid, epoch).await;
        }
        if let Some(earlier) = &self.earlier {
            earlier.drained(uid, epoch).await;
        }
    }
}

#[async_trait]
impl Followers for GatewayUse {
    async fn seen_by_all(&self, _: &Key, version: Version) -> bool {
        // Before it has started it lets nobody in.
        self.activity.get().is_none()
            || self
                .watched
                .wait_for(version, Instant::now() + FOLLOWING)
                .await
    }
}

/// The route table, as the API and the gateway ask for it.
#[derive(Debug)]
pub(crate) struct Routed(pub(crate) Watched);

#[async_trait]
impl e2b::ports::Followers for Routed {
    async fn have_seen(&self, _: &Key, version: Version) {
        // One that cannot say is no reason not to answer.
        let _ = self.0.wait_for(version, Instant::now() + FOLLOWING).await;
    }
}

#[async_trait]
impl gateway::Progress for Routed {
    fn has_reached(&self, version: Version) -> bool {
        self.0.version() >= version
    }

    async fn reach(&self, version: Version, deadline: Instant) -> bool {
        self.0.wait_for(version, deadline).await
    }
}

/// Sandboxes that were woken for somebody, until the API's cache shows that they are awake.
#[derive(Debug)]
pub(crate) struct Unsaid {
    sandboxes: SandboxCache,
    keys: Mutex<BTreeSet<Key>>,
}

impl Unsaid {
    pub(crate) fn new(sandboxes: SandboxCache) -> Self {
        Self {
            sandboxes,
            keys: Mutex::default(),
        }
    }

    fn add(&self, key: Key) {
        let mut keys = self.keys.lock();
        keys.insert(key);
        self.forget_shown(&mut keys);
    }

    fn forget_shown(&self, keys: &mut BTreeSet<Key>) {
        let wakes = |now: &Sandbox| traffic(now) == Traffic::Resuming;
        keys.retain(|key| self.sandboxes.find(key).is_some_and(|now| wakes(&now)));
    }
}

impl e2b::ports::Unsaid for Unsaid {
    fn of(&self, team: &Namespace) -> Vec<Key> {
        let mut keys = self.keys.lock();
        self.forget_shown(&mut keys);
        let of_team = |key: &&Key| key.namespace.as_ref() == Some(team);
        keys.iter().filter(of_team).cloned().collect()
    }
}

/// Flights, as the gateway asks for them.
#[derive(Debug)]
pub(crate) struct Waker {
    flights: Flights,
    /// What the API tells of sandboxes.
    told: SandboxCache,
    /// Where sandboxes are.
    routes: RoutingCache,
    /// Knows of whom the API tells before that.
    desk: Arc<Desk>,
    /// Is told of whom the API must not call asleep.
    unsaid: Arc<Unsaid>,
}

impl Waker {
    pub(crate) const fn new(
        flights: Flights,
        told: SandboxCache,
        routes: RoutingCache,
        desk: Arc<Desk>,
        unsaid: Arc<Unsaid>,
    ) -> Self {
        Self {
            flights,
            told,
            routes,
            desk,
            unsaid,
        }
    }

    /// One whose owner has heard of it is ready: its route follows in a moment. Nobody else can have
    /// its id.
    async fn arrive(&self, route: &Route, deadline: Instant) -> Result<Arc<Route>, WakeError> {
        let id = route.id.as_ref().ok_or(WakeError::NotFound)?;
        let key = key_of(route);
        // Asked first: it ceases to be so only once the API's own cache shows it.
        let told = |s: &Sandbox| s.uid() == route.uid && s.status.armed_epoch == route.epoch;
        let expected = self.desk.is_unsaid(id) || self.told.find(&key).is_some_and(|s| told(&s));
        if expected {
            // The write is under way.
            let soon = deadline.min(Instant::now() + FOLLOWING);
            return self.flights.look_on(route, soon).await;
        }
        let now = self.routes.find(&key);
        let now = now.filter(|now| now.is_delivery(route.uid, route.epoch));
        now.filter(|now| now.state == State::Running)
            .ok_or(WakeError::NotFound)
    }
}

#[async_trait]
impl gateway::Wake for Waker {
    async fn wake(&self, route: &Route, deadline: Instant) -> Result<Arc<Route>, WakeError> {
        if route.state == State::Creating {
            return self.arrive(route, deadline).await;
        }
        let woken = self.flights.wake(route, deadline).await?;
        // Whoever is answered from inside is not told that it sleeps: the API waits for the record of
        // one that has only just been seen to run. One that cannot say is no reason not to answer.
        let soon = deadline.min(Instant::now() + FOLLOWING);
        let _ = self.told.wait_for_version(woken.version, soon).await;
        self.unsaid.add(key_of(route));
        Ok(woken)
    }
}

/// The record that a route is of.
pub(crate) fn key_of(route: &Route) -> Key {
    let (namespace, name) = (route.namespace.clone(), route.name.clone());
    Key::namespaced(SandboxSpec::KIND, namespace, name)
}

/// Quotas, as flights ask for them: against whoever the sandbox was made for, whoever wakes it.
#[derive(Debug)]
pub(crate) struct TeamQuota {
    keys: Keys,
    ledger: Arc<Ledger>,
}

impl TeamQuota {
    pub(crate) const fn new(keys: Keys, ledger: Arc<Ledger>) -> Self {
        Self { keys, ledger }
    }
}

impl Quota for TeamQuota {
    fn reserve(&self, sandbox: &Sandbox) -> Result<Box<dyn Reserved>, TeamLimit> {
        let owner = sandbox.spec.owner.as_ref();
        let account = owner.and_then(|owner| self.keys.find_account(owner));
        // Nobody is limited who has no team, and nothing is woken that has no id.
        let (Some(account), Some(id)) = (account, &sandbox.spec.sandbox_id) else {
            return Ok(Box::new(wake::NoQuota));
        };
        let reserved = self.ledger.reserve(&account, id, &sandbox.spec);
        Ok(Box::new(InLedger(reserved.map_err(|_| TeamLimit)?)))
    }
}

/// What the ledger holds for a flight.
struct InLedger(Reservation);

impl Reserved for InLedger {
    fn written(self: Box<Self>, version: Version) {
        self.0.written(version);
    }
}
