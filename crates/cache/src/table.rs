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

#[cfg(test)]
mod tests {
    use model::{Key, KindName, Uid};
    use store::{Record, StoreError};

    use super::*;
    use crate::{Identified, Indexes, Names};

    #[derive(Debug)]
    struct Thing {
        name: Name,
        version: Version,
        colours: Vec<&'static str>,
    }

    impl Identified for Thing {
        fn namespace(&self) -> Option<&Namespace> {
            None
        }
        fn name(&self) -> &Name {
            &self.name
        }
        fn uid(&self) -> Uid {
            Uid::from_random(1)
        }
        fn version(&self) -> Version {
            self.version
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct ByColour;

    impl Indexes<Thing> for ByColour {
        const ALL: &'static [Self] = &[Self];
        fn terms<'v>(self, thing: &'v Thing, emit: &mut dyn FnMut(Term<'v>)) {
            thing.colours.iter().for_each(|c| emit((*c).into()));
        }
    }

    enum Things {}

    impl View for Things {
        type Value = Thing;
        type Index = ByColour;
        const KIND: KindName = KindName("Thing");
        fn project(record: &Record, _: &mut Names) -> Result<Thing, StoreError> {
            Err(StoreError::NotFound(record.key()))
        }
    }

    fn put(name: &str, version: u64, colours: &[&'static str]) -> Step<Thing> {
        Step::Put(Arc::new(Thing {
            name: Name::new(name).unwrap(),
            version: Version::from_u64(version),
            colours: colours.to_vec(),
        }))
    }

    fn place(name: &str) -> Place {
        Place::of(&Key {
            kind: Things::KIND,
            namespace: None,
            name: Name::new(name).unwrap(),
        })
    }

    fn remove(name: &str, version: u64) -> Step<Thing> {
        Step::Remove {
            place: place(name),
            at: Version::from_u64(version),
        }
    }

    fn found(table: &Table<Things>, colour: &'static str) -> Vec<(String, u64)> {
        let things = table.find_by(ByColour, colour.into());
        things
            .map(|t| (t.name.to_string(), t.version.to_u64()))
            .collect()
    }

    #[test]
    fn a_late_value_or_removal_is_old_news() {
        let mut table = Table::<Things>::new();
        assert!(table.apply(put("a", 5, &["red"])).is_some());
        assert!(table.apply(put("a", 4, &["blue"])).is_none());
        assert!(table.apply(put("a", 5, &["blue"])).is_none());
        assert!(table.apply(remove("a", 4)).is_none());
        assert!(table.apply(remove("b", 9)).is_none());
        assert_eq!(found(&table, "red"), [("a".into(), 5)]);
        assert!(table.apply(remove("a", 6)).is_some());
        assert_eq!(table.len(), 0);
        assert_eq!(found(&table, "red"), []);
        table.advance(Version::from_u64(6));
        table.advance(Version::from_u64(2));
        assert_eq!(table.version(), Version::from_u64(6));
    }

    #[test]
    fn a_value_with_several_terms_is_found_by_each_and_only_while_it_has_them() {
        let mut table = Table::<Things>::new();
        table.apply(put("b", 1, &["red", "green"]));
        table.apply(put("a", 2, &["red"]));
        table.apply(put("c", 3, &["red", "red"]));
        let all = [("a".into(), 2), ("b".into(), 1), ("c".into(), 3)];
        assert_eq!(found(&table, "red"), all);
        table.apply(put("b", 4, &["green", "blue"]));
        assert_eq!(found(&table, "red"), [("a".into(), 2), ("c".into(), 3)]);
        assert_eq!(found(&table, "green"), [("b".into(), 4)]);
        assert_eq!(found(&table, "blue"), [("b".into(), 4)]);
        table.apply(remove("b", 5));
        assert_eq!(found(&table, "green"), []);
    }

    #[test]
    fn what_a_listing_does_not_have_is_missing() {
        let mut table = Table::<Things>::new();
        for name in ["b", "c", "e"] {
            table.apply(put(name, 1, &[]));
        }
        let listed = ["a", "b", "d"].map(place);
        let missing = table.missing_from(listed.iter().map(Place::borrowed));
        assert_eq!(missing, ["c", "e"].map(place));
        let missing = table.missing_from(std::iter::empty());
        assert_eq!(missing, ["b", "c", "e"].map(place));
    }
}
