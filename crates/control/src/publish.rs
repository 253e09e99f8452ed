//! Captured layers that go to a registry, as the pause policy says, and come back from it.

use model::{
    Digest, Name, Sandbox,
    workload::{Captured, Fence, Publication, Published},
};
use runtime::RuntimeError;

use crate::world::World;

/// Keeps the writable layer of a sandbox, here and where else it should be kept. Answers the layer,
/// and the image that it was pushed as.
pub(crate) async fn capture(
    world: &World,
    fence: Fence,
    to: Option<(&str, Option<&Name>)>,
) -> Result<(Captured, Option<Box<str>>), RuntimeError> {
    let place = to.map(|(registry, secret)| Publication {
        registry: registry.into(),
        secret: secret.cloned(),
        parent: None,
    });
    let captured = world.ports.runtime.capture(fence, place.as_ref()).await?;
    let image = match captured.published.clone() {
        Some(image) => Some(image),
        None => publish(world, &captured, to).await?,
    };
    Ok((captured, image))
}

/// Brings a captured layer to where it should be kept besides this machine. Answers its image.
pub(crate) async fn publish(
    world: &World,
    captured: &Captured,
    to: Option<(&str, Option<&Name>)>,
) -> Result<Option<Box<str>>, RuntimeError> {
    let Some((registry, secret)) = to else {
        return Ok(None);
    };
    let to = Publication {
        registry: registry.into(),
        secret: secret.cloned(),
        parent: captured.parent.clone(),
    };
    let image = world.ports.runtime.publish(&captured.digest, &to).await?;
    Ok(Some(image))
}

/// Where the layer of a sandbox that sleeps goes.
pub(crate) fn target(sandbox: &Sandbox) -> Option<(&str, Option<&Name>)> {
    let policy = sandbox.spec.pause_policy.as_ref()?;
    let registry = policy.snapshot_registry.as_deref()?;
    Some((registry, policy.snapshot_push_secret_name.as_ref()))
}

/// Where the layer that a sandbox goes on from can be had, should it not be here: what it last slept
/// on, or the snapshot it is first started from.
pub(crate) fn published(sandbox: &Sandbox, from: Option<&Digest>) -> Option<Box<Published>> {
    let (status, from) = (&sandbox.status, from?);
    let policy = sandbox.spec.pause_policy.as_ref();
    let own = policy.and_then(|policy| policy.resume_image_pull_secret_name.clone());
    if status.snapshot.as_ref() == Some(from) {
        let image = status.snapshot_image.clone()?;
        return Some(Box::new(Published { image, secret: own }));
    }
    let origin = status.origin.as_deref().filter(|it| it.layer == *from)?;
    Some(Box::new(Published {
        image: origin.image.clone()?,
        secret: own.or_else(|| origin.image_pull_secret_name.clone()),
    }))
}
