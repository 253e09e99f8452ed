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
//! container that it has now may be frozen, whoever died since. It goes only after a thaw, so nothing
//! stays frozen that nobody knows of.
//!
//! One container has one Job at a time, by its name. Whoever asks again joins it, or hears what it said.
//! A thaw first ends it, and waits until it is gone: a worker that is late cannot freeze what was thawed.
//!
//! | Module | What it holds |
//! |---|---|
//! | `job` | the Job and its Secret: pure |
//! | `watch` | waiting for a Job, and what its Pod said last |

mod job;
mod watch;

use std::time::Duration;

use ::runtime::{Captured, Publication, RuntimeError, node::Report};
use cluster_kube::Cluster;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use model::Uid;
use serde_json::json;

use crate::error::{code, failed};
use job::Errand;

/// The container that a Pod may be frozen for: see the module.
pub(crate) const HELD: &str = "dormouse.dev/held";

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
    pub(crate) uid: Uid,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
    pub(crate) node: String,
    pub(crate) container_id: String,
}

/// The workers of a cluster.
#[derive(Clone, Debug)]
pub struct Commits {
    cluster: Cluster,
    options: Options,
}

impl Commits {
    /// Workers in Dormouse's own namespace of a cluster.
    #[must_use]
    pub const fn new(cluster: Cluster, options: Options) -> Self {
        Self { cluster, options }
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
        let errand = Errand::Capture {
            registry: &registry,
            login: login.is_some(),
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
                self.forget(&errand.name(subject)).await?;
                if !frozen {
                    self.mark(subject, false).await?;
                }
                Err(why(error, retry, field.as_deref()))
            }
        }
    }

    /// Lets a sandbox go on, where there is no daemon for that. Captures of it end first.
    pub(crate) async fn thaw(&self, subject: &Subject) -> Result<(), RuntimeError> {
        self.end(subject).await?;
        let errand = Errand::Thaw;
        let name = errand.name(subject);
        // What an earlier one said is not about now.
        self.forget(&name).await?;
        watch::gone(&self.jobs(), &self.pods(), &name).await?;
        let report = self.send(subject, errand, None).await;
        if let Err(error) = self.forget(&name).await {
            tracing::debug!(%error, name, "a worker that is done stays for a while");
        }
        match report? {
            Report::Thawed => self.mark(subject, false).await,
            // There is nothing to go on with.
            Report::Failed { frozen: false, .. } => self.mark(subject, false).await,
            Report::Failed { error, .. } => Err(RuntimeError::Failed(error)),
            Report::Captured { .. } => Err(RuntimeError::Failed("the worker captured it".into())),
        }
    }

    /// Ends a capture that may be under way, and waits until its worker is gone: whoever thaws by other
    /// means does this first, and [`Commits::mark`] after.
    pub(crate) async fn end(&self, subject: &Subject) -> Result<(), RuntimeError> {
        let errand = Errand::Capture {
            registry: "",
            login: false,
        };
        let name = errand.name(subject);
        self.forget(&name).await?;
        watch::gone(&self.jobs(), &self.pods(), &name).await
    }

    /// Notes on a Pod that its container may be frozen, or that it is not.
    pub(crate) async fn mark(&self, subject: &Subject, held: bool) -> Result<(), RuntimeError> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), &subject.namespace);
        let value = held.then_some(subject.container_id.as_str());
        let patch = json!({"metadata": {"uid": subject.pod_uid, "annotations": {HELD: value}}});
        let patched = pods
            .patch(&subject.pod, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        match patched {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(404) => Err(RuntimeError::Absent(subject.uid)),
            Err(error) => Err(failed("note that it may be frozen", &error)),
        }
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.cluster.client(), self.cluster.namespace())
    }

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
        let name = errand.name(subject);
        let wanted = job::job(subject, errand, self.cluster.namespace(), &self.options)?;
        let made = loop {
            let made = self.jobs().create(&PostParams::default(), &wanted).await;
            match made {
                Ok(made) => break made,
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => return Err(failed("start a worker", &error)),
            }
            let found = self.jobs().get_opt(&name).await;
            match found.map_err(|error| failed("find a worker", &error))? {
                Some(found) if found.metadata.deletion_timestamp.is_none() => break found,
                // One that ends is waited for, so that there are never two.
                Some(_) => watch::gone(&self.jobs(), &self.pods(), &name).await?,
                None => {}
            }
        };
        if let Some(login) = login {
            let secret = job::secret(&made, login)?;
            let secrets = Api::namespaced(self.cluster.client(), self.cluster.namespace());
            match secrets.create(&PostParams::default(), &secret).await {
                Ok(Secret { .. }) => {}
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => return Err(failed("hand over the Secret for pushing", &error)),
            }
        }
        let uid = made.uid().unwrap_or_default();
        match watch::report(&self.jobs(), &self.pods(), &name, &uid).await? {
            Some(report) => Ok(report),
            None => {
                self.forget(&name).await?;
                let why =
                    "the worker on its node ended without a word: it was killed, or its node was";
                Err(RuntimeError::Failed(why.into()))
            }
        }
    }

    /// Removes a Job, with its Pod and its Secret. One that runs is told to stop, and undoes what it did.
    async fn forget(&self, name: &str) -> Result<(), RuntimeError> {
        let found = self.jobs().get_opt(name).await;
        let found = found.map_err(|error| failed("find a worker", &error))?;
        let Some(uid) = found.and_then(|job| job.metadata.uid) else {
            return Ok(());
        };
        let exactly = DeleteParams::foreground().preconditions(Preconditions {
            uid: Some(uid),
            resource_version: None,
        });
        match self.jobs().delete(name, &exactly).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(failed("end a worker", &error)),
        }
    }
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
