//! Asking others for what this process lacks, and telling them what they lack.
//!
//! Once each round one of those who have a table is asked for what is newer than the *mark*: how far
//! the own watch has passed, or a peer has vouched for. An answer that came in full moves the mark to
//! where the watch of who answered was, because all that is older was in it or known before. The mark
//! decides only what is asked for; what the table may forget is decided by its own watch.
//!
//! Who has forgotten too much says so. A table that is synced then waits for its own watch for one
//! round before it takes everything: after a short hiccup a hundred thousand routes would travel for
//! a handful of changes.

use std::{sync::Arc, time::Duration, vec};

use model::Version;
use rand_next::seq::SliceRandom as _;
use routes::{Message, Resync, Route, Snapshot};

use super::{Core, LinkId, link::Asked};
use crate::frame::{Answer, Ask, Frame, More, Part, fits, fitting};

/// The most messages of one part; fewer if they are large.
const PART: usize = 512;
/// How many parts may be on their way: while one is read the next is written.
const AHEAD: usize = 3;

/// An answer on its way to who asked.
#[derive(Debug)]
pub(super) struct Giving {
    round: u64,
    answer: Answer,
    rest: vec::IntoIter<Message>,
    stamp: u64,
    watched: Version,
}

/// Everything a peer knows, on its way here.
#[derive(Debug)]
pub(super) struct Joining {
    pub(super) link: LinkId,
    routes: Vec<Arc<Route>>,
    deletions: Vec<Message>,
    is_whole: bool,
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
            at: now,
        });
        let ask = Ask {
            round,
            after,
            told: link.told,
            full: is_full,
        };
        if is_full {
            self.joining = Some(Joining {
                link: id,
                routes: Vec::new(),
                deletions: Vec::new(),
                is_whole: true,
            });
        }
        self.send(id, Frame::Ask(ask));
        true
    }

    pub(super) fn answer(&mut self, id: LinkId, ask: Ask) {
        let giving = self.answer_to(ask);
        if let Some(link) = self.links.get_mut(&id) {
            link.giving = Some(giving);
        }
        for _ in 0..AHEAD {
            self.continue_answer(id, ask.round);
        }
    }

    fn answer_to(&mut self, ask: Ask) -> Giving {
        let nothing = |answer, watched| Giving {
            round: ask.round,
            answer,
            rest: Vec::new().into_iter(),
            stamp: 0,
            watched,
        };
        let Some(book) = self.ground.book.as_ref().filter(|book| book.synced()) else {
            return nothing(Answer::Unsynced, Version::ZERO);
        };
        if ask.full {
            let Some(all) = book.everything() else {
                return nothing(Answer::Unsynced, Version::ZERO);
            };
            let routes = all.snapshot.routes.into_iter().map(Message::Upsert);
            let deletions = all.deletions.into_iter().map(Message::Delete);
            let rest: Vec<Message> = routes.chain(deletions).collect();
            if !rest.iter().all(fits) {
                // What it lacked would count as gone.
                self.counts.overflowed += 1;
                return nothing(Answer::Unsynced, Version::ZERO);
            }
            self.counts.snapshots_given += 1;
            return Giving {
                round: ask.round,
                answer: Answer::Everything,
                rest: rest.into_iter(),
                stamp: all.stamp,
                watched: all.snapshot.version,
            };
        }
        match book.since(ask.after, ask.told) {
            None => nothing(Answer::Forgotten, book.watched()),
            Some(mut changes) => {
                let all = changes.messages.len();
                changes.messages.retain(fits);
                let left_out = all - changes.messages.len();
                if left_out > 0 {
                    // So this vouches for nothing: the asker's own watch has to bring the rest.
                    self.counts.overflowed += left_out as u64;
                    changes.watched = Version::ZERO;
                }
                self.counts.told += changes.messages.len() as u64;
                Giving {
                    round: ask.round,
                    answer: Answer::Changes,
                    rest: changes.messages.into_iter(),
                    stamp: changes.stamp,
                    watched: changes.watched,
                }
            }
        }
    }

    /// Sends the next part, if there is one. What was overtaken by another question is not continued.
    pub(super) fn continue_answer(&mut self, id: LinkId, round: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Some(giving) = link.giving.as_mut().filter(|g| g.round == round) else {
            return;
        };
        let most = fitting(giving.rest.as_slice().iter().take(PART));
        let messages: Vec<Message> = giving.rest.by_ref().take(most).collect();
        let part = Part {
            round,
            answer: giving.answer,
            messages,
            last: giving.rest.len() == 0,
            stamp: giving.stamp,
            watched: giving.watched,
        };
        if part.last {
            link.giving = None;
        }
        self.send(id, Frame::Part(part));
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
        link.asked = (!is_last).then_some(Asked { at: now, ..asked });
        match part.answer {
            Answer::Changes => self.take_changes(id, part, now),
            Answer::Everything if asked.is_full => self.take_everything(id, part, now),
            // Everything was not asked for, or is not what came.
            Answer::Everything | Answer::Forgotten | Answer::Unsynced => {
                if asked.is_full {
                    self.joining = None;
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
        if !is_last {
            self.send(id, Frame::More(More { round }));
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

    fn take_everything(&mut self, id: LinkId, part: Part, now: Duration) {
        let Some(joining) = self.joining.as_mut().filter(|j| j.link == id) else {
            return;
        };
        for message in part.messages {
            match message {
                Message::Upsert(route) => joining.routes.push(route),
                Message::Delete(_) => joining.deletions.push(message),
                // Its key would count as absent, and be deleted.
                Message::Unreadable(_) => {
                    self.counts.invalid += 1;
                    joining.is_whole = false;
                }
            }
        }
        if joining.routes.len() + joining.deletions.len() > self.options.max_snapshot {
            joining.is_whole = false;
            joining.routes = Vec::new();
            joining.deletions = Vec::new();
        }
        if !part.last {
            return;
        }
        let (Some(joining), Some(book)) = (self.joining.take(), &self.ground.book) else {
            return;
        };
        if !joining.is_whole {
            return;
        }
        let snapshot = Snapshot {
            version: part.watched,
            routes: joining.routes,
        };
        match book.replace_all(snapshot, now) {
            Resync::Taken { .. } => self.counts.snapshots_taken += 1,
            Resync::Older | Resync::OlderThanTold => {}
        }
        for message in joining.deletions {
            self.take_message(message, now);
        }
        if let Some(link) = self.links.get_mut(&id) {
            link.told = Some(part.stamp);
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
