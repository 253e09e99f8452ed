//! Flights.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cache::{RoutingCache, WaitError};
use kit::{Clock, Tasks};
use model::{
    Epoch, Key, Sandbox, Spec as _, Timestamp, Uid, Version,
    lifecycle::{OperationKind, Request, Standing, Traffic, Verdict, admit},
    sandbox::{DesiredState, OperationState, SandboxSpec},
};
use parking_lot::Mutex;
use routes::Route;
use store::{Store, StoreError, StoreExt as _};
use thiserror::Error;
use tokio::{
    sync::{Semaphore, oneshot},
    time::{Instant, timeout_at},
};

use crate::{
    Options,
    quota::{NoQuota, Quota, TeamLimit},
};

/// Why a sandbox was not woken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WakeError {
    /// There is nothing to wake: gone, ending, another's by now, or not to be woken by traffic.
    #[error("there is no sandbox to wake")]
    NotFound,
    /// It was tried and did not work. Trying again may.
    #[error("waking failed")]
    Failed,
    /// It took too long.
    #[error("waking took too long")]
    Timeout,
    /// Too many wait already. Nothing was asked of the sandbox.
    #[error("too many requests wait for sandboxes to wake")]
    Overloaded,
    /// Its team may not have another one awake now.
    #[error(transparent)]
    TeamLimit(#[from] TeamLimit),
}

type Outcome = Result<Arc<Route>, WakeError>;

/// Which delivery is woken.
type Delivery = (Uid, Epoch);

/// The table of flights. Clones share it.
#[derive(Clone, Debug)]
pub struct Flights(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    routes: RoutingCache,
    clock: Arc<dyn Clock>,
    options: Options,
    quota: Arc<dyn Quota>,
    tasks: Tasks,
    places: Semaphore,
    board: Mutex<Board>,
}

/// Who waits for what.
#[derive(Debug, Default)]
struct Board {
    flights: BTreeMap<Delivery, Vec<Seat>>,
    parked: usize,
    next_seat: u64,
}

/// One request that waits.
#[derive(Debug)]
struct Seat {
    number: u64,
    answer: oneshot::Sender<Outcome>,
}

/// Gives a request's seat back when it leaves.
struct Ticket<'a> {
    board: &'a Mutex<Board>,
    delivery: Delivery,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut board = self.board.lock();
        let board = &mut *board;
        // A flight that has landed took its seats with it.
        if let Some(seats) = board.flights.get_mut(&self.delivery) {
            let before = seats.len();
            seats.retain(|seat| seat.number != self.number);
            board.parked -= before - seats.len();
        }
    }
}

impl Flights {
    /// An empty table over a store and what is seen of it. `tasks` owns the flights.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        routes: RoutingCache,
        clock: Arc<dyn Clock>,
        tasks: Tasks,
        options: Options,
    ) -> Self {
        Self::within(Arc::new(NoQuota), store, routes, clock, tasks, options)
    }

    /// The same, with a limit on what teams may have awake.
    #[must_use]
    pub fn within(
        quota: Arc<dyn Quota>,
        store: Arc<dyn Store>,
        routes: RoutingCache,
        clock: Arc<dyn Clock>,
        tasks: Tasks,
        options: Options,
    ) -> Self {
        Self(Arc::new(Inner {
            places: Semaphore::new(options.max_concurrent.max(1)),
            quota,
            store,
            routes,
            clock,
            options,
            tasks,
            board: Mutex::default(),
        }))
    }

    /// Waits until the delivery that `route` names is awake, and answers its route then. Dropping
    /// the future takes back this one wait.
    ///
    /// # Errors
    /// See [`WakeError`].
    pub async fn wake(&self, route: &Route, deadline: Instant) -> Outcome {
        let inner = &*self.0;
        if !inner.options.enabled || !route.wake_on_traffic {
            return Err(WakeError::NotFound);
        }
        let delivery = (route.uid, route.epoch);
        let (ticket, answer, is_first) = inner.take_seat(delivery)?;
        if is_first {
            let key = Key {
                kind: SandboxSpec::KIND,
                namespace: Some(route.namespace.clone()),
                name: route.name.clone(),
            };
            let inner = Arc::clone(&self.0);
            self.0.tasks.spawn(async move {
                let outcome = inner.fly(&key, delivery).await;
                inner.land(delivery, &outcome);
            });
        }
        let outcome = timeout_at(deadline, answer).await;
        drop(ticket);
        match outcome {
            Ok(Ok(outcome)) => outcome,
            // The server is on its way down.
            Ok(Err(_)) => Err(WakeError::Failed),
            Err(_) => Err(WakeError::Timeout),
        }
    }

    /// Requests that wait now.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.0.board.lock().parked
    }
}

impl Inner {
    fn take_seat(
        &self,
        delivery: Delivery,
    ) -> Result<(Ticket<'_>, oneshot::Receiver<Outcome>, bool), WakeError> {
        let mut board = self.board.lock();
        let waiting = board.flights.get(&delivery).map_or(0, Vec::len);
        if board.parked >= self.options.max_parked || waiting >= self.options.max_parked_per_sandbox
        {
            return Err(WakeError::Overloaded);
        }
        board.parked += 1;
        board.next_seat += 1;
        let number = board.next_seat;
        let (sender, answer) = oneshot::channel();
        let is_first = !board.flights.contains_key(&delivery);
        board.flights.entry(delivery).or_default().push(Seat {
            number,
            answer: sender,
        });
        let ticket = Ticket {
            board: &self.board,
            delivery,
            number,
        };
        Ok((ticket, answer, is_first))
    }

    /// Tells everybody who waits, in the order in which they came.
    fn land(&self, delivery: Delivery, outcome: &Outcome) {
        let seats = {
            let mut board = self.board.lock();
            let seats = board.flights.remove(&delivery).unwrap_or_default();
            board.parked -= seats.len();
            seats
        };
        for seat in seats {
            // Whoever has just left need not hear.
            let _ = seat.answer.send(outcome.clone());
        }
    }

    async fn fly(&self, key: &Key, delivery: Delivery) -> Outcome {
        let deadline = Instant::now() + self.options.timeout;
        let flown = timeout_at(deadline, async {
            // Never closed, so there is a place in the end; those who wait are served in order.
            let _place = self.places.acquire().await;
            let mut tried = false;
            loop {
                let Some(since) = self.intend(key, delivery, tried).await? else {
                    continue;
                };
                tried = true;
                // Nothing means that it was put to sleep again under way, or could not be woken.
                if let Some(route) = self.arrival(key, delivery, since, deadline).await? {
                    return Ok(route);
                }
            }
        });
        flown.await.unwrap_or(Err(WakeError::Timeout))
    }

    /// Writes that the sandbox should be awake, and until when. Answers the version from which on
    /// an observation is an answer to that; nothing if another writer was first.
    async fn intend(
        &self,
        key: &Key,
        delivery: Delivery,
        tried: bool,
    ) -> Result<Option<Version>, WakeError> {
        let sandbox = match self.store.find::<SandboxSpec>(key).await {
            Ok(Some(sandbox)) => sandbox,
            Ok(None) => return Err(WakeError::NotFound),
            Err(error) => return Err(failed(key, &error)),
        };
        if (sandbox.uid(), sandbox.spec.epoch) != delivery || !may_wake(&sandbox) {
            return Err(WakeError::NotFound);
        }
        // Its deadline stands still while it sleeps.
        match admit(Request::Resume, Standing::of(&sandbox, false)) {
            Verdict::Already => return Ok(Some(sandbox.version())),
            Verdict::Denied(_) => return Err(WakeError::NotFound),
            Verdict::Do | Verdict::Deferred(_) => {}
        }
        if tried && gave_up(&sandbox) {
            return Err(WakeError::Failed);
        }
        let reserved = self.quota.reserve(&sandbox)?;
        let mut next = sandbox;
        next.spec.desired_state = DesiredState::Running;
        let timeouts = &mut next.spec.timeouts;
        if timeouts.end_at.is_some() {
            let own = Duration::from_secs(timeouts.seconds.unwrap_or_default().into());
            let least = i64::try_from(own.max(self.options.least).as_micros()).unwrap_or(i64::MAX);
            let end = self.clock.wall_micros().saturating_add(least);
            timeouts.end_at = Some(Timestamp::from_micros(end));
        }
        match self.store.update_spec(&next).await {
            Ok(written) => {
                reserved.written(written.version());
                Ok(Some(written.version()))
            }
            Err(StoreError::Conflict { .. } | StoreError::OtherUid { .. }) => Ok(None),
            Err(StoreError::NotFound(_)) => Err(WakeError::NotFound),
            Err(error) => Err(failed(key, &error)),
        }
    }

    /// Waits until an observation at least as new as `since` says what became of it; nothing if it
    /// sleeps again.
    async fn arrival(
        &self,
        key: &Key,
        delivery: Delivery,
        since: Version,
        deadline: Instant,
    ) -> Result<Option<Arc<Route>>, WakeError> {
        let decided = |route: Option<&Route>| match route {
            None => self.routes.version() >= since,
            Some(route) if route.version < since => false,
            Some(route) => {
                (route.uid, route.epoch) != delivery
                    || matches!(
                        route.state,
                        Traffic::Running | Traffic::Paused | Traffic::Dead | Traffic::Idle
                    )
            }
        };
        let seen = match self.routes.wait_for(key, decided, deadline).await {
            Ok(seen) => seen,
            Err(WaitError::DeadlineReached { .. }) => return Err(WakeError::Timeout),
            Err(WaitError::CacheStopped(_)) => return Err(WakeError::Failed),
        };
        let Some(route) = seen.filter(|route| (route.uid, route.epoch) == delivery) else {
            return Err(WakeError::NotFound);
        };
        match route.state {
            Traffic::Running => Ok(Some(route)),
            Traffic::Paused => Ok(None),
            _ => Err(WakeError::NotFound),
        }
    }
}

/// Whether traffic may wake it, from the rung it sleeps on.
fn may_wake(sandbox: &Sandbox) -> bool {
    let policy = sandbox.spec.pause_policy.as_ref();
    let files_only = sandbox.status.snapshot.is_some();
    let from_files = policy.is_some_and(|policy| policy.wake_from_filesystem);
    sandbox.spec.wake_on_traffic && (!files_only || from_files)
}

/// Whether the last try to wake it was given up.
fn gave_up(sandbox: &Sandbox) -> bool {
    let failed = |op: &model::sandbox::Operation| {
        op.kind == OperationKind::Resume && op.state == OperationState::Failed
    };
    sandbox.status.last_operation.as_deref().is_some_and(failed)
}

fn failed(key: &Key, error: &StoreError) -> WakeError {
    tracing::warn!(%key, %error, "a sandbox could not be told to wake");
    WakeError::Failed
}
