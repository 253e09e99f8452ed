//! What a head says that matters here, in one look.
//!
//! Most of what a gateway asks of a head is whether something is there at all, and mostly it is
//! not. One pass over the names answers all of it; asking the map for each would hash them all.

use http::{HeaderMap, HeaderValue};

use crate::address::Field;

/// What was seen.
#[derive(Clone, Debug)]
pub(crate) struct Glance<'a> {
    pub(crate) host: Field<'a>,
    pub(crate) id: Field<'a>,
    pub(crate) port: Field<'a>,
    pub(crate) access_token: Option<&'a HeaderValue>,
    pub(crate) traffic_token: Option<&'a HeaderValue>,
    pub(crate) request_id: Option<&'a HeaderValue>,
    pub(crate) marks: Marks,
}

/// What is there, without what it says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// Something between two neighbours only.
    pub(crate) is_hop: bool,
    /// A traffic token.
    pub(crate) is_traffic: bool,
    /// An account of who forwarded it.
    pub(crate) is_forwarded: bool,
    /// A person looks at the answer in a browser.
    pub(crate) is_navigation: bool,
}

impl<'a> Glance<'a> {
    pub(crate) fn at(headers: &'a HeaderMap) -> Self {
        let mut seen = Self {
            host: Field::Absent,
            id: Field::Absent,
            port: Field::Absent,
            access_token: None,
            traffic_token: None,
            request_id: None,
            marks: Marks::default(),
        };
        let again = |field: Field<'a>, value: &'a HeaderValue| match field {
            Field::Absent => Field::One(value.as_bytes()),
            Field::One(_) | Field::Many => Field::Many,
        };
        // Values of one name follow one another, each with its name.
        for (name, value) in headers {
            match name.as_str() {
                "host" => seen.host = again(seen.host, value),
                "e2b-sandbox-id" => seen.id = again(seen.id, value),
                "e2b-sandbox-port" => seen.port = again(seen.port, value),
                // Of several, the first counts, as for whoever is behind.
                "x-access-token" => seen.access_token = seen.access_token.or(Some(value)),
                "e2b-traffic-access-token" => {
                    seen.traffic_token = seen.traffic_token.or(Some(value));
                    seen.marks.is_traffic = true;
                }
                "x-request-id" => seen.request_id = seen.request_id.or(Some(value)),
                "sec-fetch-mode" => seen.marks.is_navigation = value == "navigate",
                "forwarded" => seen.marks.is_forwarded = true,
                name if is_hop(name) => seen.marks.is_hop = true,
                _ => {}
            }
        }
        seen
    }
}

/// Whether a header is, or speaks of, what is between two neighbours only.
pub(crate) fn is_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "http2-settings"
            | "te"
            | "transfer-encoding"
            | "expect"
            | "upgrade"
    )
}
