//! Who goes in: from a head to something that is held inside a sandbox, or to a refusal.
//!
//! Whoever moves the bytes asks here, so that there is one order of looking, counting and waking:
//! the gateway's own way in, and [`crate::front`] for somebody else who moves them.

use std::{sync::Arc, time::Duration};

use model::Version;
use routes::{Gate, Route, State};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    WakeError,
    activity::{Held, NotIn},
    address::Port,
    answer::Refusal,
    decide::{Asking, Decision, Found, Refused, decide},
    gate::{self, Pass, Passage},
    gateway::Shared,
    signature::Signed,
};

/// How long a signed URL without an address waits for its turn to be looked for.
const SEARCH_PATIENCE: Duration = Duration::from_secs(5);
/// How often a sandbox is looked at that is closed and opened at the same time.
const MOST_LOOKS: usize = 8;

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It is inside.
    In(Found, Held),
    /// Its sandbox is to be woken first: see [`park`].
    Wake(Found),
    /// Its sandbox is to be looked for first: see [`search`].
    Search,
    /// Its client has seen more than is known here: see [`crate::progress::catch_up`].
    Behind(Version),
    /// It is the API's.
    Fallback,
    /// It is a browser's question, to be answered in the agent's stead.
    Preflight,
    /// It goes nowhere.
    Refuse(Refused),
}

/// Lets a request in if that can be done at once. `told` is the length it says its body has.
pub(crate) fn enter(shared: &Shared, asking: &Asking<'_>, told: u64) -> Entry {
    for _ in 0..MOST_LOOKS {
        let found = match decide(shared, asking) {
            // Nobody is woken, or asked, for what would be cut anyway.
            Decision::Forward(found) | Decision::Wake(found) if is_too_large(shared, told) => {
                return Entry::Refuse(found.refused(Refusal::TooLarge));
            }
            Decision::Forward(found) => found,
            Decision::Wake(found) => return Entry::Wake(found),
            Decision::Search => return Entry::Search,
            Decision::Behind(version) => return Entry::Behind(version),
            Decision::Fallback => return Entry::Fallback,
            Decision::Preflight => return Entry::Preflight,
            Decision::Refuse(refused) => return Entry::Refuse(refused),
        };
        match hold(shared, &found) {
            Ok(held) => return Entry::In(found, held),
            Err(NotIn::TooMany) => return Entry::Refuse(found.refused(Refusal::TooMany)),
            Err(NotIn::Closed) => {}
        }
    }
    Entry::Refuse(Refusal::Overloaded.into())
}

/// The same for a signed URL that names no sandbox: that is looked for. It is never looked for
/// twice.
pub(crate) async fn search(shared: &Arc<Shared>, asking: &Asking<'_>, told: u64) -> Entry {
    let mut found = match find(shared, asking).await {
        Ok(found) => found,
        Err(refusal) => return Entry::Refuse(refusal.into()),
    };
    if is_too_large(shared, told) {
        return Entry::Refuse(found.refused(Refusal::TooLarge));
    }
    for _ in 0..MOST_LOOKS {
        match look_again(shared, asking, &found.route) {
            Ok(route) => found.route = route,
            Err(refusal) => return Entry::Refuse(refusal.into()),
        }
        match gate::passage(&found.route) {
            Passage::Forward => {}
            Passage::Park => return Entry::Wake(found),
            Passage::NotFound => return Entry::Refuse(found.refused(Refusal::NotFound)),
        }
        match hold(shared, &found) {
            Ok(held) => return Entry::In(found, held),
            Err(NotIn::TooMany) => return Entry::Refuse(found.refused(Refusal::TooMany)),
            Err(NotIn::Closed) => {}
        }
    }
    Entry::Refuse(Refusal::Overloaded.into())
}

/// Counts a request that waits for its sandbox. Who waits is there: a sandbox must not be put to
/// sleep under a parked request.
pub(crate) fn park(shared: &Shared, found: &Found) -> Result<Held, Refused> {
    let limit = shared.options.limits.open_per_sandbox;
    let held = shared.activity.park(&found.route, limit);
    held.ok_or_else(|| found.refused(Refusal::TooMany))
}

/// Waits for the sandbox of a parked request to wake, and lets it in.
pub(crate) async fn wake(
    shared: &Shared,
    asking: &Asking<'_>,
    mut found: Found,
    mut held: Held,
) -> Result<(Found, Held), Refused> {
    let deadline = Instant::now() + shared.options.wake_timeout;
    let waking = shared.ports.wake.wake(&found.route, deadline);
    let woken = timeout_at(deadline, waking).await;
    let route = match woken.unwrap_or(Err(WakeError::Timeout)) {
        Ok(route) => route,
        Err(why) => return Err(found.refused(why.into())),
    };
    let is_same = route.is_delivery(found.route.uid, found.route.epoch);
    if !is_same || route.state != State::Running {
        return Err(found.refused(Refusal::NotFound));
    }
    // What the port demands may have changed meanwhile.
    let is_same_gate = route.agent == found.route.agent && route.traffic == found.route.traffic;
    if !is_same_gate {
        let path = asking.path.get(found.prefix..).unwrap_or("/");
        let (method, seen) = (asking.method, asking.seen());
        let asked = gate::ask(&route, found.port, method, path, asking.query, &seen);
        match asked {
            Ok(pass) => found.may_wake = pass == Pass::Full,
            Err(refusal) => return Err(found.refused(refusal)),
        }
    }
    found.route = route;
    // It was counted all the time, so nobody can have taken the sandbox for unused.
    held.enter();
    Ok((found, held))
}

/// Counts a request as inside the sandbox that it was found to be for.
fn hold(shared: &Shared, found: &Found) -> Result<Held, NotIn> {
    let limit = shared.options.limits.open_per_sandbox;
    let routes = &shared.ports.routes;
    shared
        .activity
        .let_in(routes, &found.route, limit, found.is_use)
}

fn is_too_large(shared: &Shared, told: u64) -> bool {
    shared.options.limits.refuse(told)
}

/// The sandbox of a signed URL as it is now, if its token still is the one that signed.
fn look_again(shared: &Shared, asking: &Asking<'_>, route: &Route) -> Result<Arc<Route>, Refusal> {
    let ports = &shared.ports;
    let (Some(seal), Some(id)) = (&ports.seal, &route.id) else {
        return Err(Refusal::InvalidSignature);
    };
    let now = ports.routes.check(id, route.uid, route.epoch);
    let now = now.map_err(|_| Refusal::InvalidSignature)?;
    let signed = Signed::read(asking.method, asking.query.unwrap_or_default());
    match signed.is_of(seal, id, &now) {
        true => Ok(now),
        false => Err(Refusal::InvalidSignature),
    }
}

/// Finds the sandbox of a signed URL that names none.
async fn find(shared: &Arc<Shared>, asking: &Asking<'_>) -> Result<Found, Refusal> {
    let turn = timeout(SEARCH_PATIENCE, shared.searches.acquire()).await;
    let _turn = turn.map_err(|_| Refusal::Overloaded)?;
    let signed = Signed::read(asking.method, asking.query.unwrap_or_default());
    // Nobody is looked for on account of a URL that says itself that it is of no use.
    if signed.is_expired(shared.ports.clock.wall_micros()) {
        return Err(Refusal::ExpiredSignature);
    }
    let searching = shared.clone();
    let task = shared.outside.spawn_blocking(move || {
        let seal = searching.ports.seal.as_ref()?;
        let is_candidate = |route: &Arc<Route>| {
            let reachable = gate::passage(route) != Passage::NotFound;
            route.id.is_some() && matches!(route.agent, Gate::Token(_)) && reachable
        };
        let mut candidates = searching.ports.routes.routes();
        candidates.retain(is_candidate);
        if candidates.len() > searching.options.limits.signature_candidates {
            return None;
        }
        // To the end, whoever it is: how long it takes tells nothing.
        candidates.into_iter().fold(None, |found, route| {
            let is_it = route
                .id
                .as_ref()
                .is_some_and(|id| signed.is_of(seal, id, &route));
            if is_it { Some(route) } else { found }
        })
    });
    let found = task.await.map_err(|_| Refusal::Overloaded)?;
    let route = found.ok_or(Refusal::InvalidSignature)?;
    let seen = asking.seen();
    Ok(Found {
        route,
        port: Port::AGENT,
        prefix: 0,
        marks: seen.marks,
        is_bare: false,
        is_use: true,
        may_wake: true,
        request_id: seen.request_id(),
    })
}
