//! From a verdict to what Envoy is told.

use std::{net::SocketAddr, time::Duration};

use gateway::{
    address::Port,
    front::{Admitted, Answer, Head},
};
use http::HeaderValue;
use routes::Address;

use crate::{
    Upstream,
    proto::{
        self, CommonResponse, Empty, HeaderMutation, HeaderValueOption, HeadersResponse,
        HttpStatus, ImmediateResponse, Kind, OVERWRITE_IF_EXISTS_OR_ADD, ProcessingResponse,
        Struct, Told, Value,
    },
};

/// What waiting takes beyond waking: a sandbox may have to be looked for before.
const MORE_PATIENCE: Duration = Duration::from_secs(10);
/// Under which name Envoy keeps what it is told of a request, for its routes and logs.
const NAMESPACE: &str = "dormouse";

/// Where Envoy is to send a request itself, if not to the relay.
pub(crate) fn direct_to(upstream: Upstream, admitted: &Admitted) -> Option<SocketAddr> {
    match (upstream, admitted.route().address) {
        (Upstream::Direct, Some(Address::Pod(ip)))
            if admitted.port() != Port::AGENT && !admitted.is_bare() =>
        {
            Some(SocketAddr::new(ip, admitted.port().get()))
        }
        (Upstream::Direct | Upstream::Relay, _) => None,
    }
}

/// The request may go on to its sandbox.
pub(crate) fn pass(
    head: &Head<'_>,
    admitted: &Admitted,
    direct: Option<(SocketAddr, Option<HeaderValue>)>,
) -> ProcessingResponse {
    let route = admitted.route();
    let text = |text: String| Kind::Text(text);
    let mut known = vec![("port", Kind::Number(admitted.port().get().into()))];
    known.extend(route.id.iter().map(|id| ("sandbox", text(id.to_string()))));
    known.extend(
        route
            .owner
            .iter()
            .map(|team| ("team", text(team.to_string()))),
    );
    let mut response = CommonResponse::default();
    match direct {
        None => {
            known.push(("upstream", text("relay".into())));
            response.header_mutation = Some(to_relay(head));
        }
        Some((to, host)) => {
            known.push(("upstream", text("direct".into())));
            known.push(("address", text(to.to_string())));
            response.header_mutation = Some(onward(head, admitted, host));
            // The route depends on what it hears here.
            response.clear_route_cache = true;
        }
    }
    let of_request = Kind::Struct(fields(known));
    ProcessingResponse {
        told: Some(Told::RequestHeaders(HeadersResponse {
            response: Some(response),
        })),
        dynamic_metadata: Some(fields([(NAMESPACE, of_request)])),
        override_message_timeout: None,
    }
}

/// What the gateway is told of the client, where it believes an Envoy: nothing that the client could
/// say itself. Of the address and the scheme Envoy takes care.
fn to_relay(head: &Head<'_>) -> HeaderMutation {
    let named = head
        .authority
        .map(|named| header("x-forwarded-host", named));
    let mut removed = vec!["forwarded".to_owned(), "x-forwarded-prefix".to_owned()];
    if named.is_none() {
        removed.push("x-forwarded-host".to_owned());
    }
    HeaderMutation {
        set_headers: named.into_iter().collect(),
        remove_headers: removed,
    }
}

/// What the gateway does to a head on its way to a sandbox, as far as Envoy does not.
fn onward(head: &Head<'_>, admitted: &Admitted, host: Option<HeaderValue>) -> HeaderMutation {
    let mut mutation = HeaderMutation::default();
    let mut set = |name: &str, value: &[u8]| mutation.set_headers.push(header(name, value));
    match head.target.split_at_checked(admitted.prefix()) {
        Some((prefix, rest)) if !prefix.is_empty() => {
            let slash = if rest.starts_with('/') { "" } else { "/" };
            set(":path", format!("{slash}{rest}").as_bytes());
            set("x-forwarded-prefix", prefix.as_bytes());
        }
        _ => mutation.remove_headers.push("x-forwarded-prefix".into()),
    }
    let mut set = |name: &str, value: &[u8]| mutation.set_headers.push(header(name, value));
    if let Some(host) = host {
        set(":authority", host.as_bytes());
    }
    if let Some(named) = head.authority {
        set("x-forwarded-host", named);
    }
    for name in ["e2b-traffic-access-token", "forwarded"] {
        mutation.remove_headers.push(name.into());
    }
    mutation
}

/// The request may go on, and nothing is known of it.
pub(crate) fn pass_unaddressed(head: &Head<'_>) -> ProcessingResponse {
    told(Told::RequestHeaders(HeadersResponse {
        response: Some(CommonResponse {
            header_mutation: Some(to_relay(head)),
            ..CommonResponse::default()
        }),
    }))
}

/// The verdict takes a while.
pub(crate) fn patience(wake_timeout: Duration) -> ProcessingResponse {
    let longest = wake_timeout.saturating_add(MORE_PATIENCE);
    ProcessingResponse {
        override_message_timeout: Some(proto::Duration {
            seconds: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
        }),
        ..ProcessingResponse::default()
    }
}

/// The client is answered this.
pub(crate) fn answer(answer: Answer) -> ProcessingResponse {
    let details = format!("{NAMESPACE}_{}", answer.outcome.label());
    let (head, body) = (*answer.response).into_parts();
    let headers = head.headers.iter();
    let headers = headers.map(|(name, value)| header(name.as_str(), value.as_bytes()));
    told(Told::Immediate(ImmediateResponse {
        status: Some(HttpStatus {
            code: head.status.as_u16().into(),
        }),
        headers: Some(HeaderMutation {
            set_headers: headers.collect(),
            remove_headers: Vec::new(),
        }),
        body: body.into(),
        details,
    }))
}

/// What was said may go on as it is.
pub(crate) fn as_it_is(said: &proto::Said) -> Option<ProcessingResponse> {
    Some(told(match said {
        proto::Said::RequestHeaders(_) => return None,
        proto::Said::ResponseHeaders(_) => Told::ResponseHeaders(HeadersResponse::default()),
        proto::Said::RequestBody(_) => Told::RequestBody(Empty {}),
        proto::Said::ResponseBody(_) => Told::ResponseBody(Empty {}),
        proto::Said::RequestTrailers(_) => Told::RequestTrailers(Empty {}),
        proto::Said::ResponseTrailers(_) => Told::ResponseTrailers(Empty {}),
    }))
}

fn told(told: Told) -> ProcessingResponse {
    ProcessingResponse {
        told: Some(told),
        ..ProcessingResponse::default()
    }
}

fn fields(known: impl IntoIterator<Item = (&'static str, Kind)>) -> Struct {
    let field = |(name, kind): (&str, Kind)| (name.to_owned(), Value { kind: Some(kind) });
    Struct {
        fields: known.into_iter().map(field).collect(),
    }
}

fn header(name: &str, value: &[u8]) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(proto::HeaderValue {
            key: name.into(),
            value: String::new(),
            raw_value: value.into(),
        }),
        append_action: OVERWRITE_IF_EXISTS_OR_ADD,
        keep_empty_value: true,
    }
}
