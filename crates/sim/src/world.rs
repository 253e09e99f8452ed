//! One run: storm, quiet, verdict.

use std::{sync::Arc, time::Duration};

use cache::{Cache, SandboxCache};
use control::{Builder, Control, Options};
use kit::{Backoff, Clock, Entropy, ManualClock, Tasks};
use model::SandboxId;
use parking_lot::Mutex;
use routes::Message;
use runtime::{Abilities, Keeps, fake::FakeRuntime};
use store::{Store, memory::MemoryStore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    checker::{Checker, Violation, rest},
    clients::{Act, Client},
    desk::{Author, Deaf, Desk, Role},
    faults::Weather,
    gateway::{Gateway, Needs},
    plant::{JumpingClock, Plant, PlantedRuntime},
    traffic::{self, Around, Fronts},
};

/// How much happens in a run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Things that clients ask for, and as many faults around them.
    pub acts: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { acts: 120 }
    }
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What it was made from.
    pub seed: u64,
    /// Promises that did not hold.
    pub violations: Vec<Violation>,
    /// Changes of the store, and a fingerprint of all of them.
    pub fingerprint: (u64, u64),
    /// The last changes, for people.
    pub trace: Vec<String>,
}

/// November 2026, in microseconds: some moment that is not zero.
const START: i64 = 1_794_000_000_000_000;

/// Runs the world of a seed, in a runtime of its own.
///
/// # Panics
/// If the runtime cannot be made.
#[must_use]
pub fn run(seed: u64, size: Size, plant: Option<Plant>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a current-thread runtime needs nothing of the machine");
    runtime.block_on(async {
        let mut world = World::begin(seed, plant).await;
        world.storm(size).await;
        world.quiet().await;
        world.verdict(seed)
    })
}

/// In every fourth world nothing can be frozen and no layer is kept on the machine, as with Pods.
const fn abilities(seed: u64) -> Abilities {
    match seed % 4 {
        3 => Abilities {
            freeze: false,
            keeps: Keeps::InRegistry,
        },
        _ => Abilities::ALL,
    }
}

struct World {
    entropy: Arc<Entropy>,
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    runtime: Arc<FakeRuntime>,
    checker: Arc<Checker>,
    author: Author,
    plant: Option<Plant>,
    tasks: Tasks,
    control: Option<Control>,
    fronts: Fronts,
    requests: usize,
    /// Ids that were there once.
    former: Vec<SandboxId>,
    /// Everything gateways ever told each other: any of it can arrive again.
    gossip: Arc<Mutex<Vec<Message>>>,
    client: Client,
    unrest: Vec<Violation>,
}

impl World {
    async fn begin(seed: u64, plant: Option<Plant>) -> Self {
        let entropy = Arc::new(Entropy::seeded(seed));
        let clock = Arc::new(ManualClock::starting_at(START));
        let tasks = Tasks::default();
        let as_clock: Arc<dyn Clock> = clock.clone();
        let store = Arc::new(MemoryStore::new(
            Arc::clone(&as_clock),
            Arc::clone(&entropy),
        ));
        let runtime = Arc::new(FakeRuntime::new(tasks.child()).able(abilities(seed)));
        let checker = Arc::new(Checker::new(Arc::clone(&as_clock), Arc::clone(&runtime)));
        let author = Author::default();
        let (seen_by, who) = (Arc::clone(&checker), author.clone());
        store.audit(move |event| seen_by.sees(event, who.get()));
        let desk = Desk {
            role: Role::Client,
            store: Arc::clone(&store),
            author: author.clone(),
            entropy: Arc::clone(&entropy),
            plant: plant.filter(|p| *p == Plant::BlindWrites),
            dead: CancellationToken::new(),
            deaf: Deaf::default(),
        };
        let desk: Arc<dyn Store> = Arc::new(desk);
        let sandboxes = client_cache(&desk, &entropy, &tasks).await;
        let client = Client {
            store: desk,
            sandboxes,
            clock: as_clock,
            entropy: Arc::clone(&entropy),
            checker: Arc::clone(&checker),
        };
        client.set_up().await;
        let mut world = Self {
            entropy,
            clock,
            store,
            runtime,
            checker,
            author,
            plant,
            tasks,
            control: None,
            fronts: Fronts {
                plant,
                ..Fronts::default()
            },
            requests: 0,
            former: Vec::new(),
            gossip: Arc::default(),
            client,
            unrest: Vec::new(),
        };
        for name in 0..2 {
            let gateway = world.new_gateway(name);
            world.fronts.gateways.lock().push(gateway);
        }
        world.start_control().await;
        world
    }

    fn desk(&self, role: Role, dead: &CancellationToken, deaf: &Deaf) -> Arc<dyn Store> {
        Arc::new(Desk {
            role,
            store: Arc::clone(&self.store),
            author: self.author.clone(),
            entropy: Arc::clone(&self.entropy),
            plant: self.plant.filter(|_| role == Role::Control),
            dead: dead.clone(),
            deaf: deaf.clone(),
        })
    }

    fn new_gateway(&self, name: usize) -> Arc<Gateway> {
        self.checker.gateway_started(name);
        let (dead, deaf) = (CancellationToken::new(), Deaf::default());
        let needs = Needs {
            store: self.desk(Role::Gateway, &dead, &deaf),
            waking: self.desk(Role::Waker, &dead, &deaf),
            clock: self.clock.clone(),
            entropy: Arc::clone(&self.entropy),
            plant: self.plant,
            dead,
            deaf,
        };
        Arc::new(Gateway::start(name, needs, &self.tasks))
    }

    fn gateways(&self) -> Vec<Arc<Gateway>> {
        self.fronts.gateways.lock().clone()
    }

    async fn start_control(&mut self) {
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
        let builder = Builder::new(
            self.desk(Role::Control, &CancellationToken::new(), &Deaf::default()),
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
            Ok(control) => self.control = Some(control),
            Err(error) => tracing::debug!(%error, "control did not start"),
        }
    }

    /// Clients and faults at once.
    async fn storm(&mut self, size: Size) {
        let weather = Weather::draw(&self.entropy);
        weather.begin(&self.store, &self.runtime, &self.author, &self.entropy);
        for number in 0..size.acts {
            let client = self.client.clone();
            let act = Act::draw(&self.entropy);
            self.tasks
                .spawn(async move { client.act(act, number).await });
            self.traffic();
            if self.entropy.chance(0.3) {
                self.trouble().await;
            }
            self.gossip();
            self.look();
            let pause = match self.entropy.below(4) {
                0 => 0,
                1 => self.entropy.below(10),
                2 => self.entropy.below(500),
                _ => self.entropy.below(8_000),
            };
            tokio::time::sleep(Duration::from_millis(pause as u64)).await;
            self.look();
        }
    }

    /// Requests for sandboxes that are there, and some for those that were.
    fn traffic(&mut self) {
        for _ in 0..self.entropy.below(3) {
            let gateways = self.gateways();
            let gateway = &gateways[self.entropy.below(gateways.len())];
            let there = gateway.routes();
            let at = self.entropy.below(there.len());
            let known = there.into_keys().nth(at);
            if let Some(id) = known.clone().filter(|_| self.entropy.chance(0.2)) {
                self.former.push(id);
            }
            let past = self.entropy.chance(0.3);
            let former = self.former.get(self.entropy.below(self.former.len()));
            let Some(id) = former.filter(|_| past).cloned().or(known) else {
                continue;
            };
            self.requests += 1;
            let around = Around {
                runtime: Arc::clone(&self.runtime),
                checker: Arc::clone(&self.checker),
                entropy: Arc::clone(&self.entropy),
                plant: self.plant,
            };
            let request = traffic::request(Arc::clone(gateway), id, self.requests, around);
            self.tasks.spawn(request);
        }
    }

    /// Something goes wrong.
    async fn trouble(&mut self) {
        match self.entropy.below(64) / 4 {
            0 | 1 => {
                if let Some(control) = self.control.take() {
                    self.checker.control_blind();
                    control.crash();
                }
            }
            2..5 => self.start_control().await,
            5 | 15 => {
                let gateways = self.gateways();
                let at = self.entropy.below(gateways.len());
                if self.entropy.chance(0.5) {
                    let long = Duration::from_millis(self.entropy.below(60_000) as u64);
                    return gateways[at].deaf.begin(long);
                }
                self.checker.gateway_died(at);
                gateways[at].crash();
                let new = self.new_gateway(at);
                self.fronts.gateways.lock()[at] = new;
            }
            6 | 7 => {
                self.checker.control_blind();
                self.store.lag();
            }
            8 | 9 => self.catch_up(),
            10 => self.store.lose_watches(),
            11 => self.lose_something(),
            12 => {
                let hours = self.entropy.below(48) as i64 - 24;
                self.clock.jump(hours * 3_600_000_000);
                self.checker.clock_jumped();
            }
            13 => {
                let there = self.runtime.truth();
                let at = self.entropy.below(there.len());
                if let Some(uid) = there.keys().nth(at) {
                    self.checker.workload_ended(*uid);
                    self.runtime.exit(*uid, self.entropy.below(2) as i32);
                }
            }
            // Everything of one machine goes at once.
            _ => {
                if let Some(control) = self.control.take() {
                    self.checker.control_blind();
                    control.crash();
                }
                self.runtime.restart_host();
                for uid in self.runtime.truth().keys() {
                    self.checker.host_restarted(*uid);
                }
            }
        }
    }

    fn catch_up(&self) {
        self.store.catch_up();
        if self.control.is_some() {
            self.checker.control_sees();
        }
    }

    fn lose_something(&self) {
        let there = self.runtime.truth();
        let at = self.entropy.below(there.len());
        if let Some(uid) = there.keys().nth(at) {
            self.checker.workload_ended(*uid);
            self.runtime.lose(*uid);
        }
    }

    /// Gateways tell each other what they learned: late, twice, out of order, or never.
    fn gossip(&self) {
        let gateways = self.gateways();
        for gateway in &gateways {
            self.gossip.lock().extend(gateway.outbox.lock().drain(..));
        }
        let gossip = self.gossip.lock();
        for gateway in &gateways {
            for _ in 0..self.entropy.below(6) {
                let at = self.entropy.below(gossip.len());
                if let Some(message) = gossip.get(at) {
                    gateway.hear(message.clone());
                }
            }
        }
    }

    fn look(&self) {
        self.gateways()
            .iter()
            .for_each(|gateway| gateway.show(&self.checker));
    }

    /// Faults end, roles come back; the world comes to rest.
    async fn quiet(&mut self) {
        Weather::end(&self.store, &self.runtime);
        self.start_control().await;
        // Longer than any backoff, belated effect, expectation or retry of a standing order.
        for _ in 0..90 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            self.look();
        }
        // Deadlines may still be running out: look until a moment between them is found.
        for _ in 0..240 {
            let unanswered = self.checker.unanswered();
            self.unrest = rest::unrest(&self.store, &self.runtime, &self.gateways(), &unanswered);
            if self.unrest.is_empty() || !self.checker.violations().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2500)).await;
        }
    }

    fn verdict(self, seed: u64) -> Outcome {
        let mut violations = self.checker.violations();
        violations.extend(self.unrest);
        Outcome {
            seed,
            violations,
            fingerprint: self.checker.fingerprint(),
            trace: self.checker.trace(),
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
