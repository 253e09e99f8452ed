//! One index: which values each term finds.
//!
//! Terms are kept as hashes only; a reader compares the text with what the value itself says, so a
//! collision costs a comparison and never a wrong answer. The values of a term are a vector in the
//! order of their places: eight bytes each, answers come out sorted, and an update that leaves the
//! terms alone replaces a pointer.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use model::{Name, Namespace};

use crate::{Identified, Indexes, Term, place::place_of};

#[derive(Debug)]
pub(crate) struct Postings<T>(BTreeMap<u64, Bucket<T>>);

/// Most terms of an index such as the sandbox id have one value: it needs no vector.
#[derive(Debug)]
enum Bucket<T> {
    One(Arc<T>),
    Many(Vec<Arc<T>>),
}

impl<T: Identified> Postings<T> {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Replaces what a place has in this index.
    pub(crate) fn replace<I: Indexes<T>>(
        &mut self,
        index: I,
        old: Option<&Arc<T>>,
        new: Option<&Arc<T>>,
    ) {
        let wanted = new.map_or_else(Vec::new, |new| hashes(index, new));
        if let Some(old) = old {
            for hash in hashes(index, old) {
                if !wanted.contains(&hash) {
                    self.remove(hash, place_of(&**old));
                }
            }
        }
        if let Some(new) = new {
            for hash in wanted {
                self.put(hash, new);
            }
        }
    }

    /// The values a term finds, in the order of their places.
    pub(crate) fn find<'s, I: Indexes<T>>(
        &'s self,
        index: I,
        term: Term<'s>,
    ) -> impl Iterator<Item = &'s Arc<T>> {
        let bucket = self.0.get(&hash(term)).map_or(&[][..], Bucket::as_slice);
        bucket.iter().filter(move |value| {
            let mut meant = false;
            index.terms(value, &mut |has| meant |= has == term);
            meant
        })
    }

    fn put(&mut self, hash: u64, value: &Arc<T>) {
        match self.0.get_mut(&hash) {
            None => {
                self.0.insert(hash, Bucket::One(Arc::clone(value)));
            }
            Some(bucket) => bucket.put(value),
        }
    }

    fn remove(&mut self, hash: u64, place: (Option<&Namespace>, &Name)) {
        let Some(bucket) = self.0.get_mut(&hash) else {
            return;
        };
        if bucket.remove(place) {
            self.0.remove(&hash);
        }
    }
}

impl<T: Identified> Bucket<T> {
    fn as_slice(&self) -> &[Arc<T>] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }

    fn put(&mut self, value: &Arc<T>) {
        let place = place_of(&**value);
        if let Self::One(other) = self {
            if place_of(&**other) == place {
                *other = Arc::clone(value);
                return;
            }
            *self = Self::Many(vec![Arc::clone(other)]);
        }
        let Self::Many(values) = self else { return };
        match values.binary_search_by(|other| place_of(&**other).cmp(&place)) {
            Ok(at) => values[at] = Arc::clone(value),
            Err(at) => values.insert(at, Arc::clone(value)),
        }
    }

    /// Takes out what is at a place; whether nothing is left.
    fn remove(&mut self, place: (Option<&Namespace>, &Name)) -> bool {
        match self {
            Self::One(value) => place_of(&**value) == place,
            Self::Many(values) => {
                if let Ok(at) = values.binary_search_by(|v| place_of(&**v).cmp(&place)) {
                    values.remove(at);
                }
                if values.capacity() > 64 && values.len() < values.capacity() / 4 {
                    values.shrink_to(values.len() * 2);
                }
                values.is_empty()
            }
        }
    }
}

/// The same for the same term in every run: its keys are fixed.
fn hash(term: Term<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    term.hash(&mut hasher);
    hasher.finish()
}

fn hashes<T, I: Indexes<T>>(index: I, value: &T) -> Vec<u64> {
    let mut found = Vec::new();
    index.terms(value, &mut |term| found.push(hash(term)));
    found
}
