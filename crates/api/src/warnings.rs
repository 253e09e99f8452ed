//! What was wrong of late with the one object that is asked for.
//!
//! Whoever asks why something is not ready should not have to ask twice. A list does not look: it
//! would cost a look for each.

use std::sync::Arc;

use model::{
    Event, Spec as _,
    claim::ClaimSpec,
    event::{ABOUT_LABEL, EventSpec, Severity, Warning},
    pool::PoolSpec,
    sandbox::SandboxSpec,
};
use serde_json::Value;
use store::{Query, Record, StoreExt as _};

use crate::{refusal::Refusal, resource_api::ResourceApi, submission::Submission};

/// The most warnings of an answer.
const MOST: usize = 5;
const FIELD: &str = "recentWarnings";

/// The record with the latest warnings about it in its status.
pub(crate) async fn attached(
    api: &ResourceApi,
    record: Arc<Record>,
) -> Result<Arc<Record>, Refusal> {
    if !matches!(
        record.kind,
        SandboxSpec::KIND | PoolSpec::KIND | ClaimSpec::KIND
    ) {
        return Ok(record);
    }
    let query = Query {
        namespace: record.meta.namespace.clone(),
        ..Query::kind(EventSpec::KIND)
    }
    .label(ABOUT_LABEL, record.uid().to_string());
    let (mut events, _) = api.store.list_objects::<EventSpec>(&query).await?;
    events.retain(|event| event.spec.severity == Severity::Warning);
    if events.is_empty() {
        return Ok(record);
    }
    events.sort_by_key(|event| std::cmp::Reverse(event.spec.last_seen));
    let warnings: Vec<Warning> = events.into_iter().take(MOST).map(warning).collect();
    let broken = |_| Refusal::internal("the answer could not be written");
    let mut status: Value = serde_json::from_str(&record.status).map_err(broken)?;
    status[FIELD] = serde_json::to_value(&warnings).map_err(broken)?;
    let mut shown = Record::clone(&record);
    shown.status = status.to_string().into();
    Ok(Arc::new(shown))
}

/// Takes them off what a client sends back: they are looked up, never kept.
pub(crate) fn take_off(submission: &mut Submission) {
    if let Some(Value::Object(status)) = &mut submission.status {
        status.remove(FIELD);
    }
}

fn warning(event: Event) -> Warning {
    let EventSpec {
        reason,
        message,
        count,
        last_seen,
        ..
    } = event.spec;
    Warning {
        reason,
        message,
        count,
        last_seen,
    }
}
