//! A workload as a Pod.

use std::collections::BTreeMap;

use ::runtime::{Fence, RuntimeError, WorkloadSpec, node::Rank};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, EmptyDirVolumeSource, HTTPGetAction, LocalObjectReference, Pod,
        PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile, SecurityContext,
        Toleration, Volume, VolumeMount,
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use model::{
    StringMap,
    sandbox::Resources,
    template::ImagePullPolicy,
    workload::{Boot, Whose},
};
use wire::envd::{PORT, PROGRAM};

use crate::{agent::Start, names, options::Options};

/// What an agent that is root needs to be it for everybody inside: it becomes users, gives them their
/// files and ends their processes. In an image whose user is not root none of it takes effect.
const CAPABILITIES: [&str; 8] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETPCAP",
    "SETUID",
];
/// What root inside has besides, where programs may become root: what containers usually have, and
/// the Pod Security Standard `baseline` allows.
const OF_ROOT: [&str; 5] = ["AUDIT_WRITE", "FSETID", "MKNOD", "SETFCAP", "SYS_CHROOT"];
/// How long a sandbox has after TERM. Nobody waits for what it still does.
const GRACE_SECONDS: i64 = 1;
const AGENT_VOLUME: &str = "agent";
/// The kind that owns Pods.
const OWNER: (&str, &str) = ("dormouse.dev/v1alpha1", "Sandbox");

/// Where a Pod goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) namespace: String,
    pub(crate) name: String,
    owned: bool,
}

impl Place {
    /// The place of a record's workload; one that is nobody's is in `own`.
    pub(crate) fn of(whose: Option<&Whose>, fence: Fence, own: &str) -> Self {
        match whose {
            Some(whose) => Self {
                namespace: whose.namespace.as_str().to_owned(),
                name: whose.name.as_str().to_owned(),
                owned: true,
            },
            None => Self {
                namespace: own.to_owned(),
                name: format!("sandbox-{}", fence.uid),
                owned: false,
            },
        }
    }

    /// The place of a Pod that is there.
    pub(crate) fn at(namespace: &str, name: &str, owned: bool) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            owned,
        }
    }

    /// What is removed together with the record.
    pub(crate) fn owners(&self, fence: Fence) -> Option<Vec<OwnerReference>> {
        self.owned.then(|| {
            vec![OwnerReference {
                api_version: OWNER.0.to_owned(),
                kind: OWNER.1.to_owned(),
                name: self.name.clone(),
                uid: fence.uid.to_string(),
                controller: Some(true),
                block_owner_deletion: Some(false),
            }]
        })
    }
}

/// The labels of everything that belongs to a workload.
pub(crate) fn labels(fence: Fence) -> BTreeMap<String, String> {
    [
        (names::UID, fence.uid.to_string()),
        (names::MANAGED_BY, names::DORMOUSE.to_owned()),
        (names::COMPONENT, names::SANDBOX.to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The rank of a call, as an annotation says it.
pub(crate) fn rank(fence: Fence) -> String {
    Rank::from(fence).to_string()
}

/// The text of something that is kept in an annotation.
pub(crate) fn json<T: serde::Serialize>(value: &T) -> Result<String, RuntimeError> {
    serde_json::to_string(value).map_err(|error| RuntimeError::Failed(error.to_string().into()))
}

/// What images and commands are noted as.
pub(crate) fn notes(
    images: &StringMap,
    boot: Option<&Boot>,
) -> Result<[(&'static str, Option<String>); 2], RuntimeError> {
    Ok([
        (names::IMAGES, Some(json(images)?)),
        (names::BOOT, boot.map(json).transpose()?),
    ])
}

/// The Pod of a workload.
pub(crate) fn pod(
    fence: Fence,
    spec: &WorkloadSpec,
    place: &Place,
    start: &Start,
    options: &Options,
) -> Result<Pod, RuntimeError> {
    let main = spec.images.get(names::MAIN).ok_or_else(|| {
        let reason = "name an image for the container \"main\"".into();
        impossible("images", reason)
    })?;
    let image = match (&spec.from, &spec.published) {
        (None, _) => main,
        (Some(_), Some(published)) => &published.image,
        (Some(layer), None) => {
            let reason = format!("{layer} was pushed to no registry, and Pods keep no layers");
            return Err(impossible("from", reason));
        }
    };
    let mut annotations = BTreeMap::from([
        (names::FENCE.to_owned(), rank(fence)),
        (names::START.to_owned(), start.name.clone()),
    ]);
    let mut note = |name: &str, value| annotations.insert(name.to_owned(), value);
    for (name, value) in notes(&spec.images, spec.boot.as_deref())? {
        value.map(|value| note(name, value));
    }
    if let Some(layer) = &spec.from {
        note(names::LAYER, layer.to_string());
    }
    if let Some(network) = &spec.network {
        note(names::NETWORK, json(network)?);
    }
    let beside = spec.images.iter().filter(|(name, _)| *name != names::MAIN);
    let beside = beside.map(|(name, image)| Container {
        name: name.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some(pull(spec.pull).to_owned()),
        security_context: Some(confined(false, &[])),
        // They may use what the sandbox may; what is set aside for them is little.
        resources: spec.resources.map(|resources| ResourceRequirements {
            requests: Some(quantities([("cpu", "10m"), ("memory", "16Mi")])),
            ..limits(resources)
        }),
        ..Container::default()
    });
    let sandbox = sandbox(image, spec, start);
    let secrets = spec
        .published
        .as_ref()
        .filter(|_| spec.from.is_some())
        .and_then(|published| published.secret.as_ref());
    let secrets = secrets.map(|name| name.as_str().into()).into_iter();
    let secrets: Vec<_> = secrets
        .chain(options.pull_secrets.iter().cloned())
        .map(|name: Box<str>| LocalObjectReference { name: name.into() })
        .collect();
    let mut classes = options.runtime_classes.iter();
    let class = classes.find(|(class, _)| *class == spec.class);
    Ok(Pod {
        metadata: ObjectMeta {
            name: Some(place.name.clone()),
            namespace: Some(place.namespace.clone()),
            labels: Some(labels(fence)),
            annotations: Some(annotations),
            owner_references: place.owners(fence),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            init_containers: Some(vec![bring_agent(options)]),
            containers: std::iter::once(sandbox).chain(beside).collect(),
            volumes: Some(vec![Volume {
                name: AGENT_VOLUME.to_owned(),
                empty_dir: Some(EmptyDirVolumeSource {
                    size_limit: Some(Quantity("64Mi".to_owned())),
                    ..EmptyDirVolumeSource::default()
                }),
                ..Volume::default()
            }]),
            // A swap of images starts the container over, and that must go on after a failed pull.
            restart_policy: Some("Always".to_owned()),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            runtime_class_name: class.map(|(_, name)| name.to_string()),
            image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
            security_context: Some(PodSecurityContext {
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            tolerations: Some(patience(options)),
            ..PodSpec::default()
        }),
        status: None,
    })
}

fn impossible(field: &'static str, reason: String) -> RuntimeError {
    RuntimeError::Impossible {
        field,
        reason: reason.into(),
    }
}

/// Copies the agent to where the sandbox finds it.
fn bring_agent(options: &Options) -> Container {
    Container {
        name: names::AGENT.to_owned(),
        image: Some(options.image.to_string()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec![
            options.agent.to_string(),
            "install".to_owned(),
            names::AGENT_PROGRAM.to_owned(),
            PROGRAM.to_owned(),
        ]),
        volume_mounts: Some(vec![VolumeMount {
            name: AGENT_VOLUME.to_owned(),
            mount_path: names::AGENT_DIRECTORY.to_owned(),
            ..VolumeMount::default()
        }]),
        security_context: Some(SecurityContext {
            run_as_user: Some(65_532),
            run_as_non_root: Some(true),
            read_only_root_filesystem: Some(true),
            ..confined(false, &[])
        }),
        resources: Some(ResourceRequirements {
            requests: Some(quantities([("cpu", "10m"), ("memory", "16Mi")])),
            limits: Some(quantities([("cpu", "1"), ("memory", "64Mi")])),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    }
}

/// The words that its first process is started with.
pub(crate) fn command(start: &Start) -> Vec<String> {
    let words = [
        names::AGENT_PROGRAM,
        "--pid1",
        "--inherit",
        "--init-key-hash",
        &start.key_hash,
    ];
    words.map(ToOwned::to_owned).to_vec()
}

/// The container that is the sandbox: the image, with the agent as its first process.
fn sandbox(image: &str, spec: &WorkloadSpec, start: &Start) -> Container {
    let mut capabilities = CAPABILITIES.to_vec();
    if spec.sudo {
        capabilities.extend(OF_ROOT);
    }
    Container {
        name: names::SANDBOX.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some(pull(spec.pull).to_owned()),
        command: Some(command(start)),
        volume_mounts: Some(vec![VolumeMount {
            name: AGENT_VOLUME.to_owned(),
            mount_path: names::AGENT_DIRECTORY.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        security_context: Some(confined(spec.sudo, &capabilities)),
        resources: spec.resources.map(limits),
        // What sleeps is not ready, and nothing else follows from that.
        readiness_probe: Some(Probe {
            http_get: Some(HTTPGetAction {
                path: Some("/health".to_owned()),
                port: IntOrString::Int(PORT.into()),
                ..HTTPGetAction::default()
            }),
            period_seconds: Some(10),
            timeout_seconds: Some(2),
            ..Probe::default()
        }),
        ..Container::default()
    }
}

fn confined(may_rise: bool, capabilities: &[&str]) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(may_rise),
        privileged: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: (!capabilities.is_empty())
                .then(|| capabilities.iter().map(|&name| name.to_owned()).collect()),
        }),
        ..SecurityContext::default()
    }
}

fn limits(resources: Resources) -> ResourceRequirements {
    let mut all = BTreeMap::new();
    let mut limit = |name: &str, amount: Option<String>| {
        amount.map(|amount| all.insert(name.to_owned(), Quantity(amount)));
    };
    limit("cpu", resources.cpu_millis.map(|n| format!("{n}m")));
    limit("memory", resources.memory_mib.map(|n| format!("{n}Mi")));
    limit(
        "ephemeral-storage",
        resources.disk_mib.map(|n| format!("{n}Mi")),
    );
    // Requests that are not said are what the limits are.
    ResourceRequirements {
        limits: Some(all),
        ..ResourceRequirements::default()
    }
}

fn quantities<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<String, Quantity> {
    all.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
        .into()
}

pub(crate) const fn pull(policy: ImagePullPolicy) -> &'static str {
    match policy {
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::Never => "Never",
    }
}

/// How long a node may be away.
fn patience(options: &Options) -> Vec<Toleration> {
    let seconds = i64::try_from(options.node_patience.as_secs()).unwrap_or(i64::MAX);
    ["not-ready", "unreachable"]
        .map(|state| Toleration {
            key: Some(format!("node.kubernetes.io/{state}")),
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            toleration_seconds: Some(seconds),
            value: None,
        })
        .into()
}

#[cfg(test)]
mod tests {
    use model::{
        Digest, Generation, Name, Namespace, OperationId, Uid, template::RuntimeClass,
        workload::Published,
    };

    use super::*;

    fn fence() -> Fence {
        Fence {
            uid: Uid::from_random(7),
            generation: Generation(3),
            operation: OperationId(4),
        }
    }

    fn spec() -> WorkloadSpec {
        WorkloadSpec {
            images: [("main", "app:1"), ("log", "logger")].into_iter().collect(),
            ..WorkloadSpec::default()
        }
    }

    fn made(spec: &WorkloadSpec) -> Result<Pod, RuntimeError> {
        let whose = Whose {
            namespace: Namespace::new("team").unwrap(),
            name: Name::new("box").unwrap(),
        };
        let place = Place::of(Some(&whose), fence(), "own");
        let start = Start {
            name: "s1".to_owned(),
            key_hash: "abc".to_owned(),
        };
        pod(fence(), spec, &place, &start, &Options::new("dormouse:1"))
    }

    #[test]
    fn a_pod_is_its_records_and_gives_nothing_of_the_cluster_away() {
        let pod = made(&spec()).unwrap();
        let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(
            (owner.name.as_str(), owner.uid.parse()),
            ("box", Ok(fence().uid))
        );
        assert_eq!(pod.metadata.namespace.as_deref(), Some("team"));
        assert_eq!(
            pod.metadata.labels.as_ref().unwrap()[names::UID],
            fence().uid.to_string()
        );
        assert_eq!(
            pod.metadata.annotations.as_ref().unwrap()[names::FENCE],
            "3.4"
        );
        let spec = pod.spec.unwrap();
        assert_eq!(spec.automount_service_account_token, Some(false));
        assert_eq!(spec.enable_service_links, Some(false));
        let names: Vec<_> = spec.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["sandbox", "log"]);
        let sandbox = &spec.containers[0];
        assert_eq!(sandbox.image.as_deref(), Some("app:1"));
        assert_eq!(sandbox.command.as_ref().unwrap()[0], "/run/dormouse/agent");
        for container in &spec.containers {
            let context = container.security_context.as_ref().unwrap();
            assert_eq!(context.allow_privilege_escalation, Some(false));
            let capabilities = context.capabilities.as_ref().unwrap();
            assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
        }
        assert!(
            spec.containers[1].command.is_none(),
            "what is beside it runs as it is"
        );
    }

    #[test]
    fn a_pod_says_what_is_asked_of_it() {
        let asked = WorkloadSpec {
            pull: ImagePullPolicy::Always,
            class: RuntimeClass::Runsc,
            sudo: true,
            resources: Some(Resources {
                cpu_millis: Some(500),
                memory_mib: Some(256),
                disk_mib: None,
            }),
            ..spec()
        };
        let spec = made(&asked).unwrap().spec.unwrap();
        assert_eq!(spec.runtime_class_name.as_deref(), Some("gvisor"));
        let sandbox = &spec.containers[0];
        assert_eq!(sandbox.image_pull_policy.as_deref(), Some("Always"));
        let context = sandbox.security_context.as_ref().unwrap();
        assert_eq!(context.allow_privilege_escalation, Some(true));
        let limits = sandbox.resources.as_ref().unwrap().limits.as_ref().unwrap();
        assert_eq!(
            (limits["cpu"].0.as_str(), limits["memory"].0.as_str()),
            ("500m", "256Mi")
        );
        assert!(!limits.contains_key("ephemeral-storage"));
    }

    #[test]
    fn a_layer_is_an_image_by_digest_or_nothing() {
        let layer = Digest::new(format!("sha256:{:064x}", 1)).unwrap();
        let nowhere = WorkloadSpec {
            from: Some(layer.clone()),
            ..spec()
        };
        let refused = made(&nowhere).unwrap_err();
        assert!(
            matches!(refused, RuntimeError::Impossible { field: "from", .. }),
            "{refused}"
        );
        let published = WorkloadSpec {
            published: Some(Box::new(Published {
                image: "r.example/x@sha256:1".into(),
                secret: Some(Name::new("pull").unwrap()),
            })),
            ..nowhere
        };
        let pod = made(&published).unwrap();
        assert_eq!(
            pod.metadata.annotations.as_ref().unwrap()[names::LAYER],
            layer.to_string()
        );
        let spec = pod.spec.unwrap();
        assert_eq!(
            spec.containers[0].image.as_deref(),
            Some("r.example/x@sha256:1")
        );
        assert_eq!(spec.image_pull_secrets.unwrap()[0].name, "pull");
        let imageless = made(&WorkloadSpec::default()).unwrap_err();
        assert!(
            matches!(imageless, RuntimeError::Impossible { .. }),
            "{imageless}"
        );
    }
}
