//! How long a sandbox lives: its deadline moved, extended, or brought about.

use std::{sync::Arc, time::Duration};

use model::{
    Namespace, Version,
    lifecycle::{Traffic, traffic},
    sandbox::{OnTimeout, SnapshotType},
};

use crate::{
    body,
    intent::Decision,
    order::timeout,
    refusal::Refusal,
    route::{Answer, Call, nothing},
    service::E2b,
    stamp::stamped,
    state::{State, state_of},
    wire::{Refresh, SetTimeout},
};

const DEFAULT_REFRESH: i64 = 15;
const MAX_REFRESH: i64 = 3600;

/// `DELETE /sandboxes/{id}`.
pub(crate) async fn kill(call: Call) -> Answer {
    let api = Arc::clone(&call.api);
    let work = Arc::clone(&api);
    let version = api
        .outlive(async move { work.kill(&call.caller.team, call.subject()).await })
        .await?;
    Ok(stamped(nothing(), version))
}

/// `POST /sandboxes/{id}/timeout`.
pub(crate) async fn set_timeout(call: Call) -> Answer {
    let asked: SetTimeout = body::parse(&call.body)?;
    let seconds = timeout(&call.api, &call.caller, asked.timeout, 0)?;
    let api = Arc::clone(&call.api);
    let work = Arc::clone(&api);
    let version = api
        .outlive(async move {
            let (team, id) = (&call.caller.team, call.subject());
            match seconds {
                0 => work.expire(team, id).await,
                seconds => {
                    let lasts = Duration::from_secs(seconds.into());
                    work.move_deadline(team, id, lasts).await
                }
            }
        })
        .await?;
    Ok(stamped(nothing(), version))
}

/// `POST /sandboxes/{id}/refreshes`.
pub(crate) async fn refresh(call: Call) -> Answer {
    let asked: Refresh = body::parse_or_default(&call.body)?;
    let seconds = asked.duration.unwrap_or(DEFAULT_REFRESH);
    let lasts = u64::try_from(seconds)
        .ok()
        .filter(|_| seconds <= MAX_REFRESH)
        .map(Duration::from_secs)
        .ok_or_else(|| Refusal::bad_field("duration", format!("use 0 to {MAX_REFRESH} seconds")))?;
    let api = Arc::clone(&call.api);
    let work = Arc::clone(&api);
    let version = api
        .outlive(async move {
            let (team, id) = (&call.caller.team, call.subject());
            let amended = work.extend(team, id, lasts).await?;
            match traffic(&amended.sandbox) {
                Traffic::Running => {
                    let version = amended.sandbox.version();
                    let key = amended.sandbox.key();
                    work.followers.have_seen(&key, version).await;
                    Ok(version)
                }
                Traffic::Pausing
                | Traffic::Paused
                | Traffic::Resuming
                | Traffic::Unknown
                | Traffic::Creating
                | Traffic::Idle
                | Traffic::Dead => Err(not_running(id)),
            }
        })
        .await?;
    Ok(stamped(nothing(), version))
}

fn not_running(id: &str) -> Refusal {
    Refusal::not_found(format!("sandbox {id:?} is not running"))
}

impl E2b {
    /// Ends a sandbox. When this returns, nobody finds it any more. Answers at which version.
    pub(crate) async fn kill(&self, team: &Namespace, id: &str) -> Result<Version, Refusal> {
        let gone = || Refusal::no_sandbox(id);
        let sandbox = self.find(team, id).ok_or_else(gone)?;
        let delivery = sandbox.spec.sandbox_id.as_ref().ok_or_else(gone)?;
        // Of what goes already, the first who asked was told.
        if state_of(&sandbox) == State::Ending {
            return Err(gone());
        }
        self.end(&sandbox.key(), delivery).await?.ok_or_else(gone)
    }

    /// Has happen now what would happen at its deadline. Answers at which version it had.
    async fn expire(&self, team: &Namespace, id: &str) -> Result<Version, Refusal> {
        let sandbox = self.find_live(team, id)?;
        match (sandbox.spec.timeouts.on_timeout, state_of(&sandbox)) {
            (_, State::Paused) => Err(not_running(id)),
            (OnTimeout::Kill, _) => self.kill(team, id).await,
            (OnTimeout::Pause, _) => {
                let policy = sandbox.spec.pause_policy.as_ref();
                let kind = policy.map_or(SnapshotType::Freeze, |p| p.snapshot_type);
                self.pause(team, id, kind).await
            }
        }
    }

    /// Sets a deadline, sooner or later than it was. Answers at which version it did.
    async fn move_deadline(
        &self,
        team: &Namespace,
        id: &str,
        lasts: Duration,
    ) -> Result<Version, Refusal> {
        let moved = self
            .amend(team, id, |sandbox| {
                match state_of(sandbox) {
                    State::Running => {}
                    State::Paused if traffic(sandbox) == Traffic::Resuming => {}
                    State::Paused => return Err(not_running(id)),
                    State::Creating | State::Ending | State::Gone => {
                        return Err(Refusal::no_sandbox(id));
                    }
                }
                let mut next = sandbox.clone();
                next.spec.timeouts.end_at = Some(self.now().plus(lasts));
                Ok(Decision::Write(Box::new(next)))
            })
            .await?;
        let version = moved.sandbox.version();
        self.followers
            .have_seen(&moved.sandbox.key(), version)
            .await;
        Ok(version)
    }
}
