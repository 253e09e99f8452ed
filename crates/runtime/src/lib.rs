//! The Runtime port: what runs sandboxes.
//!
//! A runtime knows workloads by uid and nothing of records. Every call that changes something
//! carries a [`Fence`]; a runtime refuses one older than it has seen for that uid, so a call that
//! was delayed, or made by a control loop that should be dead, cannot undo a newer decision.
//!
//! Calls are idempotent: creating what runs, freezing what is frozen and deleting what is absent
//! all succeed. A call that fails may have taken effect; [`Runtime::inspect`] tells.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`error`] | what can go wrong |
//! | `dial` | connecting to ports inside |
//! | `pods` | connecting to workloads that have an address of their own |
//! | [`fake`] | a runtime in memory that can be slow, fail half-way, lie and lose things |
//! | [`conformance`] | what every runtime must pass |
//! | [`node`] | what is said to and by those who work on the nodes of a cluster |

pub mod conformance;
mod dial;
pub mod error;
pub mod fake;
pub mod node;
mod pods;

use std::{fmt::Debug, os::fd::OwnedFd};

use async_trait::async_trait;
use model::{
    Digest, Namespace, StringMap, Uid, hook::Hook, sandbox::NetworkPolicy,
    template::ImagePullPolicy,
};

pub use dial::{connect, dial};
pub use error::{IMAGES, RuntimeError};
pub use model::workload::{
    Abilities, Arming, Boot, BootFailure, Booting, Captured, Facts, FailedHook, Fence, Hooked,
    Keeps, Loss, Observed, Outfit, Publication, Published, Secret, Whose, WorkloadSpec,
    WorkloadState,
};
pub use pods::{Delivered, PodError, Pods, Trusting};

/// Runs workloads.
#[async_trait]
pub trait Runtime: Send + Sync + Debug {
    /// What is there under a uid now.
    async fn inspect(&self, uid: Uid) -> Result<Observed, RuntimeError>;

    /// Everything that is there, half-made things included: for adoption after a restart, for
    /// noticing what changed by itself, and for finding what no record speaks of.
    async fn list(&self) -> Result<Vec<(Uid, Observed)>, RuntimeError>;

    /// Makes and starts a workload, from its image or from a captured layer.
    async fn create(&self, fence: Fence, spec: &WorkloadSpec) -> Result<Facts, RuntimeError>;

    /// Brings a workload up by the commands it was made with: starts the one, and tries the other
    /// until it succeeds. Answers after a moment even if that is not yet so, and goes on; whoever
    /// asks again hears how far it is. What is up stays up: thawing starts nothing again, and
    /// whatever starts its processes anew does.
    async fn boot(&self, fence: Fence) -> Result<Booting, RuntimeError>;

    /// Puts a delivery's settings in place inside: environment, tokens.
    async fn arm(&self, fence: Fence, arming: &Arming) -> Result<(), RuntimeError>;

    /// Runs hooks for the delivery that a workload is armed for, one after the other. Answers after a
    /// moment even if they are not over, and goes on; whoever asks again hears how far they are. Once
    /// they are over, what is seen of the workload says so, and they are not run again for that
    /// delivery. One that failed and had to succeed fails the call, under its name.
    async fn run_hooks(&self, fence: Fence, hooks: &[Hook]) -> Result<Booting, RuntimeError>;

    /// Stops every process where it is.
    async fn freeze(&self, fence: Fence) -> Result<(), RuntimeError>;

    /// Lets frozen processes go on.
    async fn thaw(&self, fence: Fence) -> Result<(), RuntimeError>;

    /// Replaces the images of containers in place, and starts their processes anew.
    async fn swap_images(&self, fence: Fence, to: &Outfit) -> Result<Facts, RuntimeError>;

    /// The name of an image that can only be the one which `image` leads to now, for a team: by its
    /// digest. One that this runtime knows by no digest keeps its name. Changes nothing.
    async fn pin(
        &self,
        team: &Namespace,
        image: &str,
        pull: ImagePullPolicy,
    ) -> Result<Box<str>, RuntimeError> {
        let _ = (team, pull);
        Ok(image.into())
    }

    /// An image that is not here and would have to be fetched, as far as this is known at once.
    fn missing(&self, images: &StringMap) -> Option<Box<str>> {
        let _ = images;
        None
    }

    /// Changes what a workload may reach, awake or frozen. What is still allowed goes on; what is
    /// no longer allowed is cut. Nothing means the default.
    async fn set_network(
        &self,
        fence: Fence,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError>;

    /// What this runtime can do of what not every one can.
    fn abilities(&self) -> Abilities {
        Abilities::ALL
    }

    /// Keeps the writable layer of a frozen workload. When this returns, it is durable.
    ///
    /// A runtime that cannot freeze stops a workload that runs itself, and leaves it frozen if it
    /// succeeds. One that keeps no layers itself brings it to the registry of `to` and says so in what
    /// it answers; others need not look at `to`, and leave that to [`Runtime::publish`].
    async fn capture(
        &self,
        fence: Fence,
        to: Option<&Publication>,
    ) -> Result<Captured, RuntimeError>;

    /// Brings a captured layer to a registry, as an image that lies on what it was captured on.
    /// Answers the image's name, by digest. It goes on when its caller has left, and asking again
    /// joins it.
    async fn publish(&self, layer: &Digest, to: &Publication) -> Result<Box<str>, RuntimeError> {
        let (layer, registry) = (layer, &to.registry);
        Err(RuntimeError::Impossible {
            field: "snapshotRegistry",
            reason: format!("this runtime cannot bring {layer} to {registry}").into(),
        })
    }

    /// Brings a workload back to how it was before its first delivery, on the images it idles on, and
    /// proves that nothing of the last one is left. None means the images it has.
    async fn reset(&self, fence: Fence, to: Option<&Outfit>) -> Result<(), RuntimeError>;

    /// Ends a workload and removes everything of it.
    async fn delete(&self, fence: Fence) -> Result<(), RuntimeError>;
}

/// Opens sockets inside workloads, for whoever dials their ports on this machine.
pub trait Inside: Send + Sync + Debug {
    /// A TCP socket in the network namespace of a workload that runs: not connected, not blocking.
    /// Takes microseconds and does not wait.
    ///
    /// # Errors
    /// [`RuntimeError::Absent`] if there is no such workload, or it has ended.
    fn socket(&self, uid: Uid, family: Family) -> Result<OwnedFd, RuntimeError>;
}

/// Which kind of addresses a socket speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}
