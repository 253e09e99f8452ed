//! The core alone, under a network that loses, repeats, reorders and cuts: whatever happens, tables
//! are equal after a few quiet rounds, nothing is resurrected, and what was reported as heard was.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use mesh::{
    Book, Options, Role, Why,
    core::{Core, Ground, LinkId, Output, Side, WaitId},
    frame::Numbered,
};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use proptest::prelude::*;
use routes::{
    Address, Deletion, Gate, Limits, Message, Outcome, Route, Snapshot, State, Table, Writer,
};

const PROCESSES: usize = 4;
const KEYS: u8 = 6;

fn address(n: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(n).unwrap()], 7000))
}

fn name(key: u8) -> Name {
    Name::new(format!("n{key}")).unwrap()
}

fn namespace() -> Namespace {
    Namespace::new("team").unwrap()
}

fn message(key: u8, version: u64, is_delete: bool) -> Message {
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
struct Process {
    core: Core,
    table: Arc<Table>,
    watched: usize,
    waits: BTreeMap<WaitId, Message>,
}

type End = (usize, LinkId);

struct World {
    now: Duration,
    history: Vec<(u8, bool)>,
    processes: Vec<Process>,
    started: u64,
    /// The other end of each end of a link.
    links: BTreeMap<End, End>,
    /// What is on its way to an end.
    flying: BTreeMap<End, VecDeque<Numbered>>,
    dials: VecDeque<(usize, SocketAddr)>,
    /// Pairs that cannot reach each other: from, to.
    apart: BTreeSet<(usize, usize)>,
    said: usize,
    max_said: usize,
    /// Whether all are told where all are, or only where the first is.
    are_all_seeds: bool,
}

impl World {
    fn new(max_said: usize) -> Self {
        Self::with(max_said, true)
    }

    fn with(max_said: usize, are_all_seeds: bool) -> Self {
        let mut world = Self {
            now: Duration::from_secs(1),
            history: Vec::new(),
            processes: Vec::new(),
            started: 0,
            links: BTreeMap::new(),
            flying: BTreeMap::new(),
            dials: VecDeque::new(),
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

    fn process(&mut self, n: usize) -> Process {
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
    fn list(&mut self, n: usize) {
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

    fn watch(&mut self, n: usize, count: usize) {
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

    fn write(&mut self, n: usize, key: u8, is_delete: bool) {
        self.history.push((key, is_delete));
        let version = self.history.len() as u64;
        let said = message(key, version, is_delete);
        let process = &mut self.processes[n];
        process.core.say([said.clone()], self.now);
        let wait = process.core.wait(Version::from_u64(version), self.now);
        process.waits.insert(wait, said);
        self.perform(n);
    }

    fn restart(&mut self, n: usize) {
        let ends: Vec<End> = self
            .links
            .keys()
            .filter(|(p, _)| *p == n)
            .copied()
            .collect();
        self.processes[n] = self.process(n);
        self.dials.retain(|(from, _)| *from != n);
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

    fn cut(&mut self, end: End) {
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
    fn perform(&mut self, n: usize) {
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
                Output::Complain(..) => {}
            }
        }
    }

    /// One side has closed a link; the other hears of it when it has read what was on its way.
    fn cut_from(&mut self, n: usize, id: LinkId) {
        if let Some(other) = self.links.remove(&(n, id)) {
            self.flying.remove(&(n, id));
            self.links.remove(&other);
            self.flying.remove(&other);
            let core = &mut self.processes[other.0].core;
            core.link_down(other.1, Why::Closed, self.now);
            self.perform(other.0);
        }
    }

    fn check_heard(&mut self, said: &Message) {
        self.said += 1;
        for process in &self.processes {
            let again = process.table.apply(Writer::Peer, said.clone(), self.now);
            assert!(
                matches!(again, Outcome::Ignored(_)),
                "reported as heard, and news: {said:?}"
            );
        }
    }

    fn dial(&mut self) {
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

    fn deliver(&mut self, end: End) {
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

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for n in 0..PROCESSES {
            self.processes[n].core.tick(self.now);
            self.perform(n);
        }
    }

    fn pick(&self, choice: u8) -> Option<End> {
        let ends: Vec<End> = self
            .flying
            .iter()
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(end, _)| *end)
            .collect();
        ends.get(usize::from(choice) % ends.len().max(1)).copied()
    }

    /// Everything that is on its way arrives.
    fn calm(&mut self) {
        for _ in 0..100_000 {
            if self.dials.is_empty() && self.pick(0).is_none() {
                return;
            }
            self.dial();
            if let Some(end) = self.pick(0) {
                self.deliver(end);
            }
        }
        panic!("the processes never come to rest");
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            for _ in 0..4 {
                self.pass(Duration::from_millis(250));
                self.calm();
            }
        }
    }

    fn step(&mut self, (what, who, which): (u8, u8, u8)) {
        let n = usize::from(who) % PROCESSES;
        match what {
            0..=99 => {
                if let Some(end) = self.pick(which) {
                    self.deliver(end);
                }
            }
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
    fn check_tables(&self) {
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

    fn content(&self, n: usize) -> BTreeMap<Name, Version> {
        let routes = self.processes[n].table.routes();
        routes.iter().map(|r| (r.name.clone(), r.version)).collect()
    }

    fn truth(&self) -> BTreeMap<Name, Version> {
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_fate_of_frames_and_links_ends_in_equal_tables(
        steps in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 0..400),
        max_said in 1..20usize,
    ) {
        let mut world = World::new(max_said);
        for step in steps {
            world.step(step);
        }
        // The network heals; every watch still hangs.
        world.apart.clear();
        world.rounds(12);
        // Who goes by a peer's snapshot alone, and has no list of its own since, gives that to nobody.
        let vouches = |p: &Process| p.table.everything().is_some();
        let does_anybody = world.processes.iter().any(vouches);
        let do_all = world.processes.iter().all(vouches);
        for n in 0..PROCESSES {
            prop_assert!(!does_anybody || world.processes[n].table.synced(), "{}", n);
            let (one, other) = (world.content(0), world.content(n));
            prop_assert!(!do_all || one == other, "{one:?} {n}: {other:?}");
        }
        // The watches go on.
        for n in 0..PROCESSES {
            if !world.processes[n].table.synced() {
                world.list(n);
            }
            let rest = world.history.len();
            world.watch(n, rest);
        }
        world.rounds(6);
        // Who was late is waited for again after a while.
        let are_waited_for = |world: &World| {
            let mut each = world.processes.iter();
            each.all(|p| p.core.stats().in_standing == PROCESSES - 1)
        };
        let mut rounds = 0;
        while !are_waited_for(&world) {
            rounds += 1;
            prop_assert!(rounds < 40, "some are not waited for again");
            world.rounds(1);
        }
        for n in 0..PROCESSES {
            prop_assert_eq!(world.content(n), world.truth(), "{}", n);
            let stats = world.processes[n].core.stats();
            let all = PROCESSES - 1;
            prop_assert_eq!((stats.dialled, stats.in_standing), (all, all));
            prop_assert!(world.processes[n].waits.is_empty(), "a wait never ends");
        }
        // Who was taken for gone is known to be there again, sooner or later.
        let is_whole = |world: &World| {
            let mut each = world.processes.iter();
            each.all(|p| p.core.stats().alive == PROCESSES - 1)
        };
        let mut rounds = 0;
        while !is_whole(&world) {
            rounds += 1;
            prop_assert!(rounds < 200, "the members stay apart");
            world.rounds(1);
        }
        // And now everybody hears of a write.
        let before = world.said;
        world.write(0, 0, false);
        world.calm();
        prop_assert_eq!(world.said, before + 1);
    }
}

#[test]
fn a_partition_that_heals_is_repaired_by_the_first_question() {
    let mut world = World::new(1 << 10);
    world.rounds(2);
    for n in 1..PROCESSES {
        world.apart.extend([(0, n), (n, 0)]);
    }
    let ends: Vec<End> = world
        .links
        .keys()
        .filter(|(p, _)| *p == 0)
        .copied()
        .collect();
    for end in ends {
        world.cut(end);
    }
    world.rounds(10);
    for key in 0..KEYS {
        world.write(1, key, false);
        world.calm();
    }
    assert_eq!(world.content(0), BTreeMap::new());
    assert_eq!(world.content(3), world.truth());
    world.apart.clear();
    let rounds = world.processes[0].core.stats().counts.rounds;
    while world.content(0).is_empty() {
        world.pass(Duration::from_millis(100));
        world.calm();
    }
    assert_eq!(world.content(0), world.truth());
    let rounds = world.processes[0].core.stats().counts.rounds - rounds;
    assert!(
        rounds <= 5,
        "{rounds} rounds while it could dial nobody, none after"
    );
}

#[test]
fn a_process_that_does_not_acknowledge_is_waited_for_once() {
    let mut world = World::new(1 << 10);
    world.rounds(2);
    // Nothing reaches the last one any more, and nobody hears of that.
    let deaf = PROCESSES - 1;
    let deliver_others = |world: &mut World| {
        for _ in 0..1000 {
            let ends: Vec<End> = world
                .flying
                .keys()
                .filter(|(p, _)| *p != deaf)
                .copied()
                .collect();
            for end in ends {
                world.deliver(end);
            }
        }
    };
    world.write(0, 1, false);
    deliver_others(&mut world);
    assert_eq!(world.processes[0].waits.len(), 1, "it is waited for");
    world.pass(Duration::from_millis(100));
    assert_eq!(world.processes[0].waits.len(), 0, "for no longer than that");
    assert_eq!(world.processes[0].core.stats().counts.late, 1);
    world.write(0, 2, false);
    deliver_others(&mut world);
    assert_eq!(world.processes[0].waits.len(), 0, "and not again");
    assert_eq!(world.said, 0, "and nobody says that everybody has heard");
    // It takes what it was sent, and what comes then in time: it is one of those again.
    world.rounds(6);
    world.write(0, 3, false);
    assert_eq!(world.processes[0].waits.len(), 1);
    world.calm();
    assert_eq!(world.said, 1);
}

#[test]
fn a_process_that_always_acknowledges_late_is_waited_for_once_and_not_each_time_it_catches_up() {
    let mut world = World::new(1 << 10);
    world.rounds(2);
    for turn in 0..50 {
        world.write(0, turn % KEYS, false);
        // Whatever is on its way to anybody takes longer than is waited for.
        world.pass(Duration::from_millis(100));
        world.pass(Duration::from_millis(50));
        world.calm();
        assert_eq!(world.processes[0].waits.len(), 0);
    }
    let counts = world.processes[0].core.stats().counts;
    assert_eq!(counts.late, 3, "each of the others once");
    // Over other links it is still known for that.
    for end in world.links.keys().copied().collect::<Vec<_>>() {
        world.cut(end);
    }
    world.pass(Duration::from_millis(400));
    world.calm();
    let stats = world.processes[0].core.stats();
    assert_eq!((stats.dialled, stats.in_standing), (3, 0));
    // When they keep up they are waited for again.
    world.rounds(8);
    assert_eq!(world.processes[0].core.stats().in_standing, 3);
}

#[test]
fn equal_tables_tell_each_other_nothing() {
    let mut world = World::new(1 << 10);
    for key in 0..KEYS {
        world.write(0, key, false);
    }
    world.rounds(8);
    for n in 0..PROCESSES {
        let rest = world.history.len();
        world.watch(n, rest);
    }
    let told = |world: &World| -> u64 {
        let each = world.processes.iter().map(|p| p.core.stats().counts.told);
        each.sum()
    };
    let before = told(&world);
    world.rounds(12);
    assert_eq!(told(&world), before);
    // Also while every watch hangs: a change is told once by each to each.
    world.write(0, 1, false);
    world.rounds(12);
    let after = told(&world);
    world.rounds(12);
    assert_eq!(told(&world), after);
}

#[test]
fn a_member_that_nobody_was_told_of_is_found_by_the_others() {
    let mut world = World::with(1 << 10, false);
    world.rounds(20);
    for n in 0..PROCESSES {
        let stats = world.processes[n].core.stats();
        assert_eq!(stats.alive, PROCESSES - 1, "{n}");
        assert_eq!(stats.dialled, PROCESSES - 1, "{n}");
        assert_eq!(stats.unmet, 0, "{n}");
    }
}

#[test]
fn large_messages_go_in_frames_of_their_own_and_one_that_fits_in_none_ends_no_link() {
    let masked = |key, version, length| match message(key, version, false) {
        Message::Upsert(route) => Message::from(Route {
            mask_host: Some("a".repeat(length).into()),
            ..Route::clone(&route)
        }),
        Message::Delete(_) | Message::Unreadable(_) => unreachable!(),
    };
    let mut world = World::new(1 << 10);
    world.rounds(2);
    let many = (1..=200).map(|n| masked(n, u64::from(n), 2000));
    world.processes[0].core.say(many, world.now);
    world.perform(0);
    world.calm();
    for n in 0..PROCESSES {
        assert_eq!(world.content(n).len(), 200, "{n}");
    }
    let huge = masked(201, 201, 2 << 20);
    world.processes[0].core.say([huge], world.now);
    world.perform(0);
    world.rounds(4);
    let stats = world.processes[0].core.stats();
    assert_eq!((stats.dialled, stats.accepted), (3, 3));
    assert!(stats.counts.overflowed > 0);
    assert_eq!(stats.in_standing, 0, "they lack something");
    assert_eq!(world.content(0).len(), 201);
    assert_eq!(world.content(1).len(), 200);
}
