//! Flights.

use std::{sync::Arc, time::Duration};

use cache::{RoutingCache, WaitError};
use kit::{Clock, Tasks};
use model::{
    Key, Sandbox, Spec as _, Timestamp, Version,
    lifecycle::{OperationKind, Request, Standing, Traffic, Verdict, admit},
    sandbox::{DesiredState, OperationState, SandboxSpec},
};
use parking_lot::Mutex;
use routes::{Route, State, WakeError};
use store::{Store, StoreError, StoreExt as _};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::{
    Options,
    board::{Board, Delivery, Outcome, Seated, TOO_MANY, Ticket},
    news::News,
    quota::{NoQuota, Quota},
    stats::{Rung, Stats, Whom},
    turns::{Team, Turns},
};

/// When to come again to a team that has as many awake as it may: until another one of its
/// sandboxes ends or sleeps.
const TEAM_RETRY: Duration = Duration::from_secs(30);

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
    turns: Arc<Turns>,
    board: Mutex<Board>,
    /// Seats of those who wait and ask for nothing.
    onlookers: Semaphore,
    stats: Stats,
}

/// What a flight found, or wrote.
#[derive(Clone, Copy, Debug)]
struct Intended {
    /// From this version on an observation is an answer.
    since: Version,
    from: Rung,
    /// How often it had woken before.
    woken: u32,
}

/// How an attempt to write the intent ended.
#[derive(Debug)]
enum Attempt {
    /// It is written, or was already.
    Intended(Intended),
    /// Another writer was first.
    Lost,
    /// It has run since those who came saw it asleep, and they have gone on: nothing is wanted of it any
    /// more.
    Ran(Arc<Route>),
}

/// How long a flight that ended well waited.
#[derive(Clone, Copy, Debug)]
struct Flown {
    intended: Intended,
    turn: Duration,
    store: Duration,
    /// For the sandbox to be seen awake.
    awake: Duration,
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
            turns: Turns::new(options.max_concurrent),
            onlookers: Semaphore::new(options.max_parked.min(Semaphore::MAX_PERMITS)),
            quota,
            store,
            routes,
            clock,
            options,
            tasks,
            board: Mutex::default(),
            stats: Stats::default(),
        }))
    }

    /// Waits until the delivery that `route` names is awake, and answers its route then. Dropping
    /// the future takes back this one wait.
    ///
    /// One that is being closed is not asked for anything: it goes on because somebody waits for it.
    /// What became of it is waited for, whether or not traffic may wake it.
    ///
    /// # Errors
    /// See [`WakeError`].
    pub async fn wake(&self, route: &Route, deadline: Instant) -> Outcome {
        self.0.stats.counted(self.wait(route, deadline)).await
    }

    /// Waits until the delivery that `route` names is seen to run, for what is about to happen by
    /// itself: nothing is asked of it.
    ///
    /// # Errors
    /// See [`WakeError`].
    pub async fn look_on(&self, route: &Route, deadline: Instant) -> Outcome {
        let seen = async {
            let seen = self.0.see(route, deadline).await?;
            seen.ok_or(WakeError::NotFound)
        };
        self.0.stats.counted(seen).await
    }

    /// Tells of a delivery that is seen to run, as its record is about to say, at the version of the
    /// record that was looked at. Only for one whose workload is the one that slept.
    pub fn awake(&self, sandbox: &Sandbox) {
        let delivery = (sandbox.uid(), sandbox.spec.epoch);
        let news = self.0.board.lock().news(delivery);
        if let Some(news) = news
            && let Some(route) = Route::of(sandbox).filter(|r| r.state == State::Running)
        {
            news.tell(Arc::new(route));
        }
    }

    /// Tells of a route that another process has written, which may be long before it is seen here.
    /// Whoever goes on by such a route instead of waiting says so first: else the flight that it began
    /// would take what comes after, its owner's pause, for the sleep that it is to end.
    pub fn heard(&self, route: &Arc<Route>) {
        if route.state == State::Running {
            let news = self.0.board.lock().news((route.uid, route.epoch));
            if let Some(news) = news {
                news.tell(Arc::clone(route));
            }
        }
    }

    async fn wait(&self, route: &Route, deadline: Instant) -> Outcome {
        let inner = &*self.0;
        if route.is_closing
            && let Some(open) = inner.see(route, deadline).await?
        {
            return Ok(open);
        }
        let sleeps = route.wake_on_traffic && route.state != State::Creating;
        if !inner.options.enabled || !sleeps {
            return Err(WakeError::NotFound);
        }
        let delivery = (route.uid, route.epoch);
        let seated = inner.take_seat(delivery, route)?;
        let ticket = Ticket {
            board: &inner.board,
            delivery,
            number: seated.number,
        };
        if let Some(news) = seated.begins {
            let key = key_of(route);
            let (inner, team) = (Arc::clone(&self.0), route.owner.clone());
            inner.stats.began();
            self.0.tasks.spawn(async move {
                let flown = inner.fly(&key, delivery, &team, &news).await;
                let (outcome, flown) = match flown {
                    Ok((route, flown)) => (Ok(route), flown),
                    Err(error) => (Err(error), None),
                };
                inner.land(delivery, &outcome);
                // Nobody waits for the bookkeeping.
                if let Some(flown) = flown {
                    inner.account(&key, delivery, flown).await;
                }
            });
        }
        let outcome = timeout_at(deadline, seated.answer).await;
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
        let seats = self.0.options.max_parked.min(Semaphore::MAX_PERMITS);
        let onlookers = seats - self.0.onlookers.available_permits();
        self.0.board.lock().parked() + onlookers
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }
}

impl Inner {
    fn take_seat(&self, delivery: Delivery, route: &Route) -> Result<Seated, WakeError> {
        let (mut board, options) = (self.board.lock(), &self.options);
        board.seat(delivery, &route.owner, route.version, options)
    }

    /// Tells everybody who waits, in the order in which they came.
    fn land(&self, delivery: Delivery, outcome: &Outcome) {
        let seats = self.board.lock().clear(delivery);
        for answer in seats.into_values() {
            // Whoever has just left need not hear.
            let _ = answer.send(outcome.clone());
        }
    }

    async fn fly(
        &self,
        key: &Key,
        delivery: Delivery,
        team: &Team,
        news: &News,
    ) -> Result<(Arc<Route>, Option<Flown>), WakeError> {
        let deadline = Instant::now() + self.options.timeout;
        let flown = timeout_at(deadline, async {
            let began = self.clock.monotonic();
            let _turn = self.turns.take(team).await;
            let turn = self.since(began);
            let mut tried = false;
            loop {
                let asked = self.clock.monotonic();
                let intended = match self.intend(key, delivery, tried).await? {
                    Attempt::Intended(intended) => intended,
                    Attempt::Lost => continue,
                    Attempt::Ran(route) => return Ok((route, None)),
                };
                tried = true;
                let written = self.clock.monotonic();
                // What the record says comes first: it is newer than any news of the same wake.
                let arrived = tokio::select! {
                    biased;
                    arrived = self.arrival(key, delivery, intended.since, deadline) => arrived?,
                    route = news.since(intended.since) => Some(route),
                };
                // Nothing means that it was put to sleep again under way, or could not be woken.
                if let Some(route) = arrived {
                    let flown = Flown {
                        intended,
                        turn,
                        store: written.saturating_sub(asked),
                        awake: self.since(written),
                    };
                    return Ok((route, Some(flown)));
                }
            }
        });
        flown.await.unwrap_or(Err(WakeError::Timeout))
    }

    /// Notes for whom a flight waited. What the runtime took of it is in the record, which may be
    /// under way.
    async fn account(&self, key: &Key, delivery: Delivery, flown: Flown) {
        let deadline = Instant::now() + self.options.timeout;
        let since = flown.intended.since;
        // Whatever has become of it: what counts is what the record says of this wake.
        let _ = self.arrival(key, delivery, since, deadline).await;
        let found = self.store.find::<SandboxSpec>(key).await.ok().flatten();
        let runtime = found
            .filter(|s| (s.uid(), s.spec.epoch) == delivery)
            .map(|s| s.status.sleeps)
            .filter(|sleeps| sleeps.woken > flown.intended.woken)
            .and_then(|sleeps| sleeps.last_wake_runtime_micros)
            .map_or(Duration::ZERO, |micros| {
                Duration::from_micros(micros.into())
            })
            .min(flown.awake);
        let note = |whom, took| self.stats.note(flown.intended.from, whom, took);
        note(Whom::Turn, flown.turn);
        note(Whom::Store, flown.store);
        note(Whom::Runtime, runtime);
        note(Whom::Control, flown.awake.saturating_sub(runtime));
    }

    fn since(&self, then: Duration) -> Duration {
        self.clock.monotonic().saturating_sub(then)
    }

    /// Writes that the sandbox should be awake, and until when. Answers the version from which on
    /// an observation is an answer to that.
    async fn intend(
        &self,
        key: &Key,
        delivery: Delivery,
        tried: bool,
    ) -> Result<Attempt, WakeError> {
        let sandbox = match self.store.find::<SandboxSpec>(key).await {
            Ok(Some(sandbox)) => sandbox,
            Ok(None) => return Err(WakeError::NotFound),
            Err(error) => return Err(failed(key, &error)),
        };
        if (sandbox.uid(), sandbox.spec.epoch) != delivery || !may_wake(&sandbox) {
            return Err(WakeError::NotFound);
        }
        let intended = |since| {
            let from = match sandbox.status.snapshot {
                Some(_) => Rung::Rootfs,
                None => Rung::Freeze,
            };
            let woken = sandbox.status.sleeps.woken;
            Attempt::Intended(Intended { since, from, woken })
        };
        // Its deadline stands still while it sleeps.
        match admit(Request::Resume, Standing::of(&sandbox, false)) {
            Verdict::Already => return Ok(intended(sandbox.version())),
            Verdict::Denied(_) => return Err(WakeError::NotFound),
            Verdict::Do | Verdict::Deferred(_) => {}
        }
        // After it was read: who goes on tells first, and only then is it put to sleep again.
        if let Some(route) = self.board.lock().ran_since(delivery) {
            return Ok(Attempt::Ran(route));
        }
        if tried && gave_up(&sandbox) {
            return Err(WakeError::Failed);
        }
        let reserved = self
            .quota
            .reserve(&sandbox)
            .map_err(|_| WakeError::TeamLimit {
                retry_after: TEAM_RETRY,
            })?;
        let mut next = sandbox.clone();
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
                Ok(intended(written.version()))
            }
            Err(StoreError::Conflict { .. } | StoreError::OtherUid { .. }) => Ok(Attempt::Lost),
            Err(StoreError::NotFound(_)) => Err(WakeError::NotFound),
            Err(error) => Err(failed(key, &error)),
        }
    }

    /// Waits until a delivery is seen to run, at the version of a route or later; nothing if it
    /// sleeps.
    async fn see(&self, route: &Route, deadline: Instant) -> Result<Option<Arc<Route>>, WakeError> {
        let _seat = self.onlookers.try_acquire().map_err(|_| TOO_MANY)?;
        let delivery = (route.uid, route.epoch);
        self.arrival(&key_of(route), delivery, route.version, deadline)
            .await
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

fn key_of(route: &Route) -> Key {
    let (namespace, name) = (route.namespace.clone(), route.name.clone());
    Key::namespaced(SandboxSpec::KIND, namespace, name)
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
