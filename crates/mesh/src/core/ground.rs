//! What a process stands on: who it is, its table and its ear.

use std::{sync::Arc, time::Duration};

use model::Version;
use routes::{Change, Message, Outcome};

use super::Core;
use crate::book::{Book, Heard};

/// Who this process is, and what it stands on.
#[derive(Clone, Debug)]
pub struct Ground {
    /// A number that no other process has.
    pub process: u64,
    /// Its table, if it has one.
    pub book: Option<Arc<dyn Book>>,
    /// Who hears what peers say, besides the table.
    pub ear: Option<Arc<dyn Heard>>,
    /// What choices are made with: the same for the same.
    pub seed: u64,
}

impl Ground {
    /// Takes what a peer says.
    pub(super) fn hear(&self, message: Message, now: Duration) -> Outcome {
        if let Some(ear) = &self.ear {
            match &message {
                Message::Upsert(_) | Message::Delete(_) => ear.heard(&message),
                Message::Unreadable(_) => {}
            }
        }
        match (&self.book, message) {
            (Some(book), message) => book.apply(message, now),
            (None, Message::Unreadable(why)) => Outcome::Invalid(why),
            (None, Message::Upsert(_) | Message::Delete(_)) => Outcome::Applied(Change::default()),
        }
    }

    /// Takes what this process has written itself.
    pub(super) fn write(&self, message: Message, now: Duration) {
        if let Some(book) = &self.book {
            book.apply(message, now);
        }
    }
}

impl Core {
    /// How far the own watch has come.
    pub(super) fn watched(&self) -> Version {
        match (&self.ground.book, &self.ground.ear) {
            (Some(book), _) => book.watched(),
            (None, Some(ear)) => ear.watched(),
            (None, None) => Version::ZERO,
        }
    }

    /// Takes what a peer says, and counts what becomes of it.
    pub(super) fn take_message(&mut self, message: Message, now: Duration) {
        let outcome = self.ground.hear(message, now);
        self.counts.count(&outcome);
    }
}
