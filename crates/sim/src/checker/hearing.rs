//! The promises about what processes tell each other.
//!
//! What is acknowledged was taken: who acknowledged knows it, or something newer. Who is answered that
//! everybody has heard finds it so at every gateway that was there. Nobody waits for that longer than
//! an acknowledgement may take. Who joined by what another knows knows all of it, and is no further
//! than that one was. And a table whose own watch stands still has what the others have.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use model::{Name, Namespace, Sandbox, Version};
use routes::{Deletion, Everything, Message, Route, keep};

use super::{Checker, State};
use crate::{
    network::PipeId,
    process::{Known, Memory, Process},
    surroundings::ACK_TIMEOUT,
};

/// What ticks of the clock may add to a wait.
const SLACK: Duration = Duration::from_millis(20);

impl Checker {
    /// Hears that a process acknowledges this.
    pub fn acknowledged(&self, by: &Arc<Process>, message: &Message) {
        let mut state = self.state.lock();
        if state.lacks(by, message) {
            let detail = format!("{} does not know of {message:?}", by.address);
            state.broken("acknowledged is applied", detail);
        }
    }

    /// Hears that a client is told that everybody has heard of this.
    pub fn told_everybody(&self, who: &Arc<Process>, message: &Message) {
        let mut state = self.state.lock();
        if state.lacks(who, message) {
            let detail = format!("{} has not heard of {message:?}", who.address);
            state.broken("a client reads its own write", detail);
        }
    }

    /// Hears that a wait which began then is over.
    pub fn waited(&self, since: Duration) {
        let waited = self.clock.monotonic().saturating_sub(since);
        if waited > ACK_TIMEOUT + SLACK {
            let detail = format!("an answer waited {waited:?} for others to hear");
            self.state
                .lock()
                .broken("nobody slow keeps a client waiting", detail);
        }
    }

    /// Sees that somebody gives this to who asked for all of it.
    pub fn gives(&self, pipe: PipeId, all: &Everything) {
        self.state.lock().given.insert(pipe, all.clone());
    }

    /// Hears that somebody took all of it, who had come so far before.
    pub fn joined(&self, pipe: PipeId, who: &Arc<Process>, before: Version) {
        let mut state = self.state.lock();
        let (Some(all), Memory::Table(table, _)) = (state.given.remove(&pipe), &who.memory) else {
            return;
        };
        let watched = table.watched();
        if watched > before.max(all.snapshot.version) {
            let detail = format!(
                "{} says {watched}, not {}",
                who.address, all.snapshot.version
            );
            state.broken("nobody is further than who told it", detail);
        }
        let known = table.since(watched, None).unwrap_or_default().messages;
        let buries = |gone: &Deletion| {
            known.iter().any(|message| match message {
                Message::Delete(known) => {
                    let is_it = (&known.namespace, &known.name) == (&gone.namespace, &gone.name);
                    is_it && known.version >= gone.version
                }
                Message::Upsert(route) => {
                    let is_it = (&route.namespace, &route.name) == (&gone.namespace, &gone.name);
                    is_it && route.version > gone.version
                }
                Message::Unreadable(_) => false,
            })
        };
        let mut newer = all.deletions.iter().filter(|gone| gone.version > watched);
        if let Some(gone) = newer.find(|gone| !buries(gone)) {
            let detail = format!("{} was not told of {gone:?}", who.address);
            state.broken("who joins knows what others know", detail);
        }
        let routes = all.snapshot.routes.iter().cloned().map(Message::Upsert);
        let lacking: Vec<_> = routes.filter(|route| state.lacks(who, route)).collect();
        for route in lacking {
            let detail = format!("{} was not told of {route:?}", who.address);
            state.broken("who joins knows what others know", detail);
        }
    }

    /// Hears of a frame that could not be sent.
    pub fn unsendable(&self, by: SocketAddr, why: &str) {
        let detail = format!("{by}: {why}");
        self.state.lock().broken("every frame can be sent", detail);
    }

    /// How many changes there were.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }
}

impl State {
    /// Notes when a key last had no route.
    pub(super) fn dies(&mut self, sandbox: &Sandbox, is_removed: bool) {
        let Some(route) = Route::of(sandbox) else {
            return;
        };
        if is_removed || !keep(route.state) {
            let key = (route.namespace, route.name);
            self.dead.insert(key, route.version);
        }
    }

    fn lacks(&self, process: &Process, message: &Message) -> bool {
        let was_dead_since = |namespace: &Namespace, name: &Name, version: Version| {
            let dead = self.dead.get(&(namespace.clone(), name.clone()));
            dead.is_some_and(|dead| *dead >= version)
        };
        match (process.knows(message), message) {
            (Known::Passed, _) | (_, Message::Unreadable(_)) => false,
            (Known::Unheard, _) => true,
            (Known::Live(known), Message::Upsert(route)) => known < route.version,
            (Known::Live(known), Message::Delete(gone)) => known <= gone.version,
            (Known::Absent, Message::Delete(_)) => false,
            (Known::Absent, Message::Upsert(route)) => {
                !was_dead_since(&route.namespace, &route.name, route.version)
            }
        }
    }
}
