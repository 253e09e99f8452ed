//! Creating a sandbox: one write, then waiting until it is its owner's.
//!
//! ```text
//!  read ──▶ [turn of the key] ──▶ claim a pool member ──none──▶ make a record
//!                                        └────────────┬────────────────┘
//!                    wait: ready ──▶ answer      failed, late, client gone ──▶ remove
//! ```
//!
//! The work belongs to a task, not to the request. A client that leaves before the answer leaves
//! nothing behind: nobody would know the id. A create that fails leaves nothing either. One whose
//! server dies before its client has heard leaves at most what its timeout, or for one without the
//! time to be heard of, ends.

use std::{pin::pin, sync::Arc};

use auth::Caller;
use cache::WaitError;
use claims::{Ask, ClaimError, Expected, Full, Wait};
use http::StatusCode;
use model::{
    Key, Name, Namespace, Sandbox, SandboxId, SandboxPool, Spec as _, Version, sandbox::SandboxSpec,
};
use serde_json::Value;
use store::{Outcome, StoreError, StoreExt as _};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    body,
    idempotency::Token,
    intent::Decision,
    order::{Edition, Order, mint},
    refusal::Refusal,
    route::{Answer, Call, Made, json},
    service::{Api, E2b},
    stamp::stamped,
    state::{State, state_of},
    told::Telling,
    wire::NewSandbox,
};

/// How often a record of a key is tried to be made while the last one of that key goes.
const MAKINGS: usize = 8;
/// How long a sandbox without a deadline has from being ready until its owner hears of it. A server
/// that dies in between leaves it, and nobody would ever end it.
const HEARING: std::time::Duration = std::time::Duration::from_secs(60);
/// A start that took less has cost its owner nothing worth a write.
const FORGIVEN: std::time::Duration = std::time::Duration::from_secs(1);

/// `POST /sandboxes`.
pub(crate) async fn first(call: Call) -> Answer {
    create(call, Edition::First).await
}

/// `POST /v2/sandboxes`.
pub(crate) async fn second(call: Call) -> Answer {
    create(call, Edition::Second).await
}

async fn create(call: Call, edition: Edition) -> Answer {
    let Call {
        api, caller, body, ..
    } = call;
    let text: Value = body::parse(&body)?;
    let request: NewSandbox = body::parse(&body)?;
    let route = format!("{edition:?}");
    let token = Token::read(&call.headers, &route, &text)?;
    let repeatable = token.is_some();
    let order = Order::read(&api, &caller, request, edition, token)?;
    let (tell, hear) = oneshot::channel();
    let work = Arc::clone(&api);
    api.tasks
        .spawn(async move { run(&work, &caller, order, tell).await });
    let sandbox = match hear.await {
        Ok(Ok(sandbox)) => sandbox,
        Ok(Err(refusal)) => return Err(for_creates(refusal, repeatable)),
        Err(_) => {
            return Err(Refusal::internal(
                "the request failed unexpectedly: see the server's log",
            ));
        }
    };
    api.followers
        .have_seen(&sandbox.key(), sandbox.version())
        .await;
    let rendered = api.render(&sandbox);
    let mut response = stamped(json(StatusCode::CREATED, &rendered)?, sandbox.version());
    if let Some(id) = &sandbox.spec.sandbox_id {
        response.extensions_mut().insert(Made(id.clone()));
    }
    Ok(response)
}

/// Without a key, the Python client must not repeat by itself what may have happened.
fn for_creates(refusal: Refusal, repeatable: bool) -> Refusal {
    let by_itself = matches!(
        refusal.status(),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    );
    if by_itself && !repeatable {
        refusal.not_to_be_repeated()
    } else {
        refusal
    }
}

type Tell = oneshot::Sender<Result<Arc<Sandbox>, Refusal>>;

async fn run(api: &Api, caller: &Caller, mut order: Order, mut tell: Tell) {
    let team = &caller.team;
    let _turn = match &order.token {
        Some(token) => Some(api.queues.turn(team, token).await),
        None => None,
    };
    let deadline = Instant::now() + order.startup;
    let found = find_or_place(api, caller, &mut order, deadline, tell.closed()).await;
    let (mut placed, repeated) = match found {
        Ok(placed) => placed,
        Err(NotPlaced::Left) => {
            tracing::info!("its client left before anything was made");
            return;
        }
        Err(NotPlaced::Refused(refusal)) => {
            // A client that has left hears nothing, and nothing was made.
            let _ = tell.send(Err(refusal));
            return;
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = placed.ready(api, &order, deadline) => outcome,
        () = tell.closed() => {
            tracing::info!(key = %placed.key, "its client left; a new sandbox is removed");
            if !repeated {
                api.discard(&placed.key, &placed.id).await;
            }
            return;
        }
    };
    match outcome {
        Ok(sandbox) => {
            if tell.send(Ok(Arc::clone(&sandbox))).is_err() && !repeated {
                api.discard(&placed.key, &placed.id).await;
            }
            api.shown(&sandbox).await;
        }
        Err(refusal) => {
            api.discard(&placed.key, &placed.id).await;
            let _ = tell.send(Err(refusal));
        }
    }
}

/// Why nothing was placed.
enum NotPlaced {
    /// Who asked is gone.
    Left,
    Refused(Refusal),
}

impl<E: Into<Refusal>> From<E> for NotPlaced {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

/// A delivery that was written and is not ready yet.
pub(crate) struct Placed {
    pub(crate) key: Key,
    pub(crate) id: SandboxId,
    pub(crate) version: Version,
    since: Instant,
    /// Whether its time is still to begin.
    fresh: bool,
    /// Who tells that it is ready, before its record does.
    expected: Option<Expected>,
    /// What its team waits for until the cache shows it.
    telling: Option<Telling>,
}

/// The sandbox of an earlier request with the same key, or a new one.
async fn find_or_place(
    api: &E2b,
    caller: &Caller,
    order: &mut Order,
    deadline: Instant,
    left: impl Future<Output = ()>,
) -> Result<(Placed, bool), NotPlaced> {
    let team = &caller.team;
    if let Some(token) = &order.token {
        api.seen_of_all(team).await;
        for known in api.roster.find_keyed(team, token.key()) {
            let alive = matches!(
                state_of(&known),
                State::Creating | State::Running | State::Paused
            );
            let Some(id) = known.spec.sandbox_id.clone().filter(|_| alive) else {
                continue;
            };
            if !token.made(&known) {
                return Err(Refusal::key_reused().into());
            }
            let placed = Placed {
                key: known.key(),
                id,
                version: known.version(),
                since: Instant::now(),
                // One that a server that has died since was making.
                fresh: state_of(&known) == State::Creating,
                expected: None,
                telling: None,
            };
            return Ok((placed, true));
        }
    }
    let mut left = pin!(left);
    // Not for what is there already: that goes on whether or not anybody can say what the name is.
    tokio::select! {
        biased;
        pinned = order.pin_image(api) => pinned?,
        () = &mut left => return Err(NotPlaced::Left),
    }
    let id = mint(api);
    let wanted = order.spec(api, &id);
    let holds = api.ask_plugins(team, &id, &wanted).await?;
    let reserved = api.ledger.reserve(&caller.account(), &id, &wanted)?;
    // From before the claim: who makes it ready may be quick.
    let expected = api.desk.expect(&id);
    let mut placed = place(api, team, order, &id, deadline, left).await?;
    placed.expected = Some(expected);
    holds.written(placed.version);
    reserved.written(placed.version);
    Ok((placed, false))
}

async fn place(
    api: &E2b,
    team: &Namespace,
    order: &Order,
    id: &SandboxId,
    deadline: Instant,
    left: impl Future<Output = ()>,
) -> Result<Placed, NotPlaced> {
    if let Some(pool) = order.queues_at() {
        return match claim(api, order, id, pool, Wait::Until(deadline), left).await {
            Ok(placed) => Ok(placed),
            Err(error) => Err(not_claimed(api, id, pool, error).await),
        };
    }
    for pool in &order.pools {
        match claim(api, order, id, pool, Wait::No, std::future::pending()).await {
            Ok(placed) => return Ok(placed),
            Err(ClaimError::NoneIdle(_)) => {}
            Err(error) => return Err(not_claimed(api, id, pool, error).await),
        }
    }
    make(api, team, order, id).await.map_err(NotPlaced::Refused)
}

/// Takes an idle member of a pool by one write.
async fn claim(
    api: &E2b,
    order: &Order,
    id: &SandboxId,
    pool: &SandboxPool,
    wait: Wait,
    left: impl Future<Output = ()>,
) -> Result<Placed, ClaimError> {
    let mut since = Instant::now();
    let key = pool.key();
    let ask = Ask {
        store: &*api.store,
        pool: &key,
        tenant: order.tenant(),
        wait,
    };
    let claimed = |member: &Sandbox| {
        // Its time begins now, not when it was asked for.
        since = Instant::now();
        let now = api.now();
        let end_at = Some(now.plus(provisional(order)));
        order.made_from(api, &pool.spec, member, id, now, end_at)
    };
    let sandbox = api.desk.claim(ask, claimed, left).await?;
    Ok(Placed {
        key: sandbox.key(),
        id: id.clone(),
        version: sandbox.version(),
        since,
        fresh: true,
        expected: None,
        telling: None,
    })
}

/// What a claimer is told that got nothing.
async fn not_claimed(
    api: &E2b,
    id: &SandboxId,
    pool: &SandboxPool,
    error: ClaimError,
) -> NotPlaced {
    let name = pool.metadata.name.as_str();
    NotPlaced::Refused(match &error {
        ClaimError::Left => return NotPlaced::Left,
        ClaimError::NoneIdle(stock)
        | ClaimError::Full(Full { stock, .. })
        | ClaimError::TimedOut { stock, .. } => Refusal::pool_is_empty(name, &error, stock),
        ClaimError::Doubtful { key, .. } => {
            // It may be there: it is removed as soon as the store answers again.
            api.discard(key, id).await;
            Refusal::unavailable("the server's store is unavailable: try again")
        }
        ClaimError::Store(_) => match error {
            ClaimError::Store(error) => error.into(),
            other => Refusal::internal(other.to_string()),
        },
    })
}

/// Makes a record of its own.
pub(crate) async fn make(
    api: &E2b,
    team: &Namespace,
    order: &Order,
    id: &SandboxId,
) -> Result<Placed, Refusal> {
    for _ in 0..MAKINGS {
        let name = match &order.token {
            Some(token) => token.record_name(team),
            None => Name::new(id.as_str()).ok(),
        };
        let name = name.ok_or_else(|| Refusal::internal("an id could not be made"))?;
        let key = Key::namespaced(SandboxSpec::KIND, team.clone(), name.clone());
        let (now, since) = (api.now(), Instant::now());
        let end_at = Some(now.plus(provisional(order)));
        let sandbox = order.made_anew(api, name, id, now, end_at);
        let version = match api.store.create_object(&sandbox).await {
            Ok(written) => written.version(),
            Err(StoreError::AlreadyExists(_)) => {
                passed(api, &key, order).await?;
                continue;
            }
            Err(error) => match confirm(api, &key, id, error).await? {
                Some(version) => version,
                None => continue,
            },
        };
        return Ok(Placed {
            key,
            id: id.clone(),
            version,
            since,
            fresh: true,
            expected: None,
            telling: None,
        });
    }
    Err(Refusal::too_many_conflicts())
}

/// Another record of the same key is there: one that goes is waited for; one that stays was made
/// through another server at this moment.
async fn passed(api: &E2b, key: &Key, order: &Order) -> Result<(), Refusal> {
    let Some(there) = api.store.find::<SandboxSpec>(key).await? else {
        return Ok(());
    };
    match state_of(&there) {
        State::Creating | State::Running | State::Paused => {
            let same = order.token.as_ref().is_some_and(|t| t.made(&there));
            Err(if same {
                Refusal::unavailable("a request with this Idempotency-Key is under way: try again")
            } else {
                Refusal::key_reused()
            })
        }
        State::Ending | State::Gone => {
            if let Some(id) = &there.spec.sandbox_id {
                api.end(key, id).await?;
            }
            let deadline = Instant::now() + api.options.startup_timeout;
            let gone = cache::condition::gone(there.uid());
            api.caches.sandboxes.wait_for(key, gone, deadline).await?;
            Ok(())
        }
    }
}

/// After a write of which nobody knows whether it happened: looks. `None` if it did not.
async fn confirm(
    api: &E2b,
    key: &Key,
    id: &SandboxId,
    error: StoreError,
) -> Result<Option<Version>, Refusal> {
    let StoreError::Unavailable {
        outcome: Outcome::Unknown,
        ..
    } = error
    else {
        return Err(error.into());
    };
    match api.store.find::<SandboxSpec>(key).await {
        Ok(Some(there)) if there.spec.sandbox_id.as_ref() == Some(id) => Ok(Some(there.version())),
        Ok(_) => Ok(None),
        Err(_) => {
            // It may be there: it is removed as soon as the store answers again.
            api.discard(key, id).await;
            Err(error.into())
        }
    }
}

/// How long a sandbox has until it is ready and its time begins to count.
fn provisional(order: &Order) -> std::time::Duration {
    match order.lasts {
        Some(lasts) => lasts.max(order.startup),
        None => order.startup + HEARING,
    }
}

/// Whether a sandbox without a deadline still has the one that it was made with.
fn is_provisional(order: &Order, sandbox: &Sandbox) -> bool {
    let made = sandbox
        .spec
        .claimed_at
        .map(|at| at.plus(provisional(order)));
    made.is_some() && sandbox.spec.timeouts.end_at == made
}

enum Start {
    Ready(Arc<Sandbox>),
    Failed(Box<str>),
    Ended,
}

impl Placed {
    /// Waits until it is its owner's: until its record says so, or who has made it so.
    pub(crate) async fn ready(
        &mut self,
        api: &E2b,
        order: &Order,
        deadline: Instant,
    ) -> Result<Arc<Sandbox>, Refusal> {
        let judge = |s: Option<&Sandbox>| match s.map(|s| (s, state_of(s))) {
            None | Some((_, State::Ending)) => Some(Start::Ended),
            Some((_, State::Creating)) => None,
            Some((s, State::Running | State::Paused)) => Some(Start::Ready(Arc::new(s.clone()))),
            Some((s, State::Gone)) => Some(Start::Failed(why_it_ended(s))),
        };
        let mut expected = self.expected.take();
        let told = async {
            match &mut expected {
                Some(expected) => expected.told().await,
                None => std::future::pending().await,
            }
        };
        let waited = tokio::select! {
            biased;
            waited = api.until(&self.key, &self.id, self.version, deadline, judge) => waited,
            ready = told => {
                self.telling = api.told.add(&ready);
                Ok(Start::Ready(ready))
            }
        };
        match waited {
            Ok(Start::Ready(sandbox)) => self.settle(api, order, sandbox).await,
            Ok(Start::Failed(why)) => Err(Refusal::create_failed(&why)),
            Ok(Start::Ended) => Err(Refusal::conflict(
                "the sandbox was ended while it was being created",
            )),
            Err(WaitError::DeadlineReached { .. }) => {
                Err(Refusal::start_took_too_long(order.startup))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Its time counts from now on, not from when it was asked for. Most of the time that makes no
    /// difference, and costs no write.
    async fn settle(
        &self,
        api: &E2b,
        order: &Order,
        sandbox: Arc<Sandbox>,
    ) -> Result<Arc<Sandbox>, Refusal> {
        let is_settled = match order.lasts {
            Some(_) if !self.fresh => true,
            Some(lasts) => provisional(order) == lasts && self.since.elapsed() < FORGIVEN,
            None => !is_provisional(order, &sandbox),
        };
        if is_settled {
            return Ok(sandbox);
        }
        let Some(team) = sandbox.metadata.namespace.clone() else {
            return Ok(sandbox);
        };
        let given = sandbox.spec.timeouts.end_at;
        let settled = api
            .amend(&team, self.id.as_str(), |sandbox| {
                // Somebody has moved it since: theirs counts.
                if sandbox.spec.timeouts.end_at != given {
                    return Ok(Decision::Keep);
                }
                let mut next = sandbox.clone();
                next.spec.timeouts.end_at = order.lasts.map(|lasts| api.now().plus(lasts));
                if order.lasts.is_none() {
                    next.spec.timeouts.on_timeout = order.on_timeout();
                }
                Ok(Decision::Write(Box::new(next)))
            })
            .await?;
        Ok(settled.sandbox)
    }
}

/// What a sandbox that has ended says of its end.
pub(crate) fn why_it_ended(sandbox: &Sandbox) -> Box<str> {
    let status = &sandbox.status;
    let stopped = status.stopped.as_ref().map(|s| s.message.clone());
    let operation = status.last_operation.as_ref();
    let error = operation.and_then(|op| op.error.clone());
    error
        .or(stopped.filter(|message| !message.is_empty()))
        .unwrap_or_else(|| "it ended".into())
}
