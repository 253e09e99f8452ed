//! Captures by a worker on the sandbox's own node: a Job that freezes, captures, pushes and reports.
//!
//! ```text
//!            mark            Job                  report                     Pod removed
//!  running ───────▶ marked ───────▶ frozen, pushed ───────▶ frozen, durable ─────────────▶
//!                     ▲                 │ failed, killed, late
//!                     └───── thaw ◀─────┘   (by the worker itself, by another Job, or by the daemon)
//! ```
//!
//! The mark is an annotation of the Pod, written before there is a Job: a Pod that carries it for the
//! container that it has now may be frozen, or may be at any moment, whoever died since. It goes only
//! after a thaw, so nothing stays frozen that nobody knows of.
//!
//! A Job is named after all that makes an order what it is: the container, where its layer goes and by
//! which Secret, and the rank of the call. Whoever asks for the same joins it, or hears what it said; so
//! does this process when it asks once more by a newer call, because nobody else has spoken since. All
//! other workers of a sandbox end before one is sent, and before it is thawed: there are never two, and
//! one that is late cannot freeze what was thawed. Those of a newer call are left alone: who finds one is
//! stale itself. The rank goes with the worker to the node, which refuses it once a newer one was heard.
//!
//! | Module | What it holds |
//! |---|---|
//! | `job` | the Job and its Secret: pure |
//! | `mark` | what is noted on a Pod that may be frozen |
//! | `watch` | waiting for a Job, and what its Pod said last |

mod job;
mod mark;
mod watch;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ::runtime::{Captured, Fence, Publication, RuntimeError, node::Report};
use cluster_kube::Cluster;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use model::Uid;
use parking_lot::Mutex;

use crate::{
    error::{code, failed},
    look,
    pods::Pods,
};
use job::Errand;
pub(crate) use mark::{HELD, Held};

/// How workers are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Dormouse's own image.
    pub image: Box<str>,
    /// When it is pulled.
    pub pull_policy: Box<str>,
    /// containerd's socket on every node.
    pub containerd_socket: Box<str>,
    /// Where containerd keeps images and containers on every node.
    pub containerd_root: Box<str>,
    /// Where layers go that nobody names a registry for.
    pub registry: Option<Box<str>>,
    /// The Secret for pushing there, in Dormouse's own namespace.
    pub registry_secret: Option<Box<str>>,
    /// Registries that may be spoken to without TLS, by host and port.
    pub insecure_registries: Vec<Box<str>>,
    /// How long a capture may take.
    pub deadline: Duration,
}

impl Options {
    /// The usual choices, with this image of Dormouse's.
    #[must_use]
    pub fn new(image: &str) -> Self {
        Self {
            image: image.into(),
            pull_policy: "IfNotPresent".into(),
            containerd_socket: "/run/containerd/containerd.sock".into(),
            containerd_root: "/var/lib/containerd".into(),
            registry: None,
            registry_secret: None,
            insecure_registries: Vec::new(),
            deadline: Duration::from_secs(1800),
        }
    }
}

/// Whom a worker is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) fence: Fence,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
    pub(crate) node: String,
    pub(crate) container_id: String,
}

/// The workers of a cluster. Clones share what they have under way.
#[derive(Clone, Debug)]
pub struct Commits {
    cluster: Cluster,
    options: Options,
    pods: Pods,
    /// The Job that this process last sent for a capture of each sandbox, and what for.
    under_way: Arc<Mutex<BTreeMap<Uid, Sent>>>,
}

#[derive(Clone, Debug)]
struct Sent {
    order: String,
    job: String,
}

impl Commits {
    /// Workers in Dormouse's own namespace of a cluster, for these Pods.
    pub(crate) fn new(cluster: Cluster, options: Options, pods: Pods) -> Self {
        Self {
            cluster,
            options,
            pods,
            under_way: Arc::default(),
        }
    }

    /// Whether layers have a place that nobody names one for.
    #[must_use]
    pub const fn has_registry(&self) -> bool {
        self.options.registry.is_some()
    }

    /// Captures a sandbox, freezing it first if it runs. It is left frozen and marked.
    pub(crate) async fn capture(
        &self,
        subject: &Subject,
        to: Option<&Publication>,
    ) -> Result<Captured, RuntimeError> {
        let (registry, login) = self.place(subject, to).await?;
        self.mark(subject, true).await?;
        let secret = login.as_ref().map(identity);
        let errand = Errand::Capture {
            registry: &registry,
            login: secret.as_deref(),
        };
        match self.send(subject, errand, login).await? {
            Report::Captured {
                layer,
                size,
                parent,
                image,
            } => Ok(Captured {
                digest: layer,
                size,
                parent,
                published: Some(image),
            }),
            Report::Thawed => Err(RuntimeError::Failed("the worker has thawed it".into())),
            Report::Failed {
                error,
                retry,
                field,
                frozen,
            } => {
                self.end(subject).await?;
                if !frozen {
                    self.mark(subject, false).await?;
                }
                Err(why(error, retry, field.as_deref()))
            }
        }
    }

    /// Lets a sandbox go on, where there is no daemon for that. Other workers end first.
    pub(crate) async fn thaw(&self, subject: &Subject) -> Result<(), RuntimeError> {
        // What an earlier one said is not about now.
        self.end(subject).await?;
        let report = self.send(subject, Errand::Thaw, None).await;
        if let Err(error) = self.forget(&Errand::Thaw.name(subject)).await {
            tracing::debug!(%error, "a worker that is done stays for a while");
        }
        match report? {
            Report::Thawed => self.mark(subject, false).await,
            // There is nothing to go on with.
            Report::Failed { frozen: false, .. } => self.mark(subject, false).await,
            Report::Failed { error, .. } => Err(RuntimeError::Failed(error)),
            Report::Captured { .. } => Err(RuntimeError::Failed("the worker captured it".into())),
        }
    }

    /// Ends what may be under way, and waits until its workers are gone: whoever thaws by other means
    /// does this first, and [`Commits::mark`] after.
    pub(crate) async fn end(&self, subject: &Subject) -> Result<(), RuntimeError> {
        self.left(subject.fence.uid);
        self.clear(subject, None).await
    }

    /// Forgets what was sent to a sandbox that is gone.
    pub(crate) fn left(&self, uid: Uid) {
        self.under_way.lock().remove(&uid);
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.cluster.client(), self.cluster.namespace())
    }

    /// Those of workers.
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), self.cluster.namespace())
    }

    /// Where a layer goes, and the Secret that lets it in: the sandbox's own, of its own namespace, or
    /// Dormouse's.
    async fn place(
        &self,
        subject: &Subject,
        to: Option<&Publication>,
    ) -> Result<(Box<str>, Option<Secret>), RuntimeError> {
        let (registry, secret, namespace) = match (to, &self.options.registry) {
            (Some(to), _) => {
                let secret = to.secret.as_ref().map(|name| name.as_str().to_owned());
                (to.registry.clone(), secret, subject.namespace.as_str())
            }
            (None, Some(registry)) => {
                let secret = self
                    .options
                    .registry_secret
                    .as_deref()
                    .map(ToOwned::to_owned);
                (registry.clone(), secret, self.cluster.namespace())
            }
            (None, None) => {
                return Err(RuntimeError::Impossible {
                    field: "snapshotRegistry",
                    reason: "Pods keep no layers: name a registry in \
                             spec.pausePolicy.snapshotRegistry, or for all of them in \
                             kubernetes.snapshot_registry"
                        .into(),
                });
            }
        };
        let Some(name) = secret else {
            return Ok((registry, None));
        };
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client(), namespace);
        let found = secrets.get_opt(&name).await;
        match found.map_err(|error| failed("read the Secret for pushing", &error))? {
            Some(secret) => Ok((registry, Some(secret))),
            None => Err(RuntimeError::Impossible {
                field: "snapshotPushSecretName",
                reason: format!("there is no Secret {name} in {namespace}").into(),
            }),
        }
    }

    /// Has a worker run, or joins the one that runs, and waits for what it says.
    async fn send(
        &self,
        subject: &Subject,
        errand: Errand<'_>,
        login: Option<Secret>,
    ) -> Result<Report, RuntimeError> {
        let (uid, order) = (subject.fence.uid, errand.order(subject));
        let job = self.job_for(subject, errand, &order).await?;
        let name = job.name_any();
        if let Errand::Capture { .. } = errand {
            let sent = Sent { order, job: name };
            self.under_way.lock().insert(uid, sent);
        }
        if let Some(login) = login {
            let secret = job::secret(&job, login)?;
            let secrets = Api::namespaced(self.cluster.client(), self.cluster.namespace());
            match secrets.create(&PostParams::default(), &secret).await {
                Ok(Secret { .. }) => {}
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => return Err(failed("hand over the Secret for pushing", &error)),
            }
        }
        match watch::report(&self.jobs(), &self.pods(), &job).await? {
            Some(report) => Ok(report),
            None => {
                self.left(uid);
                self.remove(&job).await?;
                let why =
                    "the worker on its node ended without a word: it was killed, or its node was";
                Err(RuntimeError::Failed(why.into()))
            }
        }
    }

    /// The Job of an errand: the one that there is, or a new one. No other is left.
    async fn job_for(
        &self,
        subject: &Subject,
        errand: Errand<'_>,
        order: &str,
    ) -> Result<Job, RuntimeError> {
        let sent = self.under_way.lock().get(&subject.fence.uid).cloned();
        let sent = sent.filter(|sent| sent.order == *order).map(|it| it.job);
        if let Some(sent) = sent
            && let Some(job) = self.find(&sent).await?
        {
            self.clear(subject, Some(&job)).await?;
            return Ok(job);
        }
        let wanted = job::job(subject, errand, self.cluster.namespace(), &self.options)?;
        loop {
            let found = self.find(&wanted.name_any()).await?;
            self.clear(subject, found.as_ref()).await?;
            if let Some(found) = found {
                return Ok(found);
            }
            match self.jobs().create(&PostParams::default(), &wanted).await {
                Ok(made) => return Ok(made),
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => return Err(failed("start a worker", &error)),
            }
        }
    }

    /// A Job that is not on its way out.
    async fn find(&self, name: &str) -> Result<Option<Job>, RuntimeError> {
        let found = self.jobs().get_opt(name).await;
        let found = found.map_err(|error| failed("find a worker", &error))?;
        Ok(found.filter(|job| job.metadata.deletion_timestamp.is_none()))
    }

    /// Ends every worker of a sandbox but one, and waits until they are gone.
    async fn clear(&self, subject: &Subject, keep: Option<&Job>) -> Result<(), RuntimeError> {
        let fence = subject.fence;
        let keep = keep.and_then(|job| job.uid());
        let of = ListParams::default().labels(&job::selector(fence.uid));
        let listed = self.jobs().list(&of).await;
        let listed = listed.map_err(|error| failed("look for workers", &error))?;
        let others = || listed.items.iter().filter(|job| job.uid() != keep);
        if others().any(|job| look::rank_of(&job.metadata) > fence.into()) {
            return Err(RuntimeError::Stale(fence));
        }
        for job in others().filter(|job| job.metadata.deletion_timestamp.is_none()) {
            self.remove(job).await?;
        }
        watch::gone(&self.jobs(), &self.pods(), &of, keep.as_deref()).await
    }

    async fn forget(&self, name: &str) -> Result<(), RuntimeError> {
        match self.find(name).await? {
            Some(job) => self.remove(&job).await,
            None => Ok(()),
        }
    }

    /// Removes a Job, with its Pod and its Secret. One that runs is told to stop, and undoes what it did.
    async fn remove(&self, job: &Job) -> Result<(), RuntimeError> {
        let exactly = DeleteParams::foreground().preconditions(Preconditions {
            uid: job.uid(),
            resource_version: None,
        });
        match self.jobs().delete(&job.name_any(), &exactly).await {
            Ok(_) => Ok(()),
            // Whether it is gone is looked at: 409 has more than one reason.
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(failed("end a worker", &error)),
        }
    }
}

/// Which Secret it is, for who compares orders.
fn identity(secret: &Secret) -> String {
    let namespace = secret.namespace().unwrap_or_default();
    format!("{namespace}/{}", secret.name_any())
}

/// What a worker's failure is to whoever asked.
fn why(error: Box<str>, retry: bool, field: Option<&str>) -> RuntimeError {
    let field = match (retry, field) {
        (false, Some("snapshotRegistry")) => "snapshotRegistry",
        (false, Some(_)) => "snapshot",
        (_, _) => return RuntimeError::Failed(error),
    };
    RuntimeError::Impossible {
        field,
        reason: error,
    }
}

#[cfg(test)]
mod tests;
