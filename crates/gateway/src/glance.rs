//! What a head says that matters here, in one look.
//!
//! Most of what a gateway asks of a head is whether something is there at all, and mostly it is
//! not. One pass over the names answers all of it.

use http::HeaderValue;

use crate::{
    address::Field,
    names::{Fields, Name},
};

/// What was seen.
#[derive(Clone, Debug)]
pub(crate) struct Glance<'a> {
    pub(crate) host: Field<'a>,
    pub(crate) id: Field<'a>,
    pub(crate) port: Field<'a>,
    /// How far its client has come.
    pub(crate) version: Field<'a>,
    pub(crate) access_token: Option<&'a [u8]>,
    pub(crate) traffic_token: Option<&'a [u8]>,
    request_id: Option<&'a [u8]>,
    has_origin: bool,
    asks_for_a_method: bool,
    /// It says that it has a body, or wants to go on with another protocol.
    is_more: bool,
    pub(crate) marks: Marks,
}

/// What is there, without what it says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// A person looks at the answer in a browser.
    pub(crate) is_navigation: bool,
    /// The body is gRPC.
    pub(crate) is_grpc: bool,
}

impl<'a> Glance<'a> {
    pub(crate) fn at(fields: Fields<'a>) -> Self {
        let mut seen = Self {
            host: Field::Absent,
            id: Field::Absent,
            port: Field::Absent,
            version: Field::Absent,
            access_token: None,
            traffic_token: None,
            request_id: None,
            has_origin: false,
            asks_for_a_method: false,
            is_more: false,
            marks: Marks::default(),
        };
        let again = |field: Field<'a>, value: &'a [u8]| match field {
            Field::Absent => Field::One(value),
            Field::One(_) | Field::Many => Field::Many,
        };
        fields.each(|name, value| match Name::of(name) {
            Name::Host => seen.host = again(seen.host, value),
            Name::SandboxId => seen.id = again(seen.id, value),
            Name::SandboxPort => seen.port = again(seen.port, value),
            Name::Version => seen.version = again(seen.version, value),
            // Of several, the first counts, as for whoever is behind.
            Name::AccessToken => seen.access_token = seen.access_token.or(Some(value)),
            Name::TrafficToken => seen.traffic_token = seen.traffic_token.or(Some(value)),
            Name::RequestId => seen.request_id = seen.request_id.or(Some(value)),
            Name::FetchMode => seen.marks.is_navigation = value == b"navigate",
            Name::ContentType => seen.marks.is_grpc = is_grpc(value),
            Name::Origin => seen.has_origin = true,
            Name::AskedMethod => seen.asks_for_a_method = true,
            Name::ContentLength => seen.is_more |= value != b"0",
            Name::TransferEncoding | Name::Upgrade => seen.is_more = true,
            _ => {}
        });
        seen
    }

    /// The same for a request that brings a body, whatever its head says.
    pub(crate) const fn with_body(mut self, has_body: bool) -> Self {
        self.is_more |= has_body;
        self
    }

    /// Whether a page asks what it may ask, and nothing else.
    pub(crate) const fn is_of_a_preflight(&self) -> bool {
        self.has_origin && self.asks_for_a_method && !self.is_more
    }

    /// The request's own id, if it can be passed on.
    pub(crate) fn request_id(&self) -> Option<HeaderValue> {
        let is_sane =
            |id: &&[u8]| (1..=128).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic);
        let id = self.request_id.filter(is_sane)?;
        HeaderValue::from_bytes(id).ok()
    }
}

/// `application/grpc`, and `application/grpc+proto`, but not `application/grpc-web`.
fn is_grpc(value: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    value
        .split_at_checked(GRPC.len())
        .is_some_and(|(start, rest)| {
            start.eq_ignore_ascii_case(GRPC) && rest.first().is_none_or(|b| *b != b'-')
        })
}
