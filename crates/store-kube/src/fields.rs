//! Values of selectable fields, read from JSON text without reading the rest.

use std::fmt;

use model::StringMap;
use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};

/// The values of those of the selectable fields that are in this half of a record. `half` is the
/// first step of their paths.
pub(crate) fn of_half(half: &str, json: &str, selectable: &[&str]) -> StringMap {
    let mut found = StringMap::new();
    let wanted: Vec<(&str, &str)> = selectable
        .iter()
        .filter_map(|path| {
            let rest = path.strip_prefix(half)?.strip_prefix('.')?;
            Some((*path, rest))
        })
        .collect();
    if !wanted.is_empty() {
        let pick = Pick {
            wanted: &wanted,
            found: &mut found,
        };
        // Text that is not JSON has no fields; whoever decodes it says what is wrong with it.
        let _ = pick.deserialize(&mut serde_json::Deserializer::from_str(json));
    }
    found
}

/// Looks for fields below some object: each by its whole path, and by what is left of it.
struct Pick<'p> {
    wanted: &'p [(&'p str, &'p str)],
    found: &'p mut StringMap,
}

impl<'de> DeserializeSeed<'de> for Pick<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pick<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            let below: Vec<(&str, &str)> = self
                .wanted
                .iter()
                .filter_map(|(path, rest)| {
                    let rest = rest.strip_prefix(&*name)?;
                    let rest = rest.strip_prefix('.').or(rest.is_empty().then_some(""))?;
                    Some((*path, rest))
                })
                .collect();
            if below.is_empty() {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Pick {
                    wanted: &below,
                    found: &mut *self.found,
                })?;
            }
        }
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        for (path, rest) in self.wanted {
            if rest.is_empty() {
                self.found.insert(*path, text);
            }
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Object, Sandbox, Spec as _, lifecycle::Phase, sandbox::SandboxSpec};

    #[test]
    fn fields_are_found_at_their_paths_only() {
        let json = r#"{"a":{"b":"1","bc":"2","c":["x"]},"ab":"3","b":null,"c":4}"#;
        let found = of_half(
            "spec",
            json,
            &["spec.a.b", "spec.ab", "spec.a", "spec.b", "status.ab"],
        );
        let expected: StringMap = [("spec.a.b", "1"), ("spec.ab", "3")].into_iter().collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_fields_of_a_sandbox_are_those_that_its_type_says() {
        let spec: SandboxSpec = serde_json::from_str(
            r#"{"template":"base","pool":"p","owner":{"team":"blue"},"sandboxId":"abc"}"#,
        )
        .unwrap();
        let metadata = model::Metadata::new(None, model::Name::new("box").unwrap());
        let mut sandbox: Sandbox = Object::new(metadata, spec);
        sandbox.status.phase = Phase::Paused;
        let mut found = of_half("spec", &sandbox.encode_spec(), SandboxSpec::SELECTABLE);
        let of_status = of_half("status", &sandbox.encode_status(), SandboxSpec::SELECTABLE);
        for (path, value) in of_status.iter() {
            found.insert(path, value);
        }
        assert_eq!(found, SandboxSpec::fields(&sandbox));
    }
}
