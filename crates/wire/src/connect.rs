//! The Connect protocol, apart from HTTP: codecs, codes, errors, envelopes, timeouts.
//!
//! A unary call is one message in a body; its error is an HTTP status with JSON. A stream is a
//! sequence of envelopes: a byte of flags, four bytes of length, the message. The last envelope
//! of a stream says how it ended, so an error of a stream travels with HTTP status 200.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Set on an envelope whose message is compressed.
pub const FLAG_COMPRESSED: u8 = 1;
/// Set on the last envelope of a stream.
pub const FLAG_END: u8 = 2;
/// Bytes before an envelope's message.
pub const PREFIX: usize = 5;

/// A message in both codecs.
pub trait Message: prost::Message + Default + Serialize + DeserializeOwned {}
impl<T: prost::Message + Default + Serialize + DeserializeOwned> Message for T {}

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// JSON, as the SDKs do.
    Json,
    /// Protobuf.
    Proto,
}

/// Whether a content type is of a call or of a stream, and in which codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One message.
    Unary(Codec),
    /// Envelopes.
    Stream(Codec),
}

impl Kind {
    /// Reads a content type. Parameters (`; charset=utf-8`) are allowed.
    #[must_use]
    pub fn parse(content_type: &str) -> Option<Self> {
        let name = content_type.split(';').next()?.trim();
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name {
            _ if is("application/json") => Some(Self::Unary(Codec::Json)),
            _ if is("application/proto") => Some(Self::Unary(Codec::Proto)),
            _ if is("application/connect+json") => Some(Self::Stream(Codec::Json)),
            _ if is("application/connect+proto") => Some(Self::Stream(Codec::Proto)),
            _ => None,
        }
    }
}

impl Codec {
    /// The content type of a unary body.
    #[must_use]
    pub const fn unary_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Proto => "application/proto",
        }
    }

    /// The content type of a stream.
    #[must_use]
    pub const fn stream_type(self) -> &'static str {
        match self {
            Self::Json => "application/connect+json",
            Self::Proto => "application/connect+proto",
        }
    }

    /// Reads a message. An empty JSON body is an empty message, as upstream takes it.
    ///
    /// # Errors
    /// `invalid_argument` with what was wrong.
    pub fn decode<M: Message>(self, body: &[u8]) -> Result<M, Error> {
        match self {
            Self::Json if body.is_empty() => Ok(M::default()),
            // An array would be read as the fields in their order, which no one means.
            Self::Json if !is_object(body) => Err(Error::new(
                Code::InvalidArgument,
                "unmarshal message: not a JSON object",
            )),
            Self::Json => serde_json::from_slice(body).map_err(|why| {
                Error::new(Code::InvalidArgument, format!("unmarshal message: {why}"))
            }),
            Self::Proto => M::decode(body).map_err(|why| {
                Error::new(Code::InvalidArgument, format!("unmarshal message: {why}"))
            }),
        }
    }

    /// Reads a message whose bytes may stay where they are: of protobuf, fields of bytes are parts of
    /// `body`.
    ///
    /// # Errors
    /// `invalid_argument` with what was wrong.
    pub fn decode_bytes<M: Message>(self, body: Bytes) -> Result<M, Error> {
        match self {
            Self::Json => self.decode(&body),
            Self::Proto => M::decode(body).map_err(|why| {
                Error::new(Code::InvalidArgument, format!("unmarshal message: {why}"))
            }),
        }
    }

    /// Writes a message behind what `out` holds.
    pub fn encode_to<M: Message>(self, message: &M, out: &mut Vec<u8>) {
        match self {
            Self::Json => {
                let start = out.len();
                if serde_json::to_writer(&mut *out, message).is_err() {
                    // No message here can fail (no map with other keys than strings); were one
                    // added that can, its reader gets an empty message instead of half of one.
                    out.truncate(start);
                    out.extend_from_slice(b"{}");
                }
            }
            Self::Proto => {
                out.reserve(message.encoded_len());
                message.encode_raw(out);
            }
        }
    }

    /// A message on its own.
    #[must_use]
    pub fn encode<M: Message>(self, message: &M) -> Bytes {
        let mut out = Vec::new();
        self.encode_to(message, &mut out);
        out.into()
    }

    /// A message in an envelope.
    #[must_use]
    pub fn envelope<M: Message>(self, message: &M) -> Bytes {
        let mut out = vec![0; PREFIX];
        self.encode_to(message, &mut out);
        seal(&mut out, 0);
        out.into()
    }
}

/// Whether JSON text begins as an object.
#[must_use]
pub fn is_object(text: &[u8]) -> bool {
    text.trim_ascii_start().first() == Some(&b'{')
}

/// Fills in the prefix of an envelope that was left room for at the start of `out`.
pub fn seal(out: &mut [u8], flags: u8) {
    let length = u32::try_from(out.len() - PREFIX).unwrap_or(u32::MAX);
    out[0] = flags;
    out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
}

/// The envelope that ends a stream.
#[must_use]
pub fn end_of_stream(error: Option<&Error>) -> Bytes {
    #[derive(Serialize)]
    struct End<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a Error>,
    }
    let mut out = BytesMut::zeroed(PREFIX).to_vec();
    if serde_json::to_writer(&mut out, &End { error }).is_err() {
        out.truncate(PREFIX);
        out.extend_from_slice(br#"{"error":{"code":"internal"}}"#);
    }
    seal(&mut out, FLAG_END);
    out.into()
}

/// Reads what the envelope at the end of a stream says.
///
/// # Errors
/// With the error the stream ended with, or that it ended with something unreadable.
pub fn read_end_of_stream(payload: &[u8]) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct End {
        error: Option<Error>,
    }
    match serde_json::from_slice(payload) {
        Ok(End { error: None }) => Ok(()),
        Ok(End { error: Some(error) }) => Err(error),
        Err(why) => Err(Error::new(Code::Internal, format!("end of stream: {why}"))),
    }
}

/// One envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// See [`FLAG_COMPRESSED`] and [`FLAG_END`].
    pub flags: u8,
    /// The message.
    pub payload: Bytes,
}

/// Cuts a stream of bytes into envelopes.
///
/// An envelope that lies within one piece of what arrives is a part of that piece; only one that
/// goes over several is put together.
#[derive(Debug)]
pub struct Deframer {
    /// The beginning of an envelope whose end had not arrived.
    begun: BytesMut,
    /// What has arrived after it.
    rest: Bytes,
    limit: usize,
}

/// Room made at once for an envelope that is put together: its length is only a claim yet.
const MOST_ROOM: usize = 1 << 20;

impl Deframer {
    /// One that refuses messages longer than this.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            begun: BytesMut::new(),
            rest: Bytes::new(),
            limit,
        }
    }

    /// Takes what has arrived.
    pub fn push(&mut self, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        if self.rest.is_empty() {
            self.rest = bytes;
        } else {
            self.rest = [&self.rest[..], &bytes].concat().into();
        }
    }

    /// The next envelope, once it is complete.
    ///
    /// # Errors
    /// If it is longer than allowed. There is no way on from there.
    pub fn next_envelope(&mut self) -> Result<Option<Envelope>, Error> {
        if self.begun.is_empty() {
            if let Some(whole) = self.length_of(&self.rest)?
                && whole <= self.rest.len()
            {
                return Ok(Some(open(self.rest.split_to(whole))));
            }
            if self.rest.is_empty() {
                return Ok(None);
            }
        }
        self.fill(PREFIX);
        let Some(whole) = self.length_of(&self.begun)? else {
            return Ok(None);
        };
        self.fill(whole);
        if self.begun.len() < whole {
            return Ok(None);
        }
        Ok(Some(open(self.begun.split().freeze())))
    }

    /// The length of the envelope that begins here, prefix included, if the prefix is there.
    fn length_of(&self, bytes: &[u8]) -> Result<Option<usize>, Error> {
        let Some((prefix, _)) = bytes.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if length > self.limit {
            return Err(Error::new(
                Code::ResourceExhausted,
                format!(
                    "message size {length} is larger than configured max {}",
                    self.limit
                ),
            ));
        }
        Ok(Some(PREFIX + length))
    }

    /// Moves what has arrived to what was begun, up to this length of it.
    fn fill(&mut self, length: usize) {
        let missing = length.saturating_sub(self.begun.len());
        self.begun.reserve(missing.min(MOST_ROOM));
        let part = self.rest.split_to(missing.min(self.rest.len()));
        self.begun.extend_from_slice(&part);
    }

    /// Whether part of an envelope is waiting for its rest.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        !self.begun.is_empty() || !self.rest.is_empty()
    }
}

fn open(mut whole: Bytes) -> Envelope {
    let flags = whole[0];
    whole.advance(PREFIX);
    Envelope {
        flags,
        payload: whole,
    }
}

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Canceled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    /// The HTTP status of a unary call that failed so.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Canceled => 499,
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => 400,
            Self::DeadlineExceeded => 504,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Aborted => 409,
            Self::PermissionDenied => 403,
            Self::ResourceExhausted => 429,
            Self::Unimplemented => 501,
            Self::Unknown | Self::Internal | Self::DataLoss => 500,
            Self::Unavailable => 503,
            Self::Unauthenticated => 401,
        }
    }
}

/// Why a call failed, as its caller sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind.
    pub code: Code,
    /// In words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Error {
    /// An error of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The JSON body of a unary call that failed.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// Reads `Connect-Timeout-Ms`: at most ten digits. None means that there is no limit.
///
/// # Errors
/// `invalid_argument` if it is anything else.
pub fn parse_timeout(header: Option<&[u8]>) -> Result<Option<Duration>, Error> {
    let Some(value) = header.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let millis = (value.len() <= 10)
        .then(|| std::str::from_utf8(value).ok())
        .flatten()
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|text| text.parse::<u64>().ok())
        .ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                format!(
                    "Connect-Timeout-Ms is not a number of at most ten digits: {:?}",
                    String::from_utf8_lossy(value)
                ),
            )
        })?;
    Ok(Some(Duration::from_millis(millis)))
}

/// Writes a protobuf length in front of nested messages. For those who write hot messages by hand.
pub fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}
