//! Waiting for a Job, and what its Pod said last.

use std::{pin::pin, time::Duration};

use ::runtime::{RuntimeError, node::Report};
use futures_util::StreamExt as _;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher::watch_object},
};

use super::job::CONTAINER;
use crate::error::failed;

/// How often to look for the Pod of a Job that is going.
const AGAIN: Duration = Duration::from_millis(250);
/// A worker that does not go in this time is not waited for: whoever asked asks again.
const GOING: Duration = Duration::from_secs(60);

/// Waits until a Job is over. Answers what its worker said; none if it said nothing.
pub(super) async fn report(
    jobs: &Api<Job>,
    pods: &Api<Pod>,
    name: &str,
    uid: &str,
) -> Result<Option<Report>, RuntimeError> {
    let mut events = pin!(watch_object(jobs.clone(), name).default_backoff());
    // The API server may be away for a while; the worker works on meanwhile.
    while let Some(event) = events.next().await {
        let job = match event {
            Ok(Some(job)) if job.metadata.uid.as_deref() == Some(uid) => job,
            Ok(Some(_) | None) => return Ok(None),
            Err(error) => {
                tracing::debug!(%error, "a worker cannot be watched now");
                continue;
            }
        };
        // Its Pod says how it went before the Job does.
        if let Some(report) = said(pods, name).await? {
            return Ok(Some(report));
        }
        if is_over(&job) {
            return said(pods, name).await;
        }
    }
    Ok(None)
}

fn is_over(job: &Job) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
    })
}

/// What a worker has said when it ended.
async fn said(pods: &Api<Pod>, job: &str) -> Result<Option<Report>, RuntimeError> {
    let of_job = ListParams::default().labels(&format!("job-name={job}"));
    let listed = pods.list(&of_job).await;
    let listed = listed.map_err(|error| failed("look for a worker's Pod", &error))?;
    Ok(listed.items.iter().find_map(last_words))
}

pub(super) fn last_words(pod: &Pod) -> Option<Report> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let status = statuses.iter().find(|status| status.name == CONTAINER)?;
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    serde_json::from_str(ended.message.as_deref()?).ok()
}

/// Waits until a Job and its Pods are gone.
pub(super) async fn gone(jobs: &Api<Job>, pods: &Api<Pod>, name: &str) -> Result<(), RuntimeError> {
    let of_job = ListParams::default().labels(&format!("job-name={name}"));
    let wait = async {
        loop {
            let job = jobs.get_opt(name).await;
            let job = job.map_err(|error| failed("look for a worker", &error))?;
            let left = pods.list(&of_job).await;
            let left = left.map_err(|error| failed("look for a worker's Pod", &error))?;
            if job.is_none() && left.items.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let late = |_| RuntimeError::Failed("a worker on its node does not end".into());
    tokio::time::timeout(GOING, wait).await.map_err(late)?
}
