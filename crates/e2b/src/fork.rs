//! Forking a sandbox: one capture of its files, and as many sandboxes that start from it as were asked
//! for. The sandbox itself goes on running.
//!
//! ```text
//!  reserve for all ──▶ capture once ──▶ make each ──▶ wait for each ──▶ answer, one result for each
//!                                           client gone ──▶ remove all
//! ```
//!
//! Each child has an id, tokens and a boot of its own; it takes over the environment, the metadata,
//! the network and the policies of its parent. What is captured is kept by a snapshot that nobody sees
//! and that goes with the fork, or by itself should this server die before.

use std::sync::Arc;

use auth::{
    Caller, Reservation,
    audit::{Action, Entry},
};
use futures_util::future::join_all;
use http::StatusCode;
use model::{
    Key, Name, Namespace, Sandbox, SandboxId, SandboxSnapshot, Spec as _, Version,
    sandbox::SandboxSpec,
};
use plugins::Holds;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    body,
    create::{Placed, make},
    order::{Edition, Order, mint, timeout},
    refusal::Refusal,
    route::{Answer, Call, json},
    service::{Api, E2b},
    snapshots::FORK_ANNOTATION,
    stamp::stamped,
    state::{State, state_of},
    wire::{Fork, ForkError, ForkResult},
};

const MAX_CHILDREN: i64 = 100;
/// Longer than a capture and a start may take together.
const KEPT_SECONDS: u32 = 150;

/// `POST /sandboxes/{id}/fork`.
pub(crate) async fn fork(call: Call) -> Answer {
    let asked: Fork = body::parse_or_default(&call.body)?;
    let (api, caller) = (Arc::clone(&call.api), call.caller.clone());
    let count = asked.count.unwrap_or(1);
    if !(1..=MAX_CHILDREN).contains(&count) {
        return Err(Refusal::bad_field(
            "count",
            format!("use 1 to {MAX_CHILDREN}"),
        ));
    }
    let seconds = match asked.timeout {
        Some(asked) => timeout(&api, &caller, asked, 1)?,
        None => Edition::First.default_timeout(),
    };
    api.can_capture("fork")?;
    let source = api.find_live(&caller.team, call.subject())?;
    if state_of(&source) != State::Running {
        return Err(Refusal::conflict(
            "the sandbox is paused: connect to it first, or create from a snapshot of it",
        ));
    }
    let mut snapshot = api.snapshot_of(&source)?;
    snapshot.spec.expire_after_seconds = Some(KEPT_SECONDS);
    let annotations = &mut snapshot.metadata.annotations;
    annotations.insert(FORK_ANNOTATION, call.subject());
    let order = Order::forked(&api, &caller, &source, &snapshot.metadata.name, seconds);
    let mut children = Vec::new();
    for _ in 0..count {
        children.push(Child::reserve(&api, &caller, &order).await?);
    }
    let (tell, hear) = oneshot::channel();
    let work = Arc::clone(&api);
    let by = caller.clone();
    api.tasks.spawn(async move {
        let fork = Forking {
            api: &work,
            source: &source,
            order: &order,
            team: &by.team,
        };
        fork.run(snapshot, children, tell).await;
    });
    let born = hear.await.unwrap_or_else(|_| {
        Err(Refusal::internal(
            "the request failed unexpectedly: see the server's log",
        ))
    })?;
    let mut results = Vec::new();
    let mut newest = Version::ZERO;
    for child in born {
        results.push(match child {
            Ok(sandbox) => {
                api.tell_of(&caller, &sandbox).await;
                newest = newest.max(sandbox.version());
                ForkResult {
                    sandbox: Some(api.render(&sandbox)),
                    error: None,
                }
            }
            Err(refusal) => ForkResult {
                sandbox: None,
                error: Some(ForkError {
                    code: refusal.status().as_u16(),
                    message: refusal.message().to_owned(),
                }),
            },
        });
    }
    Ok(stamped(json(StatusCode::CREATED, &results)?, newest))
}

/// A sandbox that is to be.
struct Child {
    id: SandboxId,
    name: Name,
    holds: Holds,
    reserved: Reservation,
}

impl Child {
    async fn reserve(api: &E2b, caller: &Caller, order: &Order) -> Result<Self, Refusal> {
        let id = mint(api);
        let wanted = order.spec(api, &id);
        let holds = api.ask_plugins(&caller.team, &id, &wanted).await?;
        Ok(Self {
            name: Name::new(id.as_str())
                .map_err(|_| Refusal::internal("an id could not be made"))?,
            holds,
            reserved: api.ledger.reserve(&caller.account(), &id, &wanted)?,
            id,
        })
    }
}

type Born = Vec<Result<Arc<Sandbox>, Refusal>>;
type Tell = oneshot::Sender<Result<Born, Refusal>>;

struct Forking<'a> {
    api: &'a Api,
    source: &'a Sandbox,
    order: &'a Order,
    team: &'a Namespace,
}

impl Forking<'_> {
    async fn run(&self, snapshot: SandboxSnapshot, children: Vec<Child>, mut tell: Tell) {
        let api = self.api;
        let captured = snapshot.key();
        let names: Vec<_> = children
            .iter()
            .map(|child| (child.name.clone(), child.id.clone()))
            .collect();
        let told = match self.bear(snapshot, children, &mut tell).await {
            Some(born) => tell.send(born).is_ok(),
            None => false,
        };
        if !told {
            tracing::info!(key = %self.source.key(), "its client left; a fork is removed");
            let removals = names.into_iter().map(|(name, id)| async move {
                let key = Key::namespaced(SandboxSpec::KIND, self.team.clone(), name);
                api.discard(&key, &id).await;
            });
            join_all(removals).await;
        }
        api.discard_snapshot(&captured).await;
    }

    /// Nothing if the client left meanwhile.
    async fn bear(
        &self,
        snapshot: SandboxSnapshot,
        children: Vec<Child>,
        tell: &mut Tell,
    ) -> Option<Result<Born, Refusal>> {
        let taken = tokio::select! {
            biased;
            taken = self.api.take(self.source, snapshot) => taken,
            () = tell.closed() => return None,
        };
        if let Err(refusal) = taken {
            return Some(Err(refusal));
        }
        // To the end, whoever listens: what may still be written could not be found and removed.
        let placed = join_all(children.into_iter().map(|child| self.place(child))).await;
        let deadline = Instant::now() + self.api.options.startup_timeout;
        let births = placed.into_iter().map(|placed| async move {
            match placed {
                Ok(placed) => self.ready(placed, deadline).await,
                Err(refusal) => Err(refusal),
            }
        });
        tokio::select! {
            biased;
            born = join_all(births) => Some(Ok(born)),
            () = tell.closed() => None,
        }
    }

    async fn place(&self, child: Child) -> Result<Placed, Refusal> {
        let placed = make(self.api, self.team, self.order, &child.id).await?;
        child.holds.written(placed.version);
        child.reserved.written(placed.version);
        Ok(placed)
    }

    async fn ready(&self, mut placed: Placed, deadline: Instant) -> Result<Arc<Sandbox>, Refusal> {
        let ready = placed.ready(self.api, self.order, deadline).await;
        if ready.is_err() {
            self.api.discard(&placed.key, &placed.id).await;
        }
        ready
    }
}

impl E2b {
    /// Sees to it that a child can be used by whoever hears of it, and that the audit knows it.
    async fn tell_of(&self, caller: &Caller, sandbox: &Sandbox) {
        let (key, version) = (sandbox.key(), sandbox.version());
        self.followers.have_seen(&key, version).await;
        if let Some(audit) = &self.audit {
            let action = Action::new("sandbox.create");
            let mut entry = Entry::new(self.now(), caller.actor(), action);
            entry.sandbox = sandbox.spec.sandbox_id.clone();
            audit.record(entry).await;
        }
    }
}
