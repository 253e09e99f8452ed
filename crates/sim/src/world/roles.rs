//! The roles of a world: replicas of the API, gateways, the control loop.

use std::{sync::Arc, time::Duration};

use cache::{Cache, SandboxCache};
use control::{Builder, Control, Options};
use kit::{Backoff, Clock, Entropy, Tasks};
use mesh::Role as Part;
use store::Store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::World;
use crate::{
    clients::Client,
    desk::{Deaf, Desk, Role},
    ear::Ear,
    gateway::{Gateway, Needs},
    plant::{JumpingClock, Plant, PlantedRuntime},
    process::{Memory, Process},
    voice::{Patience, Voice},
};

/// The control loop that leads.
pub(super) struct Leader {
    control: Control,
    pub(super) process: Arc<Process>,
}

impl Leader {
    pub(super) fn crash(self, in_silence: bool) {
        self.control.crash();
        self.process.crash(in_silence);
    }
}

/// A replica of the API.
pub(super) struct Replica {
    pub(super) client: Client,
    pub(super) process: Arc<Process>,
    pub(super) ear: Arc<Ear>,
    pub(super) voice: Voice,
    pub(super) deaf: Deaf,
}

impl World {
    pub(super) async fn new_replica(&self, number: usize) -> Replica {
        let (voice, deaf) = (Voice::default(), Deaf::default());
        let clock: Arc<dyn Clock> = self.clock.clone();
        let patience = Patience {
            fronts: self.fronts.clone(),
            checker: Arc::clone(&self.checker),
            clock: Arc::clone(&clock),
            tasks: self.tasks.clone(),
            plant: self.plant,
            all_known: self.around.all_known,
        };
        let desk: Arc<dyn Store> = Arc::new(Desk {
            role: Role::Client,
            store: Arc::clone(&self.store),
            author: self.author.clone(),
            entropy: Arc::clone(&self.entropy),
            plant: self.plant.filter(|p| *p == Plant::BlindWrites),
            dead: CancellationToken::new(),
            deaf: deaf.clone(),
            voice: voice.clone(),
            patience: Some(patience),
        });
        let sandboxes = client_cache(&desk, &self.entropy, &self.tasks).await;
        let ear = Ear::new(sandboxes.clone());
        let memory = Memory::Ear(Arc::clone(&ear));
        let process = self.around.start(Part::Api, number, memory);
        voice.lend(&process);
        let client = Client {
            store: desk,
            sandboxes,
            clock,
            entropy: Arc::clone(&self.entropy),
            checker: Arc::clone(&self.checker),
        };
        Replica {
            client,
            process,
            ear,
            voice,
            deaf,
        }
    }

    fn desk(
        &self,
        role: Role,
        dead: &CancellationToken,
        deaf: &Deaf,
        voice: &Voice,
    ) -> Arc<dyn Store> {
        Arc::new(Desk {
            role,
            store: Arc::clone(&self.store),
            author: self.author.clone(),
            entropy: Arc::clone(&self.entropy),
            plant: self.plant.filter(|_| role == Role::Control),
            dead: dead.clone(),
            deaf: deaf.clone(),
            voice: voice.clone(),
            patience: None,
        })
    }

    pub(super) fn new_gateway(&self, name: usize) -> Arc<Gateway> {
        self.checker.gateway_started(name);
        let (dead, deaf) = (CancellationToken::new(), Deaf::default());
        let voice = Voice::default();
        // The store may be away when it starts: then it has to ask the others.
        if self.entropy.chance(0.4) {
            deaf.begin(Duration::from_millis(self.entropy.below(20_000) as u64));
        }
        let needs = Needs {
            store: self.desk(Role::Gateway, &dead, &deaf, &voice),
            waking: self.desk(Role::Waker, &dead, &deaf, &voice),
            clock: self.clock.clone(),
            entropy: Arc::clone(&self.entropy),
            plant: self.plant,
            dead,
            deaf,
            around: Arc::clone(&self.around),
            voice,
        };
        Arc::new(Gateway::start(name, needs, &self.tasks))
    }

    pub(super) async fn start_control(&mut self) {
        if self.control.is_some() {
            return;
        }
        let runtime = PlantedRuntime {
            inner: Arc::clone(&self.runtime),
            plant: self.plant,
        };
        let clock: Arc<dyn Clock> = match self.plant {
            Some(Plant::WallClock) => Arc::new(JumpingClock(self.clock.clone())),
            Some(_) | None => self.clock.clone(),
        };
        let sweep_every = match self.plant {
            Some(Plant::NoSweep) => Duration::from_secs(1_000_000),
            Some(_) | None => Duration::from_secs(30),
        };
        let options = Options {
            workers: 1 + self.entropy.below(6),
            step_timeout: Duration::from_secs(20),
            sweep_every,
            backoff: Backoff {
                first: Duration::from_millis(20),
                cap: Duration::from_secs(10),
            },
            drain_timeout: Duration::from_millis(250),
            ..Options::default()
        };
        let voice = Voice::default();
        let process = self.around.start(Part::Control, 0, Memory::Nothing);
        voice.lend(&process);
        let (dead, deaf) = (CancellationToken::new(), Deaf::default());
        let builder = Builder::new(
            self.desk(Role::Control, &dead, &deaf, &voice),
            Arc::new(runtime),
            clock,
            Arc::clone(&self.entropy),
        );
        let deadline = Instant::now() + Duration::from_secs(60);
        self.checker.control_sees();
        let builder = builder
            .options(options)
            .activity(Arc::new(self.fronts.clone()))
            .followers(Arc::new(self.fronts.clone()))
            .waiters(Arc::new(self.fronts.clone()));
        match builder.start(&self.tasks, deadline).await {
            Ok(control) => self.control = Some(Leader { control, process }),
            Err(error) => {
                process.crash(false);
                tracing::debug!(%error, "control did not start");
            }
        }
    }
}

async fn client_cache(
    store: &Arc<dyn Store>,
    entropy: &Arc<Entropy>,
    tasks: &Tasks,
) -> SandboxCache {
    let options = cache::Options::new(Arc::clone(entropy));
    let deadline = Instant::now() + Duration::from_secs(60);
    match Cache::start(Arc::clone(store), options, deadline, tasks).await {
        Ok(cache) => cache,
        Err(error) => unreachable!("nothing fails before the storm: {error}"),
    }
}
