//! What the runtime is told of a sandbox: read from its record, its template and where it came from.

use model::{
    Sandbox, SandboxTemplate, StringMap,
    workload::{Arming, Boot, Fence, Whose, WorkloadSpec},
};
use plan::snapshot::MAIN_CONTAINER;
use runtime::RuntimeError;

use crate::{
    publish::published,
    recipe::{self, template_of},
    world::World,
};

/// What makes a call on the runtime stale.
pub(crate) fn fence_of(sandbox: &Sandbox) -> Fence {
    Fence {
        uid: sandbox.uid(),
        generation: sandbox.metadata.generation,
        operation: sandbox
            .status
            .last_operation
            .as_ref()
            .map(|op| op.id)
            .unwrap_or_default(),
    }
}

/// The workload of a sandbox, from a captured layer or from its images.
pub(super) fn workload_spec(
    world: &World,
    sandbox: &Sandbox,
    from: Option<model::Digest>,
) -> Result<WorkloadSpec, RuntimeError> {
    let spec = &sandbox.spec;
    let template = template_of(world, sandbox);
    let origin = recipe::origin(sandbox);
    let images = recipe::images_of(sandbox, template.as_deref());
    match &template {
        Some(_) => {}
        None => {
            if let Some(name) = recipe::name_of_template(sandbox) {
                return Err(recipe::no_template(name));
            }
            if !images.contains_key(MAIN_CONTAINER) {
                let reason = "name a template, or an image for the container \"main\"";
                return Err(RuntimeError::Impossible {
                    field: "spec.template",
                    reason: reason.into(),
                });
            }
        }
    }
    let resources = spec
        .resources
        .or_else(|| origin?.resources)
        .or_else(|| template.as_ref().and_then(|t| t.spec.resources));
    let pull = spec
        .image_pull_policy
        .or_else(|| origin?.image_pull_policy)
        .or_else(|| template.as_ref().map(|t| t.spec.image_pull_policy));
    let whose = sandbox.metadata.namespace.clone().map(|namespace| {
        let name = sandbox.metadata.name.clone();
        Box::new(Whose { namespace, name })
    });
    Ok(WorkloadSpec {
        of: whose,
        images,
        pull: pull.unwrap_or_default(),
        class: template
            .as_ref()
            .map(|t| t.spec.runtime_class)
            .unwrap_or_default(),
        sudo: template.as_ref().is_some_and(|t| t.spec.sudo),
        resources,
        network: spec.network.clone(),
        published: published(sandbox, from.as_ref()),
        from,
        boot: template
            .as_deref()
            .filter(|template| brings_up(sandbox, template))
            .and_then(boot_of),
    })
}

/// Whether a template's commands are to be run: not in a member that idles on an image which need
/// not have them.
fn brings_up(sandbox: &Sandbox, template: &SandboxTemplate) -> bool {
    let spec = &sandbox.spec;
    let own = spec.idle_images.get(MAIN_CONTAINER);
    spec.owner.is_some() || own.is_none_or(|image| *image == *template.spec.image)
}

/// The commands of a template. They run before anybody owns the sandbox, so they are told nothing
/// of an owner's.
fn boot_of(template: &SandboxTemplate) -> Option<Box<Boot>> {
    let spec = &template.spec;
    if spec.start_command.is_empty() && spec.ready_command.is_empty() {
        return None;
    }
    let mut env = StringMap::new();
    env.insert("E2B_TEMPLATE_ID", template.metadata.name.as_str());
    for (name, value) in spec.env.iter() {
        env.insert(name, value);
    }
    Some(Box::new(Boot {
        start: spec.start_command.clone(),
        ready: spec.ready_command.clone(),
        env,
        user: spec.user.clone(),
        workdir: spec.workdir.clone(),
    }))
}

/// What the agent of a delivery is told.
pub(super) fn arming(world: &World, sandbox: &Sandbox) -> Arming {
    let template = template_of(world, sandbox);
    let mut env = StringMap::new();
    // What programs inside ask to learn where they are; whoever sets them otherwise is heard.
    if let Some(id) = &sandbox.spec.sandbox_id {
        env.insert("E2B_SANDBOX_ID", id.as_str());
    }
    if let Some(template) = &template {
        env.insert("E2B_TEMPLATE_ID", template.metadata.name.as_str());
        for (name, value) in template.spec.env.iter() {
            env.insert(name, value);
        }
    }
    for (name, value) in sandbox.spec.env.iter() {
        env.insert(name, value);
    }
    Arming {
        epoch: sandbox.spec.epoch,
        env,
        token: world.ports.tokens.agent_token(sandbox),
        user: template.as_ref().and_then(|t| t.spec.user.clone()),
        workdir: template.as_ref().and_then(|t| t.spec.workdir.clone()),
    }
}
