//! The Job of a worker, and the Secret that it pushes with.

use ::runtime::{RuntimeError, node::Rank};
use k8s_openapi::api::{batch::v1::Job, core::v1::Secret};
use kube::ResourceExt as _;
use model::Uid;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Options, Subject};
use crate::{names, pod};

/// What the command of a worker is called in Dormouse's image.
const COMMAND: &str = "commit";
/// What a Job's Pods are told apart from sandboxes by.
const WORKER: &str = "worker";
/// The sandbox that a worker is sent to.
const OF: &str = "dormouse.dev/of";
/// The container of a worker's Pod.
pub(super) const CONTAINER: &str = "commit";
/// The key of a Secret that holds Docker's configuration.
const DOCKER_CONFIG: &str = ".dockerconfigjson";
/// How long a Job is kept that nobody has asked about.
const KEPT_SECONDS: u32 = 600;
/// How long a worker has to undo what it did.
const GRACE_SECONDS: u32 = 30;

/// What a worker is sent for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Errand<'a> {
    /// To capture a sandbox.
    Capture {
        /// Where its layer goes.
        registry: &'a str,
        /// The Secret that lets it in, by namespace and name.
        login: Option<&'a str>,
    },
    /// To let one go on.
    Thaw,
}

impl Errand<'_> {
    const fn word(&self) -> &'static str {
        match self {
            Self::Capture { .. } => "commit",
            Self::Thaw => "thaw",
        }
    }

    /// What is wanted, whoever asks for it: the same text for the same.
    pub(super) fn order(&self, subject: &Subject) -> String {
        let (registry, login) = match *self {
            Self::Capture { registry, login } => (registry, login.unwrap_or_default()),
            Self::Thaw => ("", ""),
        };
        let (word, container) = (self.word(), &subject.container_id);
        json!([word, container, subject.pod_uid, registry, login]).to_string()
    }

    /// The name of its Job: the same for the same call that wants the same.
    pub(super) fn name(&self, subject: &Subject) -> String {
        let mut hash = Sha256::new();
        hash.update(Rank::from(subject.fence).to_string());
        hash.update([0]);
        hash.update(self.order(subject));
        let start: String = hash.finalize()[..5]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{}-{}-{start}", self.word(), subject.fence.uid)
    }
}

/// What the workers of a sandbox are found by, and their Pods.
pub(super) fn selector(uid: Uid) -> String {
    format!("{}={WORKER},{OF}={uid}", names::COMPONENT)
}

/// The Job of an errand.
pub(super) fn job(
    subject: &Subject,
    errand: Errand<'_>,
    namespace: &str,
    options: &Options,
) -> Result<Job, RuntimeError> {
    let name = errand.name(subject);
    let socket = &options.containerd_socket;
    let mut words = vec![
        COMMAND.to_owned(),
        format!("--container-id={}", subject.container_id),
        format!("--pod-uid={}", subject.pod_uid),
        format!("--rank={}", Rank::from(subject.fence)),
        format!("--containerd-socket={socket}"),
    ];
    let mut volumes = vec![
        json!({"name": "socket", "hostPath": {"path": socket, "type": "Socket"}}),
        json!({"name": "scratch", "emptyDir": {}}),
    ];
    let mut mounts = vec![
        json!({"name": "socket", "mountPath": socket}),
        json!({"name": "scratch", "mountPath": "/scratch"}),
    ];
    // Files of any user are read, and the attributes by which overlayfs keeps its books.
    let mut capabilities: &[&str] = &[];
    match errand {
        Errand::Thaw => words.push("--thaw".into()),
        Errand::Capture { registry, login } => {
            capabilities = &["DAC_READ_SEARCH", "SYS_ADMIN"];
            words.push(format!("--registry={registry}"));
            words.push("--scratch=/scratch".into());
            let insecure = options.insecure_registries.iter();
            words.extend(insecure.map(|host| format!("--insecure-registry={host}")));
            let root = &options.containerd_root;
            volumes.push(json!({"name": "root", "hostPath": {"path": root, "type": "Directory"}}));
            mounts.push(json!({"name": "root", "mountPath": root, "readOnly": true}));
            if login.is_some() {
                words.push("--docker-config=/secret/config.json".into());
                volumes.push(json!({
                    "name": "secret",
                    "secret": {
                        "secretName": name,
                        "defaultMode": 0o400,
                        "items": [{"key": DOCKER_CONFIG, "path": "config.json"}],
                    },
                }));
                mounts.push(json!({"name": "secret", "mountPath": "/secret", "readOnly": true}));
            }
        }
    }
    let labels = json!({
        names::MANAGED_BY: names::DORMOUSE,
        names::NAME: names::DORMOUSE,
        names::COMPONENT: WORKER,
        OF: subject.fence.uid.to_string(),
    });
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {names::FENCE: pod::rank(subject.fence)},
        },
        "spec": {
            // Whoever asked decides whether it is tried again, and thaws if not.
            "backoffLimit": 0,
            "activeDeadlineSeconds": options.deadline.as_secs(),
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    // Where the sandbox is, whatever else is wanted of that node.
                    "nodeName": subject.node,
                    "tolerations": [{"operator": "Exists"}],
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": GRACE_SECONDS,
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "volumes": volumes,
                    "containers": [{
                        "name": CONTAINER,
                        "image": options.image,
                        "imagePullPolicy": options.pull_policy,
                        "args": words,
                        "volumeMounts": mounts,
                        "terminationMessagePolicy": "File",
                        "resources": {
                            "requests": {"cpu": "50m", "memory": "64Mi"},
                            "limits": {"cpu": "2", "memory": "512Mi"},
                        },
                        // The owner of containerd's socket is root.
                        "securityContext": {
                            "runAsUser": 0,
                            "runAsGroup": 0,
                            "readOnlyRootFilesystem": true,
                            "allowPrivilegeEscalation": !capabilities.is_empty(),
                            "capabilities": {"drop": ["ALL"], "add": capabilities},
                        },
                    }],
                },
            },
        },
    });
    typed(job)
}

/// A copy of the Secret for pushing, for the Job alone: it goes with it.
pub(super) fn secret(job: &Job, login: Secret) -> Result<Secret, RuntimeError> {
    let data = login.data.unwrap_or_default();
    let Some(config) = data.get(DOCKER_CONFIG) else {
        return Err(RuntimeError::Impossible {
            field: "snapshotPushSecretName",
            reason: format!("the Secret has no {DOCKER_CONFIG}").into(),
        });
    };
    typed(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson",
        "metadata": {
            "name": job.name_any(),
            "namespace": job.namespace(),
            "labels": {names::MANAGED_BY: names::DORMOUSE, names::COMPONENT: WORKER},
            "ownerReferences": [{
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": job.name_any(),
                "uid": job.uid(),
                "blockOwnerDeletion": false,
            }],
        },
        "data": {DOCKER_CONFIG: config},
    }))
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, RuntimeError> {
    let typed = serde_json::from_value(value);
    typed.map_err(|error| RuntimeError::Failed(error.to_string().into()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ::runtime::Fence;
    use k8s_openapi::ByteString;
    use model::{Generation, OperationId};

    use super::*;

    fn subject() -> Subject {
        Subject {
            fence: Fence {
                uid: Uid::from_random(7),
                generation: Generation(3),
                operation: OperationId(4),
            },
            namespace: "team".into(),
            pod: "box".into(),
            pod_uid: "p1".into(),
            node: "n1".into(),
            container_id: "containerd://0123456789abcdef".into(),
        }
    }

    fn capture(login: bool) -> Errand<'static> {
        Errand::Capture {
            registry: "r.example/x",
            login: login.then_some("own/login"),
        }
    }

    #[test]
    fn a_job_is_named_after_all_that_makes_an_order_what_it_is() {
        let first = capture(false).name(&subject());
        assert_eq!(first, capture(false).name(&subject()));
        let elsewhere = Errand::Capture {
            registry: "other.example",
            login: None,
        };
        let (mut later, mut other) = (subject(), subject());
        later.fence.operation = OperationId(5);
        other.container_id = "containerd://0123456789abcdeX".into();
        let names = [
            elsewhere.name(&subject()),
            capture(true).name(&subject()),
            capture(false).name(&later),
            capture(false).name(&other),
            Errand::Thaw.name(&subject()),
        ];
        assert!(!names.contains(&first), "{first}: {names:?}");
    }

    #[test]
    fn a_worker_goes_to_the_sandboxes_node_and_is_tried_by_whoever_sent_it() {
        let options = Options::new("dormouse:1");
        let job = job(&subject(), capture(false), "own", &options).unwrap();
        let uid = subject().fence.uid;
        assert!(job.name_any().starts_with(&format!("commit-{uid}-")));
        assert_eq!(job.annotations()[names::FENCE], "3.4");
        assert!(job.name_any().len() < 58, "its Pod has a longer name");
        let spec = job.spec.unwrap();
        assert_eq!(spec.backoff_limit, Some(0));
        let pod = spec.template.spec.unwrap();
        assert_eq!(pod.node_name.as_deref(), Some("n1"));
        assert_eq!(pod.automount_service_account_token, Some(false));
        let args = pod.containers[0].args.as_ref().unwrap();
        assert_eq!(args[0], "commit");
        assert!(args.contains(&"--registry=r.example/x".to_owned()));
        assert!(args.contains(&"--rank=3.4".to_owned()));
        assert!(
            pod.volumes
                .unwrap()
                .iter()
                .all(|volume| volume.secret.is_none())
        );
    }

    #[test]
    fn a_password_is_in_a_secret_of_the_job_and_nowhere_else() {
        let options = Options::new("dormouse:1");
        let mut made = job(&subject(), capture(true), "own", &options).unwrap();
        made.metadata.uid = Some("j1".into());
        let content = ByteString(b"{\"auths\":{\"r.example\":{\"auth\":\"hidden\"}}}".to_vec());
        let login = Secret {
            data: Some(BTreeMap::from([(DOCKER_CONFIG.into(), content.clone())])),
            ..Secret::default()
        };
        let secret = secret(&made, login).unwrap();
        assert_eq!(secret.name_any(), made.name_any());
        assert_eq!(
            secret.metadata.owner_references.as_ref().unwrap()[0].uid,
            "j1"
        );
        assert_eq!(secret.data.unwrap()[DOCKER_CONFIG], content);
        assert!(!serde_json::to_string(&made).unwrap().contains("hidden"));
        let refused = super::secret(&made, Secret::default()).unwrap_err();
        assert!(
            matches!(refused, RuntimeError::Impossible { .. }),
            "{refused}"
        );
    }

    #[test]
    fn a_thaw_needs_the_socket_and_nothing_else_of_the_node() {
        let options = Options::new("dormouse:1");
        let job = job(&subject(), Errand::Thaw, "own", &options).unwrap();
        let pod = job.spec.unwrap().template.spec.unwrap();
        let paths: Vec<_> = pod
            .volumes
            .unwrap()
            .into_iter()
            .filter_map(|v| v.host_path)
            .collect();
        assert_eq!(paths.len(), 1);
        assert_eq!(paths[0].path, "/run/containerd/containerd.sock");
        let context = pod.containers[0].security_context.as_ref().unwrap();
        assert_eq!(context.allow_privilege_escalation, Some(false));
    }
}
