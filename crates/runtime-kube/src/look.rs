//! What a Pod says of itself.

use std::{collections::BTreeMap, net::IpAddr};

use ::runtime::{Hooked, Loss, node::Rank};
use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use model::{
    Digest, StringMap,
    sandbox::NetworkPolicy,
    workload::{Boot, Fence},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{commit::Held, names};

/// The exit code of what was taken away before it could end.
const KILLED: i32 = 137;
/// The condition by which a cluster says that it takes a Pod away, and its reasons that mean that the
/// node is not there any more.
const DISRUPTED: &str = "DisruptionTarget";
const BY_NODE: [&str; 2] = ["DeletionByTaintManager", "DeletionByPodGC"];
/// What a container waits for that has ended too often.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// Where a Pod is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Its container has not started yet.
    Coming(Waiting),
    /// Its container is being started over, with other images.
    Swapping(Waiting),
    /// Its container runs.
    Running(Running),
    /// Its container has ended, or is about to.
    Ended(Ended),
}

/// Why a container does not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It comes.
    Nothing,
    /// An image cannot be had now.
    Pull(Box<str>),
    /// An image can never be had.
    Image(Box<str>),
    /// No node has room.
    NoRoom(Box<str>),
    /// Its container cannot be made.
    Broken(Box<str>),
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) container_id: Box<str>,
    pub(crate) ip: IpAddr,
    pub(crate) node: Option<IpAddr>,
}

/// How a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out_of_memory: bool,
    pub(crate) loss: Option<Loss>,
}

/// What is noted of hooks that were run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HookNote {
    pub(crate) container_id: Box<str>,
    pub(crate) hooked: Hooked,
}

/// What is noted of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ArmedNote {
    pub(crate) container_id: Box<str>,
    pub(crate) epoch: u32,
}

pub(crate) fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let all = pod.metadata.annotations.as_ref()?;
    all.get(name).map(String::as_str)
}

fn noted<T: DeserializeOwned>(pod: &Pod, name: &str) -> Option<T> {
    serde_json::from_str(annotation(pod, name)?).ok()
}

/// The images it was asked for.
pub(crate) fn images(pod: &Pod) -> StringMap {
    noted(pod, names::IMAGES).unwrap_or_default()
}

/// The layer it continued from.
pub(crate) fn layer(pod: &Pod) -> Option<Digest> {
    Digest::new(annotation(pod, names::LAYER)?).ok()
}

/// The commands that bring it up.
pub(crate) fn boot(pod: &Pod) -> Option<Boot> {
    noted(pod, names::BOOT)
}

/// What it may reach.
pub(crate) fn network(pod: &Pod) -> Option<Box<NetworkPolicy>> {
    noted(pod, names::NETWORK)
}

/// Whether its commands have brought a container up.
pub(crate) fn is_booted(pod: &Pod, container_id: &str) -> bool {
    let none = annotation(pod, names::BOOT).is_none();
    none || annotation(pod, names::BOOTED) == Some(container_id)
}

/// The hooks that were run in a container.
pub(crate) fn hooked(pod: &Pod, container_id: &str) -> Option<Hooked> {
    let note: HookNote = noted(pod, names::HOOKED)?;
    (*note.container_id == *container_id).then_some(note.hooked)
}

/// The delivery that a container was last known to be armed for.
pub(crate) fn armed(pod: &Pod, container_id: &str) -> Option<u32> {
    let note: ArmedNote = noted(pod, names::ARMED)?;
    (*note.container_id == *container_id).then_some(note.epoch)
}

/// The random name of its start.
pub(crate) fn start(pod: &Pod) -> Option<&str> {
    annotation(pod, names::START)
}

/// Whether a worker may have frozen a container, and nobody has thawed it since.
pub(crate) fn is_held(pod: &Pod, container_id: &str) -> bool {
    Held::on(pod).is_some_and(|held| *held.container_id == *container_id)
}

/// The rank of the last call that changed something of ours.
pub(crate) fn rank_of(meta: &ObjectMeta) -> Rank {
    let all = meta.annotations.as_ref();
    let rank = all.and_then(|all| all.get(names::FENCE)?.parse().ok());
    rank.unwrap_or_default()
}

/// Whether a call is older than the last one that changed the Pod.
pub(crate) fn is_stale(pod: &Pod, fence: Fence) -> bool {
    Rank::from(fence) < rank_of(&pod.metadata)
}

/// How often its container was started over on purpose, or is to be.
pub(crate) fn meant_restarts(pod: &Pod) -> i32 {
    let noted = annotation(pod, names::RESTARTS).and_then(|n| n.parse().ok());
    noted.unwrap_or_default()
}

fn status(pod: &Pod) -> Option<&PodStatus> {
    pod.status.as_ref()
}

/// What is said of the sandbox's own container.
pub(crate) fn container(pod: &Pod) -> Option<&ContainerStatus> {
    let all = status(pod)?.container_statuses.as_ref()?;
    all.iter().find(|one| one.name == names::SANDBOX)
}

/// What images led to, by the names of records: only where the image itself was asked for.
pub(crate) fn digests(pod: &Pod) -> BTreeMap<Box<str>, Digest> {
    let all = status(pod).and_then(|status| status.container_statuses.as_ref());
    let all = all.map(Vec::as_slice).unwrap_or_default().iter();
    let found = all.filter_map(|one| {
        let (_, digest) = one.image_id.rsplit_once('@')?;
        let name = match one.name.as_str() {
            names::SANDBOX if layer(pod).is_some() => return None,
            names::SANDBOX => names::MAIN,
            other => other,
        };
        Some((name.into(), Digest::new(digest).ok()?))
    });
    found.collect()
}

/// Where a Pod is. `is_gone` says that the cluster has forgotten it.
pub(crate) fn seen(pod: &Pod, is_gone: bool) -> Seen {
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let container = container(pod);
    if is_gone || pod.metadata.deletion_timestamp.is_some() {
        return taken(container, loss(status).unwrap_or(Loss::Removed));
    }
    let meant = meant_restarts(pod);
    if let Some("Failed" | "Succeeded") = status.phase.as_deref() {
        if let Some(loss) = loss(status) {
            return taken(container, loss);
        }
        // Turned away by its node before anything of it ran.
        let Some(container) = container else {
            let why = status.message.as_deref().or(status.reason.as_deref());
            return Seen::Coming(Waiting::NoRoom(why.unwrap_or_default().into()));
        };
        return Seen::Ended(ended(container));
    }
    let Some(container) = container else {
        return Seen::Coming(unscheduled(status));
    };
    let none = ContainerState::default();
    let state = container.state.as_ref().unwrap_or(&none);
    let is_swapping = container.restart_count < meant;
    if container.restart_count > meant {
        return Seen::Ended(ended(container));
    }
    if state.running.is_some() {
        return match running(status, container) {
            _ if is_swapping => Seen::Swapping(Waiting::Nothing),
            Some(running) => Seen::Running(running),
            None => Seen::Coming(Waiting::Nothing),
        };
    }
    // A container that was started over on purpose has an end behind it that counts for nothing.
    let crashed = state.terminated.is_some()
        || last(container).is_some() && (meant == 0 || waits_for(state, CRASH_LOOP));
    match (is_swapping, crashed) {
        (false, true) => Seen::Ended(ended(container)),
        (false, false) if meant == 0 => Seen::Coming(waiting(state)),
        (false, false) | (true, _) => Seen::Swapping(waiting(state)),
    }
}

fn waits_for(state: &ContainerState, reason: &str) -> bool {
    let waiting = state.waiting.as_ref();
    waiting.and_then(|waiting| waiting.reason.as_deref()) == Some(reason)
}

fn running(status: &PodStatus, container: &ContainerStatus) -> Option<Running> {
    let id = container
        .container_id
        .as_deref()
        .filter(|id| !id.is_empty());
    Some(Running {
        container_id: id?.into(),
        ip: status.pod_ip.as_ref()?.parse().ok()?,
        node: status.host_ip.as_ref().and_then(|ip| ip.parse().ok()),
    })
}

fn last(
    container: &ContainerStatus,
) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    container.last_state.as_ref()?.terminated.as_ref()
}

fn ended(container: &ContainerStatus) -> Ended {
    let now = container.state.as_ref().and_then(|s| s.terminated.as_ref());
    let end = now.or_else(|| last(container));
    Ended {
        code: end.map_or(KILLED, |end| end.exit_code),
        out_of_memory: end.is_some_and(|end| end.reason.as_deref() == Some("OOMKilled")),
        loss: None,
    }
}

fn taken(container: Option<&ContainerStatus>, loss: Loss) -> Seen {
    let ended = container.map(ended);
    Seen::Ended(Ended {
        code: ended.map_or(KILLED, |ended| ended.code),
        out_of_memory: ended.is_some_and(|ended| ended.out_of_memory),
        loss: Some(loss),
    })
}

/// Who took it away, if the cluster did.
fn loss(status: &PodStatus) -> Option<Loss> {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let disrupted = conditions
        .iter()
        .find(|condition| condition.type_ == DISRUPTED && condition.status == "True");
    if let Some(disrupted) = disrupted {
        let reason = disrupted.reason.as_deref().unwrap_or_default();
        return Some(match BY_NODE.contains(&reason) {
            true => Loss::NodeLost,
            false => Loss::Evicted,
        });
    }
    match status.reason.as_deref() {
        Some("Evicted" | "Preempted" | "Terminated" | "Shutdown") => Some(Loss::Evicted),
        Some("NodeLost") => Some(Loss::NodeLost),
        Some(_) | None => None,
    }
}

fn unscheduled(status: &PodStatus) -> Waiting {
    let init = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    let waits = init
        .iter()
        .filter_map(|one| one.state.as_ref())
        .map(waiting);
    if let Some(why) = waits.into_iter().find(|why| *why != Waiting::Nothing) {
        return why;
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let unplaced = conditions.iter().find(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    });
    match unplaced {
        Some(why) => Waiting::NoRoom(why.message.clone().unwrap_or_default().into()),
        None => Waiting::Nothing,
    }
}

fn waiting(state: &ContainerState) -> Waiting {
    let Some(waiting) = &state.waiting else {
        return Waiting::Nothing;
    };
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let message = waiting.message.as_deref().filter(|text| !text.is_empty());
    let text = message.unwrap_or(reason).into();
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => Waiting::Pull(text),
        "InvalidImageName" | "ErrImageNeverPull" => Waiting::Image(text),
        "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | CRASH_LOOP => Waiting::Broken(text),
        _ => Waiting::Nothing,
    }
}

#[cfg(test)]
mod tests;
