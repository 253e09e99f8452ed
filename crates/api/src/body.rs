//! Request bodies: JSON or YAML to a value, with every duplicate field named.

use std::{cell::RefCell, fmt, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::{
    refusal::{MAX_NAMED, Refusal},
    resource_api::Api,
};

/// Deepest nesting of a body. The JSON parser has the same limit.
pub(crate) const MAX_DEPTH: usize = 128;
/// Deepest nesting of a YAML body: four times what any kind needs. Each level takes its parser some
/// 16 KiB of stack in a debug build, and a thread that overflows its stack ends the process.
const MAX_YAML_DEPTH: usize = 32;

/// How much of a field's name is repeated in the path to it, in bytes.
const MAX_STEP: usize = 256;
/// How much of a body that is too long is read and thrown away, and for how long.
const MAX_DISCARDED: usize = 16 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The bytes of a body within the limit, and what they claim to be.
#[derive(Debug)]
pub(crate) struct RawBody {
    pub(crate) bytes: Bytes,
    pub(crate) media: Option<String>,
}

impl FromRequest<Api> for RawBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refusal> {
        let limit = api.limits.body_bytes;
        let media = media_type(request.headers());
        let too_large = || Refusal::body_too_large(limit);
        let announced = request
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        let mut body = request.into_body();
        if announced.is_some_and(|length| length > limit) {
            discard(&mut body).await;
            return Err(too_large());
        }
        // From the first byte to the last, so that one byte now and then keeps nothing alive.
        let patience = api.limits.body_timeout;
        let collected = timeout(patience, Limited::new(&mut body, limit).collect()).await;
        match collected {
            Ok(Ok(body)) => Ok(Self {
                bytes: body.to_bytes(),
                media,
            }),
            Ok(Err(e)) if e.downcast_ref::<LengthLimitError>().is_some() => {
                discard(&mut body).await;
                Err(too_large())
            }
            Ok(Err(_)) => Err(Refusal::bad_request(
                "the request body ended early: send it again",
            )),
            Err(_) => Err(Refusal::body_too_slow(patience)),
        }
    }
}

/// Reads on for a moment what nobody wants. Most clients look for an answer only once they have sent
/// everything, and a connection that is closed before tells them nothing.
async fn discard(body: &mut Body) {
    let mut left = MAX_DISCARDED;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // Either way the answer is the same.
    let _ = timeout(DISCARD_TIMEOUT, reading).await;
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let media = text.split(';').next().unwrap_or_default().trim();
    (!media.is_empty()).then(|| media.to_ascii_lowercase())
}

impl RawBody {
    /// The document in the body, in the format its media type says; JSON if it says none.
    pub(crate) fn parse(&self) -> Result<Document, Refusal> {
        match self.media.as_deref() {
            None | Some("application/json") => parse_json(&self.bytes),
            Some("application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml") => {
                parse_yaml(&self.bytes)
            }
            Some(other) => Err(Refusal::unsupported_media(format!(
                "the body is {other:?}: send application/json or application/yaml"
            ))),
        }
    }
}

/// A parsed body.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) value: Value,
    /// Paths of fields that were there more than once, the first [`MAX_NAMED`] of them; the last
    /// value counts.
    pub(crate) duplicates: Vec<String>,
}

pub(crate) fn parse_json(bytes: &[u8]) -> Result<Document, Refusal> {
    let notes = Notes::default();
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = Node(&notes)
        .deserialize(&mut json)
        .and_then(|value| json.end().map(|()| value))
        .map_err(|e| Refusal::bad_request(format!("the body is not valid JSON: {e}")))?;
    Ok(notes.into_document(value))
}

pub(crate) fn parse_yaml(bytes: &[u8]) -> Result<Document, Refusal> {
    let notes = Notes::default();
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_YAML_DEPTH, max_documents: 1 },
        // Duplicates pass, so that they can all be named.
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        strict_booleans: true,
        with_snippet: false,
    };
    let value = serde_saphyr::with_deserializer_from_slice_with_options(bytes, options, |yaml| {
        Node(&notes).deserialize(yaml)
    })
    .map_err(|e| Refusal::bad_request(format!("the body is not valid YAML: {e}")))?;
    Ok(notes.into_document(value))
}

/// Where the parser is, and what it saw twice.
#[derive(Default)]
struct Notes {
    path: RefCell<Vec<String>>,
    duplicates: RefCell<Vec<String>>,
}

impl Notes {
    fn into_document(self, value: Value) -> Document {
        Document {
            value,
            duplicates: self.duplicates.into_inner(),
        }
    }

    fn path_to(&self, field: &str) -> String {
        let mut text = String::new();
        for step in self.path.borrow().iter().map(String::as_str).chain([field]) {
            // Short messages can have long paths, and each duplicate has one.
            let step = &step[..step.floor_char_boundary(MAX_STEP)];
            if !text.is_empty() && !step.starts_with('[') {
                text.push('.');
            }
            text.push_str(step);
        }
        text
    }
}

/// Builds a value, noting duplicates. Works for any self-describing format.
struct Node<'n>(&'n Notes);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        self.deserialize(from)
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        self.deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            self.0.path.borrow_mut().push(format!("[{}]", items.len()));
            let item = seq.next_element_seed(Node(self.0));
            self.0.path.borrow_mut().pop();
            match item? {
                Some(item) => items.push(item),
                None => return Ok(items.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if fields.contains_key(&name) && self.0.duplicates.borrow().len() < MAX_NAMED {
                let path = self.0.path_to(&name);
                self.0.duplicates.borrow_mut().push(path);
            }
            self.0.path.borrow_mut().push(name.clone());
            let value = map.next_value_seed(Node(self.0));
            self.0.path.borrow_mut().pop();
            fields.insert(name, value?);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_formats_name_every_duplicate() {
        let json = br#"{"a":1,"b":{"c":1,"c":2},"l":[{"x":1},{"y":1,"y":2}],"a":3}"#;
        let yaml = b"a: 1\nb:\n  c: 1\n  c: 2\nl:\n- x: 1\n- y: 1\n  y: 2\na: 3\n";
        for parsed in [parse_json(json), parse_yaml(yaml)] {
            let parsed = parsed.unwrap();
            assert_eq!(parsed.duplicates, ["b.c", "l[1].y", "a"]);
            assert_eq!(
                parsed.value,
                json!({"a": 3, "b": {"c": 2}, "l": [{"x": 1}, {"y": 2}]})
            );
        }
    }

    #[test]
    fn yaml_means_what_json_means() {
        let yaml = b"s: \"1\"\nn: 1\nf: 1.5\nt: true\nword: yes\nz: null\nempty:\ntime: 2026-01-01T00:00:00Z\nlong: |\n  a\n  b\n";
        let expected = json!({"s": "1", "n": 1, "f": 1.5, "t": true, "word": "yes", "z": null, "empty": null, "time": "2026-01-01T00:00:00Z", "long": "a\nb\n"});
        assert_eq!(parse_yaml(yaml).unwrap().value, expected);
    }

    #[test]
    fn bombs_are_refused() {
        let deep = "[".repeat(10_000);
        assert!(parse_json(deep.as_bytes()).is_err());
        assert!(parse_yaml(deep.as_bytes()).is_err());
        // Each in a thread with half the stack of the server's: an overflow would end the process.
        for nest in ["- ", "? ", "{a: ", "a: {", "- ? ", "!!map {a: "] {
            let thread = std::thread::Builder::new().stack_size(1 << 20);
            let parse = move || parse_yaml(nest.repeat(10_000).as_bytes()).is_err();
            assert!(thread.spawn(parse).unwrap().join().unwrap(), "{nest}");
        }
        let mut laughs = String::from("a: &a [x,x,x,x,x,x,x,x,x]\n");
        for (this, last) in "bcdefghi".chars().zip("abcdefgh".chars()) {
            laughs += &format!(
                "{this}: &{this} [*{last},*{last},*{last},*{last},*{last},*{last},*{last},*{last},*{last}]\n"
            );
        }
        assert!(parse_yaml(laughs.as_bytes()).is_err());
        assert!(parse_json(b"").is_err());
        assert!(parse_json(b"{} {}").is_err());
        assert!(parse_yaml(b"a: 1\n---\nb: 2\n").is_err());
    }
}
