//! The objects of a cache and their indexes, at one version of the store. Plain data, no locks.
//!
//! The table is what the store held at [`Table::version`], narrowed by the cache's options. Two
//! fences keep it from going back: the reflector drops whatever is not newer than the table, and
//! the table drops a value that is not newer than the one it would replace.

use std::{collections::BTreeMap, sync::Arc};

use model::{Name, Namespace, Version};

use crate::{Identified as _, Indexes as _, Term, View, place::Place, postings::Postings};

pub(crate) struct Table<V: View> {
    version: Version,
    objects: BTreeMap<Place, Arc<V::Value>>,
    /// By the position of each index among all of the view's.
    indexes: Vec<Postings<V::Value>>,
}

/// One change to a table, already decoded.
#[derive(Debug)]
pub(crate) enum Step<T> {
    Put(Arc<T>),
    Remove { place: Place, at: Version },
}

/// What came of a step: the place that changed, and the value that is no longer there. Kept so
/// that values are freed after the lock is released.
pub(crate) type Changed<T> = (Place, Option<Arc<T>>);

impl<V: View> Table<V> {
    pub(crate) fn new() -> Self {
        Self {
            version: Version::ZERO,
            objects: BTreeMap::new(),
            indexes: V::Index::ALL.iter().map(|_| Postings::new()).collect(),
        }
    }

    /// Everything up to here is in the table.
    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    /// Notes that everything up to a version is in the table. Never goes back.
    pub(crate) fn advance(&mut self, to: Version) {
        self.version = self.version.max(to);
    }

    /// Takes one step; `None` if it is old news.
    pub(crate) fn apply(&mut self, step: Step<V::Value>) -> Option<Changed<V::Value>> {
        let (place, old, new) = match step {
            Step::Put(value) => {
                let place = Place::of_value(&*value);
                // A late record must not replace a newer one.
                let known = self.objects.get(&place).map(|old| old.version());
                if known.is_some_and(|known| known >= value.version()) {
                    return None;
                }
                let old = self.objects.insert(place.clone(), Arc::clone(&value));
                (place, old, Some(value))
            }
            Step::Remove { place, at } => {
                // A late removal must not take the object that was created after it.
                if self.objects.get(&place)?.version() > at {
                    return None;
                }
                let old = self.objects.remove(&place);
                (place, old, None)
            }
        };
        for (postings, index) in self.indexes.iter_mut().zip(V::Index::ALL) {
            postings.replace(*index, old.as_ref(), new.as_ref());
        }
        Some((place, old))
    }

    pub(crate) fn get(&self, place: &Place) -> Option<&Arc<V::Value>> {
        self.objects.get(place)
    }

    pub(crate) fn find_by<'s>(
        &'s self,
        index: V::Index,
        term: Term<'s>,
    ) -> impl Iterator<Item = &'s Arc<V::Value>> {
        let at = V::Index::ALL.iter().position(|known| *known == index);
        let postings = at.and_then(|at| self.indexes.get(at));
        postings.into_iter().flat_map(move |p| p.find(index, term))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<V::Value>> {
        self.objects.values()
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.objects.keys()
    }

    /// The places that a complete, ordered listing does not have.
    pub(crate) fn missing_from<'l>(
        &self,
        listed: impl Iterator<Item = (Option<&'l Namespace>, &'l Name)>,
    ) -> Vec<Place> {
        let mut listed = listed.peekable();
        let mut missing = Vec::new();
        for place in self.objects.keys() {
            while listed.next_if(|other| *other < place.borrowed()).is_some() {}
            if listed.peek() != Some(&place.borrowed()) {
                missing.push(place.clone());
            }
        }
        missing
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }
}
