//! The gateways and who else is there, with a watch each that comes later than the mesh.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use kit::{Clock, Entropy, ManualClock, Tasks};
use mesh::{
    Heard, Options, Role,
    frame::{Ack, Answer, Ask, Frame, Numbered, Part, Push},
};
use model::{Name, Namespace, Version};
use parking_lot::Mutex;
use routes::{Message, Route, Snapshot, Table};

use super::{
    Scale,
    churn::{Churn, Writer},
};
use crate::{
    network::{Moved, Network, Weather},
    process::{Memory, Needs, Process},
    surroundings::address,
};

/// How late a watch is.
const LAG: Duration = Duration::from_millis(80);
/// One step of time.
const STEP: Duration = Duration::from_millis(1);
/// Of how many changes it is looked how long they take.
const LOOKED_AT: u64 = 50;
/// How long a gateway that was parted from the others may take to have what it missed: it asks at once,
/// and twice more if that was lost.
pub(super) const HEALS_WITHIN: Duration = Duration::from_secs(3);
/// How often it is looked whether it has.
const GLANCE: Duration = Duration::from_millis(100);
/// How long one more gateway may take to be ready.
const JOINS_WITHIN: Duration = Duration::from_secs(60);
/// How long everybody has to tell it what they said lately, which it does not wait for.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// A gateway.
#[derive(Debug)]
struct Front {
    process: Arc<Process>,
    table: Arc<Table>,
    /// How much of what was written its watch has brought.
    seen: usize,
    is_deaf: bool,
}

/// A replica of the API: it only hears.
#[derive(Debug, Default)]
struct Listener(Mutex<Version>);

impl Heard for Listener {
    fn heard(&self, _: &Message) {}

    fn watched(&self) -> Version {
        *self.0.lock()
    }
}

/// Everybody.
#[derive(Debug)]
pub(super) struct Fleet {
    clock: Arc<dyn Clock>,
    network: Arc<Network>,
    entropy: Entropy,
    seeds: BTreeSet<SocketAddr>,
    fronts: Vec<Front>,
    listeners: Vec<(Arc<Process>, Arc<Listener>)>,
    control: Arc<Process>,
    /// What was written since the start, and when.
    log: Vec<(Duration, Message)>,
    /// Changes whose effect is looked for, and since when.
    looked_at: VecDeque<(Duration, Message)>,
    took: Vec<Duration>,
    /// What has ended: none of it comes back.
    gone: BTreeSet<(Namespace, Name)>,
    _tasks: Tasks,
}

/// How one more gateway came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    /// When it could serve.
    pub(super) ready: Duration,
    /// When it had been told everything.
    pub(super) all: Duration,
    /// With how many routes it could serve.
    pub(super) routes: usize,
}

/// How large frames are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// One change alone in a push, and its acknowledgement.
    pub(super) change: f64,
    /// A second of being there: a push of nothing, and its acknowledgement.
    pub(super) beat: f64,
    /// A second of asking: a question, and that there is nothing.
    pub(super) question: f64,
    /// One change among many.
    pub(super) told: f64,
}

impl Sizes {
    pub(super) fn of(churn: &Churn) -> Self {
        let bytes = |frame| {
            let numbered = Numbered {
                number: 1000,
                frame,
            };
            numbered.encode().map_or(0, |bytes| bytes.len()) as f64
        };
        let first = 1000;
        let watched = churn.version();
        let ack = bytes(Frame::Ack(Ack {
            next: first,
            watched,
        }));
        let push = |messages| bytes(Frame::Push(Push { first, messages }));
        let route = churn.some_route().map(Message::Upsert);
        let one: Vec<Message> = route.into_iter().collect();
        let asks = options(Role::Other, 0).sync_interval.as_secs_f64();
        let question = bytes(Frame::Ask(Ask {
            round: first,
            after: watched,
            told: Some(first),
            full: false,
        }));
        let part = bytes(Frame::Part(Part {
            round: first,
            answer: Answer::Changes,
            messages: Vec::new(),
            last: true,
            stamp: first,
            watched,
        }));
        Self {
            change: push(one.clone()) + ack,
            beat: (push(Vec::new()) + ack) / asks,
            question: (question + part) / asks,
            told: push(one) - push(Vec::new()) + 1.0,
        }
    }
}

impl Fleet {
    /// Everybody starts with a list of what is there.
    pub(super) fn start(churn: &Churn, scale: Scale, seed: u64) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::starting_at(0));
        let tasks = Tasks::default();
        let network = Network::new(Arc::clone(&clock), Entropy::seeded(seed ^ 1));
        network.weather(Weather::fair());
        tasks.spawn(Arc::clone(&network).run());
        let entropy = Entropy::seeded(seed ^ 2);
        let gateways = (0..scale.gateways).map(|n| address(Role::Gateway, n));
        let replicas = (0..scale.replicas).map(|n| address(Role::Api, n));
        let control = [address(Role::Control, 0)];
        let seeds: BTreeSet<_> = gateways.chain(replicas).chain(control).collect();
        let start = |role, number, memory| {
            let needs = Needs {
                options: options(role, number),
                memory,
                seeds: seeds.clone(),
                checker: None,
            };
            Process::start(needs, &network, &entropy)
        };
        // Each has copies of its own, as from a list of its own.
        let texts: Vec<String> = churn.now.iter().filter_map(text).collect();
        let fronts = (0..scale.gateways).map(|number| {
            let table = Arc::new(Table::default());
            let routes = texts.iter().filter_map(|text| route(text)).collect();
            let version = churn.version();
            table.replace_all(Snapshot { version, routes }, clock.monotonic());
            let memory = Memory::Table(Arc::clone(&table), Arc::clone(&table) as _);
            let process = start(Role::Gateway, number, memory);
            Front {
                process,
                table,
                seen: 0,
                is_deaf: false,
            }
        });
        let fronts = fronts.collect();
        let listeners = (0..scale.replicas).map(|number| {
            let listener = Arc::new(Listener(Mutex::new(churn.version())));
            let memory = Memory::Listener(Arc::clone(&listener) as _);
            (start(Role::Api, number, memory), listener)
        });
        let listeners = listeners.collect();
        let control = start(Role::Control, 0, Memory::Nothing);
        Self {
            clock,
            network,
            entropy,
            seeds,
            fronts,
            listeners,
            control,
            log: Vec::new(),
            looked_at: VecDeque::new(),
            took: Vec::new(),
            gone: BTreeSet::new(),
            _tasks: tasks,
        }
    }

    pub(super) fn members(&self) -> usize {
        self.fronts.len() + self.listeners.len() + 1
    }

    pub(super) fn moved(&self) -> Moved {
        self.network.moved()
    }

    /// Changes that were news when a peer told of them.
    pub(super) fn applied(&self) -> u64 {
        let counts = self.fronts.iter().map(|f| f.process.stats().counts);
        counts.map(|counts| counts.applied).sum()
    }

    /// What those who write keep of what they said.
    pub(super) fn said_lately(&self) -> usize {
        let most = options(Role::Other, 0).max_said;
        let fronts = self.fronts.iter().map(|front| &front.process);
        let listeners = self.listeners.iter().map(|(process, _)| process);
        let all = fronts.chain(listeners).chain([&self.control]);
        let said = all.map(|process| process.stats().counts.said as usize);
        said.map(|said| said.min(most)).sum()
    }

    /// Lets time pass in which nothing is written.
    pub(super) async fn pass(&mut self, long: Duration) {
        let end = self.clock.monotonic() + long;
        while self.clock.monotonic() < end {
            self.step().await;
        }
    }

    /// Lets changes happen; answers how many.
    pub(super) async fn change(
        &mut self,
        churn: &mut Churn,
        a_second: usize,
        seconds: usize,
    ) -> u64 {
        let (total, began) = ((a_second * seconds) as u64, self.clock.monotonic());
        let mut made = 0;
        while made < total {
            let passed = self.clock.monotonic().saturating_sub(began);
            let due = passed.as_millis() as u64 * a_second as u64 / 1000;
            while made < due.min(total) {
                made += 1;
                self.write(churn, made % LOOKED_AT == 0);
            }
            self.step().await;
        }
        self.pass(Duration::from_secs(1)).await;
        total
    }

    fn write(&mut self, churn: &mut Churn, is_looked_at: bool) {
        let (writer, message) = churn.next();
        let now = self.clock.monotonic();
        self.log.push((now, message.clone()));
        if let Message::Delete(gone) = &message {
            self.gone
                .insert((gone.namespace.clone(), gone.name.clone()));
        }
        if is_looked_at {
            self.looked_at.push_back((now, message.clone()));
        }
        match writer {
            Writer::Replica(number) => self.listeners[number].0.say(message),
            Writer::Gateway(number) => self.fronts[number].process.say(message),
            Writer::Control => self.control.say(message),
        }
    }

    async fn step(&mut self) {
        tokio::time::sleep(STEP).await;
        let now = self.clock.monotonic();
        for front in self.fronts.iter_mut().filter(|front| !front.is_deaf) {
            while let Some((at, message)) = self.log.get(front.seen) {
                if *at + LAG > now {
                    break;
                }
                front
                    .table
                    .apply(routes::Writer::Watch, message.clone(), now);
                front.table.watch_passed(version_of(message), now);
                front.seen += 1;
            }
        }
        let newest = self.fronts.iter().map(|f| f.table.watched()).max();
        for (_, listener) in &self.listeners {
            *listener.0.lock() = newest.unwrap_or(Version::ZERO);
        }
        let (fronts, took, gone) = (&self.fronts, &mut self.took, &self.gone);
        self.looked_at.retain(|(since, message)| {
            let mut fronts = fronts.iter();
            let everywhere = fronts.all(|front| has(&front.table, gone, message));
            if everywhere {
                took.push(now.saturating_sub(*since));
            }
            !everywhere
        });
    }

    /// How long it took until all had a change: half of them, and 99 of 100.
    pub(super) fn delays(&mut self) -> (Duration, Duration) {
        self.took.sort_unstable();
        let at = |q: usize| self.took.get(self.took.len() * q / 100).copied();
        (at(50).unwrap_or_default(), at(99).unwrap_or_default())
    }

    /// Parts one gateway from the others for a while, with a watch that stands still; answers how long
    /// after that it has all that was written meanwhile, or how much it lacks if it takes too long.
    pub(super) async fn part_one(
        &mut self,
        churn: &mut Churn,
        a_second: usize,
        long: Duration,
    ) -> Result<Duration, usize> {
        let first = self.log.len();
        self.fronts[0].is_deaf = true;
        let one = self.fronts[0].process.address;
        for other in self.seeds.iter().filter(|seed| **seed != one) {
            self.network.block(one, *other);
            self.network.block(*other, one);
        }
        self.change(churn, a_second, long.as_secs() as usize).await;
        self.network.mend();
        let mended = self.clock.monotonic();
        let missed = self.log[first..].to_vec();
        let table = Arc::clone(&self.fronts[0].table);
        let healed = loop {
            let lacks = missed.iter().filter(|(_, m)| !has(&table, &self.gone, m));
            let (lacks, took) = (lacks.count(), self.clock.monotonic() - mended);
            match lacks {
                0 => break Ok(took),
                _ if took > HEALS_WITHIN => break Err(lacks),
                _ => self.pass(GLANCE).await,
            }
        };
        self.fronts[0].is_deaf = false;
        healed
    }

    /// Where tables differ from what was written.
    pub(super) fn differences(&self, churn: &Churn) -> Vec<String> {
        let mut wrong = Vec::new();
        for front in &self.fronts {
            let (mut differ, mut there) = (0, 0);
            for now in &churn.now {
                let (namespace, name) = match now {
                    Ok(route) => (&route.namespace, &route.name),
                    Err(gone) => (&gone.namespace, &gone.name),
                };
                let found = front.table.find(namespace, name);
                there += usize::from(now.is_ok());
                differ += usize::from(found.as_ref() != now.as_ref().ok());
            }
            let has = front.table.stats().routes;
            if differ > 0 || has != there {
                let who = front.process.address;
                wrong.push(format!("{who}: {differ} routes differ, {has} of {there}"));
            }
        }
        wrong
    }

    /// One more gateway, which has no list of its own.
    pub(super) async fn join(&mut self) -> Joined {
        let table = Arc::new(Table::default());
        let needs = Needs {
            options: options(Role::Gateway, self.fronts.len()),
            memory: Memory::Table(Arc::clone(&table), Arc::clone(&table) as _),
            seeds: self.seeds.clone(),
            checker: None,
        };
        let began = self.clock.monotonic();
        let process = Process::start(needs, &self.network, &self.entropy);
        while !table.synced() && self.clock.monotonic() < began + JOINS_WITHIN {
            self.step().await;
        }
        let (ready, routes) = (self.clock.monotonic() - began, table.stats().routes);
        self.pass(TOLD_WITHIN).await;
        process.leave();
        Joined {
            ready,
            all: ready + TOLD_WITHIN,
            routes,
        }
    }
}

/// As it is shipped.
fn options(role: Role, number: usize) -> Options {
    Options::new("sim", role, address(role, number))
}

fn version_of(message: &Message) -> Version {
    match message {
        Message::Upsert(route) => route.version,
        Message::Delete(deletion) => deletion.version,
        Message::Unreadable(_) => Version::ZERO,
    }
}

/// Whether a table has a change, or something newer.
fn has(table: &Table, gone: &BTreeSet<(Namespace, Name)>, message: &Message) -> bool {
    match message {
        Message::Upsert(route) => match table.find(&route.namespace, &route.name) {
            Some(found) => found.version >= route.version,
            None => gone.contains(&(route.namespace.clone(), route.name.clone())),
        },
        Message::Delete(gone) => table.find(&gone.namespace, &gone.name).is_none(),
        Message::Unreadable(_) => true,
    }
}

fn text(now: &Result<Arc<Route>, routes::Deletion>) -> Option<String> {
    serde_json::to_string(now.as_ref().ok()?).ok()
}

fn route(text: &str) -> Option<Arc<Route>> {
    serde_json::from_str(text).ok().map(Arc::new)
}
