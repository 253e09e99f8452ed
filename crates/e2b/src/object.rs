//! JSON objects, and nothing else, where a body or a part of it has named fields.
//!
//! Serde reads such a part from a list as well, by position: `[null, 30]` would be a request that
//! nobody meant.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// Something that is written as an object.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// Reads a field that may be left out or null, and else is an object.
pub(crate) fn optional<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let found = Option::<Object<T>>::deserialize(from)?;
    Ok(found.map(|Object(value)| value))
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Inner {
        number: u8,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(default, deserialize_with = "optional")]
        inner: Option<Inner>,
    }

    #[test]
    fn a_list_is_not_an_object_at_any_depth() {
        let read = |text: &str| serde_json::from_str::<Object<Outer>>(text).map(|o| o.0.inner);
        assert_eq!(
            read(r#"{"inner": {"number": 3}}"#).unwrap().unwrap().number,
            3
        );
        assert!(read(r#"{"inner": null}"#).unwrap().is_none());
        assert!(read("{}").unwrap().is_none());
        for bad in [
            "[]",
            "[null]",
            r#"{"inner": [3]}"#,
            r#"{"inner": 3}"#,
            "null",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
