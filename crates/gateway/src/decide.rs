//! What to do with a request: its address, then the gate, then the sandbox's state.
//!
//! One decision for every way in: whoever parsed a head shows it as [`Asking`].

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Body;
use model::Version;
use routes::Route;

use crate::{
    address::{Asked, Field, Port, Target},
    answer::{About, Refusal},
    gate::{self, Pass, Passage},
    gateway::Shared,
    glance::{Glance, Marks},
    names::Fields,
    progress,
    signature::{self, Signed},
    socket2, tcp,
};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) method: &'a Method,
    /// Whom the target names. Where it does, that counts, and not the header.
    pub(crate) authority: Option<&'a [u8]>,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) fields: Fields<'a>,
    /// It brings a body. In HTTP/2 its head need not say so.
    pub(crate) has_body: bool,
    /// It asks for the port itself, not for an answer of the program there.
    pub(crate) is_bare: bool,
    /// It is an extended CONNECT that asks for a WebSocket.
    pub(crate) is_socket: bool,
}

impl<'a> Asking<'a> {
    pub(crate) fn of<B: Body>(request: &'a Request<B>) -> Self {
        let uri = request.uri();
        Self {
            method: request.method(),
            authority: uri.authority().map(|name| name.as_str().as_bytes()),
            path: uri.path(),
            query: uri.query(),
            fields: Fields::Map(request.headers()),
            has_body: !request.body().is_end_stream(),
            is_bare: tcp::is_asked(request),
            is_socket: socket2::is_asked(request),
        }
    }

    /// What its head says that matters here.
    pub(crate) fn seen(&self) -> Glance<'a> {
        Glance::at(self.fields).with_body(self.has_body)
    }
}

/// What to do with a request.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Send it on.
    Forward(Found),
    /// Wake the sandbox, then send it on.
    Wake(Found),
    /// It is the API's.
    Fallback,
    /// Find the sandbox whose token signed it.
    Search,
    /// Wait until what its client has seen is known here.
    Behind(Version),
    /// Answer a browser's question.
    Preflight,
    /// Refuse it.
    Refuse(Refused),
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) route: Arc<Route>,
    pub(crate) port: Port,
    pub(crate) prefix: usize,
    pub(crate) marks: Marks,
    /// It asks for the port itself, not for an answer of the program there.
    pub(crate) is_bare: bool,
    /// It is use of the sandbox.
    pub(crate) is_use: bool,
    /// It has shown here that it may wake the sandbox, should that fall asleep under it.
    pub(crate) may_wake: bool,
    /// The request's own id.
    pub(crate) request_id: Option<HeaderValue>,
}

impl Found {
    /// A refusal of what was found.
    pub(crate) fn refused(&self, refusal: Refusal) -> Refused {
        Refused {
            refusal,
            id: self.route.id.as_ref().map(|id| id.as_str().into()),
            port: Some(self.port),
        }
    }
}

/// A refusal and what it is about.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) refusal: Refusal,
    pub(crate) id: Option<Box<str>>,
    pub(crate) port: Option<Port>,
}

impl Refused {
    /// The answer; a page for a person who looks at it in a browser.
    pub(crate) fn answer(self, is_navigation: bool, request_id: HeaderValue) -> Response<Bytes> {
        let (refusal, port) = (self.refusal, self.port);
        tracing::debug!(
            ?refusal,
            sandbox = self.id.as_deref(),
            port = port.map(Port::get),
            request_id = request_id.to_str().unwrap_or_default(),
            "refused"
        );
        let about = About {
            id: self.id.as_deref(),
            port,
        };
        refusal.answer(about, is_navigation, request_id)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            id: None,
            port: None,
        }
    }
}

/// Decides what to do with a request: its address, then the gate, then the sandbox's state.
pub(crate) fn decide(shared: &Shared, asking: &Asking<'_>) -> Decision {
    if asking.method == Method::CONNECT && !asking.is_socket {
        return Decision::Refuse(Refusal::Malformed("CONNECT is not served here").into());
    }
    let seen = asking.seen();
    let asked = Asked {
        host: asking.authority.map_or(seen.host, Field::One),
        id: seen.id,
        port: seen.port,
        path: asking.path,
    };
    let (id, port, prefix) = match shared.hosts.parse(asked) {
        Ok(Target::Sandbox { id, port, prefix }) => (id, port, prefix),
        Ok(target) => {
            let is_signed = signature::is_signed(asking.method, asking.path, asking.query);
            return if target == Target::Unaddressed && is_signed && shared.ports.seal.is_some() {
                Decision::Search
            } else if shared.fallback.is_some() {
                Decision::Fallback
            } else {
                Decision::Refuse(Refusal::Malformed("the request names no sandbox").into())
            };
        }
        Err(why) => return Decision::Refuse(Refusal::Address(why).into()),
    };
    let refuse = |refusal| {
        Decision::Refuse(Refused {
            refusal,
            id: Some((*id).into()),
            port: Some(port),
        })
    };
    let path = match asking.path.get(prefix..) {
        Some("") | None => "/",
        Some(path) => path,
    };
    if port == Port::AGENT && (asking.is_bare || gate::is_internal(path)) {
        return refuse(Refusal::Internal);
    }
    let known = shared.ports.routes.lookup(&*id);
    match progress::read(seen.version) {
        Ok(Some(version)) if is_behind(shared, known.as_deref(), version) => {
            return Decision::Behind(version);
        }
        Ok(_) => {}
        Err(refusal) => return refuse(refusal),
    }
    let Some(route) = known else {
        return refuse(if shared.ports.routes.synced() {
            Refusal::NotFound
        } else {
            Refusal::NotSynced
        });
    };
    let pass = match gate::ask(&route, port, asking.method, path, asking.query, &seen) {
        Ok(pass) => pass,
        Err(refusal) => return refuse(refusal),
    };
    let passage = gate::passage(&route);
    // Who has not shown a token learns nothing of the state, and is not taken for somebody who uses
    // it. Where it is awake and its token is not known here, its agent finds out.
    let is_checked =
        pass == Pass::Signed && (passage != Passage::Forward || knows_token(shared, &route));
    let found = Found {
        route,
        port,
        prefix,
        marks: seen.marks,
        is_bare: asking.is_bare,
        is_use: !(asking.method == Method::OPTIONS && seen.is_of_a_preflight()),
        may_wake: match pass {
            Pass::Full => true,
            Pass::Signed => is_checked,
            Pass::Preflight => false,
        },
        request_id: seen.request_id(),
    };
    if is_checked && let Err(refusal) = check_signature(shared, &found.route, asking) {
        return refuse(refusal);
    }
    match passage {
        Passage::Forward => Decision::Forward(found),
        Passage::Park if pass == Pass::Preflight => Decision::Preflight,
        Passage::Park => Decision::Wake(found),
        Passage::NotFound => refuse(Refusal::NotFound),
    }
}

/// Whether more has happened, as the client has seen, than is known here of a sandbox.
fn is_behind(shared: &Shared, known: Option<&Route>, version: Version) -> bool {
    let is_newer = known.is_some_and(|route| route.version >= version);
    !is_newer && !shared.ports.progress.has_reached(version)
}

/// Whether signatures of a sandbox can be checked here.
fn knows_token(shared: &Shared, route: &Route) -> bool {
    let (Some(seal), Some(id)) = (&shared.ports.seal, &route.id) else {
        return false;
    };
    signature::is_known(seal, id, route)
}

/// The checks that the agent makes, in its order.
fn check_signature(shared: &Shared, route: &Route, asking: &Asking<'_>) -> Result<(), Refusal> {
    let (Some(seal), Some(id)) = (&shared.ports.seal, &route.id) else {
        return Err(Refusal::InvalidSignature);
    };
    let signed = Signed::read(asking.method, asking.query.unwrap_or_default());
    if !signed.is_of(seal, id, route) {
        return Err(Refusal::InvalidSignature);
    }
    if signed.is_expired(shared.ports.clock.wall_micros()) {
        return Err(Refusal::ExpiredSignature);
    }
    Ok(())
}
