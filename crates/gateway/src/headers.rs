//! What of a head is between two neighbours only, and what the gateway adds.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header, request,
    uri::{Authority, PathAndQuery},
};
use routes::Route;

use crate::{
    address::Port,
    answer::Refusal,
    glance::{Marks, is_hop},
};

const TRAFFIC_TOKEN: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Who sent a request, as the sandbox is told.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    pub(crate) address: &'a HeaderValue,
    pub(crate) is_tls: bool,
    pub(crate) trusts_forwarded: bool,
}

/// Makes a client's head one for the sandbox. Answers whether it asks for another protocol.
pub(crate) fn to_sandbox(
    head: &mut request::Parts,
    route: &Route,
    port: Port,
    prefix: usize,
    marks: Marks,
    sender: &Sender<'_>,
) -> Result<bool, Refusal> {
    let bad = |_| Refusal::Malformed("the request target cannot be forwarded");
    let host = match head.uri.authority() {
        // Where the target names a host, it counts, and not the header.
        Some(authority) => host_of(authority)?,
        None => {
            let host = head.headers.get(header::HOST).cloned();
            host.ok_or(Refusal::Malformed("the request needs a host"))?
        }
    };
    if head.uri.authority().is_some() || prefix > 0 {
        let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let cut = target.get(prefix..).unwrap_or_default();
        let target = if cut.starts_with('/') || cut == "*" {
            PathAndQuery::try_from(cut).map_err(bad)?
        } else {
            PathAndQuery::try_from(format!("/{cut}")).map_err(bad)?
        };
        if prefix > 0 {
            let text = head.uri.path().get(..prefix).unwrap_or_default();
            if let Ok(value) = HeaderValue::from_str(text) {
                head.headers.insert(X_FORWARDED_PREFIX, value);
            }
        }
        head.uri = Uri::from(target);
    }

    let mut upgrade = None;
    if marks.is_hop {
        upgrade = wanted_upgrade(head, port);
        strip(&mut head.headers);
    }
    if marks.is_traffic {
        head.headers.remove(TRAFFIC_TOKEN);
    }
    if head.version == Version::HTTP_2 {
        join_cookies(&mut head.headers);
    }
    let asks = upgrade.is_some();
    if let Some(protocol) = upgrade {
        let token = HeaderValue::from_static("upgrade");
        head.headers.insert(header::CONNECTION, token);
        head.headers.insert(header::UPGRADE, protocol);
    }
    head.version = Version::HTTP_11;
    forwarded(&mut head.headers, &host, marks, sender);
    let masked = route.mask_host.as_deref().filter(|_| port != Port::AGENT);
    let host = match masked {
        Some(mask) => HeaderValue::try_from(mask.replace("${PORT}", &port.to_string()))
            .map_err(|_| Refusal::NotFound)?,
        None => host,
    };
    head.headers.insert(header::HOST, host);
    Ok(asks)
}

fn host_of(authority: &Authority) -> Result<HeaderValue, Refusal> {
    // What stands before an @ is nobody's host.
    let text = authority.as_str();
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    HeaderValue::from_str(host).map_err(|_| Refusal::Malformed("the host cannot be forwarded"))
}

fn forwarded(headers: &mut HeaderMap, host: &HeaderValue, marks: Marks, sender: &Sender<'_>) {
    let proto = HeaderValue::from_static(if sender.is_tls { "https" } else { "http" });
    if !sender.trusts_forwarded {
        if marks.is_forwarded {
            headers.remove(FORWARDED);
        }
        headers.insert(X_FORWARDED_FOR, sender.address.clone());
        headers.insert(X_FORWARDED_HOST, host.clone());
        headers.insert(X_FORWARDED_PROTO, proto);
        return;
    }
    headers.append(X_FORWARDED_FOR, sender.address.clone());
    for (name, value) in [(X_FORWARDED_HOST, host), (X_FORWARDED_PROTO, &proto)] {
        headers.entry(name).or_insert_with(|| value.clone());
    }
}

/// The protocol a request wants to go on with. The agent has no other; HTTP/2 without TLS would be
/// a second conversation that the gateway does not see into.
fn wanted_upgrade(head: &request::Parts, port: Port) -> Option<HeaderValue> {
    let wanted = head.headers.get(header::UPGRADE)?;
    let is_asked =
        tokens(&head.headers, &header::CONNECTION).any(|t| t.eq_ignore_ascii_case("upgrade"));
    let is_hidden = wanted.to_str().map_or(true, |text| {
        text.split(',')
            .any(|p| p.trim().to_ascii_lowercase().starts_with("h2"))
    });
    let is_possible = head.version == Version::HTTP_11 && port != Port::AGENT;
    (is_asked && is_possible && !is_hidden).then(|| wanted.clone())
}

/// Makes a sandbox's head one for the client.
pub(crate) fn to_client(headers: &mut HeaderMap, is_upgrade: bool) {
    if !headers.keys().any(|name| is_hop(name.as_str())) {
        return;
    }
    let protocol = is_upgrade
        .then(|| headers.get(header::UPGRADE).cloned())
        .flatten();
    strip(headers);
    if let Some(protocol) = protocol {
        let token = HeaderValue::from_static("upgrade");
        headers.insert(header::CONNECTION, token);
        headers.insert(header::UPGRADE, protocol);
    }
}

/// Removes what is between two neighbours only. With it go the framing of the body, which whoever
/// writes it does anew, and the wish to be asked for it, which is answered by the gateway itself.
fn strip(headers: &mut HeaderMap) {
    let mut gone: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_hop(name.as_str()))
        .cloned()
        .collect();
    let named = tokens(headers, &header::CONNECTION)
        .filter(|token| !is_well_known(token))
        .filter_map(|token| HeaderName::try_from(token).ok())
        // Lengths and hosts are not theirs to remove.
        .filter(|name| *name != header::CONTENT_LENGTH && *name != header::HOST);
    gone.extend(named);
    let wants_trailers =
        tokens(headers, &header::TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    for name in gone {
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

fn is_well_known(token: &str) -> bool {
    ["keep-alive", "close", "upgrade", "te"]
        .iter()
        .any(|known| token.eq_ignore_ascii_case(known))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

/// HTTP/2 sends each cookie by itself; HTTP/1 has one header for all.
fn join_cookies(headers: &mut HeaderMap) {
    let all: Vec<&[u8]> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if all.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
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
