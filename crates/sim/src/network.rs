//! The network between processes, and all that can happen to it.
//!
//! A *pipe* is one connection: two ends, frames as bytes in order each way. That is what the
//! transport promises, and what the weather breaks: frames come late, twice, in another order, or not
//! at all; one that was changed on its way is noticed, as by TLS, and ends its pipe; pipes end; a direction between two addresses stands still until it
//! is mended, and what was sent meanwhile then arrives.
//!
//! One task does everything that is due, in the order of time and then of being asked for, so a run
//! replays.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use kit::{Clock, Entropy};
use mesh::Why;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::process::{Errand, Process};

/// Names a pipe; none is ever named again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PipeId(u64);

/// Which end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Of who dialled.
    Near,
    /// Of who was dialled.
    Far,
}

impl End {
    const fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }

    const fn at(self) -> usize {
        match self {
            Self::Near => 0,
            Self::Far => 1,
        }
    }
}

/// How the network is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Most of the time a frame takes less than this.
    pub delay: Duration,
    /// How likely a frame is lost.
    pub lose: f64,
    /// How likely it comes twice.
    pub repeat: f64,
    /// How likely others overtake it.
    pub reorder: f64,
    /// How likely it is changed on its way.
    pub spoil: f64,
}

impl Weather {
    /// The weather of one run.
    #[must_use]
    pub fn draw(entropy: &Entropy) -> Self {
        let pick = |of: [f64; 4]| of[entropy.below(4)];
        Self {
            delay: Duration::from_millis([1, 4, 30, 300][entropy.below(4)]),
            lose: pick([0.0, 0.0, 0.001, 0.01]),
            repeat: pick([0.0, 0.0, 0.001, 0.01]),
            reorder: pick([0.0, 0.0, 0.001, 0.01]),
            spoil: pick([0.0, 0.0, 0.001, 0.01]),
        }
    }

    /// Nothing is lost, and everything arrives soon.
    #[must_use]
    pub fn fair() -> Self {
        Self {
            delay: Duration::from_millis(2),
            ..Self::default()
        }
    }
}

/// What went over the network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Frames that were sent.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Moved {
    /// What came after an earlier look.
    #[must_use]
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            frames: self.frames - before.frames,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// The network.
#[derive(Debug)]
pub struct Network {
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    sooner: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    weather: Weather,
    /// By where they are reached.
    there: BTreeMap<SocketAddr, Arc<Process>>,
    pipes: BTreeMap<PipeId, Pipe>,
    due: BTreeMap<(Duration, u64), Due>,
    last: u64,
    /// From whom to whom nothing gets through.
    blocked: Vec<(SocketAddr, SocketAddr)>,
    moved: Moved,
}

#[derive(Debug)]
struct Pipe {
    ends: [Place; 2],
}

#[derive(Debug)]
struct Place {
    process: Weak<Process>,
    address: SocketAddr,
    is_open: bool,
    /// When the last frame for this end arrives.
    last: Duration,
    /// What waits until its direction is mended.
    held: VecDeque<Came>,
}

#[derive(Debug)]
enum Due {
    Dial { from: Weak<Process>, to: SocketAddr },
    Arrive { pipe: PipeId, end: End, came: Came },
    Tick(Weak<Process>),
    Do(Weak<Process>, Errand),
}

/// What comes to an end of a pipe.
#[derive(Clone, Debug)]
enum Came {
    Frame(Bytes),
    /// A frame that was changed on its way.
    Spoiled,
    /// The other end has closed.
    Closed,
}

impl Network {
    /// Nobody is there yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, entropy: Entropy) -> Arc<Self> {
        Arc::new(Self {
            clock,
            entropy,
            sooner: Notify::new(),
            state: Mutex::default(),
        })
    }

    /// The time by which everything here goes.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// From now on it is like this.
    pub fn weather(&self, weather: Weather) {
        self.state.lock().weather = weather;
    }

    /// What went over it so far.
    #[must_use]
    pub fn moved(&self) -> Moved {
        self.state.lock().moved
    }

    /// Does what is due, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            let next = self.state.lock().due.keys().next().map(|(at, _)| *at);
            let wait = next.map(|at| at.saturating_sub(self.now()));
            match wait {
                None => self.sooner.notified().await,
                Some(Duration::ZERO) => {}
                Some(wait) => {
                    tokio::select! {
                        biased;
                        () = self.sooner.notified() => continue,
                        () = tokio::time::sleep_until(Instant::now() + wait) => {}
                    }
                }
            }
            self.step();
        }
    }

    fn step(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(first) = state.due.first_entry() else {
                return;
            };
            if first.key().0 > self.now() {
                return;
            }
            let due = first.remove();
            match due {
                Due::Dial { from, to } => {
                    drop(state);
                    self.connect(&from, to);
                }
                Due::Arrive { pipe, end, came } => {
                    let Some(process) = state.arrives(pipe, end, &came) else {
                        continue;
                    };
                    drop(state);
                    match came {
                        Came::Frame(bytes) => process.receives(pipe, end, &bytes),
                        Came::Spoiled => process.refuses(pipe, end, Why::Garbage),
                        Came::Closed => process.lost(pipe, end, Why::Closed),
                    }
                }
                Due::Tick(process) => {
                    drop(state);
                    if let Some(process) = process.upgrade() {
                        process.ticks();
                    }
                }
                Due::Do(process, errand) => {
                    drop(state);
                    if let Some(process) = process.upgrade() {
                        process.does(errand);
                    }
                }
            }
        }
    }

    fn after(&self, state: &mut State, wait: Duration, due: Due) -> Duration {
        let at = self.now() + wait;
        self.at(state, at, due);
        at
    }

    fn at(&self, state: &mut State, at: Duration, due: Due) {
        let is_first = state.due.keys().next().is_none_or(|(first, _)| at < *first);
        state.last += 1;
        let number = state.last;
        state.due.insert((at, number), due);
        if is_first {
            self.sooner.notify_one();
        }
    }

    fn some_delay(&self, weather: Weather) -> Duration {
        let most = usize::try_from(weather.delay.as_micros()).unwrap_or(usize::MAX);
        let micros = match self.entropy.below(16) {
            0 => self.entropy.below(most.saturating_mul(8)),
            _ => self.entropy.below(most),
        };
        Duration::from_micros(micros as u64)
    }

    /// Somebody is there from now on.
    pub fn joins(&self, process: &Arc<Process>) {
        let mut state = self.state.lock();
        state.there.insert(process.address, Arc::clone(process));
    }

    /// Somebody is no more. If its machine went with it, nobody hears of that.
    pub fn gone(&self, process: &Arc<Process>, in_silence: bool) {
        let mut state = self.state.lock();
        if state
            .there
            .get(&process.address)
            .is_some_and(|there| Arc::ptr_eq(there, process))
        {
            state.there.remove(&process.address);
        }
        let of = |place: &Place| std::ptr::eq(place.process.as_ptr(), Arc::as_ptr(process));
        let pipes = state.pipes.iter().filter_map(|(id, pipe)| {
            let near = of(&pipe.ends[0]).then_some(End::Near);
            near.or_else(|| of(&pipe.ends[1]).then_some(End::Far))
                .map(|end| (*id, end))
        });
        for (pipe, end) in pipes.collect::<Vec<_>>() {
            if in_silence {
                state.ends(pipe, end);
            } else {
                self.close_in(&mut state, pipe, end);
            }
        }
    }

    /// Somebody dials.
    pub fn dial(&self, from: &Arc<Process>, to: SocketAddr) {
        let mut state = self.state.lock();
        let wait = self.some_delay(state.weather) + self.some_delay(state.weather);
        let from = Arc::downgrade(from);
        self.after(&mut state, wait, Due::Dial { from, to });
    }

    fn connect(&self, from: &Weak<Process>, to: SocketAddr) {
        let Some(from) = from.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        let there = state.there.get(&to).cloned();
        let there =
            there.filter(|_| state.passes(from.address, to) && state.passes(to, from.address));
        let Some(there) = there else {
            drop(state);
            return from.cannot_reach(to);
        };
        state.last += 1;
        let pipe = PipeId(state.last);
        let place = |process: &Arc<Process>| Place {
            process: Arc::downgrade(process),
            address: process.address,
            is_open: true,
            last: Duration::ZERO,
            held: VecDeque::new(),
        };
        let ends = [place(&from), place(&there)];
        state.pipes.insert(pipe, Pipe { ends });
        drop(state);
        there.accepted(from.address, pipe);
        from.dialled(to, pipe);
    }

    /// Sends a frame from one end to the other.
    pub fn send(&self, pipe: PipeId, from: End, frame: &Bytes) {
        let mut state = self.state.lock();
        let weather = state.weather;
        state.moved.frames += 1;
        state.moved.bytes += frame.len() as u64;
        if self.entropy.chance(weather.lose) {
            return;
        }
        let came = if self.entropy.chance(weather.spoil) {
            Came::Spoiled
        } else {
            Came::Frame(frame.clone())
        };
        let times = 1 + usize::from(self.entropy.chance(weather.repeat));
        let is_overtaken = self.entropy.chance(weather.reorder);
        for _ in 0..times {
            let delay = self.some_delay(weather);
            let end = from.other();
            let came = came.clone();
            self.arrive(
                &mut state,
                delay,
                is_overtaken,
                Due::Arrive { pipe, end, came },
            );
        }
    }

    fn arrive(&self, state: &mut State, delay: Duration, is_overtaken: bool, due: Due) {
        let Due::Arrive { pipe, end, .. } = &due else {
            return;
        };
        let (pipe, end) = (*pipe, *end);
        let now = self.now();
        let Some(place) = state.pipes.get_mut(&pipe).map(|p| &mut p.ends[end.at()]) else {
            return;
        };
        let mut at = place.last.max(now + delay);
        if is_overtaken {
            at += delay + Duration::from_millis(1);
        } else {
            place.last = at;
        }
        self.at(state, at, due);
    }

    /// One end closes; the other hears of it after what was sent.
    pub fn close(&self, pipe: PipeId, by: End) {
        self.close_in(&mut self.state.lock(), pipe, by);
    }

    fn close_in(&self, state: &mut State, pipe: PipeId, by: End) {
        state.ends(pipe, by);
        let delay = self.some_delay(state.weather);
        let (end, came) = (by.other(), Came::Closed);
        self.arrive(state, delay, false, Due::Arrive { pipe, end, came });
    }

    /// Asks for a tick at a time.
    pub fn tick_at(&self, process: &Arc<Process>, at: Duration) {
        let process = Arc::downgrade(process);
        self.at(&mut self.state.lock(), at, Due::Tick(process));
    }

    /// Lets somebody do something after a while.
    pub(crate) fn later(&self, process: &Arc<Process>, errand: Errand) {
        let mut state = self.state.lock();
        let wait = self.some_delay(state.weather);
        let process = Arc::downgrade(process);
        self.after(&mut state, wait, Due::Do(process, errand));
    }

    /// Nothing gets from one to the other until it is mended.
    pub fn block(&self, from: SocketAddr, to: SocketAddr) {
        self.state.lock().blocked.push((from, to));
    }

    /// Cuts some connection.
    pub fn cut_some(&self) {
        let mut state = self.state.lock();
        let at = self.entropy.below(state.pipes.len());
        let Some(pipe) = state.pipes.keys().nth(at).copied() else {
            return;
        };
        for end in [End::Near, End::Far] {
            let (delay, came) = (self.some_delay(state.weather), Came::Closed);
            self.arrive(&mut state, delay, false, Due::Arrive { pipe, end, came });
        }
    }

    /// Everything gets through again, also what was sent before.
    pub fn mend(&self) {
        let mut state = self.state.lock();
        state.blocked.clear();
        let weather = state.weather;
        let mut held = Vec::new();
        for (pipe, Pipe { ends }) in &mut state.pipes {
            for (end, place) in [End::Near, End::Far].into_iter().zip(ends) {
                held.extend(place.held.drain(..).map(|came| (*pipe, end, came)));
            }
        }
        for (pipe, end, came) in held {
            let delay = self.some_delay(weather);
            self.arrive(&mut state, delay, false, Due::Arrive { pipe, end, came });
        }
    }
}

impl State {
    fn passes(&self, from: SocketAddr, to: SocketAddr) -> bool {
        !self.blocked.contains(&(from, to))
    }

    /// Who takes what arrives here; nobody if it is closed, or stands still.
    fn arrives(&mut self, pipe: PipeId, end: End, came: &Came) -> Option<Arc<Process>> {
        let places = &self.pipes.get(&pipe)?.ends;
        let (from, to) = (places[end.other().at()].address, places[end.at()].address);
        let stands = !self.passes(from, to) || !places[end.at()].held.is_empty();
        let place = &mut self.pipes.get_mut(&pipe)?.ends[end.at()];
        if !place.is_open {
            return None;
        }
        if stands {
            place.held.push_back(came.clone());
            return None;
        }
        let process = place.process.upgrade();
        if matches!(came, Came::Closed) {
            self.ends(pipe, end);
        }
        process
    }

    /// An end is closed; a pipe without ends is none.
    fn ends(&mut self, pipe: PipeId, end: End) {
        if let Some(known) = self.pipes.get_mut(&pipe) {
            known.ends[end.at()].is_open = false;
            known.ends[end.at()].held.clear();
            if known.ends.iter().all(|place| !place.is_open) {
                self.pipes.remove(&pipe);
            }
        }
    }
}
