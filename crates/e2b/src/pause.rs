//! Putting a sandbox to sleep.

use std::sync::Arc;

use cache::WaitError;
use model::{
    Generation, Namespace, Sandbox, Version,
    lifecycle::{OperationKind, Traffic, traffic},
    sandbox::{DesiredState, OperationState, SnapshotType},
};
use tokio::time::Instant;

use crate::{
    body,
    intent::Decision,
    refusal::Refusal,
    route::{Answer, Call, nothing},
    rung,
    service::E2b,
    stamp::stamped,
    wire::Pause,
};

/// `POST /sandboxes/{id}/pause`.
pub(crate) async fn pause(call: Call) -> Answer {
    let asked: Pause = body::parse_or_default(&call.body)?;
    if asked.require_healthy_guest == Some(true) {
        return Err(Refusal::unsupported_field("requireHealthyGuest"));
    }
    let kind = match asked.memory {
        Some(false) if !call.api.options.filesystem_pause => {
            let why = "this server cannot keep files without memory";
            return Err(Refusal::filesystem_only("memory", why));
        }
        Some(false) => SnapshotType::Rootfs,
        Some(true) | None => SnapshotType::Freeze,
    };
    let api = Arc::clone(&call.api);
    let work = Arc::clone(&api);
    let version = api
        .outlive(async move { work.pause(&call.caller.team, call.subject(), kind).await })
        .await?;
    Ok(stamped(nothing(), version))
}

impl E2b {
    /// Puts a sandbox to sleep, and waits until it sleeps. Answers at which version it did.
    pub(crate) async fn pause(
        &self,
        team: &Namespace,
        id: &str,
        kind: SnapshotType,
    ) -> Result<Version, Refusal> {
        let amended = self
            .amend(team, id, |sandbox| match traffic(sandbox) {
                Traffic::Running | Traffic::Resuming | Traffic::Unknown => {
                    let mut next = sandbox.clone();
                    next.spec.desired_state = DesiredState::Paused;
                    rung::choose(&mut next, kind);
                    Ok(Decision::Write(Box::new(next)))
                }
                // Another's pause is under way: it is as good.
                Traffic::Pausing => Ok(Decision::Keep),
                Traffic::Paused => Err(Refusal::conflict("the sandbox is paused already")),
                Traffic::Creating | Traffic::Idle | Traffic::Dead => Err(Refusal::no_sandbox(id)),
            })
            .await?;
        let deadline = Instant::now() + self.options.operation_timeout;
        let generation = amended.sandbox.metadata.generation;
        let key = amended.sandbox.key();
        let waited = self
            .until(
                &key,
                &amended.id,
                amended.sandbox.version(),
                deadline,
                |s| asleep(s, id, generation),
            )
            .await;
        match waited {
            Ok(outcome) => {
                let version = outcome?;
                self.followers.have_seen(&key, version).await;
                Ok(version)
            }
            Err(WaitError::DeadlineReached { .. }) => Err(Refusal::took_too_long("put to sleep")),
            Err(error) => Err(error.into()),
        }
    }
}

/// How a pause ended, once it has.
fn asleep(
    sandbox: Option<&Sandbox>,
    id: &str,
    asked: Generation,
) -> Option<Result<Version, Refusal>> {
    let Some(sandbox) = sandbox else {
        return Some(Err(Refusal::no_sandbox(id)));
    };
    match traffic(sandbox) {
        Traffic::Paused => Some(Ok(sandbox.version())),
        Traffic::Dead | Traffic::Idle => Some(Err(Refusal::no_sandbox(id))),
        Traffic::Pausing | Traffic::Creating => None,
        // What was wanted has changed since: it could not sleep, or it slept and was woken, or it
        // was woken on its way there. Only the first is a failure of this pause.
        Traffic::Running | Traffic::Resuming if sandbox.metadata.generation > asked => {
            let operation = sandbox.status.last_operation.as_ref();
            let failed = operation
                .filter(|op| op.kind == OperationKind::Pause && op.state == OperationState::Failed);
            Some(match failed {
                Some(op) => Err(Refusal::operation_failed(
                    "put to sleep",
                    op.error.as_deref().unwrap_or("it failed"),
                )),
                None => Ok(sandbox.version()),
            })
        }
        Traffic::Running | Traffic::Resuming | Traffic::Unknown => None,
    }
}
