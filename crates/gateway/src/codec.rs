//! HTTP/1 on the wire, read strictly.
//!
//! Whoever disagrees with a neighbour about where a message ends can be made to take the rest of it
//! for another message. So there is no guessing here: a head whose framing could be read in two
//! ways is not read. Of requests, only the plainest are taken ([`Request`]); any other is left
//! untouched for the library that serves the rest of HTTP/1. Of answers, what is not plain is a
//! fault of the sandbox.

mod chunks;

use std::mem::MaybeUninit;

use http::Method;
use httparse::{Header, Status};
use thiserror::Error;

use crate::names::{Name, tokens};

pub(crate) use chunks::{Chunks, Piece};

/// As many headers as a head may have.
pub(crate) const MAX_HEADERS: usize = 100;

/// As many bytes of empty lines as an answer may have before it.
const MOST_EMPTY: usize = 4;

/// Where the parser puts what it finds: lives on the stack, and is not cleared for every head.
pub(crate) type Room<'b> = [MaybeUninit<Header<'b>>; MAX_HEADERS];

pub(crate) const fn room<'b>() -> Room<'b> {
    [const { MaybeUninit::uninit() }; MAX_HEADERS]
}

/// The bytes without the empty lines they begin with. Those mean nothing before a head.
pub(crate) const fn skip_empty_lines(mut bytes: &[u8]) -> &[u8] {
    while let [b'\n', rest @ ..] | [b'\r', b'\n', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}

/// Whether a head may end in these bytes, of which the first `looked` were found to be a part of
/// one. Who sends a head byte by byte does not have it parsed as often.
pub(crate) fn may_end(bytes: &[u8], looked: usize) -> bool {
    let new = bytes.get(looked.saturating_sub(3)..).unwrap_or_default();
    new.windows(2).any(|pair| pair == b"\n\n") || new.windows(3).any(|three| three == b"\n\r\n")
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// There is none.
    None,
    /// So many bytes.
    Exact(u64),
    /// As its chunks say.
    Chunked,
    /// Until the connection ends.
    UntilEnd,
}

/// A sandbox's head cannot be read in one way.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum HeadError {
    #[error("the head is not one of HTTP/1")]
    Syntax,
    #[error("the head does not say in one way how long the body is")]
    Length,
}

/// The head of a plain request: HTTP/1.1, for a path, without a body or with one of a length that
/// is said once, and with nothing that is between neighbours but whether the connection stays.
#[derive(Debug)]
pub(crate) struct Request<'h, 'b> {
    pub(crate) method: Method,
    pub(crate) target: &'b str,
    pub(crate) fields: &'h [Header<'b>],
    /// The length of the body, if it was said.
    pub(crate) length: Option<u64>,
    pub(crate) is_last: bool,
    /// Where the head ends.
    pub(crate) end: usize,
}

/// What the first bytes of a request are.
#[derive(Debug)]
pub(crate) enum Begun<'h, 'b> {
    /// Not all of a head.
    Part,
    /// A plain request.
    Plain(Request<'h, 'b>),
    /// Anything else.
    Other,
}

impl<'h, 'b> Request<'h, 'b> {
    pub(crate) fn read(bytes: &'b [u8], room: &'h mut Room<'b>) -> Begun<'h, 'b> {
        let mut head = httparse::Request::new(&mut []);
        let end = match head.parse_with_uninit_headers(bytes, room) {
            Ok(Status::Complete(end)) => end,
            Ok(Status::Partial) => return Begun::Part,
            Err(_) => return Begun::Other,
        };
        let (Some(method), Some(target), Some(1)) = (head.method, head.path, head.version) else {
            return Begun::Other;
        };
        let Ok(method) = Method::from_bytes(method.as_bytes()) else {
            return Begun::Other;
        };
        if method == Method::CONNECT || !is_plain_target(target) {
            return Begun::Other;
        }
        let (mut length, mut is_last) = (None, false);
        for line in &*head.headers {
            match Name::of(line.name) {
                Name::ContentLength if length.is_none() => match number(line.value) {
                    Some(number) => length = Some(number),
                    None => return Begun::Other,
                },
                Name::Connection if line.value.eq_ignore_ascii_case(b"keep-alive") => {}
                Name::Connection if line.value.eq_ignore_ascii_case(b"close") => is_last = true,
                Name::ContentLength
                | Name::Connection
                | Name::TransferEncoding
                | Name::Upgrade
                | Name::Expect
                | Name::Trailer => return Begun::Other,
                _ => {}
            }
        }
        Begun::Plain(Self {
            method,
            target,
            fields: head.headers,
            length,
            is_last,
            end,
        })
    }

    pub(crate) fn path(&self) -> &'b str {
        self.target.split_once('?').map_or(self.target, |(p, _)| p)
    }

    pub(crate) fn query(&self) -> Option<&'b str> {
        self.target.split_once('?').map(|(_, query)| query)
    }
}

/// A path, made of what every parser of URLs takes as it is.
fn is_plain_target(target: &str) -> bool {
    const PLAIN: [bool; 256] = {
        let mut plain = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            plain[byte] = (byte as u8).is_ascii_alphanumeric();
            byte += 1;
        }
        let marks = b"/?%-._~!$&'()*+,;=:@|[]";
        let mut at = 0;
        while at < marks.len() {
            plain[marks[at] as usize] = true;
            at += 1;
        }
        plain
    };
    let bytes = target.as_bytes();
    // Where the library would see two queries, or an authority, it may.
    bytes.first() == Some(&b'/') && bytes.iter().all(|byte| PLAIN[usize::from(*byte)])
}

/// A number in its one spelling: digits, as few as it needs.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |n, b| n * 10 + u64::from(b - b'0')))
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Response<'h, 'b> {
    pub(crate) status: u16,
    pub(crate) reason: &'b str,
    pub(crate) fields: &'h [Header<'b>],
    pub(crate) length: Length,
    /// Whether the connection can be used again after the body.
    pub(crate) can_stay: bool,
    pub(crate) end: usize,
}

impl<'h, 'b> Response<'h, 'b> {
    /// Reads a head, if it is all there. `to_head` says that the request asked for a head only.
    pub(crate) fn read(
        bytes: &'b [u8],
        room: &'h mut Room<'b>,
        to_head: bool,
    ) -> Result<Option<Self>, HeadError> {
        if bytes.len() - skip_empty_lines(bytes).len() > MOST_EMPTY {
            return Err(HeadError::Syntax);
        }
        let mut head = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default()
            .parse_response_with_uninit_headers(&mut head, bytes, room)
            .map_err(|_| HeadError::Syntax)?;
        let Status::Complete(end) = parsed else {
            return Ok(None);
        };
        let (Some(status), Some(version)) = (head.code, head.version) else {
            return Err(HeadError::Syntax);
        };
        if !(100..1000).contains(&status) {
            return Err(HeadError::Syntax);
        }
        let (mut length, mut is_chunked) = (None, false);
        let mut can_stay = version == 1;
        for line in &*head.headers {
            match Name::of(line.name) {
                Name::ContentLength if length.is_none() => {
                    length = Some(number(line.value).ok_or(HeadError::Length)?);
                }
                Name::TransferEncoding if !is_chunked => {
                    is_chunked = line.value.eq_ignore_ascii_case(b"chunked");
                    if !is_chunked {
                        return Err(HeadError::Length);
                    }
                }
                Name::ContentLength | Name::TransferEncoding => return Err(HeadError::Length),
                Name::Connection => {
                    can_stay &= !tokens(line.value).any(|t| t.eq_ignore_ascii_case(b"close"));
                }
                _ => {}
            }
        }
        if is_chunked && (length.is_some() || version == 0) {
            return Err(HeadError::Length);
        }
        // Where there is no body but one was announced, it may come nevertheless.
        let is_odd = match status {
            204 => is_chunked || length.is_some_and(|length| length > 0),
            304 => is_chunked,
            _ => false,
        };
        can_stay &= to_head || !is_odd;
        let length = match (status, length) {
            _ if to_head => Length::None,
            (100..200 | 204 | 304, _) => Length::None,
            _ if is_chunked => Length::Chunked,
            (_, Some(0)) => Length::None,
            (_, Some(length)) => Length::Exact(length),
            (_, None) => Length::UntilEnd,
        };
        Ok(Some(Self {
            status,
            reason: head.reason.unwrap_or_default(),
            fields: head.headers,
            length,
            can_stay: can_stay && length != Length::UntilEnd,
            end,
        }))
    }
}

#[cfg(test)]
mod tests;
