//! Closing a sandbox to traffic before anything is done to what is inside.
//!
//! The intent to sleep closes admission wherever it is seen: gateways hold new requests from then
//! on. So a freeze first waits until all of them have seen it, and then a while for what is inside
//! to end. What is still inside then is held: it goes on when the sandbox does. One gateway that is
//! slow to hear does not keep a sandbox awake; what it lets in late wakes the sandbox again.
//!
//! A member that was released is cleaned only when no gateway leads its last owner's id to it any
//! more. There is no hurry in that, and nothing makes up for a request that reaches the next owner.

use std::time::Duration;

use model::{Sandbox, sandbox::DesiredState};
use tokio::time::timeout;

use crate::world::{Done, World};

/// How long gateways have to hear of a pause.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// Closes a sandbox that is to be frozen.
pub(crate) async fn close(world: &World, sandbox: &Sandbox) -> Result<(), Done> {
    if sandbox.spec.owner.is_none() {
        return Ok(());
    }
    let key = sandbox.key();
    if !seen_by_all(world, sandbox).await {
        tracing::debug!(%key, "some gateway has not heard that it is to sleep");
    }
    let drained = world.ports.activity.drained(sandbox);
    if timeout(world.options.drain_timeout, drained).await.is_err() {
        tracing::debug!(%key, "what is inside is held while it sleeps");
    }
    // Somebody may have changed their mind while this waited.
    match world.caches.sandboxes.find(&key) {
        Some(now) if now.uid() == sandbox.uid() && wants_sleep(&now) => Ok(()),
        // The cache may not have seen yet what this turn is about.
        Some(now) if now.version() < sandbox.version() => Ok(()),
        Some(_) | None => Err(Done::Again),
    }
}

fn wants_sleep(sandbox: &Sandbox) -> bool {
    sandbox.spec.desired_state == DesiredState::Paused && !sandbox.metadata.is_deleting()
}

/// Makes sure that nobody leads the last owner's traffic to a member any more.
pub(crate) async fn shut_out(world: &World, sandbox: &Sandbox) -> Result<(), Done> {
    match seen_by_all(world, sandbox).await {
        true => Ok(()),
        false => Err(Done::Retry),
    }
}

async fn seen_by_all(world: &World, sandbox: &Sandbox) -> bool {
    let key = sandbox.key();
    let seen = world.ports.followers.seen_by_all(&key, sandbox.version());
    timeout(SEEN_WITHIN, seen).await.unwrap_or(false)
}
