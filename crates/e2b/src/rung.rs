//! How deeply a sandbox sleeps when it is told to, beside how it sleeps by itself.
//!
//! A client chooses with each pause whether memory is kept; the choice is that pause's, so what
//! the sandbox does by itself is remembered in its record and put back when it wakes.

use model::{
    Sandbox,
    sandbox::{PausePolicy, SnapshotType},
};

/// Annotation with the standing kind of sleep and the delivery it belongs to: one that outlived
/// its delivery says nothing.
const STANDING: &str = "dormouse.dev/standing-sleep";

/// Has the next pause be of a kind.
pub(crate) fn choose(sandbox: &mut Sandbox, kind: SnapshotType) {
    let now = kind_of(sandbox);
    if now == kind {
        return;
    }
    let standing = standing(sandbox).unwrap_or(now);
    set(sandbox, kind);
    remember(sandbox, (standing != kind).then_some(standing));
}

/// Puts back how it sleeps by itself.
pub(crate) fn restore(sandbox: &mut Sandbox) {
    if let Some(standing) = standing(sandbox) {
        set(sandbox, standing);
    }
    remember(sandbox, None);
}

/// Takes what a former delivery left.
pub(crate) fn forget(sandbox: &mut Sandbox) {
    remember(sandbox, None);
}

fn kind_of(sandbox: &Sandbox) -> SnapshotType {
    let policy = sandbox.spec.pause_policy.as_ref();
    policy.map_or(SnapshotType::Freeze, |p| p.snapshot_type)
}

fn set(sandbox: &mut Sandbox, kind: SnapshotType) {
    let mut policy = sandbox.spec.pause_policy.take().unwrap_or_default();
    policy.snapshot_type = kind;
    sandbox.spec.pause_policy = (*policy != PausePolicy::default()).then_some(policy);
}

fn standing(sandbox: &Sandbox) -> Option<SnapshotType> {
    let text = sandbox.metadata.annotations.get(STANDING)?;
    let (kind, id) = text.split_once('.')?;
    let delivery = sandbox.spec.sandbox_id.as_ref()?;
    match kind {
        _ if id != delivery.as_str() => None,
        "Freeze" => Some(SnapshotType::Freeze),
        "Rootfs" => Some(SnapshotType::Rootfs),
        _ => None,
    }
}

fn remember(sandbox: &mut Sandbox, kind: Option<SnapshotType>) {
    let annotations = &mut sandbox.metadata.annotations;
    match (kind, &sandbox.spec.sandbox_id) {
        (Some(kind), Some(id)) => {
            annotations.insert(STANDING, format!("{kind:?}.{id}"));
        }
        (_, _) => {
            annotations.remove(STANDING);
        }
    }
}
