//! Asking others for what this process lacks.
//!
//! Once each round one of those who have a table is asked for what is newer than the *mark*: how far
//! the own watch has passed, or a peer has vouched for. An answer that came in full moves the mark to
//! where the watch of who answered was, because all that is older was in it or known before. The mark
//! decides only what is asked for; what the table may forget is decided by its own watch.
//!
//! Who has forgotten too much says so. A table that is synced then waits for its own watch for one
//! round before it takes everything: after a short hiccup a hundred thousand routes would travel for
//! a handful of changes.

use std::{sync::Arc, time::Duration};

use model::Version;
use rand_next::seq::SliceRandom as _;
use routes::{Message, Resync, Route, Snapshot};

use super::{
    Core, LinkId, Output,
    jobs::{Adopted, Adoption, Done, Job},
    link::Asked,
};
use crate::{
    frame::{Answer, Ask, Frame, More, Part},
    why::Why,
};

/// How long an answer may take as a whole.
const ANSWER: Duration = Duration::from_secs(300);

/// Everything a peer knows, on its way here.
#[derive(Debug)]
pub(super) enum Joining {
    /// Its parts come.
    Hearing(Hearing),
    /// All came, over this link, with this stamp, and is being adopted: whatever becomes of the link.
    Adopting(LinkId, u64),
}

#[derive(Debug)]
pub(super) struct Hearing {
    link: LinkId,
    routes: Vec<Arc<Route>>,
    deletions: Vec<Message>,
    is_whole: bool,
}

impl Joining {
    /// Whether more of it is to come over this link.
    pub(super) fn is_heard_from(&self, id: LinkId) -> bool {
        match self {
            Self::Hearing(hearing) => hearing.link == id,
            Self::Adopting(..) => false,
        }
    }
}

impl Core {
    fn is_synced(&self) -> bool {
        self.ground.book.as_ref().is_some_and(|book| book.synced())
    }

    fn mark(&self) -> Version {
        self.watched().max(self.vouched)
    }

    /// Asks the next one.
    pub(super) fn begin_round(&mut self, now: Duration) {
        if self.ground.book.is_none() {
            return;
        }
        let mark = self.mark();
        self.behind = self.behind.filter(|(behind, _)| *behind > mark);
        // Those that have gone since the order was made are passed over.
        for _ in 0..2 {
            while let Some(id) = self.turns.pop() {
                if self.ask(id, now) {
                    self.counts.rounds += 1;
                    return;
                }
            }
            let keepers = self.links.iter().filter(|(_, link)| {
                link.is_speaking() && link.peer.as_ref().is_some_and(|peer| peer.keeps)
            });
            self.turns = keepers.map(|(id, _)| *id).collect();
            self.turns.shuffle(&mut self.rng);
        }
    }

    /// Asks who is behind a link for what is newer; answers whether it could be asked.
    pub(super) fn ask(&mut self, id: LinkId, now: Duration) -> bool {
        if self.ground.book.is_none() {
            return false;
        }
        let is_full = !self.is_synced();
        if is_full && self.joining.is_some() {
            return false;
        }
        self.ask_for(id, is_full, now)
    }

    fn ask_for(&mut self, id: LinkId, is_full: bool, now: Duration) -> bool {
        let after = self.mark();
        let Some(link) = self.links.get_mut(&id).filter(|link| link.is_speaking()) else {
            return false;
        };
        if link.asked.is_some() {
            return false;
        }
        self.rounds += 1;
        let round = self.rounds;
        link.asked = Some(Asked {
            round,
            is_full,
            since: now,
            at: now,
        });
        let ask = Ask {
            round,
            after,
            told: link.told,
            full: is_full,
        };
        if is_full {
            self.joining = Some(Joining::Hearing(Hearing {
                link: id,
                routes: Vec::new(),
                deletions: Vec::new(),
                is_whole: true,
            }));
        }
        self.send(id, Frame::Ask(ask));
        true
    }

    /// A job has ended.
    pub fn done(&mut self, done: Done) {
        match done {
            Done::Gathered(gathered) => self.tell_everything(&gathered),
            Done::Adopted(adopted) => self.adopted(&adopted),
        }
    }

    pub(super) fn take_part(&mut self, id: LinkId, part: Part, now: Duration) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Some(asked) = link.asked.filter(|asked| asked.round == part.round) else {
            return;
        };
        if let Some(peer) = &mut link.peer {
            peer.watched = peer.watched.max(part.watched);
        }
        let (round, is_last) = (part.round, part.last);
        if !is_last && part.messages.is_empty() {
            // So it could go on for ever.
            return self.close(id, Why::Unexpected, now);
        }
        link.asked = (!is_last).then_some(Asked { at: now, ..asked });
        match part.answer {
            Answer::Changes if !asked.is_full => self.take_changes(id, part, now),
            Answer::Everything if asked.is_full => self.take_everything(id, part),
            // Everything was not asked for, or is not what came.
            Answer::Changes | Answer::Everything | Answer::Forgotten | Answer::Unsynced => {
                link.asked = None;
                if asked.is_full {
                    self.joining.take_if(|joining| joining.is_heard_from(id));
                }
                if part.answer == Answer::Forgotten {
                    self.fell_behind(id, part.watched, now);
                } else if !self.is_synced() {
                    // The next one may know more. When all were asked, the next round begins anew.
                    while let Some(next) = self.turns.pop() {
                        if self.ask(next, now) {
                            break;
                        }
                    }
                }
            }
        }
        if self.links.get(&id).is_some_and(|link| link.is_asked(round)) {
            self.send(id, Frame::More(More { round }));
        }
    }

    /// What takes too long as a whole is asked of another one.
    pub(super) fn give_up_questions(&mut self, now: Duration) {
        let is_late = |asked: &mut Asked| now >= asked.since + ANSWER;
        for (id, link) in &mut self.links {
            if link.asked.take_if(is_late).is_some() {
                self.joining.take_if(|joining| joining.is_heard_from(*id));
            }
        }
    }

    fn take_changes(&mut self, id: LinkId, part: Part, now: Duration) {
        self.counts.heard += part.messages.len() as u64;
        for message in part.messages {
            self.take_message(message, now);
        }
        if part.last {
            self.vouched = self.vouched.max(part.watched);
            if let Some(link) = self.links.get_mut(&id) {
                link.told = Some(part.stamp);
            }
        }
    }

    fn take_everything(&mut self, id: LinkId, part: Part) {
        let mut joining = self.joining.take_if(|joining| joining.is_heard_from(id));
        let Some(Joining::Hearing(hearing)) = &mut joining else {
            return;
        };
        for message in part.messages {
            match message {
                Message::Upsert(route) => hearing.routes.push(route),
                Message::Delete(_) => hearing.deletions.push(message),
                // Its key would count as absent, and be deleted.
                Message::Unreadable(_) => {
                    self.counts.invalid += 1;
                    hearing.is_whole = false;
                }
            }
        }
        if hearing.routes.len() + hearing.deletions.len() > self.options.max_snapshot {
            hearing.is_whole = false;
            hearing.routes = Vec::new();
            hearing.deletions = Vec::new();
        }
        if !part.last {
            self.joining = joining;
        } else if hearing.is_whole {
            let adoption = Adoption {
                from: id,
                ground: self.ground.clone(),
                snapshot: Snapshot {
                    version: part.watched,
                    routes: std::mem::take(&mut hearing.routes),
                },
                deletions: std::mem::take(&mut hearing.deletions),
            };
            self.joining = Some(Joining::Adopting(id, part.stamp));
            self.outputs.push_back(Output::Run(Job::Adopt(adoption)));
        }
    }

    /// What a peer knew was taken, or not.
    fn adopted(&mut self, adopted: &Adopted) {
        let Some(Joining::Adopting(id, stamp)) = self.joining.take() else {
            return;
        };
        for outcome in &adopted.deletions {
            self.counts.count(outcome);
        }
        match adopted.resync {
            Resync::Taken { .. } => self.counts.snapshots_taken += 1,
            Resync::Older | Resync::OlderThanTold => {}
        }
        if let Some(link) = self.links.get_mut(&id) {
            // It may have told of more since.
            link.told = link.told.max(Some(stamp));
        }
    }

    /// A peer cannot say what is newer than the own mark.
    fn fell_behind(&mut self, id: LinkId, watched: Version, now: Duration) {
        let mark = self.mark();
        if watched <= mark {
            return;
        }
        match self.behind {
            None => self.behind = Some((watched, now)),
            Some((behind, since)) => {
                let is_long = now >= since + self.options.sync_interval;
                if behind > mark && is_long && self.joining.is_none() {
                    self.behind = None;
                    self.ask_for(id, true, now);
                }
            }
        }
    }
}
