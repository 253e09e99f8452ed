//! What of a head is between two neighbours only, and what the gateway adds.
//!
//! A head is never changed in place: what goes on is written anew, from what came, into the buffer
//! that is sent. So nothing is left of a client's framing, and a request can be sent again as it
//! was.

use std::{borrow::Cow, io::Write as _};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri, Version,
    uri::{Authority, PathAndQuery},
};
use routes::Route;

use crate::{
    address::Port,
    answer::Refusal,
    codec::{Length, Response},
    names::{Fields, Name, tokens},
};

/// Who sent a request, as the sandbox is told.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    pub(crate) address: &'a HeaderValue,
    pub(crate) is_tls: bool,
    pub(crate) trusts_forwarded: bool,
}

/// A request as it goes on.
#[derive(Debug)]
pub(crate) struct Onward<'a> {
    pub(crate) method: &'a Method,
    /// Path and query, as the client wrote them.
    pub(crate) target: &'a str,
    /// How much of it was the address.
    pub(crate) prefix: usize,
    /// Whom the client named.
    pub(crate) host: &'a [u8],
    pub(crate) fields: Fields<'a>,
    pub(crate) length: Length,
    /// The protocol to go on with.
    pub(crate) upgrade: Option<&'a [u8]>,
    /// What opens a WebSocket for a client that needs none, because it speaks HTTP/2.
    pub(crate) socket_key: Option<&'a [u8]>,
}

/// What the lines of a head say about each other.
#[derive(Debug, Default)]
struct Survey<'a> {
    /// Headers that are named as being between neighbours.
    named: Vec<&'a [u8]>,
    wants_trailers: bool,
    cookies: usize,
    has_host: bool,
    has_proto: bool,
}

impl<'a> Survey<'a> {
    fn of(fields: Fields<'a>) -> Self {
        let mut survey = Self::default();
        fields.each(|name, value| match Name::of(name) {
            Name::Connection => survey.named.extend(tokens(value).filter(|token| {
                // Lengths and hosts are not theirs to remove; the others go anyway.
                std::str::from_utf8(token).is_ok_and(|token| {
                    let name = Name::of(token);
                    !name.is_hop() && !matches!(name, Name::Host | Name::ContentLength)
                }) && !token.eq_ignore_ascii_case(b"close")
            })),
            Name::Te => {
                survey.wants_trailers |=
                    tokens(value).any(|token| token.eq_ignore_ascii_case(b"trailers"));
            }
            Name::Cookie => survey.cookies += 1,
            Name::ForwardedHost => survey.has_host = true,
            Name::ForwardedProto => survey.has_proto = true,
            _ => {}
        });
        survey
    }

    fn is_named(&self, name: &str) -> bool {
        self.named
            .iter()
            .any(|named| named.eq_ignore_ascii_case(name.as_bytes()))
    }
}

/// The host that a sandbox is told instead of the client's.
pub(crate) fn masked_host(route: &Route, port: Port) -> Result<Option<HeaderValue>, Refusal> {
    let masked = route.mask_host.as_deref().filter(|_| port != Port::AGENT);
    let host = masked.map(|mask| mask.replace("${PORT}", &port.to_string()));
    let host = host.map(HeaderValue::try_from).transpose();
    host.map_err(|_| Refusal::NotFound)
}

impl Onward<'_> {
    /// The target without what was the address.
    fn target(&self) -> Result<(&str, &str), Refusal> {
        let cut = self.target.split_at_checked(self.prefix);
        cut.ok_or(Refusal::Malformed("the request target cannot be forwarded"))
    }

    /// The host that the sandbox is told.
    fn host(&self, route: &Route, port: Port) -> Result<Cow<'_, [u8]>, Refusal> {
        Ok(match masked_host(route, port)? {
            Some(host) => host.as_bytes().to_vec().into(),
            None => self.host.into(),
        })
    }

    /// Shows the headers for the sandbox, but for the host and what is between neighbours.
    fn each(&self, sender: &Sender<'_>, mut show: impl FnMut(&str, &[u8])) -> Result<(), Refusal> {
        let survey = Survey::of(self.fields);
        let trusts = sender.trusts_forwarded;
        let mut cookies: Vec<u8> = Vec::new();
        self.fields.each(|name, value| {
            let passes = match Name::of(name) {
                Name::Host | Name::ContentLength | Name::TrafficToken => false,
                Name::Forwarded
                | Name::ForwardedFor
                | Name::ForwardedHost
                | Name::ForwardedProto => trusts,
                Name::ForwardedPrefix => trusts && self.prefix == 0,
                // HTTP/2 sends each cookie by itself; HTTP/1 has one header for all.
                Name::Cookie if survey.cookies > 1 => {
                    if !cookies.is_empty() {
                        cookies.extend_from_slice(b"; ");
                    }
                    cookies.extend_from_slice(value);
                    false
                }
                name => !name.is_hop(),
            };
            if passes && !survey.is_named(name) {
                show(name, value);
            }
        });
        if !cookies.is_empty() {
            show("cookie", &cookies);
        }
        if survey.wants_trailers {
            show("te", b"trailers");
        }
        if self.prefix > 0 {
            show("x-forwarded-prefix", self.target()?.0.as_bytes());
        }
        show("x-forwarded-for", sender.address.as_bytes());
        if !trusts || !survey.has_host {
            show("x-forwarded-host", self.host);
        }
        if !trusts || !survey.has_proto {
            show(
                "x-forwarded-proto",
                if sender.is_tls { b"https" } else { b"http" },
            );
        }
        Ok(())
    }

    /// Writes the head for a sandbox that is spoken to in HTTP/1.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        route: &Route,
        port: Port,
        sender: &Sender<'_>,
    ) -> Result<(), Refusal> {
        let (_, target) = self.target()?;
        out.extend_from_slice(self.method.as_str().as_bytes());
        out.push(b' ');
        if !target.starts_with('/') && target != "*" {
            out.push(b'/');
        }
        out.extend_from_slice(target.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        line(out, "host", &self.host(route, port)?);
        self.each(sender, |name, value| line(out, name, value))?;
        if let Some(protocol) = self.upgrade {
            line(out, "connection", b"upgrade");
            line(out, "upgrade", protocol);
        }
        if let Some(key) = self.socket_key {
            line(out, "sec-websocket-key", key);
            line(out, "sec-websocket-version", b"13");
        }
        write_length(out, self.length);
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// The head for a sandbox that is spoken to in HTTP/2.
    pub(crate) fn request(
        &self,
        route: &Route,
        port: Port,
        sender: &Sender<'_>,
    ) -> Result<http::Request<()>, Refusal> {
        const BAD: Refusal = Refusal::Malformed("the request target cannot be forwarded");
        let (_, target) = self.target()?;
        let slash = if target.starts_with('/') { "" } else { "/" };
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(http::uri::Scheme::HTTP);
        let host = self.host(route, port)?;
        uri.authority = Some(Authority::try_from(&*host).map_err(|_| BAD)?);
        let path = PathAndQuery::try_from(format!("{slash}{target}"));
        uri.path_and_query = Some(path.map_err(|_| BAD)?);
        let mut request = http::Request::new(());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from_parts(uri).map_err(|_| BAD)?;
        *request.version_mut() = Version::HTTP_2;
        let map = request.headers_mut();
        self.each(sender, |name, value| {
            let name = HeaderName::from_bytes(name.as_bytes());
            // What came as a header is one.
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        })?;
        if let Length::Exact(length) = self.length {
            map.insert(http::header::CONTENT_LENGTH, length.into());
        }
        Ok(request)
    }
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn write_length(out: &mut Vec<u8>, length: Length) {
    match length {
        Length::None | Length::UntilEnd => {}
        // Writing into memory does not fail.
        Length::Exact(length) => {
            let _ = write!(out, "content-length: {length}\r\n");
        }
        Length::Chunked => line(out, "transfer-encoding", b"chunked"),
    }
}

/// The protocol a request wants to go on with. Only a GET may. The agent has no other; HTTP/2
/// without TLS would be a second conversation that the gateway does not see into.
pub(crate) fn wanted_upgrade<'a>(
    method: &Method,
    headers: &'a HeaderMap,
    port: Port,
) -> Option<&'a [u8]> {
    if method != Method::GET {
        return None;
    }
    let wanted = headers.get(http::header::UPGRADE)?.as_bytes();
    let is_asked = headers
        .get_all(http::header::CONNECTION)
        .iter()
        .flat_map(|value| tokens(value.as_bytes()))
        .any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    let is_hidden = tokens(wanted).any(|protocol| {
        protocol
            .get(..2)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"h2"))
    });
    (is_asked && port != Port::AGENT && !is_hidden).then_some(wanted)
}

/// Shows what of an answer's head is for the client. Its length is told by whoever writes it.
fn for_client<'a>(
    fields: Fields<'a>,
    request_id: Option<&[u8]>,
    mut show: impl FnMut(&'a str, &'a [u8]),
) {
    let survey = Survey::of(fields);
    fields.each(|name, value| {
        let passes = match Name::of(name) {
            Name::ContentLength => false,
            Name::RequestId => request_id.is_none(),
            name => !name.is_hop(),
        };
        if passes && !survey.is_named(name) {
            show(name, value);
        }
    });
}

/// The length that the head of an answer without a body speaks of: of what there would be.
fn spoken_length<'a>(answer: &Response<'_, 'a>) -> Option<&'a [u8]> {
    let is_of_something = answer.status >= 200 && answer.status != 204;
    let said = answer
        .fields
        .iter()
        .find(|line| Name::of(line.name) == Name::ContentLength);
    said.map(|line| line.value).filter(|_| is_of_something)
}

/// Writes an answer's head for a client of HTTP/1.1.
pub(crate) fn write_answer(
    out: &mut Vec<u8>,
    answer: &Response<'_, '_>,
    request_id: Option<&[u8]>,
    is_last: bool,
) {
    // Writing into memory does not fail.
    let _ = write!(out, "HTTP/1.1 {} ", answer.status);
    out.extend_from_slice(answer.reason.as_bytes());
    out.extend_from_slice(b"\r\n");
    for_client(Fields::Lines(answer.fields), request_id, |name, value| {
        line(out, name, value);
    });
    if let Some(id) = request_id {
        line(out, "x-request-id", id);
    }
    match (answer.length, spoken_length(answer)) {
        (Length::None, Some(length)) => line(out, "content-length", length),
        (length, _) => write_length(out, length),
    }
    if is_last {
        line(out, "connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
}

/// An answer's head as a map, for a client of anything else.
pub(crate) fn answer_map(
    answer: &Response<'_, '_>,
    request_id: Option<&[u8]>,
    upgrade: bool,
) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(answer.fields.len());
    let mut add = |name: &str, value: &[u8]| {
        let name = HeaderName::from_bytes(name.as_bytes());
        // What was parsed as a header is one.
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    };
    for_client(Fields::Lines(answer.fields), request_id, &mut add);
    if let Some(id) = request_id {
        add("x-request-id", id);
    }
    let is_upgrade = |line: &&httparse::Header<'_>| Name::of(line.name) == Name::Upgrade;
    if upgrade && let Some(line) = answer.fields.iter().find(is_upgrade) {
        add("connection", b"upgrade");
        add("upgrade", line.value);
    }
    match (answer.length, spoken_length(answer)) {
        (Length::None, Some(length)) => add("content-length", length),
        (Length::Exact(length), _) => add("content-length", length.to_string().as_bytes()),
        _ => {}
    }
    map
}

/// Writes an answer of the gateway's own.
pub(crate) fn write_own(
    out: &mut Vec<u8>,
    answer: &http::Response<Bytes>,
    is_last: bool,
    to_head: bool,
) {
    let status = answer.status();
    let reason = status.canonical_reason().unwrap_or_default();
    // Writing into memory does not fail.
    let _ = write!(out, "HTTP/1.1 {} {reason}\r\n", status.as_u16());
    for (name, value) in answer.headers() {
        line(out, name.as_str(), value.as_bytes());
    }
    write_length(out, Length::Exact(answer.body().len() as u64));
    if is_last {
        line(out, "connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
    if !to_head {
        out.extend_from_slice(answer.body());
    }
}

/// Writes a chunk.
pub(crate) fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    // Writing into memory does not fail.
    let _ = write!(out, "{:x}\r\n", data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Writes the end of a chunked body.
pub(crate) fn write_end(out: &mut BytesMut, trailers: &HeaderMap) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        let known = Name::of(name.as_str());
        if !known.is_hop() && !matches!(known, Name::Host | Name::ContentLength | Name::Trailer) {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether a request may be sent twice without harm.
pub(crate) fn is_idempotent(method: &Method) -> bool {
    [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
        Method::PUT,
        Method::DELETE,
    ]
    .contains(method)
}
