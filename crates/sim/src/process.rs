//! A process as the others know it: the core of a mesh, driven over the simulated network.
//!
//! What the transport does over TLS is done here over [`Network`]: frames become bytes and back, links
//! are made and end, time passes. What takes long is run later and its end is heard of later still, so
//! that anything may happen before, between and after. What is acknowledged, and what is answered to who
//! waits until it was heard, the checker sees on its way.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use kit::Entropy;
use mesh::{
    Book, Heard, Options, Stats, Why,
    core::{Adopted, Core, Done, Ground, Job, LinkId, Output, Side, WaitId},
    frame::{Answer, Frame, LENGTH, Numbered},
};
use model::Version;
use parking_lot::Mutex;
use routes::{Everything, Message, Resync, Table};
use tokio::sync::oneshot;

use crate::{
    checker::Checker,
    ear::Ear,
    network::{End, Network, PipeId},
};

/// What a process keeps of what it hears.
#[derive(Clone, Debug)]
pub enum Memory {
    /// A table, and how the mesh sees it.
    Table(Arc<Table>, Arc<dyn Book>),
    /// What it was told of.
    Ear(Arc<Ear>),
    /// Something of its own.
    Listener(Arc<dyn Heard>),
    /// Nothing: it only speaks.
    Nothing,
}

impl Memory {
    /// How far a table has come.
    fn watched(&self) -> Version {
        match self {
            Self::Table(table, _) => table.watched(),
            Self::Ear(_) | Self::Listener(_) | Self::Nothing => Version::ZERO,
        }
    }

    /// All that a table knows.
    fn everything(&self) -> Option<Everything> {
        match self {
            Self::Table(table, _) => table.everything(),
            Self::Ear(_) | Self::Listener(_) | Self::Nothing => None,
        }
    }
}

/// What a process does beside the rest, each step at a time of its own.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Run this. What it adopts came over that pipe.
    Run(Job, Option<PipeId>),
    /// Hear what became of it. If it gathered, that was all there was.
    Hear(Done, Option<Box<Everything>>),
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Where it is reached.
    pub address: SocketAddr,
    /// What it keeps.
    pub memory: Memory,
    network: Weak<Network>,
    checker: Option<Arc<Checker>>,
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    core: Core,
    pipes: BTreeMap<(PipeId, End), LinkId>,
    links: BTreeMap<LinkId, Line>,
    waits: BTreeMap<WaitId, oneshot::Sender<bool>>,
    /// What is given now to those who asked for everything.
    given: Option<Box<Everything>>,
    /// When it is ticked next.
    armed: Option<Duration>,
    is_dead: bool,
}

/// A link as it is seen from outside.
#[derive(Debug)]
struct Line {
    pipe: PipeId,
    end: End,
    /// What came over it and was not acknowledged yet, by number.
    pushed: VecDeque<(u64, Message)>,
}

/// What a process needs.
#[derive(Debug)]
pub struct Needs {
    /// Who it is, and how patient.
    pub options: Options,
    /// What it keeps.
    pub memory: Memory,
    /// Where others are said to be.
    pub seeds: BTreeSet<SocketAddr>,
    /// Looks at what it knows when it says so.
    pub checker: Option<Arc<Checker>>,
}

impl Process {
    /// Starts, and joins the others.
    #[must_use]
    pub fn start(needs: Needs, network: &Arc<Network>, entropy: &Entropy) -> Arc<Self> {
        let now = network.now();
        let address = needs.options.address;
        let (book, ear) = match &needs.memory {
            Memory::Table(_, book) => (Some(Arc::clone(book)), None),
            Memory::Ear(ear) => (None, Some(Arc::clone(ear) as Arc<dyn Heard>)),
            Memory::Listener(ear) => (None, Some(Arc::clone(ear))),
            Memory::Nothing => (None, None),
        };
        let ground = Ground {
            process: entropy.u64(),
            book,
            ear,
            seed: entropy.u64(),
        };
        let inside = Inside {
            core: Core::new(needs.options, ground, now),
            pipes: BTreeMap::new(),
            links: BTreeMap::new(),
            waits: BTreeMap::new(),
            given: None,
            armed: None,
            is_dead: false,
        };
        let process = Arc::new(Self {
            address,
            memory: needs.memory,
            network: Arc::downgrade(network),
            checker: needs.checker,
            inside: Mutex::new(inside),
        });
        network.joins(&process);
        process.with(|inside, now| inside.core.seeds(needs.seeds, now));
        process
    }

    /// Ends where it is.
    pub fn crash(self: &Arc<Self>, in_silence: bool) {
        let mut inside = self.inside.lock();
        inside.is_dead = true;
        inside.waits.clear();
        drop(inside);
        if let Some(network) = self.network.upgrade() {
            network.gone(self, in_silence);
        }
    }

    /// Says good-bye, and is not heard of again.
    pub fn leave(self: &Arc<Self>) {
        self.with(|inside, now| inside.core.leave(now));
        self.crash(false);
    }

    /// It has written something.
    pub fn say(self: &Arc<Self>, message: Message) {
        self.with(|inside, now| inside.core.say([message], now));
    }

    /// Waits until all in good standing have heard of a version. Answers whether everybody has.
    pub async fn heard(self: &Arc<Self>, version: Version) -> bool {
        let (tell, told) = oneshot::channel();
        self.with(|inside, now| {
            let wait = inside.core.wait(version, now);
            inside.waits.insert(wait, tell);
        });
        // Nobody waits for who is dead.
        told.await.unwrap_or(false)
    }

    /// A look from outside.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inside.lock().core.stats()
    }

    /// How far it knows the key of a message; none if it knows nothing of it.
    #[must_use]
    pub fn knows(&self, message: &Message) -> Known {
        match (&self.memory, message) {
            (Memory::Nothing | Memory::Listener(_), _) | (_, Message::Unreadable(_)) => {
                Known::Passed
            }
            (Memory::Ear(ear), Message::Upsert(_) | Message::Delete(_)) => ear.knows(message),
            (Memory::Table(table, _), Message::Upsert(route)) => {
                match table.find(&route.namespace, &route.name) {
                    Some(found) => Known::Live(found.version),
                    None => Known::Absent,
                }
            }
            (Memory::Table(table, _), Message::Delete(deletion)) => {
                match table.find(&deletion.namespace, &deletion.name) {
                    Some(found) => Known::Live(found.version),
                    None => Known::Absent,
                }
            }
        }
    }

    pub(crate) fn accepted(self: &Arc<Self>, from: SocketAddr, pipe: PipeId) {
        // Who dials does so from a port of its own.
        let from = SocketAddr::new(from.ip(), 40_000);
        self.link_up(Side::Accepted(from), pipe, End::Far);
    }

    pub(crate) fn dialled(self: &Arc<Self>, to: SocketAddr, pipe: PipeId) {
        self.link_up(Side::Dialled(to), pipe, End::Near);
    }

    fn link_up(self: &Arc<Self>, side: Side, pipe: PipeId, end: End) {
        self.with(|inside, now| {
            let id = inside.core.link_up(side, now);
            let line = Line {
                pipe,
                end,
                pushed: VecDeque::new(),
            };
            inside.pipes.insert((pipe, end), id);
            inside.links.insert(id, line);
        });
    }

    pub(crate) fn cannot_reach(self: &Arc<Self>, to: SocketAddr) {
        self.with(|inside, now| inside.core.unreachable(to, Why::Unreachable, now));
    }

    pub(crate) fn lost(self: &Arc<Self>, pipe: PipeId, end: End, why: Why) {
        self.with(|inside, now| {
            if let Some(id) = inside.forget(pipe, end) {
                inside.core.link_down(id, why, now);
            }
        });
    }

    pub(crate) fn receives(self: &Arc<Self>, pipe: PipeId, end: End, bytes: &Bytes) {
        let frame = bytes.get(LENGTH..).unwrap_or_default();
        match Numbered::decode(frame) {
            Ok(numbered) => {
                self.with(|inside, now| {
                    let Some(id) = inside.pipes.get(&(pipe, end)).copied() else {
                        return;
                    };
                    if let (Some(line), Some(_)) = (inside.links.get_mut(&id), &self.checker) {
                        line.note(&numbered.frame);
                    }
                    inside.core.receive(id, numbered, now);
                });
            }
            Err(why) => self.refuses(pipe, end, why),
        }
    }

    /// Ends a link that brought what cannot be read.
    pub(crate) fn refuses(self: &Arc<Self>, pipe: PipeId, end: End, why: Why) {
        if let Some(network) = self.network.upgrade() {
            network.close(pipe, end);
        }
        self.lost(pipe, end, why);
    }

    pub(crate) fn does(self: &Arc<Self>, errand: Errand) {
        match errand {
            Errand::Run(job, over) => self.runs(job, over),
            Errand::Hear(done, given) => self.with(|inside, _| {
                inside.given = given;
                inside.core.done(done);
            }),
        }
    }

    fn runs(self: &Arc<Self>, job: Job, over: Option<PipeId>) {
        let Some(network) = self.network.upgrade() else {
            return;
        };
        self.with(|_, now| {
            let before = self.memory.watched();
            let given = match &job {
                Job::Gather(_) => self.memory.everything().map(Box::new),
                Job::Adopt(_) => None,
            };
            let done = job.run(now);
            // One whose own list came first has no need of it.
            let is_taken = match &done {
                Done::Adopted(Adopted { resync, .. }) => matches!(resync, Resync::Taken { .. }),
                Done::Gathered(_) => false,
            };
            if let (true, Some(pipe), Some(checker)) = (is_taken, over, &self.checker) {
                checker.joined(pipe, self, before);
            }
            network.later(self, Errand::Hear(done, given));
        });
    }

    pub(crate) fn ticks(self: &Arc<Self>) {
        self.with(|inside, now| {
            if inside.armed.is_some_and(|at| at <= now) {
                inside.armed = None;
                inside.core.tick(now);
            }
        });
    }

    /// Lets something happen, does what follows from it, and asks for the next tick.
    fn with(self: &Arc<Self>, act: impl FnOnce(&mut Inside, Duration)) {
        let Some(network) = self.network.upgrade() else {
            return;
        };
        let now = network.now();
        let mut inside = self.inside.lock();
        if inside.is_dead {
            return;
        }
        act(&mut inside, now);
        let outputs: Vec<Output> = inside.core.outputs().collect();
        for output in outputs {
            self.perform(&mut inside, &network, output);
        }
        inside.given = None;
        let next = inside.core.next_wake().max(now + Duration::from_millis(1));
        if inside.armed.is_none_or(|at| next < at) {
            inside.armed = Some(next);
            network.tick_at(self, next);
        }
    }

    fn perform(self: &Arc<Self>, inside: &mut Inside, network: &Arc<Network>, output: Output) {
        match output {
            Output::Send(id, numbered) => {
                let Some(line) = inside.links.get_mut(&id) else {
                    return;
                };
                if let (Frame::Ack(ack), Some(checker)) = (&numbered.frame, &self.checker) {
                    for message in line.acknowledged(ack.next) {
                        checker.acknowledged(self, &message);
                    }
                }
                if let (Frame::Part(part), Some(all), Some(checker)) =
                    (&numbered.frame, &inside.given, &self.checker)
                    && part.answer == Answer::Everything
                {
                    checker.gives(line.pipe, all);
                }
                match numbered.encode() {
                    Ok(bytes) => network.send(line.pipe, line.end, &bytes),
                    Err(error) => {
                        if let Some(checker) = &self.checker {
                            checker.unsendable(self.address, &error.to_string());
                        }
                    }
                }
            }
            Output::Close(id, _) => {
                if let Some(line) = inside.links.remove(&id) {
                    inside.pipes.remove(&(line.pipe, line.end));
                    network.close(line.pipe, line.end);
                }
            }
            Output::Dial(to) => network.dial(self, to),
            Output::Heard(wait, everybody) => {
                if let Some(tell) = inside.waits.remove(&wait) {
                    // Who does not wait any more need not hear.
                    let _ = tell.send(everybody);
                }
            }
            Output::Run(job) => {
                let over = match &job {
                    Job::Adopt(adoption) => inside.links.get(&adoption.from).map(|line| line.pipe),
                    Job::Gather(_) => None,
                };
                network.later(self, Errand::Run(job, over));
            }
            Output::Complain(who, why) => {
                tracing::debug!(from = %self.address, %who, %why, "refused");
            }
        }
    }
}

impl Inside {
    fn forget(&mut self, pipe: PipeId, end: End) -> Option<LinkId> {
        let id = self.pipes.remove(&(pipe, end))?;
        self.links.remove(&id);
        Some(id)
    }
}

impl Line {
    fn note(&mut self, frame: &Frame) {
        if let Frame::Push(push) = frame {
            let numbers = push.first..;
            self.pushed
                .extend(numbers.zip(push.messages.iter().cloned()));
        }
    }

    fn acknowledged(&mut self, next: u64) -> Vec<Message> {
        let mut all = Vec::new();
        while self
            .pushed
            .front()
            .is_some_and(|(number, _)| *number < next)
        {
            all.extend(self.pushed.pop_front().map(|(_, message)| message));
        }
        all
    }
}

/// What a process knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// A route of this version.
    Live(Version),
    /// That there is none, or nothing.
    Absent,
    /// All there is to know, as far as it matters.
    Passed,
    /// Nothing, where it should.
    Unheard,
}
