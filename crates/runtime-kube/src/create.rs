//! Making Pods, and waiting until they are there.

use std::sync::Arc;

use ::runtime::{Facts, Fence, IMAGES, RuntimeError, WorkloadSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use model::Uid;
use tokio::time::Instant;

use crate::{
    agent::{self, Start},
    error::{code, failed, refused},
    inspect::{Standing, facts},
    look::{self, Running, Seen, Waiting},
    names,
    pod::{self, Place},
    pods::Found,
    runtime::Engine,
};

/// Whether a Pod was made or changed just now. One that was there before may be frozen, or know
/// trouble that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    New,
    Old,
}

/// Why a Pod did not come to run.
pub(crate) enum NotRunning {
    /// It may still: whoever asks again waits for it.
    Yet(RuntimeError),
    /// It never will.
    Ever(RuntimeError),
}

impl From<NotRunning> for RuntimeError {
    fn from(why: NotRunning) -> Self {
        match why {
            NotRunning::Yet(error) | NotRunning::Ever(error) => error,
        }
    }
}

impl Engine {
    pub(crate) async fn create(
        &self,
        fence: Fence,
        spec: &WorkloadSpec,
    ) -> Result<Facts, RuntimeError> {
        let _turn = self.known.enter(fence).await?;
        let place = Place::of(spec.of.as_deref(), fence, &self.own);
        let start = Start::fresh(&*self.keys, fence.uid);
        let wanted = pod::pod(fence, spec, &place, &start, &self.options)?;
        if let Some(found) = self.pods.find(fence.uid) {
            match self.fits(fence, spec, &found)? {
                true => return self.come(fence, &found.pod, Arrival::Old).await,
                // What was begun for an older decision.
                false => self.remove_pod(fence.uid, &found).await?,
            }
        }
        self.apply_network(fence, &place, spec.network.as_deref())
            .await?;
        let made = self.make(fence, &wanted).await?;
        self.come(fence, &made, Arrival::New).await
    }

    /// Whether a Pod that is there already is what is asked for, or can become it.
    fn fits(&self, fence: Fence, spec: &WorkloadSpec, found: &Found) -> Result<bool, RuntimeError> {
        let wrong = |state| RuntimeError::WrongState {
            uid: fence.uid,
            state,
            needs: "delete it",
        };
        if look::is_stale(&found.pod, fence) {
            return Err(RuntimeError::Stale(fence));
        }
        if found.is_removed {
            return Err(wrong("being removed"));
        }
        match look::seen(&found.pod, found.is_gone) {
            Seen::Ended(_) => Err(wrong("exited")),
            Seen::Running(_) | Seen::Swapping(_) => Ok(true),
            Seen::Coming(_) => {
                let is_same = look::layer(&found.pod) == spec.from
                    && look::images(&found.pod) == spec.images
                    && look::network(&found.pod) == spec.network;
                Ok(is_same)
            }
        }
    }

    /// Has the cluster make a Pod, or finds that it has.
    pub(crate) async fn make(&self, fence: Fence, wanted: &Pod) -> Result<Arc<Pod>, RuntimeError> {
        let (namespace, name) = named(wanted);
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let mut marked = wanted.clone();
        let mark = self.keys.mark(fence.uid, namespace, name).into();
        let notes = marked.metadata.annotations.get_or_insert_default();
        notes.insert(names::MARK.to_owned(), mark);
        let error = match api.create(&PostParams::default(), &marked).await {
            Ok(made) => return Ok(self.pods.wrote(made)),
            Err(error) => error,
        };
        match code(&error) {
            Some(409) => {}
            Some(404) => {
                let reason = format!("namespace {namespace} does not exist");
                return Err(RuntimeError::Failed(reason.into()));
            }
            Some(_) | None => return Err(refused("make a Pod", &error)),
        }
        // The last try was taken after all, or somebody else has the name.
        let there = api.get_opt(name).await;
        let there = there.map_err(|error| failed("read a Pod", &error))?;
        match there {
            Some(there) if self.pods.is_marked(fence.uid, &there) => Ok(self.pods.wrote(there)),
            Some(_) => {
                let why = format!("another Pod is called {namespace}/{name}");
                Err(RuntimeError::Failed(why.into()))
            }
            None => Err(failed("make a Pod", &error)),
        }
    }

    /// Waits until a Pod is there, with an agent that answers.
    pub(crate) async fn come(
        &self,
        fence: Fence,
        pod: &Arc<Pod>,
        arrival: Arrival,
    ) -> Result<Facts, RuntimeError> {
        let uid = fence.uid;
        let until = Instant::now() + self.options.start_timeout;
        let identity = pod.metadata.uid.clone();
        let (pod, running) = match self.comes(uid, identity, None, Arrival::New, until).await {
            Ok(it) => it,
            Err(NotRunning::Yet(error)) => return Err(error),
            Err(NotRunning::Ever(error)) => {
                // The next try is another Pod's: this one would only wait longer and longer.
                if let Some(found) = self.pods.find(uid) {
                    self.remove_pod(uid, &found).await?;
                }
                return Err(error);
            }
        };
        let standing = match arrival {
            Arrival::Old => self.standing(uid, &pod, &running).await.ok(),
            Arrival::New => None,
        };
        let standing = match standing {
            Some(standing) => standing,
            // It need not listen yet.
            None => {
                let agent = agent::client(&*self.keys, uid, &pod, running.ip)?;
                let delivery = agent::answers(&agent, until).await?;
                Standing {
                    epoch: model::Epoch(delivery.epoch),
                    is_frozen: false,
                }
            }
        };
        self.known.armed(uid, &running.container_id, standing.epoch);
        self.known
            .frozen(uid, &running.container_id, standing.is_frozen);
        Ok(facts(&pod, &running, standing))
    }

    /// Waits until the container of a Pod runs that is not `last`. What keeps it from that ends the
    /// wait, unless that is known already and this waits for it to pass.
    pub(crate) async fn comes(
        &self,
        uid: Uid,
        identity: Option<String>,
        last: Option<&str>,
        arrival: Arrival,
        until: Instant,
    ) -> Result<(Arc<Pod>, Running), NotRunning> {
        let mut waits = Waiting::Nothing;
        let came = self
            .pods
            .wait(uid, until, |found| {
                let Some(found) = found.filter(|found| found.pod.metadata.uid == identity) else {
                    let why = RuntimeError::Failed("its Pod was removed".into());
                    return Some(Err(NotRunning::Yet(why)));
                };
                match look::seen(&found.pod, found.is_gone) {
                    Seen::Running(running) if last != Some(&*running.container_id) => {
                        Some(Ok((Arc::clone(&found.pod), running)))
                    }
                    Seen::Running(_) => None,
                    Seen::Ended(ended) => {
                        let why = match ended.loss {
                            Some(loss) => loss.message().to_owned(),
                            None => format!("its first process ended with code {}", ended.code),
                        };
                        Some(Err(NotRunning::Yet(RuntimeError::Failed(why.into()))))
                    }
                    Seen::Coming(waiting) | Seen::Swapping(waiting) => {
                        let is_over = has_failed(&found.pod);
                        waits = waiting;
                        let hopeless = hopeless(&waits, is_over);
                        hopeless.filter(|_| arrival == Arrival::New).map(Err)
                    }
                }
            })
            .await;
        came.unwrap_or_else(|| {
            let late = |what: &str| format!("its Pod did not start in time: {what}").into();
            Err(NotRunning::Yet(match waits {
                Waiting::NoRoom(why) => RuntimeError::NoRoom(why),
                Waiting::Nothing => RuntimeError::Failed(late("it is on its way")),
                Waiting::Pull(why) => RuntimeError::Pull(why),
                Waiting::Image(why) | Waiting::Broken(why) => RuntimeError::Failed(late(&why)),
            }))
        })
    }
}

/// Whether what a container waits for cannot be had without another Pod.
fn hopeless(waiting: &Waiting, is_over: bool) -> Option<NotRunning> {
    Some(NotRunning::Ever(match waiting {
        Waiting::Nothing => return None,
        Waiting::NoRoom(_) if !is_over => return None,
        Waiting::NoRoom(why) => RuntimeError::NoRoom(why.clone()),
        Waiting::Pull(why) => RuntimeError::Pull(why.clone()),
        Waiting::Image(why) => RuntimeError::Impossible {
            field: IMAGES,
            reason: why.clone(),
        },
        Waiting::Broken(why) => RuntimeError::Failed(why.clone()),
    }))
}

fn has_failed(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Failed")
}

/// The namespace and name of a Pod.
pub(crate) fn named(pod: &Pod) -> (&str, &str) {
    (
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.name.as_deref().unwrap_or_default(),
    )
}
