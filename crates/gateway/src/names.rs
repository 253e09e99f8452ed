//! The names of headers that mean something to the gateway.
//!
//! Heads come in two shapes: as lines that were parsed where they lie, and as a map. Everything
//! that reads or rewrites a head goes through [`Fields`], so that there is one set of rules for
//! both. Names are told apart by their length first: nearly all are nobody's after one comparison.

use http::HeaderMap;

/// The headers of a head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fields<'a> {
    /// As they came over the wire.
    Lines(&'a [httparse::Header<'a>]),
    /// As HTTP/2, or a library, has them.
    Map(&'a HeaderMap),
}

impl<'a> Fields<'a> {
    /// Shows every header, in order.
    pub(crate) fn each(self, mut show: impl FnMut(&'a str, &'a [u8])) {
        match self {
            Self::Lines(lines) => {
                for line in lines {
                    show(line.name, line.value);
                }
            }
            Self::Map(map) => {
                for (name, value) in map {
                    show(name.as_str(), value.as_bytes());
                }
            }
        }
    }
}

impl<'a> Fields<'a> {
    /// The host they name.
    pub(crate) fn host(self) -> &'a [u8] {
        let mut host: &[u8] = b"";
        self.each(|name, value| {
            if Name::of(name) == Name::Host {
                host = value;
            }
        });
        host
    }
}

/// What a header is to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    Upgrade,
    Expect,
    Te,
    Trailer,
    /// Anything else between two neighbours only.
    Hop,
    SandboxId,
    SandboxPort,
    AccessToken,
    TrafficToken,
    RequestId,
    Version,
    FetchMode,
    Origin,
    AskedMethod,
    Cookie,
    ContentType,
    Forwarded,
    ForwardedFor,
    ForwardedHost,
    ForwardedProto,
    ForwardedPrefix,
    /// Nothing: it is passed on.
    Other,
}

impl Name {
    pub(crate) fn of(name: &str) -> Self {
        let candidates: &[(&str, Self)] = match name.len() {
            2 => &[("te", Self::Te)],
            4 => &[("host", Self::Host)],
            6 => &[
                ("cookie", Self::Cookie),
                ("origin", Self::Origin),
                ("expect", Self::Expect),
            ],
            7 => &[("upgrade", Self::Upgrade), ("trailer", Self::Trailer)],
            9 => &[("forwarded", Self::Forwarded)],
            10 => &[("connection", Self::Connection), ("keep-alive", Self::Hop)],
            12 => &[
                ("content-type", Self::ContentType),
                ("x-request-id", Self::RequestId),
            ],
            14 => &[
                ("content-length", Self::ContentLength),
                ("e2b-sandbox-id", Self::SandboxId),
                ("x-access-token", Self::AccessToken),
                ("sec-fetch-mode", Self::FetchMode),
                ("http2-settings", Self::Hop),
            ],
            15 => &[("x-forwarded-for", Self::ForwardedFor)],
            16 => &[
                ("e2b-sandbox-port", Self::SandboxPort),
                ("dormouse-version", Self::Version),
                ("x-forwarded-host", Self::ForwardedHost),
                ("proxy-connection", Self::Hop),
            ],
            17 => &[
                ("transfer-encoding", Self::TransferEncoding),
                ("x-forwarded-proto", Self::ForwardedProto),
            ],
            18 => &[
                ("x-forwarded-prefix", Self::ForwardedPrefix),
                ("proxy-authenticate", Self::Hop),
            ],
            19 => &[("proxy-authorization", Self::Hop)],
            24 => &[("e2b-traffic-access-token", Self::TrafficToken)],
            29 => &[("access-control-request-method", Self::AskedMethod)],
            _ => &[],
        };
        candidates
            .iter()
            .find(|(known, _)| name.eq_ignore_ascii_case(known))
            .map_or(Self::Other, |(_, what)| *what)
    }

    /// Whether it is, or speaks of, what is between two neighbours only. With it goes the framing
    /// of a body, which whoever writes it does anew.
    pub(crate) const fn is_hop(self) -> bool {
        matches!(
            self,
            Self::Connection
                | Self::TransferEncoding
                | Self::Upgrade
                | Self::Expect
                | Self::Te
                | Self::Hop
        )
    }
}

/// The tokens of a list, as `Connection` has them.
pub(crate) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_in_any_case_and_nothing_else_is() {
        assert_eq!(Name::of("Host"), Name::Host);
        assert_eq!(Name::of("TRANSFER-encoding"), Name::TransferEncoding);
        assert_eq!(Name::of("keep-Alive"), Name::Hop);
        assert_eq!(Name::of("E2B-Traffic-Access-Token"), Name::TrafficToken);
        for other in ["", "hosts", "x-host", "accept", "transfer_encoding"] {
            assert_eq!(Name::of(other), Name::Other, "{other}");
        }
    }

    #[test]
    fn tokens_are_what_stands_between_commas() {
        let seen: Vec<&[u8]> = tokens(b" close,, X-A \t,b").collect();
        assert_eq!(seen, [&b"close"[..], b"X-A", b"b"]);
    }
}
