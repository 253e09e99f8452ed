//! The mark of a Pod whose container may be frozen by a worker.

use ::runtime::{RuntimeError, node::Rank};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Commits, Subject};
use crate::{
    error::{code, failed},
    look,
};

/// The container that a Pod may be frozen for, and the rank of the call that had it so.
pub(crate) const HELD: &str = "dormouse.dev/held";
/// Tries to change a mark while others change the Pod.
const TRIES: usize = 5;

/// A mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) container_id: Box<str>,
    rank: Rank,
}

impl Held {
    /// The mark that a Pod carries.
    pub(crate) fn on(pod: &Pod) -> Option<Self> {
        let text = look::annotation(pod, HELD)?;
        let (container_id, rank) = text.split_once(' ').unwrap_or((text, ""));
        Some(Self {
            container_id: container_id.into(),
            // Older versions wrote none.
            rank: rank.parse().unwrap_or_default(),
        })
    }
}

impl Commits {
    /// Notes on a Pod that its container may be frozen, or that it is not.
    pub(crate) async fn mark(&self, subject: &Subject, held: bool) -> Result<(), RuntimeError> {
        let (fence, doing) = (subject.fence, "note that it may be frozen");
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), &subject.namespace);
        let value = format!("{} {}", subject.container_id, Rank::from(fence));
        let value = held.then_some(value);
        for _ in 0..TRIES {
            let there = pods.get_opt(&subject.pod).await;
            let there = there.map_err(|error| failed(doing, &error))?;
            let there = there.filter(|pod| pod.uid().as_ref() == Some(&subject.pod_uid));
            let there = there.ok_or(RuntimeError::Absent(fence.uid))?;
            // Who has marked it since knows better.
            if Held::on(&there).is_some_and(|mark| mark.rank > fence.into()) {
                return Err(RuntimeError::Stale(fence));
            }
            let patch = json!({"metadata": {
                "uid": subject.pod_uid,
                "resourceVersion": there.metadata.resource_version,
                "annotations": {HELD: value},
            }});
            let patched = pods
                .patch(&subject.pod, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            match patched {
                Ok(patched) => {
                    self.pods.wrote(patched);
                    return Ok(());
                }
                Err(error) if code(&error) == Some(409) => {}
                Err(error) if code(&error) == Some(404) => {
                    return Err(RuntimeError::Absent(fence.uid));
                }
                Err(error) => return Err(failed(doing, &error)),
            }
        }
        let why = "others change the Pod all the time: it cannot be noted that it may be frozen";
        Err(RuntimeError::Failed(why.into()))
    }
}
