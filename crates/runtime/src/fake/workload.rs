//! One workload of the fake runtime: what it would be like if it were there.

use std::collections::BTreeMap;

use model::{
    Digest, Epoch, Generation, OperationId, StringMap,
    sandbox::{Address, Via},
};
use tokio::time::Instant;

use crate::{Facts, Fence, Observed, Outfit, WorkloadSpec, WorkloadState};

#[derive(Clone, Debug)]
pub(super) struct FakeWorkload {
    pub(super) facts: Facts,
    pub(super) partial: bool,
    pub(super) fence: (Generation, OperationId),
    /// Deliveries that were inside since it was made or reset: what an owner could see.
    pub(super) traces: Vec<Epoch>,
    /// Whether it has commands that must bring it up.
    pub(super) boots: bool,
    /// When they will have, if they are slow.
    pub(super) up_at: Option<Instant>,
    /// How often they were run to their end.
    pub(super) started: u64,
    /// How often hooks were run.
    pub(super) hooks: u64,
    /// Armings since it was made: distinguishes captures.
    pub(super) writes: u64,
    pub(super) thaws: u64,
}

/// Of those images that say one.
fn digests(images: &StringMap) -> BTreeMap<Box<str>, Digest> {
    let pinned = images.iter().filter_map(|(container, image)| {
        let (_, digest) = image.split_once('@')?;
        Some((container.into(), Digest::new(digest).ok()?))
    });
    pinned.collect()
}

impl FakeWorkload {
    /// Its commands have brought it up.
    pub(super) fn come_up(&mut self) {
        if !self.facts.booted {
            self.facts.booted = true;
            self.started += 1;
        }
    }

    /// Its processes were started anew.
    pub(super) fn go_down(&mut self) {
        self.facts.booted = !self.boots;
        self.facts.hooked = None;
        self.up_at = None;
    }

    /// Other images, in another container.
    pub(super) fn wear(&mut self, outfit: Outfit, container: u64) {
        self.facts.digests = digests(&outfit.images);
        self.facts.images = outfit.images;
        self.facts.container_id = format!("c{container}").into();
        self.boots = outfit.boot.is_some();
    }

    pub(super) fn observed(&self) -> Observed {
        if self.partial {
            Observed::Partial
        } else {
            Observed::Present(self.facts.clone())
        }
    }

    pub(super) fn new(
        fence: Fence,
        spec: &WorkloadSpec,
        container: u64,
        traces: Vec<Epoch>,
    ) -> Self {
        Self {
            facts: Facts {
                state: WorkloadState::Running,
                epoch: Epoch::default(),
                booted: spec.boot.is_none(),
                container_id: format!("c{container}").into(),
                images: spec.images.clone(),
                digests: digests(&spec.images),
                hooked: None,
                layer: spec.from.clone(),
                network: spec.network.clone(),
                address: Address {
                    via: Via::NetworkNamespace,
                    ip: None,
                },
                oom_kills: 0,
                loss: None,
            },
            partial: false,
            fence: fence.rank(),
            traces,
            boots: spec.boot.is_some(),
            up_at: None,
            started: 0,
            hooks: 0,
            writes: 0,
            thaws: 0,
        }
    }
}
