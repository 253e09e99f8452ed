//! Events of Kubernetes (core/v1): what `kubectl describe` shows below an object.
//!
//! They are for people and may be lost: recording never waits, a queue that is full drops and counts,
//! and one writer sends no more than a few a second. The same thing happening to the same object again
//! is the same Event with a higher count. Its name says which, so a writer that starts anew counts on.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff,
};
use kit::{Clock, Tasks};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::{Cluster, Reason};

const QUEUED: usize = 1024;
/// The shortest time between two requests.
const PACE: Duration = Duration::from_millis(100);
/// So many are remembered with their counts.
const REMEMBERED: usize = 4096;
/// Where those of objects without a namespace are.
const DEFAULT_NAMESPACE: &str = "default";

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Happening {
    /// To an object of this kind,
    pub kind: String,
    /// of this group and version,
    pub api_version: String,
    /// in this namespace,
    pub namespace: Option<String>,
    /// of this name
    pub name: String,
    /// and identity.
    pub uid: String,
    /// Whether a person should look.
    pub is_warning: bool,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// A number that the same happening to the same object has again.
    pub fingerprint: u64,
}

/// Takes what happened, and never waits.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<(Happening, i64)>,
    clock: Arc<dyn Clock>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Starts the writer. `component` is who reports.
    #[must_use]
    pub fn start(cluster: &Cluster, component: &str, clock: Arc<dyn Clock>, tasks: &Tasks) -> Self {
        let (queue, mut waiting) = mpsc::channel(QUEUED);
        let stop = tasks.stopping().clone();
        let mut writer = Writer {
            // Nobody waits for it.
            client: cluster.background().client(),
            component: component.to_owned(),
            known: BTreeMap::new(),
        };
        tasks.spawn(async move {
            let mut next = Instant::now();
            loop {
                let (happening, at) = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    taken = waiting.recv() => match taken {
                        Some(taken) => taken,
                        None => return,
                    },
                };
                sleep_until(next).await;
                next = Instant::now() + PACE;
                if let Err(error) = writer.write(&happening, at).await {
                    tracing::debug!(%error, "an Event was not written");
                }
            }
        });
        Self {
            queue,
            clock,
            dropped: Arc::default(),
        }
    }

    /// Takes one.
    pub fn record(&self, happening: Happening) {
        if self
            .queue
            .try_send((happening, self.clock.wall_micros()))
            .is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many found the queue full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

struct Writer {
    client: Client,
    component: String,
    /// How often each was written, by namespace and name.
    known: BTreeMap<(String, String), i32>,
}

impl Writer {
    async fn write(&mut self, what: &Happening, at: i64) -> Result<(), kube::Error> {
        let namespace = what.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        let name = format!("{:.200}.{:016x}", what.name, what.fingerprint);
        let place = (namespace.to_owned(), name.clone());
        let mut count = self.known.get(&place).copied();
        if count.is_none() {
            let event = self.fresh(what, &name, namespace, at);
            match api.create(&PostParams::default(), &event).await {
                Ok(_) => count = Some(0),
                // Of a writer before this one. To change is allowed, to read is not needed for it.
                Err(kube::Error::Api(status)) if Reason::of(&status) == Reason::AlreadyExists => {
                    let again = Patch::Merge(json!({"lastTimestamp": time(at)}));
                    let known = api.patch(&name, &PatchParams::default(), &again).await?;
                    count = known.count;
                }
                Err(error) => return Err(error),
            }
        }
        let count = count.unwrap_or_default().saturating_add(1);
        if count > 1 {
            let again = json!({"count": count, "lastTimestamp": time(at)});
            let patched = api
                .patch(&name, &PatchParams::default(), &Patch::Merge(again))
                .await;
            match patched {
                Ok(_) => {}
                // The cluster has forgotten it: the next one is a first one.
                Err(kube::Error::Api(status)) if Reason::of(&status) == Reason::NotFound => {
                    self.known.remove(&place);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(place, count);
        Ok(())
    }

    fn fresh(&self, what: &Happening, name: &str, namespace: &str, at: i64) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(what.api_version.clone()),
                kind: Some(what.kind.clone()),
                namespace: what.namespace.clone(),
                name: Some(what.name.clone()),
                uid: Some(what.uid.clone()),
                ..ObjectReference::default()
            },
            type_: Some(if what.is_warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(what.reason.clone()),
            message: Some(what.message.clone()),
            count: Some(1),
            first_timestamp: time(at),
            last_timestamp: time(at),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: None,
            }),
            ..Event::default()
        }
    }
}

fn time(micros: i64) -> Option<Time> {
    // Events are dated by the second.
    jiff::Timestamp::from_second(micros.div_euclid(1_000_000))
        .ok()
        .map(Time)
}
