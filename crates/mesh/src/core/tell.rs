//! Telling others what they lack.
//!
//! Changes are looked up at once; everything is gathered elsewhere (see `jobs`), and who waits for it
//! hears of it then. Who asks again meanwhile, for it or for something else, is answered what it asked
//! last; who has left is not answered.

use std::{sync::Arc, vec};

use model::Version;
use routes::Message;

use super::{
    Core, LinkId, Output,
    jobs::{Gathered, Job},
};
use crate::frame::{Answer, Ask, Frame, Part, fits, fitting};

/// The most messages of one part; fewer if they are large.
const PART: usize = 512;
/// How many parts may be on their way: while one is read the next is written.
const AHEAD: usize = 3;

/// An answer for who asked.
#[derive(Debug)]
pub(super) enum Giving {
    /// Everything, once it is gathered.
    Waiting(u64),
    /// On its way.
    Telling(Telling),
}

#[derive(Debug)]
pub(super) struct Telling {
    round: u64,
    answer: Answer,
    /// Those that are to come: each goes with its last asker, so none of this ends all at once.
    parts: vec::IntoIter<Arc<[Message]>>,
    stamp: u64,
    watched: Version,
}

/// Messages as they are told: there is always a part, if only to say that there is nothing.
pub(super) fn in_parts(messages: Vec<Message>) -> Vec<Arc<[Message]>> {
    let mut rest = messages.into_iter();
    let mut parts = Vec::new();
    loop {
        let most = fitting(rest.as_slice().iter().take(PART)).max(1);
        parts.push(rest.by_ref().take(most).collect());
        if rest.len() == 0 {
            return parts;
        }
    }
}

impl Giving {
    fn nothing(round: u64, answer: Answer, watched: Version) -> Self {
        Self::Telling(Telling {
            round,
            answer,
            parts: in_parts(Vec::new()).into_iter(),
            stamp: 0,
            watched,
        })
    }
}

impl Core {
    pub(super) fn answer(&mut self, id: LinkId, ask: Ask) {
        let giving = self.answer_to(ask);
        self.give(id, ask.round, giving);
    }

    fn give(&mut self, id: LinkId, round: u64, giving: Giving) {
        if let Some(link) = self.links.get_mut(&id) {
            link.giving = Some(giving);
        }
        for _ in 0..AHEAD {
            self.continue_answer(id, round);
        }
    }

    fn answer_to(&mut self, ask: Ask) -> Giving {
        let round = ask.round;
        let Some(book) = self.ground.book.as_ref().filter(|book| book.synced()) else {
            return Giving::nothing(round, Answer::Unsynced, Version::ZERO);
        };
        if ask.full {
            if !std::mem::replace(&mut self.is_gathering, true) {
                let job = Job::Gather(Arc::clone(book));
                self.outputs.push_back(Output::Run(job));
            }
            return Giving::Waiting(round);
        }
        match book.since(ask.after, ask.told) {
            None => Giving::nothing(round, Answer::Forgotten, book.watched()),
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
                Giving::Telling(Telling {
                    round,
                    answer: Answer::Changes,
                    parts: in_parts(changes.messages).into_iter(),
                    stamp: changes.stamp,
                    watched: changes.watched,
                })
            }
        }
    }

    /// Answers all who wait for everything.
    pub(super) fn tell_everything(&mut self, gathered: &Gathered) {
        self.is_gathering = false;
        if matches!(gathered, Gathered::TooLarge) {
            self.counts.overflowed += 1;
        }
        let waiting = self
            .links
            .iter()
            .filter_map(|(id, link)| match link.giving {
                Some(Giving::Waiting(round)) => Some((*id, round)),
                Some(Giving::Telling(_)) | None => None,
            });
        for (id, round) in waiting.collect::<Vec<_>>() {
            let giving = match gathered {
                Gathered::All(all) => {
                    self.counts.snapshots_given += 1;
                    Giving::Telling(Telling {
                        round,
                        answer: Answer::Everything,
                        parts: all.parts.clone().into_iter(),
                        stamp: all.stamp,
                        watched: all.watched,
                    })
                }
                Gathered::Unsynced | Gathered::TooLarge => {
                    Giving::nothing(round, Answer::Unsynced, Version::ZERO)
                }
            };
            self.give(id, round, giving);
        }
    }

    /// Sends the next part, if there is one. What was overtaken by another question is not continued.
    pub(super) fn continue_answer(&mut self, id: LinkId, round: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let telling = match &mut link.giving {
            Some(Giving::Telling(telling)) if telling.round == round => telling,
            Some(Giving::Telling(_) | Giving::Waiting(_)) | None => return,
        };
        let messages = telling.parts.next().unwrap_or_default();
        let part = Part {
            round,
            answer: telling.answer,
            messages: messages.to_vec(),
            last: telling.parts.len() == 0,
            stamp: telling.stamp,
            watched: telling.watched,
        };
        if part.last {
            link.giving = None;
        }
        self.send(id, Frame::Part(part));
    }
}
