//! What other processes wrote, and this one need not see yet.
//!
//! Several servers of one API look at the same records, each by a watch of its own, and a client may
//! come to another one than it was answered by. Whoever writes says so to the others, and that is
//! faster than their watches. So it is noted here which records have changed further than the cache
//! shows; who asks for one of them waits until the cache does, for a while. Of what nobody has heard
//! nobody waits.
//!
//! A note goes when the cache has passed it and what is made of the cache has taken it over: whoever
//! looks finds the note, or what it told of. If there are too many, the oldest are dropped, and
//! everybody waits for those.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{Key, Namespace, SandboxId, Version};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{refusal::Refusal, service::E2b};

/// How long the cache may take to show what was heard of.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// The most that are noted.
const MOST: usize = 8192;

/// What was heard of.
#[derive(Debug, Default)]
pub(crate) struct Ahead(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    /// By the version of the write: no two writes have one.
    of: BTreeMap<Version, Note>,
    /// The newest that was dropped because there were too many.
    lost: Option<Version>,
}

#[derive(Debug)]
struct Note {
    key: Key,
    id: Option<SandboxId>,
}

impl Notes {
    fn add(&mut self, key: Key, id: Option<SandboxId>, version: Version) {
        self.of.insert(version, Note { key, id });
        if self.of.len() > MOST {
            let oldest = self.of.pop_first();
            self.lost = self.lost.max(oldest.map(|(version, _)| version));
        }
    }

    /// Forgets what is at or below a version. Answers whose.
    fn pass(&mut self, version: Version) -> Vec<Key> {
        let later = self.of.split_off(&version);
        let mut passed = std::mem::replace(&mut self.of, later);
        passed.extend(self.of.remove_entry(&version));
        self.lost = self.lost.filter(|lost| *lost > version);
        passed.into_values().map(|note| note.key).collect()
    }

    /// The newest note that fits, or what was dropped.
    fn newest(&self, fits: impl Fn(&Note) -> bool) -> Option<Version> {
        let found = self.of.iter().rev().find(|(_, note)| fits(note));
        found.map(|(version, _)| *version).max(self.lost)
    }

    /// The newest note of the records that notes name a delivery by, or that the cache does. What was
    /// heard of its end names the record alone.
    fn newest_of(&self, names: impl Fn(&Note) -> bool, seen: Option<&Key>) -> Option<Version> {
        let named = self.of.values().filter(|note| names(note));
        let keys: BTreeSet<&Key> = named.map(|note| &note.key).chain(seen).collect();
        self.newest(|note| keys.contains(&note.key))
    }
}

impl E2b {
    /// Another process says that it wrote a sandbox's record, or removed it, at a version. The id is
    /// that of the delivery, where there is one.
    pub fn heard(&self, key: Key, id: Option<SandboxId>, version: Version) {
        let mut notes = self.ahead.0.lock();
        self.sweep(&mut notes);
        if version > self.caches.sandboxes.version() {
            notes.add(key, id, version);
        }
    }

    /// How many changes were heard of that the cache does not show yet.
    #[must_use]
    pub fn unseen_changes(&self) -> usize {
        let mut notes = self.ahead.0.lock();
        self.sweep(&mut notes);
        notes.of.len()
    }

    /// Waits until what was heard of a delivery is seen.
    ///
    /// # Errors
    /// If it is not, in time: then nothing can be said of it.
    pub(crate) async fn seen_of(&self, team: &Namespace, id: &str) -> Result<(), Refusal> {
        // Old clients append the id of a client.
        let short = id.split_once('-').map(|(short, _)| short);
        let names = |note: &Note| {
            let named = note.id.as_ref().map(SandboxId::as_str);
            let by_id = named.is_some_and(|named| named == id || Some(named) == short);
            by_id && note.key.namespace.as_ref() == Some(team)
        };
        let newest = {
            let mut notes = self.ahead.0.lock();
            self.sweep(&mut notes);
            // After the sweep: the cache shows whatever note of it went.
            let seen = self.find(team, id).map(|sandbox| sandbox.key());
            notes.newest_of(names, seen.as_ref())
        };
        match newest {
            None => Ok(()),
            Some(version) if self.comes_to(version).await => Ok(()),
            Some(_) => Err(Refusal::behind()),
        }
    }

    /// Waits until what was heard of a team's sandboxes is seen, or a while.
    pub(crate) async fn seen_of_all(&self, team: &Namespace) {
        let newest = self.newest(|note| note.key.namespace.as_ref() == Some(team));
        if let Some(version) = newest {
            self.comes_to(version).await;
        }
    }

    /// Waits until the cache, and what is made of it, shows a version, or a while. Answers whether it
    /// does.
    pub(crate) async fn comes_to(&self, version: Version) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let sandboxes = &self.caches.sandboxes;
        let seen = sandboxes.wait_for_version(version, deadline).await.is_ok();
        self.sweep(&mut self.ahead.0.lock());
        seen
    }

    fn newest(&self, fits: impl Fn(&Note) -> bool) -> Option<Version> {
        let mut notes = self.ahead.0.lock();
        self.sweep(&mut notes);
        notes.newest(fits)
    }

    /// Forgets what is seen, and makes sure first that it is.
    fn sweep(&self, notes: &mut Notes) {
        if !notes.of.is_empty() || notes.lost.is_some() {
            let passed = notes.pass(self.caches.sandboxes.version());
            self.roster.refresh_all(&passed);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Name, Spec as _, sandbox::SandboxSpec};

    use super::*;

    fn version(number: u64) -> Version {
        Version::from_u64(number)
    }

    fn key(name: &str) -> Key {
        let team = Namespace::new("team").unwrap();
        Key::namespaced(SandboxSpec::KIND, team, Name::new(name).unwrap())
    }

    #[test]
    fn a_note_is_found_until_the_cache_has_passed_it() {
        let mut notes = Notes::default();
        notes.add(key("a"), None, version(5));
        notes.add(key("b"), None, version(7));
        notes.add(key("a"), None, version(9));
        assert_eq!(notes.newest(|n| n.key == key("a")), Some(version(9)));
        assert_eq!(notes.newest(|n| n.key == key("c")), None);
        assert_eq!(notes.pass(version(7)), [key("a"), key("b")]);
        assert_eq!(notes.newest(|n| n.key == key("b")), None);
        assert_eq!(notes.newest(|_| true), Some(version(9)));
        assert_eq!(notes.pass(version(10)), [key("a")]);
    }

    #[test]
    fn an_end_that_names_no_delivery_is_waited_for_by_who_asks_for_the_delivery() {
        let mut notes = Notes::default();
        let id = SandboxId::new("one").unwrap();
        notes.add(key("a"), Some(id.clone()), version(5));
        notes.add(key("b"), None, version(7));
        notes.add(key("a"), None, version(9));
        let names = |note: &Note| note.id.as_ref() == Some(&id);
        assert_eq!(notes.newest_of(names, None), Some(version(9)));
        // What told which record it is was seen.
        notes.pass(version(5));
        assert_eq!(notes.newest_of(names, None), None);
        assert_eq!(notes.newest_of(names, Some(&key("a"))), Some(version(9)));
    }

    #[test]
    fn what_was_dropped_because_there_was_too_much_is_waited_for_by_everybody() {
        let mut notes = Notes::default();
        for number in 1..=MOST as u64 + 3 {
            notes.add(key("a"), None, version(number));
        }
        assert_eq!(notes.of.len(), MOST);
        assert_eq!(notes.newest(|n| n.key == key("b")), Some(version(3)));
        notes.pass(version(3));
        assert_eq!(notes.newest(|n| n.key == key("b")), None);
    }
}
