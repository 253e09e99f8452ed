//! What a sandbox is made of: its own record first, then the snapshot it started from, then its
//! template.

use std::{sync::Arc, time::Duration};

use model::{
    Key, Name, Sandbox, SandboxSnapshot, SandboxTemplate, Spec as _, StringMap,
    hook::{Hook, merged},
    lifecycle::Phase,
    snapshot::{Recipe, SnapshotPhase, SnapshotSpec},
    template::TemplateSpec,
};
use plan::{sandbox::Base, snapshot::MAIN_CONTAINER};
use runtime::RuntimeError;
use tokio::time::Instant;

use crate::world::{Done, World};

/// How long a turn waits for the cache of snapshots to be as new as its sandbox.
const CATCH_UP: Duration = Duration::from_secs(2);

/// What a new sandbox starts from, as far as it is there.
#[derive(Debug)]
pub(crate) enum Found {
    /// Its images.
    Images,
    /// A snapshot that is not there.
    Missing(Name),
    /// A snapshot.
    Snapshot(Arc<SandboxSnapshot>),
}

impl Found {
    pub(crate) fn base(&self) -> Base<'_> {
        match self {
            Self::Images => Base::Images,
            Self::Missing(name) => Base::Missing(name),
            Self::Snapshot(snapshot) => Base::Snapshot(snapshot),
        }
    }
}

/// Looks for what a sandbox starts from, if it was not started yet.
pub(crate) async fn base_of(world: &World, sandbox: &Sandbox) -> Result<Found, Done> {
    let Some(name) = &sandbox.spec.snapshot else {
        return Ok(Found::Images);
    };
    if sandbox.status.phase != Phase::Pending {
        return Ok(Found::Images);
    }
    let snapshots = &world.caches.snapshots;
    let key = Key {
        kind: SnapshotSpec::KIND,
        namespace: sandbox.metadata.namespace.clone(),
        name: name.clone(),
    };
    let is_ready = |s: Arc<SandboxSnapshot>| s.status.phase == SnapshotPhase::Ready;
    if !snapshots.find(&key).is_some_and(is_ready) {
        // A cache that lags shows a snapshot as missing that its owner saw before asking.
        let deadline = Instant::now() + CATCH_UP;
        let caught_up = snapshots.wait_for_version(sandbox.version(), deadline);
        caught_up.await.map_err(|_| Done::Retry)?;
    }
    Ok(match snapshots.find(&key) {
        Some(snapshot) => Found::Snapshot(snapshot),
        None => Found::Missing(name.clone()),
    })
}

/// What a sandbox that starts from a snapshot of this one needs to know.
pub(crate) fn of(world: &World, sandbox: &Sandbox) -> Recipe {
    let template = template_of(world, sandbox);
    let (spec, origin) = (&sandbox.spec, origin(sandbox));
    Recipe {
        template: name_of_template(sandbox).cloned(),
        images: images_of(sandbox, template.as_deref()),
        image_pull_policy: spec.image_pull_policy.or_else(|| origin?.image_pull_policy),
        resources: spec.resources.or_else(|| origin?.resources),
    }
}

/// The images of a sandbox, by container.
pub(crate) fn images_of(sandbox: &Sandbox, template: Option<&SandboxTemplate>) -> StringMap {
    let mut images = sandbox.spec.wanted_images().clone();
    let known = origin(sandbox).map(|recipe| &recipe.images);
    for (container, image) in known.into_iter().flat_map(StringMap::iter) {
        if !images.contains_key(container) {
            images.insert(container, image);
        }
    }
    if let Some(template) = template
        && !images.contains_key(MAIN_CONTAINER)
    {
        images.insert(MAIN_CONTAINER, template.spec.image.clone());
    }
    images
}

/// The hooks of a sandbox: those of its template, and its own in place of those of the same name. If
/// its template is gone, nobody knows what was to be done before its owner hears of it.
pub(crate) fn hooks_of(world: &World, sandbox: &Sandbox) -> Result<Vec<Hook>, RuntimeError> {
    let own = &sandbox.spec.hooks;
    match (template_of(world, sandbox), name_of_template(sandbox)) {
        (Some(template), _) => Ok(merged(&template.spec.hooks, own)),
        (None, Some(name)) => Err(no_template(name)),
        (None, None) => Ok(own.clone()),
    }
}

/// A template that is not there.
pub(crate) fn no_template(name: &Name) -> RuntimeError {
    let reason = format!("template {name} does not exist: create it, or name another");
    RuntimeError::Impossible {
        field: "spec.template",
        reason: reason.into(),
    }
}

/// What the snapshot said that a sandbox started from.
pub(crate) fn origin(sandbox: &Sandbox) -> Option<&Recipe> {
    sandbox.status.origin.as_ref().map(|origin| &origin.recipe)
}

/// The name of the template of a sandbox.
pub(crate) fn name_of_template(sandbox: &Sandbox) -> Option<&Name> {
    let own = sandbox.spec.template.as_ref();
    own.or_else(|| origin(sandbox)?.template.as_ref())
}

/// The template of a sandbox.
pub(crate) fn template_of(world: &World, sandbox: &Sandbox) -> Option<Arc<SandboxTemplate>> {
    template_named(world, name_of_template(sandbox)?)
}

/// The template of a name.
pub(crate) fn template_named(world: &World, name: &Name) -> Option<Arc<SandboxTemplate>> {
    world.caches.templates.find(&Key {
        kind: TemplateSpec::KIND,
        namespace: None,
        name: name.clone(),
    })
}
