//! From a client's request to an answer.

use std::{convert::Infallible, future::poll_fn, pin::Pin, rc::Rc, sync::Arc, time::Duration};

use axum::extract::ConnectInfo;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::{Body as _, Incoming};
use routes::{Gate, Route, State};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

use crate::{
    address::{Asked, Field, Port, Target},
    answer::{self, About, REQUEST_ID, Refusal},
    body::{Body, Relay},
    dial::reach,
    forward::{Answer, forward},
    gate::{self, Pass, Passage},
    glance::{Glance, Marks},
    headers::{self, Sender},
    link::{Link, Open},
    metrics::{Outcome, Waited},
    pool::Key,
    signature::{self, Signed},
    tcp::{self, Stream},
    tunnel::{Far, Tunnel},
    wake::Watch,
    worker::Worker,
};

/// How long a signed URL without an address waits for its turn to be looked for.
const SEARCH_PATIENCE: Duration = Duration::from_secs(5);

/// How much of a refused request is read before it is answered, and for how long.
const MOST_REST: usize = 64 << 10;
const REST_PATIENCE: Duration = Duration::from_millis(250);

/// What to do with a request.
#[derive(Debug)]
enum Decision {
    /// Send it on.
    Forward(Found),
    /// Wake the sandbox, then send it on.
    Wake(Found),
    /// It is the API's.
    Fallback,
    /// Find the sandbox whose token signed it.
    Search,
    /// Answer a browser's question.
    Preflight,
    /// Refuse it.
    Refuse(Refused),
}

#[derive(Debug)]
struct Found {
    route: Arc<Route>,
    port: Port,
    prefix: usize,
    marks: Marks,
    /// It asks for the port itself, not for an answer of the program there.
    is_bare: bool,
    /// The request's own id.
    request_id: Option<HeaderValue>,
}

/// A refusal and what it is about.
#[derive(Debug)]
struct Refused {
    refusal: Refusal,
    id: Option<Box<str>>,
    port: Option<Port>,
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

/// Answers one request.
pub(crate) async fn handle(
    worker: Rc<Worker>,
    link: Rc<Link>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let open = Open::new(worker.clone(), link.clone());
    let decision = decide(&worker, &request);
    let had_body = !request.body().is_end_stream() && request.version() < Version::HTTP_2;
    let mut response = match decision {
        Decision::Forward(found) => send(worker, link, open, found, request).await,
        Decision::Refuse(refused) => {
            let (head, body) = request.into_parts();
            let response = refuse(&worker, open, refused, &head.headers);
            if read_rest(body).await {
                return Ok(response);
            }
            response
        }
        // What is rare, or waits anyway, may cost an allocation.
        decision => Box::pin(other(worker, link, open, decision, request)).await,
    };
    // Who refuses may not have read to the end, and the connection ends there: a client that were
    // not told would send its next request into it.
    if had_body && !response.status().is_success() && !response.body().is_of_a_sandbox() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(response)
}

/// Reads what a refused client is sending, where that is little and there soon.
async fn read_rest(mut body: Incoming) -> bool {
    let reading = async {
        let mut left = MOST_REST;
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let size = frame.ok().and_then(|frame| frame.into_data().ok());
            left = match size.and_then(|data| left.checked_sub(data.len())) {
                Some(left) => left,
                None => return false,
            };
        }
        true
    };
    timeout(REST_PATIENCE, reading).await.unwrap_or(false)
}

async fn other(
    worker: Rc<Worker>,
    link: Rc<Link>,
    open: Open,
    decision: Decision,
    request: Request<Incoming>,
) -> Response<Body> {
    match decision {
        Decision::Forward(found) => send(worker, link, open, found, request).await,
        Decision::Wake(found) => wake(worker, link, open, found, request).await,
        Decision::Fallback => fallback(&worker, &link, open, request).await,
        Decision::Search => match search(&worker, &request).await {
            Ok(found) => {
                let sleeps = found.route.state != State::Running;
                if sleeps {
                    wake(worker, link, open, found, request).await
                } else {
                    send(worker, link, open, found, request).await
                }
            }
            Err(refusal) => refuse(&worker, open, refusal.into(), request.headers()),
        },
        Decision::Preflight => {
            let mut open = open;
            open.ended(Outcome::Forwarded);
            answer::preflight(request.headers()).map(|bytes| Body::own(bytes, open))
        }
        Decision::Refuse(refused) => refuse(&worker, open, refused, request.headers()),
    }
}

/// Decides what to do with a request: its address, then the gate, then the sandbox's state.
fn decide(worker: &Worker, request: &Request<Incoming>) -> Decision {
    let shared = &worker.shared;
    let (uri, headers) = (request.uri(), request.headers());
    if request.method() == Method::CONNECT {
        return Decision::Refuse(Refusal::Malformed("CONNECT is not served here").into());
    }
    let seen = Glance::at(headers);
    let asked = Asked {
        host: match uri.authority() {
            Some(authority) => Field::One(authority.as_str().as_bytes()),
            None => seen.host,
        },
        id: seen.id,
        port: seen.port,
        path: uri.path(),
    };
    let (id, port, prefix) = match shared.hosts.parse(asked) {
        Ok(Target::Sandbox { id, port, prefix }) => (id, port, prefix),
        Ok(target) => {
            let is_signed = signature::is_signed(request.method(), uri.path(), uri.query());
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
    let path = match uri.path().get(prefix..) {
        Some("") | None => "/",
        Some(path) => path,
    };
    let is_bare = tcp::is_asked(request);
    if port == Port::AGENT && (is_bare || gate::is_internal(path)) {
        return refuse(Refusal::Internal);
    }
    let Some(route) = shared.ports.routes.lookup(&*id) else {
        return refuse(if shared.ports.routes.synced() {
            Refusal::NotFound
        } else {
            Refusal::NotSynced
        });
    };
    let method = request.method();
    let pass = match gate::ask(&route, port, method, path, uri.query(), headers, &seen) {
        Ok(pass) => pass,
        Err(refusal) => return refuse(refusal),
    };
    let found = Found {
        route,
        port,
        prefix,
        marks: seen.marks,
        is_bare,
        request_id: seen.request_id.filter(|id| is_sane(id)).cloned(),
    };
    let passage = gate::passage(&found.route);
    if passage == Passage::Forward {
        return Decision::Forward(found);
    }
    // Who has not shown a token learns nothing of the state.
    if pass == Pass::Signed
        && let Err(refusal) = check_signature(worker, &found.route, request)
    {
        return refuse(refusal);
    }
    match passage {
        Passage::Park if pass == Pass::Preflight => Decision::Preflight,
        Passage::Park => Decision::Wake(found),
        Passage::Forward | Passage::NotFound => refuse(Refusal::NotFound),
    }
}

/// The checks that the agent makes, in its order.
fn check_signature(
    worker: &Worker,
    route: &Route,
    request: &Request<Incoming>,
) -> Result<(), Refusal> {
    let (Some(seal), Some(id)) = (&worker.shared.ports.seal, &route.id) else {
        return Err(Refusal::InvalidSignature);
    };
    let signed = Signed::read(request.method(), request.uri().query().unwrap_or_default());
    if !signed.is_of(seal, id, route) {
        return Err(Refusal::InvalidSignature);
    }
    if signed.is_expired(worker.wall_micros()) {
        return Err(Refusal::ExpiredSignature);
    }
    Ok(())
}

/// Sends a request to a sandbox that runs, and its answer back.
async fn send(
    worker: Rc<Worker>,
    link: Rc<Link>,
    mut open: Open,
    found: Found,
    request: Request<Incoming>,
) -> Response<Body> {
    let Found {
        route,
        port,
        prefix,
        marks,
        is_bare,
        request_id,
    } = found;
    let refused = |refusal| Refused {
        refusal,
        id: route.id.as_ref().map(|id| id.as_str().into()),
        port: Some(port),
    };
    let (mut head, body) = request.into_parts();
    let refuse_now = |worker: &Worker, open, refusal| {
        let id = request_id.clone();
        refuse_with(worker, open, refused(refusal), marks.is_navigation, id)
    };
    let options = &worker.shared.options;
    let activity = &worker.shared.activity;
    match activity.open(&route, options.limits.open_per_sandbox) {
        Some(held) => open.hold(held),
        None => return refuse_now(&worker, open, Refusal::TooMany),
    }
    if is_bare {
        return match reach(&worker.shared, &route, port).await {
            Ok(socket) => {
                worker.counters.dialled();
                open.ended(Outcome::Forwarded);
                let stream = Stream::new(worker.shared.clone(), route, socket, None);
                let sandbox = Far::Bare(Box::new(stream));
                link.set_tunnel(Tunnel { sandbox, open });
                tcp::switching().map(|()| Body::none())
            }
            Err(refusal) => refuse_now(&worker, open, refusal),
        };
    }
    let sender = Sender {
        address: &link.address,
        is_tls: link.is_tls,
        trusts_forwarded: options.trusts_forwarded,
    };
    let asks_upgrade = match headers::to_sandbox(&mut head, &route, port, prefix, marks, &sender) {
        Ok(asks) => asks,
        Err(refusal) => return refuse_now(&worker, open, refusal),
    };
    let Answer {
        mut response,
        upstream,
    } = match answer_of(
        &worker,
        &open,
        &route,
        forward(&worker, &route, port, head, body),
    )
    .await
    {
        Ok(answer) => answer,
        Err(refusal) => return refuse_now(&worker, open, refusal),
    };
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_upgrade && !asks_upgrade {
        return refuse_now(&worker, open, Refusal::NoAnswer);
    }
    *response.version_mut() = http::Version::HTTP_11;
    headers::to_client(response.headers_mut(), is_upgrade);
    if let Some(given) = &request_id {
        response.headers_mut().insert(REQUEST_ID, given.clone());
    }
    if is_upgrade {
        open.ended(Outcome::Forwarded);
        let sandbox = Far::Upgraded(Box::new(Box::pin(upstream.into_bare()).await));
        link.set_tunnel(Tunnel { sandbox, open });
        return response.map(|_| Body::none());
    }
    let key = Key::of(&route, port);
    // A route that was found by its id has one.
    let Some(id) = route.id.clone() else {
        return refuse_now(&worker, open, Refusal::NotFound);
    };
    response.map(|incoming| {
        let relay = Relay::new(incoming, upstream, worker, key, id);
        Body::sandbox(relay, open)
    })
}

/// Waits for the head of an answer, however often the sandbox is put to sleep before it comes.
async fn answer_of(
    worker: &Worker,
    open: &Open,
    route: &Route,
    answer: impl Future<Output = Result<Answer, Refusal>>,
) -> Result<Answer, Refusal> {
    let shared = &worker.shared;
    let watch = Watch {
        routes: &shared.ports.routes,
        wake: &*shared.ports.wake,
        timeout: shared.options.wake_timeout,
    };
    match open.held() {
        Some(held) => watch.answer(route, held, answer).await?,
        None => answer.await,
    }
}

/// Waits for a sandbox to wake, and sends the request then.
async fn wake(
    worker: Rc<Worker>,
    link: Rc<Link>,
    open: Open,
    found: Found,
    request: Request<Incoming>,
) -> Response<Body> {
    let shared = worker.shared.clone();
    let refused = |refusal| Refused {
        refusal,
        id: found.route.id.as_ref().map(|id| id.as_str().into()),
        port: Some(found.port),
    };
    // Who waits is there: a sandbox must not be put to sleep under a parked request.
    let limit = shared.options.limits.open_per_sandbox;
    let Some(held) = shared.activity.park(&found.route, limit) else {
        return refuse(&worker, open, refused(Refusal::TooMany), request.headers());
    };
    let started = worker.monotonic();
    let deadline = Instant::now() + shared.options.wake_timeout;
    let waking = shared.ports.wake.wake(&found.route, deadline);
    let woken = match timeout_at(deadline, waking).await {
        Ok(woken) => woken.map_err(Refusal::from),
        Err(_) => Err(crate::WakeError::Timeout.into()),
    };
    let took = worker.monotonic().saturating_sub(started);
    worker.counters.waited(Waited::Wake, took);
    let route = match woken {
        Ok(route) => route,
        Err(refusal) => return refuse(&worker, open, refused(refusal), request.headers()),
    };
    let is_same = route.is_delivery(found.route.uid, found.route.epoch);
    if !is_same || route.state != State::Running {
        return refuse(&worker, open, refused(Refusal::NotFound), request.headers());
    }
    // What the port demands may have changed meanwhile.
    let is_same_gate = route.agent == found.route.agent && route.traffic == found.route.traffic;
    if !is_same_gate {
        let (uri, headers) = (request.uri(), request.headers());
        let path = uri.path().get(found.prefix..).unwrap_or("/");
        let (method, seen) = (request.method(), Glance::at(headers));
        let asked = gate::ask(
            &route,
            found.port,
            method,
            path,
            uri.query(),
            headers,
            &seen,
        );
        if let Err(refusal) = asked {
            return refuse(&worker, open, refused(refusal), request.headers());
        }
    }
    let found = Found { route, ..found };
    // `send` opens its own; this one bridges the moment between.
    let response = send(worker, link, open, found, request).await;
    drop(held);
    response
}

/// Finds the sandbox of a signed URL that names none.
async fn search(worker: &Worker, request: &Request<Incoming>) -> Result<Found, Refusal> {
    let shared = worker.shared.clone();
    let turn = timeout(SEARCH_PATIENCE, shared.searches.acquire()).await;
    let _turn = turn.map_err(|_| Refusal::Overloaded)?;
    let signed = Signed::read(request.method(), request.uri().query().unwrap_or_default());
    // Nobody is looked for on account of a URL that says itself that it is of no use.
    if signed.is_expired(worker.wall_micros()) {
        return Err(Refusal::ExpiredSignature);
    }
    let searching = shared.clone();
    let task = shared.outside.spawn_blocking(move || {
        let seal = searching.ports.seal.as_ref()?;
        let is_candidate = |route: &Arc<Route>| {
            let reachable = gate::passage(route) != Passage::NotFound;
            route.id.is_some() && matches!(route.agent, Gate::Token(_)) && reachable
        };
        let mut candidates = searching.ports.routes.routes();
        candidates.retain(is_candidate);
        if candidates.len() > searching.options.limits.signature_candidates {
            return None;
        }
        // To the end, whoever it is: how long it takes tells nothing.
        candidates.into_iter().fold(None, |found, route| {
            let is_it = route
                .id
                .as_ref()
                .is_some_and(|id| signed.is_of(seal, id, &route));
            if is_it { Some(route) } else { found }
        })
    });
    let found = task.await.map_err(|_| Refusal::Overloaded)?;
    let route = found.ok_or(Refusal::InvalidSignature)?;
    let seen = Glance::at(request.headers());
    Ok(Found {
        route,
        port: Port::AGENT,
        prefix: 0,
        marks: seen.marks,
        is_bare: false,
        request_id: seen.request_id.filter(|id| is_sane(id)).cloned(),
    })
}

/// Hands a request to the inner service, on the threads of whoever started the gateway: a slow
/// handler must not hold up traffic.
async fn fallback(
    worker: &Worker,
    link: &Link,
    mut open: Open,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let Some(router) = worker.shared.fallback.clone() else {
        return refuse(worker, open, Refusal::NotFound.into(), request.headers());
    };
    request.extensions_mut().insert(ConnectInfo(link.peer));
    let called = router.oneshot(request.map(axum::body::Body::new));
    let task = AbortOnDropHandle::new(worker.shared.outside.spawn(called));
    open.ended(Outcome::Fallback);
    match task.await {
        Ok(Ok(response)) => response.map(|body| Body::fallback(body, open)),
        Ok(Err(never)) => match never {},
        Err(_) => {
            let headers = HeaderMap::new();
            refuse(worker, open, Refusal::Overloaded.into(), &headers)
        }
    }
}

fn refuse(worker: &Worker, open: Open, refused: Refused, asked: &HeaderMap) -> Response<Body> {
    let seen = Glance::at(asked);
    let request_id = seen.request_id.filter(|id| is_sane(id)).cloned();
    refuse_with(worker, open, refused, seen.marks.is_navigation, request_id)
}

fn refuse_with(
    worker: &Worker,
    mut open: Open,
    refused: Refused,
    is_navigation: bool,
    request_id: Option<HeaderValue>,
) -> Response<Body> {
    let Refused { refusal, id, port } = refused;
    open.ended(refusal.outcome());
    let request_id = request_id.unwrap_or_else(|| worker.new_request_id());
    tracing::debug!(
        ?refusal,
        sandbox = id.as_deref(),
        port = port.map(Port::get),
        request_id = request_id.to_str().unwrap_or_default(),
        "refused"
    );
    let about = About {
        id: id.as_deref(),
        port,
    };
    refusal
        .answer(about, is_navigation, request_id)
        .map(|bytes| Body::own(bytes, open))
}

/// Whether an id can be passed on.
fn is_sane(id: &HeaderValue) -> bool {
    !id.is_empty() && id.len() <= 128 && id.as_bytes().iter().all(u8::is_ascii_graphic)
}
