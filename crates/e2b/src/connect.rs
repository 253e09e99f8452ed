//! Connecting to a sandbox, and waking it where it sleeps.
//!
//! ```text
//!  Running ────────────────▶ extend, never shorten ──▶ 200
//!  Paused ──▶ resume ──▶ wait ──▶ Running ───────────▶ 201
//!  Creating, Pausing, Unknown ──▶ wait, look again
//!  Resuming (another's) ──▶ wait ──▶ as Running ─────▶ 201
//!  Ending, Gone ──▶ 404
//! ```
//!
//! Resuming writes what is wanted and the new deadline at once.

use std::{sync::Arc, time::Duration};

use auth::Caller;
use cache::WaitError;
use http::StatusCode;
use model::{
    Generation, Sandbox,
    lifecycle::{OperationKind, Traffic, traffic},
    sandbox::{DesiredState, OnTimeout, OperationState},
};
use tokio::time::Instant;

use crate::{
    body,
    intent::{Amended, Decision},
    order::{Edition, timeout},
    refusal::Refusal,
    route::{Answer, Call, json},
    rung,
    service::E2b,
    stamp::stamped,
    wire::{Connect, Resume},
};

/// What is asked of a sandbox.
#[derive(Clone, Debug)]
struct Wake {
    id: String,
    lasts: Duration,
    /// Whether it is to boot from its files.
    cold: bool,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Awake already is as good.
    Connect,
    /// Awake already is a conflict.
    Resume { auto_pause: Option<bool> },
}

/// `POST /sandboxes/{id}/connect`.
pub(crate) async fn first(call: Call) -> Answer {
    let asked: Connect = body::parse_or_default(&call.body)?;
    if asked.timeout.is_none() {
        return Err(Refusal::bad_field("timeout", "it is required"));
    }
    connect(call, &asked).await
}

/// `POST /v2/sandboxes/{id}/connect`.
pub(crate) async fn second(call: Call) -> Answer {
    let asked: Connect = body::parse_or_default(&call.body)?;
    connect(call, &asked).await
}

async fn connect(call: Call, asked: &Connect) -> Answer {
    let default = i64::from(Edition::Second.default_timeout());
    let seconds = timeout(&call.api, &call.caller, asked.timeout.unwrap_or(default), 0)?;
    let wake = Wake {
        id: call.subject().to_owned(),
        lasts: Duration::from_secs(seconds.into()),
        cold: asked.memory == Some(false),
        how: How::Connect,
    };
    answer(call, wake).await
}

/// `POST /sandboxes/{id}/resume`.
pub(crate) async fn resume(call: Call) -> Answer {
    let asked: Resume = body::parse_or_default(&call.body)?;
    let default = i64::from(Edition::First.default_timeout());
    let seconds = timeout(&call.api, &call.caller, asked.timeout.unwrap_or(default), 1)?;
    let wake = Wake {
        id: call.subject().to_owned(),
        lasts: Duration::from_secs(seconds.into()),
        cold: asked.memory == Some(false),
        how: How::Resume {
            auto_pause: asked.auto_pause,
        },
    };
    answer(call, wake).await
}

async fn answer(call: Call, wake: Wake) -> Answer {
    let api = Arc::clone(&call.api);
    let work = Arc::clone(&api);
    let (sandbox, woken) = api
        .outlive(async move { work.wake(&call.caller, &wake).await })
        .await?;
    let status = if woken {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    api.followers
        .have_seen(&sandbox.key(), sandbox.version())
        .await;
    let response = json(status, &api.render(&sandbox))?;
    Ok(stamped(response, sandbox.version()))
}

impl E2b {
    /// Brings a sandbox to where its owner can use it. Answers it, and whether it had to be woken.
    async fn wake(&self, caller: &Caller, wake: &Wake) -> Result<(Arc<Sandbox>, bool), Refusal> {
        let gone = || Refusal::no_sandbox(&wake.id);
        let team = &caller.team;
        let deadline = Instant::now() + self.options.operation_timeout;
        let mut woken = false;
        loop {
            let sandbox = self.find(team, &wake.id).ok_or_else(gone)?;
            match traffic(&sandbox) {
                Traffic::Running if wake.how != How::Connect && !woken => {
                    return Err(Refusal::conflict("the sandbox is running already"));
                }
                // Its deadline was written when it was woken.
                Traffic::Running if wake.how != How::Connect => return Ok((sandbox, true)),
                Traffic::Running => {
                    let amended = self.extend(team, &wake.id, wake.lasts).await?;
                    if traffic(&amended.sandbox) == Traffic::Running {
                        return Ok((amended.sandbox, woken));
                    }
                }
                Traffic::Paused => {
                    self.resume(caller, wake, &sandbox, deadline).await?;
                    woken = true;
                }
                at @ (Traffic::Creating
                | Traffic::Pausing
                | Traffic::Resuming
                | Traffic::Unknown) => {
                    woken |= at == Traffic::Resuming;
                    self.moved_on(&sandbox, at, deadline).await?;
                }
                // Whoever ended it was told that it is gone, however long the rest takes.
                Traffic::Idle | Traffic::Dead => return Err(gone()),
            }
        }
    }

    /// Moves the deadline of a sandbox that runs, if that is later.
    pub(crate) async fn extend(
        &self,
        team: &model::Namespace,
        id: &str,
        lasts: Duration,
    ) -> Result<Amended, Refusal> {
        self.amend(team, id, |sandbox| {
            let wanted = self.now().plus(lasts);
            let later = sandbox.spec.timeouts.end_at.is_some_and(|old| old < wanted);
            if traffic(sandbox) != Traffic::Running || !later {
                return Ok(Decision::Keep);
            }
            let mut next = sandbox.clone();
            next.spec.timeouts.end_at = Some(wanted);
            Ok(Decision::Write(Box::new(next)))
        })
        .await
    }

    async fn resume(
        &self,
        caller: &Caller,
        wake: &Wake,
        seen: &Sandbox,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        if wake.cold && seen.status.snapshot.is_none() {
            let why = "the sandbox sleeps with its memory, and cannot boot from its files";
            return Err(Refusal::filesystem_only("memory", why));
        }
        let id = seen.spec.sandbox_id.as_ref();
        let id = id.ok_or_else(|| Refusal::no_sandbox(&wake.id))?;
        // It counts against whoever it was made for, whoever wakes it.
        let account = seen.spec.owner.as_ref();
        let account = account.and_then(|owner| self.keys.find_account(owner));
        let account = account.unwrap_or_else(|| caller.account());
        let reserved = self.ledger.reserve(&account, id, &seen.spec)?;
        let amended = self
            .amend(&caller.team, &wake.id, |sandbox| {
                if traffic(sandbox) != Traffic::Paused {
                    return Ok(Decision::Keep);
                }
                let mut next = sandbox.clone();
                next.spec.desired_state = DesiredState::Running;
                let timeouts = &mut next.spec.timeouts;
                if timeouts.end_at.is_some() {
                    timeouts.end_at = Some(self.now().plus(wake.lasts));
                }
                if let How::Resume {
                    auto_pause: Some(pause),
                } = wake.how
                {
                    timeouts.on_timeout = if pause {
                        OnTimeout::Pause
                    } else {
                        OnTimeout::Kill
                    };
                    next.spec.wake_on_traffic &= pause;
                }
                rung::restore(&mut next);
                Ok(Decision::Write(Box::new(next)))
            })
            .await?;
        reserved.written(amended.sandbox.version());
        let generation = amended.sandbox.metadata.generation;
        let waited = self
            .until(
                &amended.sandbox.key(),
                &amended.id,
                amended.sandbox.version(),
                deadline,
                |s| awake(s, generation),
            )
            .await;
        match waited {
            Ok(outcome) => outcome,
            Err(WaitError::DeadlineReached { .. }) => Err(Refusal::took_too_long("woken")),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until a sandbox is no longer as it was.
    async fn moved_on(
        &self,
        seen: &Sandbox,
        at: Traffic,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let Some(id) = &seen.spec.sandbox_id else {
            return Ok(());
        };
        let moved = |s: Option<&Sandbox>| s.is_none_or(|s| traffic(s) != at).then_some(());
        match self
            .until(&seen.key(), id, seen.version(), deadline, moved)
            .await
        {
            Err(WaitError::DeadlineReached { .. }) => Err(Refusal::took_too_long(match at {
                Traffic::Pausing => "put to sleep",
                Traffic::Resuming => "woken",
                _ => "looked for",
            })),
            other => Ok(other?),
        }
    }
}

/// How a resume ended, once it has. `Ok` too where something else came of it: look again.
fn awake(sandbox: Option<&Sandbox>, asked: Generation) -> Option<Result<(), Refusal>> {
    let Some(sandbox) = sandbox else {
        return Some(Ok(()));
    };
    match traffic(sandbox) {
        Traffic::Running | Traffic::Dead | Traffic::Idle | Traffic::Pausing => Some(Ok(())),
        Traffic::Creating | Traffic::Resuming | Traffic::Unknown => None,
        // The intent was taken back.
        Traffic::Paused if sandbox.metadata.generation > asked => {
            let operation = sandbox.status.last_operation.as_ref();
            let failed = operation.filter(|op| {
                op.kind == OperationKind::Resume && op.state == OperationState::Failed
            });
            Some(match failed {
                Some(op) => Err(Refusal::operation_failed(
                    "woken",
                    op.error.as_deref().unwrap_or("it failed"),
                )),
                None => Err(Refusal::conflict("the sandbox was put to sleep again")),
            })
        }
        Traffic::Paused => None,
    }
}
