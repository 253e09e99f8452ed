//! Pushing what was said, acknowledging it, and waiting until it was heard.

use std::{collections::BTreeMap, time::Duration};

use model::Version;

use super::{Core, LinkId, Output, link::Link};
use crate::frame::{Ack, Frame, Push, fitting};

/// How many pushed messages may lack an acknowledgement.
const WINDOW: u64 = 1024;
/// The most messages of one frame; fewer if they are large.
const BATCH: usize = 256;

/// Names a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(u64);

/// Who waits until something was heard.
#[derive(Debug, Default)]
pub(super) struct Waits {
    last: u64,
    /// By what has to be acknowledged.
    open: BTreeMap<(u64, WaitId), ()>,
}

impl Core {
    /// Waits until all in good standing have acknowledged what this process said of a version, or
    /// everything it said so far if it cannot tell. [`Output::Heard`] follows, within `ack_timeout`.
    pub fn wait(&mut self, version: Version, now: Duration) -> WaitId {
        self.waits.last += 1;
        let id = WaitId(self.waits.last);
        let number = self.ring.told_of(version);
        self.waits.open.insert((number, id), ());
        self.settle(now);
        id
    }

    /// A link can be spoken over: whoever is there has come this far by its own watch.
    pub(super) fn begin_speaking(&mut self, id: LinkId, watched: Version, now: Duration) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        link.cursor = self.ring.first_after(watched);
        link.missed = Some(self.ring.lost());
        link.acked = link.cursor;
        self.pump(id, now);
        self.settle(now);
    }

    pub(super) fn pump_all(&mut self, now: Duration) {
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            self.pump(id, now);
        }
        self.settle(now);
    }

    /// Pushes what a link has room for.
    fn pump(&mut self, id: LinkId, now: Duration) {
        loop {
            let Some(link) = self.links.get_mut(&id).filter(|link| link.is_told()) else {
                return;
            };
            if link.cursor < self.ring.first() {
                // What it was to be told has fallen out: its own watch or a round has to.
                self.counts.overflowed += self.ring.first() - link.cursor;
                link.missed = link.missed.max(Some(self.ring.lost()));
                link.cursor = self.ring.first();
            }
            let room = WINDOW.saturating_sub(link.cursor - link.acked.min(link.cursor));
            let most = BATCH.min(usize::try_from(room).unwrap_or(BATCH));
            let mut messages = self.ring.from(link.cursor, most);
            messages.truncate(fitting(messages.iter()));
            if messages.is_empty() {
                return;
            }
            self.push(id, messages, now);
        }
    }

    pub(super) fn take_push(&mut self, id: LinkId, push: Push, now: Duration) {
        let next = push.first.saturating_add(push.messages.len() as u64);
        for message in push.messages {
            self.take_message(message, now);
        }
        let watched = self.watched();
        self.send(id, Frame::Ack(Ack { next, watched }));
    }

    pub(super) fn take_ack(&mut self, id: LinkId, ack: Ack, now: Duration) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        link.acked = link.acked.max(ack.next.min(link.cursor));
        link.memory.acknowledged(now, self.options.ack_timeout);
        if let Some(peer) = &mut link.peer {
            peer.watched = ack.watched;
        }
        self.pump(id, now);
        self.settle(now);
    }

    /// When a link loses its standing, if nothing is heard of it.
    pub(super) fn late_at(&self, link: &Link) -> Option<Duration> {
        let is_waited_for = link.is_told() && link.in_standing;
        is_waited_for.then(|| self.owes_until(link)).flatten()
    }

    /// Until when it has to acknowledge what it was told.
    fn owes_until(&self, link: &Link) -> Option<Duration> {
        let owes = link.acked < self.ring.next();
        owes.then(|| self.ring.said_at(link.acked) + self.options.ack_timeout)
    }

    fn is_late(&self, link: &Link, now: Duration) -> bool {
        self.owes_until(link).is_some_and(|until| now >= until)
    }

    fn is_in_standing(&self, link: &Link, now: Duration) -> bool {
        let lacks = link.peer.as_ref().zip(link.missed);
        if lacks.is_some_and(|(peer, missed)| missed > peer.watched) || self.is_late(link, now) {
            return false;
        }
        link.in_standing || link.memory.is_mended(now)
    }

    /// Decides who is in good standing, and which waits are over.
    pub(super) fn settle(&mut self, now: Duration) {
        let mut lowest = u64::MAX;
        let mut are_all_waited_for = self.targets.all_linked();
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            let Some(link) = self.links.get(&id) else {
                continue;
            };
            if !link.is_told() {
                // Who has not said hello may want to be told.
                are_all_waited_for &= !link.is_new_dialled();
                continue;
            }
            let stands = self.is_in_standing(link, now);
            let is_late = link.in_standing && self.is_late(link, now);
            if link.in_standing && !stands {
                self.counts.late += 1;
            }
            if stands {
                lowest = lowest.min(link.acked);
            } else {
                are_all_waited_for = false;
            }
            let Some(link) = self.links.get_mut(&id) else {
                continue;
            };
            if is_late {
                link.memory.late(now);
            } else if stands && !link.in_standing {
                link.memory.stands(now);
            }
            link.in_standing = stands;
        }
        if self.waits.open.is_empty() {
            return;
        }
        while let Some(first) = self.waits.open.first_entry() {
            let (number, id) = *first.key();
            if number > lowest {
                break;
            }
            first.remove();
            self.outputs
                .push_back(Output::Heard(id, are_all_waited_for));
        }
    }
}
