//! The port.
//!
//! What a call began goes on in the cluster when its caller has left; the next call finds it.

use std::{sync::Arc, time::Duration};

use ::runtime::{
    Abilities, Arming, Booting, Captured, Facts, FailedHook, Fence, Keeps, Observed, Outfit,
    Publication, Runtime, RuntimeError, WorkloadSpec,
};
use async_trait::async_trait;
use bringup::Flights;
use cluster_kube::Cluster;
use k8s_openapi::api::core::v1::Pod;
use kit::Tasks;
use kube::Client;
use model::{
    Epoch, Namespace, StringMap, Uid, hook::Hook, sandbox::NetworkPolicy, template::ImagePullPolicy,
};
use thiserror::Error;

use crate::{
    agent,
    commit::{Commits, Subject},
    create::named,
    known::Known,
    look::{self, ArmedNote, Running},
    names,
    options::{Keys, Options},
    pod::{self, Place},
    pods::Pods,
};

/// How long the first look at all Pods may take.
const FIRST_LOOK: Duration = Duration::from_secs(30);

/// Why sandboxes cannot be run in a cluster.
#[derive(Debug, Error)]
pub enum StartError {
    /// The Pods that there are could not be read.
    #[error(
        "the Pods of the cluster cannot be read: is the API server there, and may this process list \
         and watch Pods?"
    )]
    Blind,
}

/// Sandboxes as Pods of a cluster. Clones share what is known of them.
#[derive(Clone, Debug)]
pub struct KubeRuntime(Arc<Engine>);

pub(crate) struct Engine {
    pub(crate) client: Client,
    /// The namespace of Dormouse itself.
    pub(crate) own: Box<str>,
    pub(crate) options: Options,
    pub(crate) keys: Arc<dyn Keys>,
    pub(crate) pods: Pods,
    pub(crate) known: Known,
    pub(crate) boots: Flights<()>,
    pub(crate) hooks: Flights<Vec<FailedHook>>,
    pub(crate) commits: Option<Commits>,
    pub(crate) tasks: Tasks,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("own", &self.own)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl KubeRuntime {
    /// Looks at all Pods there are, and follows them for as long as `tasks` runs.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn start(
        cluster: &Cluster,
        options: Options,
        keys: Arc<dyn Keys>,
        tasks: &Tasks,
    ) -> Result<Self, StartError> {
        let tasks = tasks.child();
        let pods = Pods::follow(cluster.client(), Arc::clone(&keys), &tasks);
        if !pods.synced(FIRST_LOOK).await {
            return Err(StartError::Blind);
        }
        Ok(Self(Arc::new(Engine {
            client: cluster.client(),
            own: cluster.namespace().into(),
            commits: options
                .commits
                .clone()
                .map(|commits| Commits::new(cluster.clone(), commits, pods.clone())),
            options,
            keys,
            pods,
            known: Known::default(),
            boots: Flights::default(),
            hooks: Flights::default(),
            tasks,
        })))
    }
}

impl Engine {
    async fn arm(&self, fence: Fence, arming: &Arming) -> Result<(), RuntimeError> {
        let _turn = self.known.enter(fence).await?;
        let (pod, running) = self.running(fence.uid)?;
        // Who asks has looked just now; an agent that sleeps all the same does not answer.
        let learnt = self.known.of(fence.uid, &running.container_id);
        if learnt.frozen == Some(true) {
            return Err(RuntimeError::WrongState {
                uid: fence.uid,
                state: "frozen",
                needs: "thaw it",
            });
        }
        let agent = agent::client(&*self.keys, fence.uid, &pod, running.ip)?;
        agent::arm(&agent, &*self.keys, fence, arming).await?;
        self.known
            .armed(fence.uid, &running.container_id, arming.epoch);
        Ok(())
    }

    async fn freeze(&self, fence: Fence) -> Result<(), RuntimeError> {
        let uid = fence.uid;
        let _turn = self.known.enter(fence).await?;
        let (pod, running) = self.running(uid)?;
        if self.options.node.is_none() {
            return Err(RuntimeError::Impossible {
                field: "pausePolicy.snapshotType",
                reason:
                    "nothing can be frozen here: the daemon that does it is not installed on the \
                         nodes"
                        .into(),
            });
        }
        let standing = self.standing(uid, &pod, &running).await?;
        if standing.is_frozen {
            return Ok(());
        }
        let pod = self.note_armed(&pod, &running, standing.epoch).await?;
        let found = self.node_of(&pod, &running, fence.into());
        let (node, target) = found.ok_or_else(no_node)?;
        node.freeze(fence, &target).await?;
        self.known.frozen(uid, &running.container_id, true);
        Ok(())
    }

    /// Notes what a container is armed for: while it is frozen its agent cannot be asked, not even by
    /// who comes after this process.
    async fn note_armed(
        &self,
        pod: &Arc<Pod>,
        running: &Running,
        epoch: Epoch,
    ) -> Result<Arc<Pod>, RuntimeError> {
        let container_id = running.container_id.clone();
        if look::armed(pod, &container_id).unwrap_or_default() == epoch.0 {
            return Ok(Arc::clone(pod));
        }
        let note = pod::json(&ArmedNote {
            container_id,
            epoch: epoch.0,
        })?;
        self.annotate(pod, &[(names::ARMED, Some(note))]).await
    }

    async fn thaw(&self, fence: Fence) -> Result<(), RuntimeError> {
        let uid = fence.uid;
        let _turn = self.known.enter(fence).await?;
        let (pod, running) = self.running(uid)?;
        // One that may still be on its way could freeze it later: it is called off in any case.
        let held = look::is_held(&pod, &running.container_id);
        if !held && !self.standing(uid, &pod, &running).await?.is_frozen {
            return Ok(());
        }
        let subject = subject(fence, &pod, &running);
        let commits = self.commits.as_ref().filter(|_| held);
        match (self.node_of(&pod, &running, fence.into()), commits) {
            (Some((node, target)), commits) => {
                if let Some(commits) = commits {
                    commits.end(&subject).await?;
                }
                node.thaw(fence, &target).await?;
                if let Some(commits) = commits {
                    commits.mark(&subject, false).await?;
                }
            }
            (None, Some(commits)) => {
                commits.end(&subject).await?;
                match self.runs(uid, &pod, &running).await? {
                    true => commits.mark(&subject, false).await?,
                    false => commits.thaw(&subject).await?,
                }
            }
            (None, None) => return Err(no_node()),
        }
        self.known.frozen(uid, &running.container_id, false);
        Ok(())
    }

    /// Whether a worker that was called off had frozen nothing yet. It is asked only if that may be.
    async fn runs(&self, uid: Uid, pod: &Pod, running: &Running) -> Result<bool, RuntimeError> {
        if self.known.of(uid, &running.container_id).frozen == Some(true) {
            return Ok(false);
        }
        let agent = agent::client(&*self.keys, uid, pod, running.ip)?;
        Ok(agent::delivery(&agent).await.is_ok())
    }

    async fn capture(
        &self,
        fence: Fence,
        to: Option<&Publication>,
    ) -> Result<Captured, RuntimeError> {
        let uid = fence.uid;
        let _turn = self.known.enter(fence).await?;
        let (pod, running) = self.running(uid)?;
        let Some(commits) = &self.commits else {
            return Err(RuntimeError::Impossible {
                field: "snapshotRegistry",
                reason: "captures are switched off".into(),
            });
        };
        let standing = self.standing(uid, &pod, &running).await?;
        if self.options.node.is_some() && !standing.is_frozen {
            return Err(RuntimeError::WrongState {
                uid,
                state: "running",
                needs: "freeze it",
            });
        }
        let pod = self.note_armed(&pod, &running, standing.epoch).await?;
        // A worker that fails lets it go on, and one goes on when this call has left.
        self.known.doubt(uid, &running.container_id);
        let captured = commits.capture(&subject(fence, &pod, &running), to).await?;
        self.known.frozen(uid, &running.container_id, true);
        Ok(captured)
    }

    async fn set_network(
        &self,
        fence: Fence,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError> {
        let _turn = self.known.enter(fence).await?;
        let found = self.pods.find(fence.uid);
        let pod = found.ok_or(RuntimeError::Absent(fence.uid))?.pod;
        if look::is_stale(&pod, fence) {
            return Err(RuntimeError::Stale(fence));
        }
        let (namespace, name) = named(&pod);
        let is_owned = pod.metadata.owner_references.is_some();
        let place = Place::at(namespace, name, is_owned);
        self.apply_network(fence, &place, policy).await?;
        let notes = [
            (names::NETWORK, policy.map(pod::json).transpose()?),
            (names::FENCE, Some(pod::rank(fence))),
        ];
        self.annotate(&pod, &notes).await?;
        Ok(())
    }
}

/// A workload, as workers know it.
fn subject(fence: Fence, pod: &Pod, running: &Running) -> Subject {
    let (namespace, name) = named(pod);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Subject {
        fence,
        namespace: namespace.to_owned(),
        pod: name.to_owned(),
        pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
        node: node.unwrap_or_default(),
        container_id: running.container_id.to_string(),
    }
}

/// The name of an image without its tag: a port is before the last slash, a tag after it.
fn without_tag(image: &str) -> &str {
    let path = image.rfind('/').map_or(0, |slash| slash + 1);
    match image[path..].find(':') {
        Some(tag) => &image[..path + tag],
        None => image,
    }
}

fn no_node() -> RuntimeError {
    RuntimeError::Failed("it is not known on which node the Pod is".into())
}

#[async_trait]
impl Runtime for KubeRuntime {
    async fn inspect(&self, uid: Uid) -> Result<Observed, RuntimeError> {
        self.0.inspect(uid).await
    }

    async fn list(&self) -> Result<Vec<(Uid, Observed)>, RuntimeError> {
        Ok(self.0.list().await)
    }

    async fn create(&self, fence: Fence, spec: &WorkloadSpec) -> Result<Facts, RuntimeError> {
        self.0.create(fence, spec).await
    }

    async fn boot(&self, fence: Fence) -> Result<Booting, RuntimeError> {
        self.0.boot(fence).await
    }

    async fn arm(&self, fence: Fence, arming: &Arming) -> Result<(), RuntimeError> {
        self.0.arm(fence, arming).await
    }

    async fn run_hooks(&self, fence: Fence, hooks: &[Hook]) -> Result<Booting, RuntimeError> {
        self.0.run_hooks(fence, hooks).await
    }

    async fn freeze(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.0.freeze(fence).await
    }

    async fn thaw(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.0.thaw(fence).await
    }

    /// What a name led to when it was last seen to run in the team's namespace. What is to be asked for anew, or
    /// was never seen, keeps its name: only a node asks registries.
    async fn pin(
        &self,
        team: &Namespace,
        image: &str,
        pull: ImagePullPolicy,
    ) -> Result<Box<str>, RuntimeError> {
        let known = match pull {
            ImagePullPolicy::IfNotPresent | ImagePullPolicy::Never => {
                self.0.pods.digest_of(team.as_str(), image)
            }
            ImagePullPolicy::Always => None,
        };
        Ok(match known.filter(|_| !image.contains('@')) {
            Some(digest) => format!("{}@{digest}", without_tag(image)).into(),
            None => image.into(),
        })
    }

    /// What was never seen to run in this cluster is taken for one that has to be fetched.
    fn missing(&self, images: &StringMap) -> Option<Box<str>> {
        let mut unseen = images
            .iter()
            .filter(|(_, image)| !self.0.pods.has_run(image));
        unseen.next().map(|(_, image)| image.into())
    }

    async fn swap_images(&self, fence: Fence, to: &Outfit) -> Result<Facts, RuntimeError> {
        self.0.swap_images(fence, to).await
    }

    async fn set_network(
        &self,
        fence: Fence,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError> {
        self.0.set_network(fence, policy).await
    }

    fn abilities(&self) -> Abilities {
        let commits = self.0.commits.as_ref();
        Abilities {
            freeze: self.0.options.node.is_some(),
            keeps: match commits.is_some_and(Commits::has_registry) {
                true => Keeps::InRegistry,
                false => Keeps::Nowhere,
            },
        }
    }

    async fn capture(
        &self,
        fence: Fence,
        to: Option<&Publication>,
    ) -> Result<Captured, RuntimeError> {
        self.0.capture(fence, to).await
    }

    async fn reset(&self, fence: Fence, to: Option<&Outfit>) -> Result<(), RuntimeError> {
        self.0.reset(fence, to).await
    }

    async fn delete(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.0.delete(fence).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_told_from_a_port() {
        for (image, expected) in [
            ("app:1", "app"),
            ("app", "app"),
            ("r.example:5000/team/app:1", "r.example:5000/team/app"),
            ("r.example:5000/app", "r.example:5000/app"),
        ] {
            assert_eq!(without_tag(image), expected);
        }
    }
}
