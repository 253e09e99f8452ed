//! Looking: what the Pod says, and what only the agent or the node knows.

use std::sync::Arc;

use ::runtime::{
    Facts, Loss, Observed, RuntimeError, WorkloadState,
    node::{Rank, Target},
};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use kube::Api;
use model::{
    Epoch, StringMap, Uid,
    sandbox::{Address, Via},
};

use crate::{
    agent::{self, Silence},
    look::{self, Ended, Running, Seen},
    names,
    node::Node,
    pods::Found,
    runtime::Engine,
};

/// How many agents are asked at once when all are looked at.
const AT_ONCE: usize = 32;

/// What is known of a container that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) epoch: Epoch,
    pub(crate) is_frozen: bool,
}

impl Engine {
    /// What there is now under a uid.
    pub(crate) async fn inspect(&self, uid: Uid) -> Result<Observed, RuntimeError> {
        match self.pods.find(uid) {
            None => Ok(Observed::Absent),
            Some(found) => self.observe(uid, &found).await,
        }
    }

    /// Everything there is. Agents that were asked before are not asked again: what changes without
    /// a change of their Pod is found when one of them is looked at by itself.
    pub(crate) async fn list(&self) -> Vec<(Uid, Observed)> {
        let looks = self.pods.list().into_iter().map(|(uid, found)| async move {
            let seen = match look::seen(&found.pod, found.is_gone) {
                Seen::Running(running) if !found.is_removed => {
                    let standing = self.remembered(uid, &found.pod, &running).await;
                    Observed::Present(facts(&found.pod, &running, standing))
                }
                other => observed(&found, &other),
            };
            (uid, seen)
        });
        stream::iter(looks)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await
    }

    async fn observe(&self, uid: Uid, found: &Found) -> Result<Observed, RuntimeError> {
        match look::seen(&found.pod, found.is_gone) {
            Seen::Running(running) if !found.is_removed => {
                let standing = self.standing(uid, &found.pod, &running).await?;
                Ok(Observed::Present(facts(&found.pod, &running, standing)))
            }
            Seen::Ended(ended) if ended.loss == Some(Loss::Removed) => {
                let loss = match self.is_node_lost(&found.pod).await {
                    true => Loss::NodeLost,
                    false => Loss::Removed,
                };
                let ended = Ended {
                    loss: Some(loss),
                    ..ended
                };
                Ok(observed(found, &Seen::Ended(ended)))
            }
            other => Ok(observed(found, &other)),
        }
    }

    /// Whether the node of a Pod is away. Not every cluster says so of the Pods that it removes then.
    async fn is_node_lost(&self, pod: &Pod) -> bool {
        let Some(name) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) else {
            return false;
        };
        match Api::<KubeNode>::all(self.client.clone())
            .get_opt(name)
            .await
        {
            Ok(None) => true,
            Ok(Some(node)) => {
                let conditions = node.status.and_then(|status| status.conditions);
                let ready = conditions.unwrap_or_default();
                let mut ready = ready.iter().filter(|condition| condition.type_ == "Ready");
                ready.any(|condition| condition.status != "True")
            }
            // What is not known is not said.
            Err(_) => false,
        }
    }

    /// What is remembered of a container, or else can be learnt, or else was noted.
    async fn remembered(&self, uid: Uid, pod: &Pod, running: &Running) -> Standing {
        let learnt = self.known.of(uid, &running.container_id);
        let is_frozen = learnt.frozen.unwrap_or_default() || self.may_be_frozen(pod, running);
        if let Some(epoch) = learnt.epoch {
            return Standing { epoch, is_frozen };
        }
        let asked = self.standing(uid, pod, running).await;
        asked.unwrap_or_else(|_| Standing {
            epoch: noted_epoch(pod, running),
            is_frozen,
        })
    }

    /// What only the agent or the node knows of a container that runs.
    pub(crate) async fn standing(
        &self,
        uid: Uid,
        pod: &Pod,
        running: &Running,
    ) -> Result<Standing, RuntimeError> {
        let id = &running.container_id;
        let learnt = self.known.of(uid, id);
        let asleep = || Standing {
            epoch: learnt.epoch.unwrap_or_else(|| noted_epoch(pod, running)),
            is_frozen: true,
        };
        if learnt.frozen == Some(true) || self.may_be_frozen(pod, running) {
            return Ok(asleep());
        }
        // Nothing was learnt yet: what sleeps would take long not to answer.
        if learnt.frozen.is_none() && self.is_frozen(pod, running).await == Ok(true) {
            self.known.frozen(uid, id, true);
            return Ok(asleep());
        }
        let agent = agent::client(&*self.keys, uid, pod, running.ip)?;
        let silence = match agent::delivery(&agent).await {
            Ok(delivery) => {
                let epoch = Epoch(delivery.epoch);
                self.known.armed(uid, id, epoch);
                self.known.frozen(uid, id, false);
                return Ok(Standing {
                    epoch,
                    is_frozen: false,
                });
            }
            Err(silence) => silence,
        };
        let Silence::Silent(_) = &silence else {
            return Err(silence.into());
        };
        match self.is_frozen(pod, running).await? {
            true => {
                self.known.frozen(uid, id, true);
                Ok(asleep())
            }
            false => Err(silence.into()),
        }
    }

    /// Whether a worker was sent to freeze a container that no daemon can be asked about. Until that is
    /// called off it counts as frozen, even if it still runs: who calls it off then ends the worker, which
    /// could freeze it at any moment.
    fn may_be_frozen(&self, pod: &Pod, running: &Running) -> bool {
        self.options.node.is_none() && look::is_held(pod, &running.container_id)
    }

    /// Whether a container is frozen, as its node says; not, where no node has that to say.
    async fn is_frozen(&self, pod: &Pod, running: &Running) -> Result<bool, RuntimeError> {
        // Who only asks has no order to give.
        match self.node_of(pod, running, Rank::default()) {
            Some((node, target)) => node.is_frozen(&target).await,
            None => Ok(false),
        }
    }

    /// The daemon that can freeze a container, and what it calls it.
    pub(crate) fn node_of<'a>(
        &'a self,
        pod: &Pod,
        running: &Running,
        rank: Rank,
    ) -> Option<(Node<'a>, Target)> {
        let daemon = self.options.node.as_ref()?;
        let node = Node {
            daemon,
            at: running.node?,
            tasks: &self.tasks,
        };
        let pod_uid = pod.metadata.uid.as_deref()?;
        let target = Target {
            pod_uid: pod_uid.into(),
            container: names::SANDBOX.into(),
            container_id: running.container_id.clone(),
            rank,
        };
        Some((node, target))
    }

    /// A workload whose container runs, or why a call on it makes no sense.
    pub(crate) fn running(&self, uid: Uid) -> Result<(Arc<Pod>, Running), RuntimeError> {
        let found = self.pods.find(uid).ok_or(RuntimeError::Absent(uid))?;
        let wrong = |state, needs| RuntimeError::WrongState { uid, state, needs };
        if found.is_removed {
            return Err(wrong("being removed", "delete it"));
        }
        match look::seen(&found.pod, found.is_gone) {
            Seen::Running(running) => Ok((found.pod, running)),
            Seen::Coming(_) => Err(wrong("being made", "create it")),
            Seen::Swapping(_) => Err(wrong("between images", "swap its images")),
            Seen::Ended(_) => Err(wrong("exited", "delete it")),
        }
    }
}

fn noted_epoch(pod: &Pod, running: &Running) -> Epoch {
    Epoch(look::armed(pod, &running.container_id).unwrap_or_default())
}

/// What is seen of a Pod whose container does not run.
fn observed(found: &Found, seen: &Seen) -> Observed {
    let pod = &found.pod;
    match seen {
        _ if found.is_removed => Observed::Partial,
        Seen::Coming(_) => Observed::Coming,
        // It runs no image now: asking for the swap once more waits for it.
        Seen::Swapping(_) => Observed::Present(Facts {
            images: StringMap::new(),
            booted: false,
            ..bare(pod, WorkloadState::Running)
        }),
        Seen::Ended(Ended {
            code,
            out_of_memory,
            loss,
        }) => Observed::Present(Facts {
            oom_kills: (*out_of_memory).into(),
            loss: *loss,
            ..bare(pod, WorkloadState::Exited { code: *code })
        }),
        Seen::Running(running) => {
            let standing = Standing {
                epoch: noted_epoch(pod, running),
                is_frozen: false,
            };
            Observed::Present(facts(pod, running, standing))
        }
    }
}

fn bare(pod: &Pod, state: WorkloadState) -> Facts {
    Facts {
        state,
        epoch: Epoch::default(),
        booted: true,
        container_id: "".into(),
        images: look::images(pod),
        digests: look::digests(pod),
        hooked: None,
        layer: look::layer(pod),
        network: look::network(pod),
        address: Address {
            via: Via::Pod,
            ip: None,
        },
        oom_kills: 0,
        loss: None,
    }
}

/// What is seen of a Pod whose container runs.
pub(crate) fn facts(pod: &Pod, running: &Running, standing: Standing) -> Facts {
    let state = match standing.is_frozen {
        true => WorkloadState::Frozen,
        false => WorkloadState::Running,
    };
    Facts {
        epoch: standing.epoch,
        booted: look::is_booted(pod, &running.container_id),
        container_id: running.container_id.clone(),
        hooked: look::hooked(pod, &running.container_id),
        address: Address {
            via: Via::Pod,
            ip: Some(running.ip.to_string().into()),
        },
        ..bare(pod, state)
    }
}
