//! A compact string map for labels, annotations, env and metadata.
//!
//! A `BTreeMap<String, String>` with one entry takes half a kilobyte; there are three of these in
//! every cached sandbox. This is a sorted vector: as small as its content, iterated in order.

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::MapAccess, ser::SerializeMap};

/// Sorted pairs of strings with unique keys.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct StringMap(Vec<(Box<str>, Box<str>)>);

impl StringMap {
    /// The empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.find(key).ok().map(|at| &*self.0[at].1)
    }

    /// Whether the key is there.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Sets a value, returning the one it replaced.
    pub fn insert(
        &mut self,
        key: impl Into<Box<str>>,
        value: impl Into<Box<str>>,
    ) -> Option<Box<str>> {
        let (key, value) = (key.into(), value.into());
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes a key, returning its value.
    pub fn remove(&mut self, key: &str) -> Option<Box<str>> {
        self.find(key).ok().map(|at| self.0.remove(at).1)
    }

    /// The pairs, in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (&**k, &**v))
    }

    /// How many pairs.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(k, _)| (**k).cmp(key))
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for StringMap {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut map = Self::new();
        for (k, v) in pairs {
            map.insert(k, v);
        }
        map.0.shrink_to_fit();
        map
    }
}

impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for StringMap {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.len()))?;
        for (k, v) in self.iter() {
            map.serialize_entry(k, v)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> serde::de::Visitor<'de> for Pairs {
            type Value = StringMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringMap, A::Error> {
                let mut pairs = StringMap::new();
                while let Some((k, v)) = map.next_entry::<Cow<'de, str>, Cow<'de, str>>()? {
                    pairs.insert(k.into_owned(), v.into_owned());
                }
                pairs.0.shrink_to_fit();
                Ok(pairs)
            }
        }
        d.deserialize_map(Pairs)
    }
}

impl JsonSchema for StringMap {
    fn schema_name() -> Cow<'static, str> {
        "StringMap".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "object", "additionalProperties": {"type": "string"}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_behaves_as_a_sorted_map() {
        let mut map: StringMap = [("b", "2"), ("a", "1"), ("b", "3")].into_iter().collect();
        assert_eq!(map.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "3")]);
        assert_eq!(map.insert("a", "9").as_deref(), Some("1"));
        assert_eq!(map.remove("b").as_deref(), Some("3"));
        assert_eq!(map.get("b"), None);
        let json = serde_json::to_string(&map).unwrap();
        assert_eq!(json, r#"{"a":"9"}"#);
        assert_eq!(serde_json::from_str::<StringMap>(&json).unwrap(), map);
    }
}
