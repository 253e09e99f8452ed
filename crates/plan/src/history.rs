//! What a delivery was: one shape for those that live and those that are over.

use model::{
    Sandbox, Timestamp,
    lifecycle::{Phase, was_released},
    record::RecordSpec,
    sandbox::{IdleAction, OnTimeout, Resources, StopCause, StopReason, Stopped},
};

use crate::claim::Ending;

/// A delivery that is not over, or has ended and is not forgotten yet. `None` for a member that is
/// nobody's.
#[must_use]
pub fn live(sandbox: &Sandbox, template: Option<Resources>) -> Option<RecordSpec> {
    let (spec, status) = (&sandbox.spec, &sandbox.status);
    Some(RecordSpec {
        sandbox_id: spec.sandbox_id.clone()?,
        sandbox: sandbox.metadata.name.clone(),
        uid: sandbox.uid(),
        epoch: spec.epoch,
        owner: spec.owner.clone()?,
        pool: spec.pool.clone(),
        template: spec.template.clone(),
        phase: status.phase,
        claimed_at: spec.claimed_at,
        started_at: started(sandbox),
        recycled_at: None,
        ended: status.stopped.as_deref().cloned(),
        images: status.images.clone(),
        metadata: spec.metadata.clone(),
        resources: spec.resources.or(template),
    })
}

/// A delivery that is over, just before its sandbox is forgotten or its member idle again. `None`
/// where nobody ever had it.
#[must_use]
pub fn finished(
    sandbox: &Sandbox,
    template: Option<Resources>,
    recycled: Option<Timestamp>,
    now: Timestamp,
) -> Option<RecordSpec> {
    let (spec, status) = (&sandbox.spec, &sandbox.status);
    if let Some(mut record) = live(sandbox, template) {
        record.phase = Phase::Stopped;
        record.ended = Some(how_it_ended(sandbox, now));
        return Some(record);
    }
    let past = spec.given_back.as_ref().filter(|_| was_released(sandbox))?;
    Some(RecordSpec {
        sandbox_id: past.sandbox_id.clone(),
        sandbox: sandbox.metadata.name.clone(),
        uid: sandbox.uid(),
        epoch: spec.epoch,
        owner: past.owner.clone(),
        pool: spec.pool.clone(),
        template: spec.template.clone(),
        phase: Phase::Stopped,
        claimed_at: past.claimed_at,
        started_at: started(sandbox),
        recycled_at: recycled,
        ended: Some(past.ended.clone()),
        images: status.images.clone(),
        metadata: past.metadata.clone(),
        resources: spec.resources.or(template),
    })
}

/// When it was ready for its owner. What a member did before that is not this delivery's.
fn started(sandbox: &Sandbox) -> Option<Timestamp> {
    let armed = sandbox.status.armed_epoch == sandbox.spec.epoch;
    sandbox.status.started_at.filter(|_| armed)
}

/// How a sandbox ended whose record goes: by itself, or by which of its standing orders. Only the
/// record is asked, so that a restart in between changes nothing.
fn how_it_ended(sandbox: &Sandbox, now: Timestamp) -> Stopped {
    let (spec, status) = (&sandbox.spec, &sandbox.status);
    if let Some(stopped) = &status.stopped {
        return (**stopped).clone();
    }
    let at = sandbox.metadata.deletion_timestamp.unwrap_or(now);
    let over = |moment: Option<Timestamp>| moment.is_some_and(|moment| at >= moment);
    let after = |from: Option<Timestamp>, seconds: Option<u32>| {
        let seconds = std::time::Duration::from_secs(seconds?.into());
        Some(from?.plus(seconds))
    };
    let timeouts = &spec.timeouts;
    let idle = after(
        status.last_active_at.max(status.started_at),
        timeouts.idle_seconds,
    );
    let kept = after(status.paused_at, timeouts.paused_retention_seconds);
    let failed = status.phase == Phase::Failed;
    let ending = if failed {
        Ending::by(StopCause::StartFailed, at)
    } else if started(sandbox).is_none() && over(spec.lease.as_ref().map(|lease| lease.until)) {
        Ending::by(StopCause::StartupTimeout, at)
    } else if status.paused_at.is_some() && over(kept) {
        Ending::by(StopCause::RetentionTimeout, at)
    } else if timeouts.on_timeout == OnTimeout::Kill && over(timeouts.end_at) {
        Ending::by(StopCause::Timeout, at)
    } else if timeouts.idle_action != IdleAction::Pause && over(idle) {
        Ending::by(StopCause::IdleTimeout, at)
    } else {
        Ending::by_owner(at)
    };
    let reason = match ending.reason {
        StopReason::Completed if started(sandbox).is_none() => StopReason::Canceled,
        other => other,
    };
    let error = || status.last_operation.as_ref()?.error.clone();
    Stopped {
        reason,
        at: ending.at,
        exit_code: None,
        cause: ending.cause,
        message: if failed {
            error().unwrap_or_default()
        } else {
            Box::default()
        },
    }
}

#[cfg(test)]
mod tests;
