//! Drives the core over TLS.
//!
//! One task owns the core. Links bring it frames through a bounded queue, so who sends faster than
//! this process applies is slowed by its own connection. What takes long is run on a thread of its own:
//! this task waits for the table's lock only, while everything is copied or looked through once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use kit::{Clock, Tasks};
use model::Version;
use peer::Identity;
use rustls::ClientConfig;
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{Mesh, Seeds};
use crate::{
    core::{Job, LinkId, Output, Side, WaitId},
    frame::Numbered,
    why::Why,
    wires::{self, Event, Made},
};

/// Frames that links have read and nobody has looked at.
const EVENTS: usize = 256;
/// Frames of one link that wait to be written. More than a core sends before it is answered.
const FRAMES: usize = 4096;
/// How many events are taken before what follows from them is done.
const AT_ONCE: usize = 64;
/// How long links have to say their last words.
const LEAVING: Duration = Duration::from_secs(2);

/// A link that frames can be sent over.
struct Line {
    frames: mpsc::Sender<Numbered>,
    closing: CancellationToken,
}

/// Drives the core.
pub(super) struct Driver {
    mesh: Mesh,
    dialling: Arc<ClientConfig>,
    clock: Arc<dyn Clock>,
    sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    links: HashMap<LinkId, Line>,
    waits: BTreeMap<WaitId, oneshot::Sender<bool>>,
    /// What links and jobs do.
    tasks: Tasks,
}

impl Driver {
    pub(super) fn new(mesh: Mesh, identity: &Identity, clock: Arc<dyn Clock>) -> Self {
        let (sender, events) = mpsc::channel(EVENTS);
        Self {
            mesh,
            dialling: wires::client_config(identity),
            clock,
            sender,
            events,
            links: HashMap::new(),
            waits: BTreeMap::new(),
            tasks: Tasks::default(),
        }
    }

    pub(super) async fn run(mut self, mut seeds: Seeds) {
        let leaving = self.mesh.0.leaving.clone();
        let shared = Arc::clone(&self.mesh.0);
        let mut may_change = true;
        self.take_seeds(&mut seeds);
        loop {
            let now = self.clock.monotonic();
            let wake = shared.core.lock().next_wake().saturating_sub(now);
            let mut first = None;
            tokio::select! {
                biased;
                () = leaving.cancelled() => break,
                () = shared.called.notified() => {}
                event = self.events.recv() => first = event,
                changed = seeds.changed(), if may_change => {
                    may_change = changed.is_ok();
                    self.take_seeds(&mut seeds);
                }
                () = sleep(wake) => {}
            }
            self.take_inbox();
            let rest = std::iter::from_fn(|| self.events.try_recv().ok());
            let all: Vec<Event> = first.into_iter().chain(rest.take(AT_ONCE)).collect();
            for event in all {
                self.take(event);
            }
            let now = self.clock.monotonic();
            let mut core = shared.core.lock();
            if core.next_wake() <= now {
                core.tick(now);
            }
            drop(core);
            self.perform();
        }
        shared.core.lock().leave(self.clock.monotonic());
        self.perform();
        self.events.close();
        let _ = self.tasks.drain(LEAVING).await;
        shared.left.cancel();
    }

    fn take_seeds(&mut self, seeds: &mut Seeds) {
        if let Some(seeds) = seeds.borrow_and_update().clone() {
            let now = self.clock.monotonic();
            self.mesh.0.core.lock().seeds(seeds, now);
        }
        self.perform();
    }

    fn take_inbox(&mut self) {
        let inbox = std::mem::take(&mut *self.mesh.0.inbox.lock());
        let now = self.clock.monotonic();
        for (from, made) in inbox.accepted {
            self.link(Side::Accepted(from), made);
        }
        let mut core = self.mesh.0.core.lock();
        for (from, why) in inbox.refused {
            core.refused(from, why);
        }
        if inbox.lost > Version::ZERO {
            core.lose(inbox.lost, now);
        }
        core.say(inbox.said, now);
        for (version, sender) in inbox.waits {
            self.waits.insert(core.wait(version, now), sender);
        }
        drop(core);
        self.perform();
    }

    fn take(&mut self, event: Event) {
        let now = self.clock.monotonic();
        let shared = Arc::clone(&self.mesh.0);
        match event {
            Event::Frame(id, numbered) => shared.core.lock().receive(id, numbered, now),
            Event::Down(id, why) => {
                self.links.remove(&id);
                shared.core.lock().link_down(id, why, now);
            }
            Event::Dialled(to, made) => self.link(Side::Dialled(to), made),
            Event::Unreachable(to, why) => shared.core.lock().unreachable(to, why, now),
            Event::Done(done) => shared.core.lock().done(done),
        }
        self.perform();
    }

    fn link(&mut self, side: Side, made: Made) {
        let now = self.clock.monotonic();
        let id = self.mesh.0.core.lock().link_up(side, now);
        let (frames, queue) = mpsc::channel(FRAMES);
        let closing = CancellationToken::new();
        let line = Line {
            frames,
            closing: closing.clone(),
        };
        self.links.insert(id, line);
        let (events, bytes) = (self.sender.clone(), Arc::clone(&self.mesh.0.bytes));
        self.tasks
            .spawn(wires::carry(id, made, queue, closing, events, bytes));
        self.perform();
    }

    /// Does what the core says, and what follows from that.
    fn perform(&mut self) {
        loop {
            let outputs: Vec<Output> = self.mesh.0.core.lock().outputs().collect();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                self.perform_one(output);
            }
        }
    }

    fn perform_one(&mut self, output: Output) {
        match output {
            Output::Send(id, numbered) => {
                let Some(line) = self.links.get(&id) else {
                    return;
                };
                if line.frames.try_send(numbered).is_err() {
                    self.cut(id);
                }
            }
            Output::Close(id, why) => {
                tracing::debug!(?id, %why, "a link is closed");
                // What waits to be written still is, for a while.
                if let Some(line) = self.links.remove(&id) {
                    line.closing.cancel();
                }
            }
            Output::Dial(to) => {
                let (config, sender) = (Arc::clone(&self.dialling), self.sender.clone());
                let leaving = self.mesh.0.leaving.clone();
                self.tasks.spawn(async move {
                    let dialled = tokio::select! {
                        biased;
                        () = leaving.cancelled() => return,
                        event = wires::dial(to, config) => event,
                    };
                    // Nobody listens only when all ends.
                    let _ = sender.send(dialled).await;
                });
            }
            Output::Heard(wait, everybody) => {
                if let Some(sender) = self.waits.remove(&wait) {
                    // Who asked may have left.
                    let _ = sender.send(everybody);
                }
            }
            Output::Run(job) => self.run_elsewhere(job),
            Output::Complain(peer, why) => {
                tracing::warn!(%peer, %why, "a peer is refused; this is said once");
            }
        }
    }

    /// Runs what takes long, and brings back what became of it.
    fn run_elsewhere(&self, job: Job) {
        let (clock, sender) = (Arc::clone(&self.clock), self.sender.clone());
        let given_up = job.given_up();
        self.tasks.spawn(async move {
            let running = spawn_blocking(move || job.run(clock.monotonic()));
            let done = running.await.unwrap_or_else(|error| {
                tracing::error!(%error, "a snapshot of routes is given up");
                given_up
            });
            // Nobody listens only when all ends.
            let _ = sender.send(Event::Done(done)).await;
        });
    }

    /// Ends a link that does not take what it is sent.
    fn cut(&mut self, id: LinkId) {
        if let Some(line) = self.links.remove(&id) {
            line.closing.cancel();
            let now = self.clock.monotonic();
            self.mesh.0.core.lock().link_down(id, Why::Slow, now);
        }
    }
}
