//! Defects on purpose. Each breaks one assumption that the promises rest on, by standing between
//! the real code and a port; the checker must notice every one of them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use kit::Clock;
use model::{Digest, Generation, OperationId, Uid, hook::Hook, sandbox::NetworkPolicy};
use runtime::{
    Abilities, Arming, Booting, Captured, Facts, Fence, Observed, Outfit, Publication, Runtime,
    RuntimeError, WorkloadSpec, fake::FakeRuntime,
};

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Plant {
    /// Writers do not compare before they set.
    BlindWrites,
    /// Deletions ignore what they were decided on.
    BlindDeletes,
    /// Watches lose changes without saying so.
    LostEvents,
    /// A released member is not cleaned.
    DirtyReset,
    /// The runtime forgets which calls are old.
    NoFence,
    /// A capture is acknowledged before it is durable.
    LostLayer,
    /// Left-over workloads are not looked for.
    NoSweep,
    /// Elapsed time is taken from the wall clock.
    WallClock,
    /// A peer's messages are applied whatever their version.
    BlindRoutes,
    /// A gateway restarts without taking a full snapshot first.
    EmptyTable,
    /// A request stays with a sandbox that falls asleep under it.
    NoWatch,
    /// Every request that finds its sandbox asleep writes a resume of its own.
    EagerWake,
    /// Who comes while a sandbox falls asleep is sent away.
    LostWake,
    /// Use counts when it begins and ends, not while it lasts.
    ForgetfulUse,
    /// Traffic wakes sandboxes that did not opt in.
    UninvitedWake,
    /// A gateway that has not heard in time that a sandbox is closed counts as one that has.
    UnheardClosing,
    /// Who comes while a sandbox is closed is sent away, unless traffic may wake that.
    LostClosing,
    /// What was said of a sandbox before it was told to wake is taken for an answer to that.
    OldNews,
    /// What a peer says is acknowledged before it is applied.
    EarlyAck,
    /// Who asks what is newer is not told of what is gone.
    ForgetfulAnswers,
    /// A full snapshot for a peer lacks what is gone and newer than it.
    GravelessSnapshot,
    /// A full snapshot for a peer counts as new as the newest route in it.
    BoastfulSnapshot,
    /// A client is told that everybody has heard, and nobody was waited for.
    UnheardWrites,
    /// Control says now and then of what it has written that it is gone.
    FalseDeletions,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::BlindWrites,
        Self::BlindDeletes,
        Self::LostEvents,
        Self::DirtyReset,
        Self::NoFence,
        Self::LostLayer,
        Self::NoSweep,
        Self::WallClock,
        Self::BlindRoutes,
        Self::EmptyTable,
        Self::NoWatch,
        Self::EagerWake,
        Self::LostWake,
        Self::ForgetfulUse,
        Self::UninvitedWake,
        Self::UnheardClosing,
        Self::LostClosing,
        Self::OldNews,
        Self::EarlyAck,
        Self::ForgetfulAnswers,
        Self::GravelessSnapshot,
        Self::BoastfulSnapshot,
        Self::UnheardWrites,
        Self::FalseDeletions,
    ];
}

/// A clock whose elapsed time follows the wall clock.
#[derive(Debug)]
pub struct JumpingClock(pub Arc<dyn Clock>);

impl Clock for JumpingClock {
    fn wall_micros(&self) -> i64 {
        self.0.wall_micros()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.wall_micros()).unwrap_or(0))
    }
}

/// A runtime with a defect.
#[derive(Debug)]
pub struct PlantedRuntime {
    /// The runtime.
    pub inner: Arc<FakeRuntime>,
    /// The defect.
    pub plant: Option<Plant>,
}

impl PlantedRuntime {
    fn fence(&self, fence: Fence) -> Fence {
        match self.plant {
            Some(Plant::NoFence) => {
                let (generation, operation) = (Generation(u64::MAX), OperationId(u64::MAX));
                Fence {
                    uid: fence.uid,
                    generation,
                    operation,
                }
            }
            Some(_) | None => fence,
        }
    }
}

#[async_trait]
impl Runtime for PlantedRuntime {
    async fn inspect(&self, uid: Uid) -> Result<Observed, RuntimeError> {
        self.inner.inspect(uid).await
    }

    async fn list(&self) -> Result<Vec<(Uid, Observed)>, RuntimeError> {
        self.inner.list().await
    }

    async fn create(&self, fence: Fence, spec: &WorkloadSpec) -> Result<Facts, RuntimeError> {
        self.inner.create(self.fence(fence), spec).await
    }

    async fn boot(&self, fence: Fence) -> Result<Booting, RuntimeError> {
        self.inner.boot(self.fence(fence)).await
    }

    async fn arm(&self, fence: Fence, arming: &Arming) -> Result<(), RuntimeError> {
        self.inner.arm(self.fence(fence), arming).await
    }

    async fn run_hooks(&self, fence: Fence, hooks: &[Hook]) -> Result<Booting, RuntimeError> {
        self.inner.run_hooks(self.fence(fence), hooks).await
    }

    async fn freeze(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.inner.freeze(self.fence(fence)).await
    }

    async fn thaw(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.inner.thaw(self.fence(fence)).await
    }

    async fn swap_images(&self, fence: Fence, to: &Outfit) -> Result<Facts, RuntimeError> {
        self.inner.swap_images(self.fence(fence), to).await
    }

    async fn set_network(
        &self,
        fence: Fence,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError> {
        self.inner.set_network(self.fence(fence), policy).await
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    async fn capture(
        &self,
        fence: Fence,
        to: Option<&Publication>,
    ) -> Result<Captured, RuntimeError> {
        let mut captured = self.inner.capture(self.fence(fence), to).await?;
        if self.plant == Some(Plant::LostLayer) {
            let nowhere = format!("sha256:{:064x}", fence.uid.to_u128());
            captured.digest = Digest::new(nowhere).unwrap_or(captured.digest);
        }
        Ok(captured)
    }

    async fn reset(&self, fence: Fence, to: Option<&Outfit>) -> Result<(), RuntimeError> {
        if self.plant == Some(Plant::DirtyReset) {
            let nobody = Arming {
                epoch: model::Epoch(0),
                ..Arming::default()
            };
            return self.inner.arm(self.fence(fence), &nobody).await;
        }
        self.inner.reset(self.fence(fence), to).await
    }

    async fn delete(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.inner.delete(self.fence(fence)).await
    }
}
