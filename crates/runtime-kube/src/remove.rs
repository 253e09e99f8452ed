//! Removing Pods.

use ::runtime::{Fence, RuntimeError};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};
use model::Uid;
use tokio::time::Instant;

use crate::{
    create::named,
    error::{code, failed},
    look,
    pods::Found,
    runtime::Engine,
};

impl Engine {
    pub(crate) async fn delete(&self, fence: Fence) -> Result<(), RuntimeError> {
        let uid = fence.uid;
        let _turn = self.known.enter(fence).await?;
        if let Some(found) = self.pods.find(uid) {
            if look::is_stale(&found.pod, fence) {
                return Err(RuntimeError::Stale(fence));
            }
            self.remove_pod(uid, &found).await?;
            self.remove_network(uid, &found.pod).await?;
        }
        self.pods.forget(uid);
        self.boots.forget(uid);
        self.hooks.forget(uid);
        self.known.forget(uid);
        if let Some(commits) = &self.commits {
            commits.left(uid);
        }
        Ok(())
    }

    /// Removes this Pod, and no other of its name. When this returns, its processes have ended.
    pub(crate) async fn remove_pod(&self, uid: Uid, found: &Found) -> Result<(), RuntimeError> {
        let identity = found.pod.metadata.uid.clone();
        let Some(identity) = identity.filter(|_| !found.is_gone) else {
            self.pods.forget(uid);
            return Ok(());
        };
        let (namespace, name) = named(&found.pod);
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let this_one = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(identity.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        self.pods.removing(uid, &identity);
        if let Err(error) = api.delete(name, &this_one).await {
            // Whatever is said, what counts is whether it is there: 409 has more than one reason.
            let gone = match code(&error) {
                Some(404) => Ok(true),
                Some(409) => {
                    let there = api.get_opt(name).await;
                    let is_other = |pod: Pod| pod.metadata.uid.as_deref() != Some(&identity);
                    there.map(|there| there.is_none_or(is_other))
                }
                Some(_) | None => Ok(false),
            };
            if matches!(gone, Ok(true)) {
                self.pods.vanished(uid, &identity);
                return Ok(());
            }
            // It runs on, and is seen as one that does until somebody asks again.
            self.pods.stays(uid, &identity);
            return Err(failed("remove a Pod", &error));
        }
        let until = Instant::now() + self.options.stop_timeout;
        let is_other = |found: &Found| found.pod.metadata.uid.as_deref() != Some(&identity);
        let gone = self
            .pods
            .wait(uid, until, |found| found.is_none_or(is_other).then_some(()));
        gone.await.ok_or_else(|| {
            RuntimeError::Failed(format!("Pod {namespace}/{name} does not end").into())
        })
    }
}
