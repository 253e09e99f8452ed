//! Other images for a Pod that is there.
//!
//! A cluster starts a container over when its image is patched. Everything else about a Pod is fixed,
//! so what a patch cannot do is done by making another Pod in its place: under the same uid, without a
//! trace of the one before. That is also what cleaning means here.

use std::{sync::Arc, time::Duration};

use ::runtime::{Facts, Fence, Outfit, RuntimeError};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams},
};
use model::template::ImagePullPolicy;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    agent::{self, Start},
    commit::HELD,
    create::{Arrival, named},
    error::{code, failed, refused},
    inspect::{Standing, facts},
    look::{self, Seen},
    names, pod,
    runtime::Engine,
};

/// How long who asks again waits for news of a container that could not be started.
const NEWS: Duration = Duration::from_secs(20);

impl Engine {
    pub(crate) async fn swap_images(
        &self,
        fence: Fence,
        to: &Outfit,
    ) -> Result<Facts, RuntimeError> {
        let uid = fence.uid;
        let _turn = self.known.enter(fence).await?;
        let found = self.pods.find(uid).ok_or(RuntimeError::Absent(uid))?;
        if look::is_stale(&found.pod, fence) {
            return Err(RuntimeError::Stale(fence));
        }
        if let Seen::Swapping(_) = look::seen(&found.pod, found.is_gone)
            && look::images(&found.pod) == to.images
        {
            let container = look::container(&found.pod);
            let meant = look::meant_restarts(&found.pod);
            let last = container.filter(|one| one.restart_count < meant);
            let last = last.and_then(|one| one.container_id.clone());
            let patience = self.options.start_timeout.min(NEWS);
            return self
                .swapped(fence, &found.pod, last, Arrival::Old, patience)
                .await;
        }
        let (pod, running) = self.running(uid)?;
        if self.standing(uid, &pod, &running).await?.is_frozen {
            return Err(RuntimeError::WrongState {
                uid,
                state: "frozen",
                needs: "thaw it",
            });
        }
        let Some(patch) = patch(&pod, fence, to)? else {
            return self.renew(fence, &pod, Some(to)).await;
        };
        let patched = self.patch(&pod, &Patch::Strategic(patch)).await?;
        let last = Some(running.container_id.into());
        let patience = self.options.start_timeout;
        self.swapped(fence, &patched, last, Arrival::New, patience)
            .await
    }

    /// Waits until another container runs.
    async fn swapped(
        &self,
        fence: Fence,
        pod: &Arc<Pod>,
        last: Option<String>,
        arrival: Arrival,
        patience: Duration,
    ) -> Result<Facts, RuntimeError> {
        let until = Instant::now() + patience;
        let identity = pod.metadata.uid.clone();
        let comes = self.comes(fence.uid, identity, last.as_deref(), arrival, until);
        let (pod, running) = comes.await.map_err(RuntimeError::from)?;
        let agent = agent::client(&*self.keys, fence.uid, &pod, running.ip)?;
        let delivery = agent::answers(&agent, until).await?;
        let epoch = model::Epoch(delivery.epoch);
        self.known.armed(fence.uid, &running.container_id, epoch);
        self.known.frozen(fence.uid, &running.container_id, false);
        let standing = Standing {
            epoch,
            is_frozen: false,
        };
        Ok(facts(&pod, &running, standing))
    }

    pub(crate) async fn reset(
        &self,
        fence: Fence,
        to: Option<&Outfit>,
    ) -> Result<(), RuntimeError> {
        let uid = fence.uid;
        let _turn = self.known.enter(fence).await?;
        let found = self.pods.find(uid).ok_or(RuntimeError::Absent(uid))?;
        if look::is_stale(&found.pod, fence) {
            return Err(RuntimeError::Stale(fence));
        }
        self.renew(fence, &found.pod, to).await?;
        Ok(())
    }

    /// Makes another Pod in place of one.
    async fn renew(
        &self,
        fence: Fence,
        pod: &Arc<Pod>,
        to: Option<&Outfit>,
    ) -> Result<Facts, RuntimeError> {
        // A key that was told to the agent of the Pod before opens nothing here.
        let start = Start::fresh(&*self.keys, fence.uid);
        let next = renewed(pod, fence, to, &start)?;
        if let Some(found) = self.pods.find(fence.uid) {
            self.remove_pod(fence.uid, &found).await?;
        }
        self.boots.forget(fence.uid);
        self.hooks.forget(fence.uid);
        let made = self.make(fence, &next).await?;
        if made.metadata.uid == pod.metadata.uid {
            let why = "the Pod that is to be made anew is still there";
            return Err(RuntimeError::Failed(why.into()));
        }
        self.come(fence, &made, Arrival::New).await
    }

    /// Changes a Pod, if it is still that one.
    pub(crate) async fn patch(
        &self,
        pod: &Pod,
        patch: &Patch<Value>,
    ) -> Result<Arc<Pod>, RuntimeError> {
        let (namespace, name) = named(pod);
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        match api.patch(name, &PatchParams::default(), patch).await {
            Ok(patched) => Ok(self.pods.wrote(patched)),
            Err(error) if code(&error) == Some(409) => Err(failed("change a Pod", &error)),
            Err(error) => Err(refused("change a Pod", &error)),
        }
    }

    /// Changes annotations of a Pod; none removes one.
    pub(crate) async fn annotate(
        &self,
        pod: &Pod,
        notes: &[(&str, Option<String>)],
    ) -> Result<Arc<Pod>, RuntimeError> {
        let notes: serde_json::Map<String, Value> = notes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        let change = json!({"metadata": {"uid": pod.metadata.uid, "annotations": notes}});
        self.patch(pod, &Patch::Merge(change)).await
    }
}

/// The change that makes a Pod run other images; none if no change of a Pod does that.
fn patch(pod: &Pod, fence: Fence, to: &Outfit) -> Result<Option<Value>, RuntimeError> {
    let containers = &pod.spec.as_ref().map(|spec| &spec.containers[..]);
    let containers = containers.unwrap_or_default();
    let has = |name: &str| containers.iter().find(|one| one.name == named_in_pod(name));
    let is_same_set = containers.len() == to.images.iter().count()
        && to.images.iter().all(|(n, _)| has(n).is_some());
    let main = to.images.get(names::MAIN);
    let changes = has(names::MAIN).and_then(|one| one.image.as_deref()) != main;
    let pulls = |one: &k8s_openapi::api::core::v1::Container| {
        one.image_pull_policy.as_deref() == Some(pod::pull(ImagePullPolicy::Always))
    };
    let is_fresh = to.pull != ImagePullPolicy::Always || containers.iter().all(pulls);
    if !is_same_set || !changes || !is_fresh || look::layer(pod).is_some() {
        return Ok(None);
    }
    let restarts = look::container(pod).map_or(0, |one| one.restart_count) + 1;
    let mut notes = serde_json::Map::new();
    for (name, value) in pod::notes(&to.images, to.boot.as_deref())? {
        notes.insert(name.to_owned(), json!(value));
    }
    notes.insert(names::RESTARTS.to_owned(), json!(restarts.to_string()));
    notes.insert(names::FENCE.to_owned(), json!(pod::rank(fence)));
    let images = to.images.iter();
    let images: Vec<Value> = images
        .map(|(name, image)| json!({"name": named_in_pod(name), "image": image}))
        .collect();
    Ok(Some(json!({
        "metadata": {"uid": pod.metadata.uid, "annotations": notes},
        "spec": {"containers": images},
    })))
}

fn named_in_pod(name: &str) -> &str {
    match name {
        names::MAIN => names::SANDBOX,
        other => other,
    }
}

/// The Pod that takes the place of another.
fn renewed(
    pod: &Pod,
    fence: Fence,
    to: Option<&Outfit>,
    start: &Start,
) -> Result<Pod, RuntimeError> {
    let old = &pod.metadata;
    let mut annotations = old.annotations.clone().unwrap_or_default();
    for name in [
        names::RESTARTS,
        names::BOOTED,
        names::HOOKED,
        names::ARMED,
        HELD,
    ] {
        annotations.remove(name);
    }
    annotations.insert(names::FENCE.to_owned(), pod::rank(fence));
    annotations.insert(names::START.to_owned(), start.name.clone());
    let mut spec = PodSpec {
        node_name: None,
        ..pod.spec.clone().unwrap_or_default()
    };
    let sandbox = spec.containers.iter_mut();
    for sandbox in sandbox.filter(|one| one.name == names::SANDBOX) {
        sandbox.command = Some(pod::command(start));
    }
    if let Some(to) = to {
        annotations.remove(names::BOOT);
        annotations.remove(names::LAYER);
        for (name, value) in pod::notes(&to.images, to.boot.as_deref())? {
            value.map(|value| annotations.insert(name.to_owned(), value));
        }
        for (name, image) in to.images.iter() {
            let its = named_in_pod(name);
            let container = spec.containers.iter_mut().find(|one| one.name == its);
            let container = container.ok_or_else(|| RuntimeError::Impossible {
                field: "images",
                reason: format!("there is no container {name:?} to change").into(),
            })?;
            container.image = Some(image.to_owned());
            container.image_pull_policy = Some(pod::pull(to.pull).to_owned());
        }
    }
    Ok(Pod {
        metadata: ObjectMeta {
            name: old.name.clone(),
            namespace: old.namespace.clone(),
            labels: old.labels.clone(),
            owner_references: old.owner_references.clone(),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    })
}
