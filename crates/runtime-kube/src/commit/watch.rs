//! Waiting for a Job, and what its Pod said last.

use std::{pin::pin, time::Duration};

use ::runtime::{RuntimeError, node::Report};
use futures_util::StreamExt as _;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
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
    of: &Job,
) -> Result<Option<Report>, RuntimeError> {
    let name = of.name_any();
    let mut events = pin!(watch_object(jobs.clone(), &name).default_backoff());
    // The API server may be away for a while; the worker works on meanwhile.
    while let Some(event) = events.next().await {
        let job = match event {
            Ok(Some(job)) if job.metadata.uid == of.metadata.uid => job,
            Ok(Some(_) | None) => return Ok(None),
            Err(error) => {
                tracing::debug!(%error, "a worker cannot be watched now");
                continue;
            }
        };
        // Its Pod says how it went before the Job does.
        if let Some(report) = said(pods, of).await? {
            return Ok(Some(report));
        }
        if is_over(&job) {
            return said(pods, of).await;
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

/// What a worker has said when it ended: that of this Job, not of one before it that had its name.
async fn said(pods: &Api<Pod>, job: &Job) -> Result<Option<Report>, RuntimeError> {
    let of_job = ListParams::default().labels(&format!("job-name={}", job.name_any()));
    let listed = pods.list(&of_job).await;
    let listed = listed.map_err(|error| failed("look for a worker's Pod", &error))?;
    let uid = job.metadata.uid.as_deref();
    let its = listed.items.iter().filter(|pod| is_of(pod, uid));
    Ok(its.into_iter().find_map(last_words))
}

/// Whether a Pod is that of a Job, by the Job's uid.
fn is_of(pod: &Pod, job: Option<&str>) -> bool {
    let owners = pod.owner_references();
    job.is_some_and(|uid| owners.iter().any(|owner| owner.uid == uid))
}

pub(super) fn last_words(pod: &Pod) -> Option<Report> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let status = statuses.iter().find(|status| status.name == CONTAINER)?;
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    serde_json::from_str(ended.message.as_deref()?).ok()
}

/// Waits until all Jobs and Pods that a selector finds are gone, but one Job and its Pods.
pub(super) async fn gone(
    jobs: &Api<Job>,
    pods: &Api<Pod>,
    of: &ListParams,
    but: Option<&str>,
) -> Result<(), RuntimeError> {
    let wait = async {
        loop {
            let listed = jobs.list(of).await;
            let listed = listed.map_err(|error| failed("look for workers", &error))?;
            let left = pods.list(of).await;
            let left = left.map_err(|error| failed("look for workers' Pods", &error))?;
            let is_kept = |job: &Job| but.is_some() && job.metadata.uid.as_deref() == but;
            if listed.items.iter().all(is_kept) && left.items.iter().all(|pod| is_of(pod, but)) {
                return Ok(());
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let late = |_| RuntimeError::Failed("a worker on its node does not end".into());
    tokio::time::timeout(GOING, wait).await.map_err(late)?
}
