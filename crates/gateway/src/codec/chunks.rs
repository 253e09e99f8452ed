//! Takes a chunked body out of its framing.
//!
//! Lines end with CR LF and nothing else, a size is at most sixteen digits, extensions are skipped,
//! and trailers are read as headers are. Whoever passes a body on writes its framing anew, so that
//! nothing a peer made of it reaches the next one.

use http::{HeaderMap, HeaderName, HeaderValue};
use thiserror::Error;

use crate::names::Name;

/// Bytes of one size's extensions, and of all trailers.
const MOST_EXTENSION: u32 = 4 << 10;
const MOST_TRAILERS: usize = 16 << 10;
const MOST_TRAILER_LINES: usize = 64;

/// Not a chunked body.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum ChunkError {
    #[error("a chunk's size cannot be read")]
    Size,
    #[error("a chunk does not end where it should")]
    End,
    #[error("the trailers cannot be read")]
    Trailers,
}

/// Part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Data(&'a [u8]),
    /// The body is over, its trailers included.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Size { digits: u8 },
    Extension { length: u32 },
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    Trailers,
    Over,
}

/// How far a body was read.
#[derive(Debug)]
pub(crate) struct Chunks {
    at: At,
    left: u64,
    trailers: Vec<u8>,
}

impl Default for Chunks {
    fn default() -> Self {
        Self {
            at: At::Size { digits: 0 },
            left: 0,
            trailers: Vec::new(),
        }
    }
}

impl Chunks {
    /// The next piece, taken from the front of `bytes`; none if more bytes are needed.
    pub(crate) fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<Piece<'a>>, ChunkError> {
        loop {
            if self.at == At::Over {
                return Ok(Some(Piece::End));
            }
            if self.at == At::Data && !bytes.is_empty() {
                let count = usize::try_from(self.left).unwrap_or(usize::MAX);
                let (data, rest) = bytes.split_at(count.min(bytes.len()));
                *bytes = rest;
                self.left -= data.len() as u64;
                if self.left == 0 {
                    self.at = At::DataCr;
                }
                return Ok(Some(Piece::Data(data)));
            }
            let Some((byte, rest)) = bytes.split_first() else {
                return Ok(None);
            };
            *bytes = rest;
            self.at = self.step(*byte)?;
        }
    }

    fn step(&mut self, byte: u8) -> Result<At, ChunkError> {
        Ok(match (self.at, byte) {
            (At::Size { digits: 16 }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                return Err(ChunkError::Size);
            }
            (At::Size { digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).ok_or(ChunkError::Size)?;
                self.left = (self.left << 4) | u64::from(digit);
                At::Size { digits: digits + 1 }
            }
            (At::Size { digits: 1.. }, b'\r') | (At::Extension { .. }, b'\r') => At::SizeEnd,
            (At::Size { digits: 1.. }, b';' | b' ' | b'\t') => At::Extension { length: 0 },
            (At::Extension { length }, b'\t' | b' '..=b'~') if length < MOST_EXTENSION => {
                At::Extension { length: length + 1 }
            }
            (At::SizeEnd, b'\n') if self.left == 0 => At::Trailers,
            (At::SizeEnd, b'\n') => At::Data,
            (At::Size { .. } | At::Extension { .. } | At::SizeEnd, _) => {
                return Err(ChunkError::Size);
            }
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size { digits: 0 },
            (At::Trailers, _) => return self.trailer(byte),
            (At::Data | At::DataCr | At::DataLf | At::Over, _) => return Err(ChunkError::End),
        })
    }

    fn trailer(&mut self, byte: u8) -> Result<At, ChunkError> {
        let after_cr = self.trailers.last() == Some(&b'\r');
        if after_cr != (byte == b'\n') || self.trailers.len() >= MOST_TRAILERS {
            return Err(ChunkError::Trailers);
        }
        self.trailers.push(byte);
        if self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n") {
            self.check_trailers()?;
            return Ok(At::Over);
        }
        Ok(At::Trailers)
    }

    fn check_trailers(&self) -> Result<(), ChunkError> {
        let mut is_fine = true;
        let read = self.each_trailer(|name, value| {
            let name_of = Name::of(name);
            is_fine &= !name_of.is_hop()
                && !matches!(name_of, Name::Host | Name::ContentLength | Name::Trailer)
                && HeaderValue::from_bytes(value).is_ok();
        });
        if read && is_fine {
            Ok(())
        } else {
            Err(ChunkError::Trailers)
        }
    }

    fn each_trailer(&self, mut show: impl FnMut(&str, &[u8])) -> bool {
        let mut lines = [httparse::EMPTY_HEADER; MOST_TRAILER_LINES];
        match httparse::parse_headers(&self.trailers, &mut lines) {
            Ok(httparse::Status::Complete((end, lines))) if end == self.trailers.len() => {
                for line in lines {
                    show(line.name, line.value);
                }
                true
            }
            _ => false,
        }
    }

    /// The end of a body with these trailers, as it goes on.
    pub(crate) fn write_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"0\r\n");
        out.extend_from_slice(&self.trailers);
    }

    /// The trailers of a body that is over; none if there were none.
    pub(crate) fn trailers(&self) -> Option<HeaderMap> {
        let mut map = HeaderMap::new();
        self.each_trailer(|name, value| {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        });
        Some(map).filter(|map| !map.is_empty())
    }
}
