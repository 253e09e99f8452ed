//! One run: storm, quiet, verdict.

mod roles;
mod trouble;

use std::{sync::Arc, time::Duration};

use kit::{Clock, Entropy, ManualClock, Tasks};
use model::SandboxId;
use runtime::{Abilities, Keeps, fake::FakeRuntime};
use store::memory::MemoryStore;
use tokio::time::Instant;

use crate::{
    checker::{Checker, Violation, rest},
    clients::Act,
    desk::Author,
    faults::Weather,
    gateway::Gateway,
    network,
    plant::Plant,
    process::Process,
    surroundings::{GATEWAYS, REPLICAS, Surroundings},
    traffic::{self, Around, Fronts},
};
use roles::{Leader, Replica};

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

/// How long a gateway is deaf once it is quiet.
const HEARING: Duration = Duration::from_secs(75);
/// How long links may take to be there again: until silence is noticed, and the longest pause.
const LINKING: Duration = Duration::from_secs(24);
/// How often it is looked whether anything changes.
const STEP: Duration = Duration::from_secs(2);
/// For how long nothing must have changed: some rounds.
const STILL: Duration = Duration::from_secs(12);

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
    around: Arc<Surroundings>,
    control: Option<Leader>,
    fronts: Fronts,
    requests: usize,
    /// Ids that were there once.
    former: Vec<SandboxId>,
    replicas: Vec<Replica>,
    unrest: Vec<Violation>,
    /// What a gateway that was deaf did not hear from others.
    late: Vec<Violation>,
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
        let around = Surroundings::new(seed, as_clock, Arc::clone(&checker));
        tasks.spawn(Arc::clone(&around.network).run());
        let mut world = Self {
            entropy,
            clock,
            store,
            runtime,
            checker,
            author,
            plant,
            tasks,
            around,
            control: None,
            fronts: Fronts {
                plant,
                ..Fronts::default()
            },
            requests: 0,
            former: Vec::new(),
            replicas: Vec::new(),
            unrest: Vec::new(),
            late: Vec::new(),
        };
        for number in 0..REPLICAS {
            let replica = world.new_replica(number).await;
            world.replicas.push(replica);
        }
        world.replicas[0].client.set_up().await;
        for name in 0..GATEWAYS {
            let gateway = world.new_gateway(name);
            world.fronts.gateways.lock().push(gateway);
        }
        world.start_control().await;
        world
    }

    fn gateways(&self) -> Vec<Arc<Gateway>> {
        self.fronts.gateways.lock().clone()
    }

    /// Clients and faults at once.
    async fn storm(&mut self, size: Size) {
        let weather = Weather::draw(&self.entropy);
        weather.begin(&self.store, &self.runtime, &self.author, &self.entropy);
        self.around
            .network
            .weather(network::Weather::draw(&self.entropy));
        for number in 0..size.acts {
            let replica = &self.replicas[self.entropy.below(REPLICAS)];
            let client = replica.client.clone();
            let act = Act::draw(&self.entropy);
            self.tasks
                .spawn(async move { client.act(act, number).await });
            self.traffic();
            if self.entropy.chance(0.3) {
                self.trouble().await;
            }
            // Where nobody tells anybody, what a gateway has not heard of matters most.
            if self.around.is_silent && self.entropy.chance(0.1) {
                self.deafen();
            }
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

    fn look(&self) {
        self.gateways()
            .iter()
            .for_each(|gateway| gateway.show(&self.checker));
    }

    /// Faults end, roles come back; the world comes to rest.
    async fn quiet(&mut self) {
        Weather::end(&self.store, &self.runtime);
        self.around.network.weather(network::Weather::fair());
        self.around.network.mend();
        self.start_control().await;
        self.hear_by_others().await;
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

    /// A gateway whose own watch stands still has what the others have, as soon as nothing changes.
    /// Then the processes say good-bye to each other: what follows is not about them.
    async fn hear_by_others(&mut self) {
        let gateways = self.gateways();
        for gateway in &gateways {
            gateway.deaf.begin(Duration::ZERO);
        }
        let deaf = &gateways[self.entropy.below(gateways.len())];
        deaf.deaf.begin(HEARING);
        let (mut changes, mut still) = (0, Duration::ZERO);
        let end = Instant::now() + HEARING;
        tokio::time::sleep(LINKING).await;
        while Instant::now() + STEP < end {
            tokio::time::sleep(STEP).await;
            self.look();
            still += STEP;
            if self.checker.changes() != changes {
                (changes, still) = (self.checker.changes(), Duration::ZERO);
            }
            if still >= STILL && !self.around.is_silent {
                self.late = rest::disagreements(&self.store, &gateways);
                break;
            }
        }
        for process in self.processes() {
            process.leave();
        }
    }

    fn processes(&self) -> Vec<Arc<Process>> {
        let gateways = self.gateways().into_iter().map(|g| Arc::clone(&g.process));
        let replicas = self.replicas.iter().map(|r| Arc::clone(&r.process));
        let control = self
            .control
            .iter()
            .map(|leader| Arc::clone(&leader.process));
        gateways.chain(replicas).chain(control).collect()
    }

    fn verdict(self, seed: u64) -> Outcome {
        let mut violations = self.checker.violations();
        violations.extend(self.late);
        violations.extend(self.unrest);
        Outcome {
            seed,
            violations,
            fingerprint: self.checker.fingerprint(),
            trace: self.checker.trace(),
        }
    }
}
