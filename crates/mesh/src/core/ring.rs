//! What this process has said: the last so many, each with its number.
//!
//! Every peer has a place in here instead of a queue of its own, so a slow one costs nothing but
//! its place. One whose place falls out has missed something, up to a version.

use std::{collections::VecDeque, time::Duration};

use model::Version;
use routes::Message;

/// The version a message is about. What cannot be read is about none.
pub(super) fn version_of(message: &Message) -> Version {
    match message {
        Message::Upsert(route) => route.version,
        Message::Delete(deletion) => deletion.version,
        Message::Unreadable(_) => Version::ZERO,
    }
}

#[derive(Debug)]
struct Said {
    message: Message,
    at: Duration,
}

#[derive(Debug)]
pub(super) struct Ring {
    max: usize,
    /// The number of the oldest that is kept.
    first: u64,
    said: VecDeque<Said>,
    /// The newest version that fell out.
    lost: Version,
}

impl Ring {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            first: 0,
            said: VecDeque::new(),
            lost: Version::ZERO,
        }
    }

    pub(super) fn push(&mut self, message: Message, at: Duration) {
        self.said.push_back(Said { message, at });
        while self.said.len() > self.max {
            if let Some(out) = self.said.pop_front() {
                self.lost = self.lost.max(version_of(&out.message));
                self.first += 1;
            }
        }
    }

    pub(super) fn lose(&mut self, version: Version) {
        self.lost = self.lost.max(version);
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next one will have.
    pub(super) fn next(&self) -> u64 {
        self.first + self.said.len() as u64
    }

    pub(super) fn lost(&self) -> Version {
        self.lost
    }

    fn at(&self, number: u64) -> Option<&Said> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.said.get(place)
    }

    /// When this one was said; one that fell out, before all others.
    pub(super) fn said_at(&self, number: u64) -> Duration {
        self.at(number).map_or(Duration::ZERO, |said| said.at)
    }

    /// Up to so many from this number on.
    pub(super) fn from(&self, number: u64, most: usize) -> Vec<Message> {
        let skip = usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let rest = self.said.iter().skip(skip).take(most);
        rest.map(|said| said.message.clone()).collect()
    }

    /// The first that somebody who has come as far as this version may lack.
    pub(super) fn first_after(&self, version: Version) -> u64 {
        let mut said = self.said.iter();
        let place = said.position(|said| version_of(&said.message) > version);
        self.first + place.unwrap_or(self.said.len()) as u64
    }

    /// What has to be acknowledged for somebody to know of this version: the number after the one
    /// that told of it. Looked for among the last few; else all that was said.
    pub(super) fn told_of(&self, version: Version) -> u64 {
        const LAST: usize = 256;
        let mut last = self.said.iter().rev().take(LAST).enumerate();
        let found = last.find(|(_, said)| version_of(&said.message) == version);
        self.next() - found.map_or(0, |(back, _)| back as u64)
    }
}
