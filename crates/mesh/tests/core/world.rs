//! Processes without a network: whoever tests decides what happens to every frame, link and job.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use mesh::{
    Book, Options, Role, Why,
    core::{Core, Done, Ground, Job, LinkId, Output, Side, WaitId},
    frame::Numbered,
};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use routes::{
    Address, Deletion, Gate, Limits, Message, Outcome, Route, Snapshot, State, Table, Writer,
};

pub(crate) const PROCESSES: usize = 4;
pub(crate) const KEYS: u8 = 6;

pub(crate) fn address(n: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(n).unwrap()], 7000))
}

pub(crate) fn name(key: u8) -> Name {
    Name::new(format!("n{key}")).unwrap()
}

pub(crate) fn namespace() -> Namespace {
    Namespace::new("team").unwrap()
}

pub(crate) fn message(key: u8, version: u64, is_delete: bool) -> Message {
    let version = Version::from_u64(version);
    if is_delete {
        return Message::Delete(Deletion {
            namespace: namespace(),
            name: name(key),
            version,
        });
    }
    Message::from(Route {
        version,
        epoch: Epoch(1),
        uid: Uid::from_random(u128::from(key)),
        namespace: namespace(),
        name: name(key),
        id: Some(SandboxId::new(format!("s{key}")).unwrap()),
        state: State::Running,
        address: Some(Address::Netns),
        wake_on_traffic: false,
        is_closing: false,
        agent: Gate::Closed,
        traffic: Gate::Open,
        owner: None,
        mask_host: None,
    })
}

/// One process: a core, a table, and a watch of the store.
pub(crate) struct Process {
    pub(crate) core: Core,
    pub(crate) table: Arc<Table>,
    pub(crate) watched: usize,
    pub(crate) waits: BTreeMap<WaitId, Message>,
}

pub(crate) type End = (usize, LinkId);

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) history: Vec<(u8, bool)>,
    pub(crate) processes: Vec<Process>,
    pub(crate) started: u64,
    /// The other end of each end of a link.
    pub(crate) links: BTreeMap<End, End>,
    /// What is on its way to an end.
    pub(crate) flying: BTreeMap<End, VecDeque<Numbered>>,
    pub(crate) dials: VecDeque<(usize, SocketAddr)>,
    /// What takes long and is not run yet, and what is and was not heard of.
    pub(crate) jobs: VecDeque<(usize, Job)>,
    pub(crate) done: VecDeque<(usize, Done)>,
    /// Whether that is left alone when all else comes to rest.
    pub(crate) are_jobs_held: bool,
    /// Pairs that cannot reach each other: from, to.
    pub(crate) apart: BTreeSet<(usize, usize)>,
    pub(crate) said: usize,
    pub(crate) max_said: usize,
    /// Whether all are told where all are, or only where the first is.
    pub(crate) are_all_seeds: bool,
}

impl World {
    pub(crate) fn new(max_said: usize) -> Self {
        Self::with(max_said, true)
    }

    pub(crate) fn with(max_said: usize, are_all_seeds: bool) -> Self {
        let mut world = Self {
            now: Duration::from_secs(1),
            history: Vec::new(),
            processes: Vec::new(),
            started: 0,
            links: BTreeMap::new(),
            flying: BTreeMap::new(),
            dials: VecDeque::new(),
            jobs: VecDeque::new(),
            done: VecDeque::new(),
            are_jobs_held: false,
            apart: BTreeSet::new(),
            said: 0,
            max_said,
            are_all_seeds,
        };
        for n in 0..PROCESSES {
            let process = world.process(n);
            world.processes.push(process);
        }
        for n in 0..PROCESSES {
            world.list(n);
            world.perform(n);
        }
        world
    }

    pub(crate) fn process(&mut self, n: usize) -> Process {
        self.started += 1;
        let table = Arc::new(Table::new(Limits {
            retention: Duration::from_secs(5),
            max_recent: 8,
            ..Limits::default()
        }));
        let mut options = Options::new("one", Role::Gateway, address(n));
        options.max_said = self.max_said;
        let ground = Ground {
            process: self.started,
            book: Some(Arc::clone(&table) as Arc<dyn Book>),
            ear: None,
            seed: self.started,
        };
        let mut core = Core::new(options, ground, self.now);
        let seeds = 0..if self.are_all_seeds { PROCESSES } else { 1 };
        core.seeds(seeds.map(address).collect(), self.now);
        Process {
            core,
            table,
            watched: 0,
            waits: BTreeMap::new(),
        }
    }

    /// A full list of the store, by the own watch.
    pub(crate) fn list(&mut self, n: usize) {
        let mut last = BTreeMap::new();
        for (at, (key, is_delete)) in self.history.iter().enumerate() {
            last.insert(*key, (at, *is_delete));
        }
        let live = last.into_iter().filter(|(_, (_, dead))| !dead);
        let routes = live.map(|(key, (at, _))| match message(key, at as u64 + 1, false) {
            Message::Upsert(route) => route,
            Message::Delete(_) | Message::Unreadable(_) => unreachable!(),
        });
        let snapshot = Snapshot {
            version: Version::from_u64(self.history.len() as u64),
            routes: routes.collect(),
        };
        let process = &mut self.processes[n];
        process.watched = self.history.len();
        process.table.replace_all(snapshot, self.now);
    }

    pub(crate) fn watch(&mut self, n: usize, count: usize) {
        let process = &mut self.processes[n];
        for _ in 0..count {
            let Some((key, is_delete)) = self.history.get(process.watched) else {
                return;
            };
            process.watched += 1;
            let version = process.watched as u64;
            let said = message(*key, version, *is_delete);
            process.table.apply(Writer::Watch, said, self.now);
            let version = Version::from_u64(version);
            if process.table.watch_passed(version, self.now) {
                return self.list(n);
            }
        }
    }

    pub(crate) fn write(&mut self, n: usize, key: u8, is_delete: bool) {
        self.history.push((key, is_delete));
        let version = self.history.len() as u64;
        let said = message(key, version, is_delete);
        let process = &mut self.processes[n];
        process.core.say([said.clone()], self.now);
        let wait = process.core.wait(Version::from_u64(version), self.now);
        process.waits.insert(wait, said);
        self.perform(n);
    }

    pub(crate) fn restart(&mut self, n: usize) {
        let ends: Vec<End> = self
            .links
            .keys()
            .filter(|(p, _)| *p == n)
            .copied()
            .collect();
        self.processes[n] = self.process(n);
        self.dials.retain(|(from, _)| *from != n);
        self.jobs.retain(|(of, _)| *of != n);
        self.done.retain(|(of, _)| *of != n);
        for end in ends {
            self.flying.remove(&end);
            if let Some(other) = self.links.remove(&end) {
                self.links.remove(&other);
                self.flying.remove(&other);
                let core = &mut self.processes[other.0].core;
                core.link_down(other.1, Why::Closed, self.now);
                self.perform(other.0);
            }
        }
        self.perform(n);
    }

    pub(crate) fn cut(&mut self, end: End) {
        let Some(other) = self.links.remove(&end) else {
            return;
        };
        self.links.remove(&other);
        self.flying.remove(&end);
        self.flying.remove(&other);
        for (n, id) in [end, other] {
            let core = &mut self.processes[n].core;
            core.link_down(id, Why::Closed, self.now);
            self.perform(n);
        }
    }

    /// Does what a core says.
    pub(crate) fn perform(&mut self, n: usize) {
        let outputs: Vec<Output> = self.processes[n].core.outputs().collect();
        for output in outputs {
            match output {
                Output::Send(id, numbered) => {
                    if let Some(other) = self.links.get(&(n, id)) {
                        self.flying.entry(*other).or_default().push_back(numbered);
                    }
                }
                Output::Close(id, _) => self.cut_from(n, id),
                Output::Dial(to) => self.dials.push_back((n, to)),
                Output::Heard(wait, everybody) => {
                    let said = self.processes[n].waits.remove(&wait).unwrap();
                    if everybody {
                        self.check_heard(&said);
                    }
                }
                Output::Run(job) => self.jobs.push_back((n, job)),
                Output::Complain(..) => {}
            }
        }
    }

    /// One side has closed a link; the other hears of it when it has read what was on its way.
    pub(crate) fn cut_from(&mut self, n: usize, id: LinkId) {
        if let Some(other) = self.links.remove(&(n, id)) {
            self.flying.remove(&(n, id));
            self.links.remove(&other);
            self.flying.remove(&other);
            let core = &mut self.processes[other.0].core;
            core.link_down(other.1, Why::Closed, self.now);
            self.perform(other.0);
        }
    }

    pub(crate) fn check_heard(&mut self, said: &Message) {
        self.said += 1;
        for process in &self.processes {
            let again = process.table.apply(Writer::Peer, said.clone(), self.now);
            assert!(
                matches!(again, Outcome::Ignored(_)),
                "reported as heard, and news: {said:?}"
            );
        }
    }

    pub(crate) fn dial(&mut self) {
        let Some((from, to)) = self.dials.pop_front() else {
            return;
        };
        let there = (0..PROCESSES).find(|n| address(*n) == to).unwrap();
        if self.apart.contains(&(from, there)) {
            let core = &mut self.processes[from].core;
            core.unreachable(to, Why::Unreachable, self.now);
        } else {
            let near = self.processes[from]
                .core
                .link_up(Side::Dialled(to), self.now);
            let side = Side::Accepted(address(from));
            let far = self.processes[there].core.link_up(side, self.now);
            self.links.insert((from, near), (there, far));
            self.links.insert((there, far), (from, near));
            self.perform(there);
        }
        self.perform(from);
    }

    pub(crate) fn deliver(&mut self, end: End) {
        let queue = self.flying.get_mut(&end);
        if let Some(numbered) = queue.and_then(VecDeque::pop_front) {
            // Through its bytes, as in life.
            let bytes = numbered.encode().unwrap();
            let numbered = Numbered::decode(&bytes[4..]).unwrap();
            let core = &mut self.processes[end.0].core;
            core.receive(end.1, numbered, self.now);
            self.perform(end.0);
        }
    }

    pub(crate) fn run_job(&mut self) {
        if let Some((n, job)) = self.jobs.pop_front() {
            self.done.push_back((n, job.run(self.now)));
        }
    }

    pub(crate) fn hear_of_job(&mut self) {
        if let Some((n, done)) = self.done.pop_front() {
            self.processes[n].core.done(done);
            self.perform(n);
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        for n in 0..PROCESSES {
            self.processes[n].core.tick(self.now);
            self.perform(n);
        }
    }

    pub(crate) fn pick(&self, choice: u8) -> Option<End> {
        let ends: Vec<End> = self
            .flying
            .iter()
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(end, _)| *end)
            .collect();
        ends.get(usize::from(choice) % ends.len().max(1)).copied()
    }

    /// Everything that is on its way arrives.
    pub(crate) fn calm(&mut self) {
        for _ in 0..100_000 {
            let is_working = !self.jobs.is_empty() || !self.done.is_empty();
            let is_working = is_working && !self.are_jobs_held;
            if self.dials.is_empty() && self.pick(0).is_none() && !is_working {
                return;
            }
            if is_working {
                self.run_job();
                self.hear_of_job();
            }
            self.dial();
            if let Some(end) = self.pick(0) {
                self.deliver(end);
            }
        }
        panic!("the processes never come to rest");
    }

    pub(crate) fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            for _ in 0..4 {
                self.pass(Duration::from_millis(250));
                self.calm();
            }
        }
    }

    pub(crate) fn step(&mut self, (what, who, which): (u8, u8, u8)) {
        let n = usize::from(who) % PROCESSES;
        match what {
            0..=91 => {
                if let Some(end) = self.pick(which) {
                    self.deliver(end);
                }
            }
            92..=95 => self.run_job(),
            96..=99 => self.hear_of_job(),
            100..=139 => self.dial(),
            140..=164 => self.write(n, which % KEYS, which >= 150),
            165..=184 => self.watch(n, usize::from(which % 4)),
            185..=209 => self.pass(Duration::from_millis(u64::from(which) * 4)),
            210..=217 => {
                // Lost.
                if let Some(end) = self.pick(which) {
                    self.flying.get_mut(&end).unwrap().pop_front();
                }
            }
            218..=223 => {
                // Twice.
                if let Some(end) = self.pick(which) {
                    let queue = self.flying.get_mut(&end).unwrap();
                    let again = queue.front().unwrap().clone();
                    queue.push_back(again);
                }
            }
            224..=229 => {
                // Out of order.
                if let Some(end) = self.pick(which) {
                    let queue = self.flying.get_mut(&end).unwrap();
                    let first = queue.pop_front().unwrap();
                    queue.push_back(first);
                }
            }
            230..=236 => {
                let ends: Vec<End> = self.links.keys().copied().collect();
                let at = usize::from(which) % ends.len().max(1);
                if let Some(end) = ends.get(at) {
                    self.cut(*end);
                }
            }
            237..=242 => {
                let pair = (n, usize::from(which) % PROCESSES);
                if !self.apart.remove(&pair) {
                    self.apart.insert(pair);
                }
            }
            243..=246 => self.list(n),
            247..=249 => self.restart(n),
            250..=255 => self.pass(Duration::from_secs(6)),
        }
        self.check_tables();
    }

    /// What a table holds is what the store held at that version, and nothing that was deleted at or
    /// below how far its watch has come.
    pub(crate) fn check_tables(&self) {
        for process in &self.processes {
            let watched = process.table.watched().sequence();
            for route in process.table.routes() {
                let version = route.version.sequence();
                let (key, is_delete) = self.history[usize::try_from(version).unwrap() - 1];
                assert_eq!(route.name, name(key), "another's version");
                assert!(!is_delete, "made of a deletion");
                let later = self
                    .history
                    .iter()
                    .enumerate()
                    .skip(version.try_into().unwrap());
                for (at, (other, _)) in later {
                    let is_seen = (at as u64) < watched;
                    assert!(!(is_seen && *other == key), "older than what its watch saw");
                }
            }
        }
    }

    pub(crate) fn content(&self, n: usize) -> BTreeMap<Name, Version> {
        let routes = self.processes[n].table.routes();
        routes.iter().map(|r| (r.name.clone(), r.version)).collect()
    }

    pub(crate) fn truth(&self) -> BTreeMap<Name, Version> {
        let mut last = BTreeMap::new();
        for (at, (key, is_delete)) in self.history.iter().enumerate() {
            if *is_delete {
                last.remove(&name(*key));
            } else {
                last.insert(name(*key), Version::from_u64(at as u64 + 1));
            }
        }
        last
    }
}
