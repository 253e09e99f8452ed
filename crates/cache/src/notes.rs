//! What the reflector notes as it goes, for statistics.

use std::{collections::BTreeMap, sync::Arc};

use model::{KindName, Version};
use store::{Record, StoreError};
use tokio::time::Instant;

use crate::{
    Stats, Undecodable,
    place::{Place, place_of_record},
};

/// What the reflector notes as it goes.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) events: u64,
    pub(crate) relists: u64,
    pub(crate) stale_lists: u64,
    pub(crate) lost_watches: u64,
    /// Since when there has been no watch.
    pub(crate) lost: Option<Instant>,
    /// When the store last said anything.
    pub(crate) heard: Instant,
    undecodable: BTreeMap<Place, (Version, Arc<StoreError>)>,
}

impl Notes {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            events: 0,
            relists: 0,
            stale_lists: 0,
            lost_watches: 0,
            lost: Some(now),
            heard: now,
            undecodable: BTreeMap::new(),
        }
    }

    pub(crate) fn undecodable(&mut self, record: &Record, error: StoreError) {
        let place = Place::of_record(record);
        if !self.undecodable.contains_key(&place) {
            tracing::error!(%error, version = %record.version(), "left a record out of the cache");
        }
        let noted = (record.version(), Arc::new(error));
        self.undecodable.insert(place, noted);
    }

    pub(crate) fn decoded(&mut self, record: &Record) {
        if !self.undecodable.is_empty() {
            self.undecodable.remove(&Place::of_record(record));
        }
    }

    /// Forgets those that a listing, ordered by place, no longer has.
    pub(crate) fn keep_undecodable(&mut self, listed: &[Arc<Record>]) {
        self.undecodable.retain(|known, _| {
            let found = listed.binary_search_by(|r| place_of_record(r).cmp(&known.borrowed()));
            found.is_ok()
        });
    }

    /// What of the statistics is known here; the rest is left empty.
    pub(crate) fn stats(&self, kind: KindName) -> Stats {
        let undecodable = self
            .undecodable
            .iter()
            .map(|(place, (version, error))| Undecodable {
                key: place.clone().into_key(kind),
                version: *version,
                error: Arc::clone(error),
            });
        Stats {
            objects: 0,
            version: Version::ZERO,
            lag: self
                .lost
                .map_or_else(Default::default, |since| since.elapsed()),
            age: self.heard.elapsed(),
            events: self.events,
            relists: self.relists,
            stale_lists: self.stale_lists,
            lost_watches: self.lost_watches,
            undecodable: undecodable.collect(),
            waited_keys: 0,
            waited_versions: 0,
            held_keys: 0,
            subscriptions: 0,
        }
    }
}
