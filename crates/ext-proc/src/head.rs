//! From Envoy's headers to the head of a request.

use gateway::front::Head;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use thiserror::Error;

use crate::proto;

/// The head of a request, for as long as that takes.
#[derive(Debug)]
pub(crate) struct OwnedHead {
    method: Method,
    authority: Option<Vec<u8>>,
    target: String,
    headers: HeaderMap,
    has_body: bool,
}

/// What came is no head of a request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum HeadError {
    #[error("the message has no headers")]
    Empty,
    #[error("a pseudo-header is missing, is there twice, or is none of a request")]
    Pseudo,
    #[error("the method, the target or a header cannot be one")]
    Invalid,
}

impl OwnedHead {
    pub(crate) fn read(said: proto::HttpHeaders) -> Result<Self, HeadError> {
        let lines = said.headers.ok_or(HeadError::Empty)?.headers;
        if lines.is_empty() {
            return Err(HeadError::Empty);
        }
        let (mut method, mut authority, mut target) = (None, None, None);
        let mut headers = HeaderMap::with_capacity(lines.len());
        for line in lines {
            let value = match line.raw_value.is_empty() {
                true => line.value.into_bytes(),
                false => line.raw_value,
            };
            let once = |known: &mut Option<Vec<u8>>, value| match known.replace(value) {
                None => Ok(()),
                Some(_) => Err(HeadError::Pseudo),
            };
            match line.key.as_str() {
                ":method" => once(&mut method, value)?,
                ":authority" => once(&mut authority, value)?,
                ":path" => once(&mut target, value)?,
                ":scheme" | ":protocol" => {}
                name if name.starts_with(':') => return Err(HeadError::Pseudo),
                name => {
                    let name = HeaderName::try_from(name).map_err(|_| HeadError::Invalid)?;
                    let value = HeaderValue::try_from(value).map_err(|_| HeadError::Invalid)?;
                    let added = headers.try_append(name, value);
                    added.map_err(|_| HeadError::Invalid)?;
                }
            }
        }
        let method = method.ok_or(HeadError::Pseudo)?;
        let method = Method::from_bytes(&method).map_err(|_| HeadError::Invalid)?;
        let target = match target {
            Some(target) => String::from_utf8(target).map_err(|_| HeadError::Invalid)?,
            // It has none.
            None if method == Method::CONNECT => String::new(),
            None => return Err(HeadError::Pseudo),
        };
        Ok(Self {
            method,
            authority,
            target,
            headers,
            has_body: !said.end_of_stream,
        })
    }

    pub(crate) fn head(&self) -> Head<'_> {
        Head {
            method: &self.method,
            authority: self.authority.as_deref(),
            target: &self.target,
            headers: &self.headers,
            has_body: self.has_body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &[(&str, &str)]) -> proto::HttpHeaders {
        let line = |(key, value): &(&str, &str)| proto::HeaderValue {
            key: (*key).into(),
            value: String::new(),
            raw_value: (*value).into(),
        };
        proto::HttpHeaders {
            headers: Some(proto::HeaderMap {
                headers: lines.iter().map(line).collect(),
            }),
            end_of_stream: true,
        }
    }

    const LINE: [(&str, &str); 3] = [(":method", "GET"), (":path", "/a?b"), (":authority", "h")];

    #[test]
    fn a_head_is_read_from_either_kind_of_value() {
        let mut raw = said(&LINE);
        let lines = &mut raw.headers.as_mut().unwrap().headers;
        lines.push(proto::HeaderValue {
            key: "x-old".into(),
            value: "text".into(),
            raw_value: Vec::new(),
        });
        let read = OwnedHead::read(raw).unwrap();
        let head = read.head();
        assert_eq!((head.method, head.target), (&Method::GET, "/a?b"));
        assert_eq!(head.authority, Some(&b"h"[..]));
        assert_eq!(head.headers["x-old"], "text");
        assert!(!head.has_body);
    }

    #[test]
    fn what_is_no_head_is_told_apart_from_one() {
        let without = |name: &str| {
            let lines = LINE.iter().filter(|(key, _)| *key != name);
            said(&lines.copied().collect::<Vec<_>>())
        };
        let with =
            |name: &'static str, value: &'static str| said(&[&LINE[..], &[(name, value)]].concat());
        for (what, expected) in [
            (proto::HttpHeaders::default(), HeadError::Empty),
            (said(&[]), HeadError::Empty),
            (without(":method"), HeadError::Pseudo),
            (without(":path"), HeadError::Pseudo),
            (with(":path", "/again"), HeadError::Pseudo),
            (with(":status", "200"), HeadError::Pseudo),
            (with("a b", "c"), HeadError::Invalid),
            (with("a", "b\r\nc"), HeadError::Invalid),
            (with("", "c"), HeadError::Invalid),
        ] {
            assert_eq!(OwnedHead::read(what).unwrap_err(), expected);
        }
        let connect = said(&[(":method", "CONNECT"), (":authority", "h:1")]);
        assert!(OwnedHead::read(connect).is_ok());
    }
}
