//! From a client's request to an answer.

use std::{convert::Infallible, future::poll_fn, pin::Pin, rc::Rc, sync::Arc, time::Duration};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header, request,
    uri::PathAndQuery,
};
use hyper::body::{Body as _, Incoming};
use routes::Route;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

use crate::{
    address::Port,
    admit::{self, Entry},
    answer::{self, Refusal},
    body::{Body, Relay},
    codec::Length,
    decide::{Asking, Found, Refused},
    dial::reach,
    exchange::RequestBody,
    forward::{Answer, Outgoing, forward},
    glance::Glance,
    h2c,
    headers::{self, Onward, Sender},
    link::{Link, Open},
    metrics::{Outcome, Waited},
    names::Fields,
    pool::Key,
    progress, socket2,
    tcp::{self, Stream},
    tunnel::{Far, Tunnel},
    upload::Upload,
    wake::{NoWake, Watch},
    worker::Worker,
};

/// How much of a refused request is read before it is answered, and for how long.
const MOST_REST: usize = 64 << 10;
const REST_PATIENCE: Duration = Duration::from_millis(250);

/// Answers one request.
pub(crate) async fn handle(
    worker: Rc<Worker>,
    link: Rc<Link>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut open = Open::new(worker.clone(), link.clone());
    link.knows_hints(request.version() == Version::HTTP_11);
    let entry = admit::enter(&worker.shared, &Asking::of(&request), told(&request));
    let is_http1 = request.version() < Version::HTTP_2;
    let mut may_be_unread = !request.body().is_end_stream() && is_http1;
    let shared = Arc::clone(&worker.shared);
    let mut response = match entry {
        Entry::In(found, held) => {
            open.hold(held);
            send(worker, link, open, found, request).await
        }
        Entry::Refuse(refused) => {
            let (head, body) = request.into_parts();
            let response = refuse(&worker, open, refused, &head.headers);
            may_be_unread &= !read_rest(body).await;
            response
        }
        // What is rare, or waits anyway, may cost an allocation.
        entry => Box::pin(other(worker, link, open, entry, request)).await,
    };
    // Who refuses may not have read to the end, and the connection ends there: a client that were
    // not told would send its next request into it.
    let is_unread =
        may_be_unread && !response.status().is_success() && !response.body().is_of_a_sandbox();
    let is_tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_unread || (is_http1 && !is_tunnel && shared.says_goodbye()) {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(response)
}

/// How long a request says that its body is.
fn told(request: &Request<Incoming>) -> u64 {
    request.body().size_hint().lower()
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
    mut open: Open,
    mut entry: Entry,
    request: Request<Incoming>,
) -> Response<Body> {
    if let Entry::Behind(version) = entry {
        let (asking, told) = (Asking::of(&request), told(&request));
        entry = progress::catch_up(&worker.shared, &asking, told, version).await;
    }
    if matches!(entry, Entry::Search) {
        entry = admit::search(&worker.shared, &Asking::of(&request), told(&request)).await;
    }
    match entry {
        Entry::In(found, held) => {
            open.hold(held);
            send(worker, link, open, found, request).await
        }
        Entry::Wake(found) => wake(worker, link, open, found, request).await,
        Entry::Fallback => fallback(&worker, &link, open, request).await,
        Entry::Preflight => {
            open.ended(Outcome::Forwarded);
            answer::preflight(request.headers()).map(|bytes| Body::own(bytes, open))
        }
        Entry::Refuse(refused) => refuse(&worker, open, refused, request.headers()),
        // It was waited and looked for above, and nobody is twice.
        Entry::Behind(_) | Entry::Search => {
            let refused = Refusal::InvalidSignature.into();
            refuse(&worker, open, refused, request.headers())
        }
    }
}

/// Sends a request that is inside to a sandbox that runs, and its answer back.
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
        is_use: _,
        may_wake,
        request_id,
    } = found;
    let refused = |refusal| Refused {
        refusal,
        id: route.id.as_ref().map(|id| id.as_str().into()),
        port: Some(port),
    };
    let (asks_socket, mut request) = (socket2::is_asked(&request), request);
    let socket = asks_socket.then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let refuse_now = |worker: &Worker, open, refusal| {
        let id = request_id.clone();
        refuse_with(worker, open, refused(refusal), marks.is_navigation, id)
    };
    let options = &worker.shared.options;
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
    let was_told = head.headers.contains_key(header::CONTENT_LENGTH);
    let is_call = head.version == Version::HTTP_2 && marks.is_grpc && port != Port::AGENT;
    let body = match socket {
        Some(_) => RequestBody::Empty,
        None => RequestBody::Client(Upload::new(body, is_call, &options.limits)),
    };
    let key = socket.as_ref().map(|_| socket2::key(&worker));
    let onward = Onward {
        method: socket.as_ref().map_or(&head.method, |_| &Method::GET),
        target: head.uri.path_and_query().map_or("/", PathAndQuery::as_str),
        prefix,
        host: host_of(&head),
        fields: Fields::Map(&head.headers),
        length: body.length(was_told),
        upgrade: match (&socket, head.version) {
            (Some(_), _) => Some(socket2::PROTOCOL),
            (None, Version::HTTP_11) => headers::wanted_upgrade(&head.method, &head.headers, port),
            (None, _) => None,
        },
        socket_key: key.as_deref().map(str::as_bytes),
    };
    let body = match body {
        RequestBody::Client(body) if is_call => {
            let asked = body.fate();
            let request = match onward.request(&route, port, &sender) {
                Ok(request) => request.map(|()| body),
                Err(refusal) => return refuse_now(&worker, open, refusal),
            };
            let calling = h2c::forward(&worker, &route, port, request);
            let calling = Box::pin(calling);
            let answer = answer_of(&worker, &open, (&route, may_wake), calling).await;
            return match answer.and_then(|answer| answer) {
                Ok(response) => response.map(|body| Body::call(body, asked, open)),
                Err(refusal) => refuse_now(&worker, open, refusal),
            };
        }
        body => body,
    };
    let mut written = Vec::with_capacity(1 << 10);
    if let Err(refusal) = onward.write(&mut written, &route, port, &sender) {
        return refuse_now(&worker, open, refusal);
    }
    let (length, asks_upgrade) = (onward.length, onward.upgrade.is_some());
    let is_empty = matches!(length, Length::None | Length::Exact(0));
    let outgoing = Outgoing {
        head: &written,
        body,
        length,
        to_head: head.method == Method::HEAD,
        can_repeat: is_empty && headers::is_idempotent(&head.method),
        request_id: request_id.as_ref().map(HeaderValue::as_bytes),
    };
    let forwarding = forward(&worker, &route, port, outgoing);
    let answer = answer_of(&worker, &open, (&route, may_wake), forwarding).await;
    let Answer { response, exchange } = match answer.and_then(|answer| answer) {
        Ok(answer) => answer,
        Err(refusal) => return refuse_now(&worker, open, refusal),
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        if !asks_upgrade {
            return refuse_now(&worker, open, Refusal::NoAnswer);
        }
        let (stream, begun) = exchange.into_bare();
        if let Some(client) = socket {
            return socket2::join(&worker, client, response, (stream, begun), open);
        }
        open.ended(Outcome::Forwarded);
        let protocol = response.headers().get(header::UPGRADE);
        let is_socket = protocol.is_some_and(|p| p.as_bytes().eq_ignore_ascii_case(b"websocket"));
        let sandbox = match is_socket {
            true => Far::Socket(stream, begun),
            false => Far::Upgraded(stream, begun),
        };
        link.set_tunnel(Tunnel { sandbox, open });
        return response.map(|()| Body::none());
    }
    let key = Key::of(&route, port);
    // A route that was found by its id has one.
    let Some(id) = route.id.clone() else {
        return refuse_now(&worker, open, Refusal::NotFound);
    };
    response.map(|()| Body::sandbox(Relay::new(exchange, worker, key, id), open))
}

/// Whom a request names. Where the target does, that counts, and not the header.
fn host_of(head: &request::Parts) -> &[u8] {
    let named = head.uri.authority().map(|name| name.as_str().as_bytes());
    let host = || head.headers.get(header::HOST).map(HeaderValue::as_bytes);
    named.or_else(host).unwrap_or_default()
}

/// Waits for the head of an answer, however often the sandbox is put to sleep before it comes. Who
/// may not wake it is refused then.
pub(crate) async fn answer_of<T>(
    worker: &Worker,
    open: &Open,
    (route, may_wake): (&Route, bool),
    answer: impl Future<Output = T>,
) -> Result<T, Refusal> {
    let shared = &worker.shared;
    let watch = Watch {
        routes: &shared.ports.routes,
        wake: match may_wake {
            true => &*shared.ports.wake,
            false => &NoWake,
        },
        timeout: shared.options.wake_timeout,
    };
    match open.held() {
        Some(held) => Ok(watch.answer(route, held, answer).await?),
        None => Ok(answer.await),
    }
}

/// Waits for a sandbox to wake, and sends the request then.
async fn wake(
    worker: Rc<Worker>,
    link: Rc<Link>,
    mut open: Open,
    found: Found,
    request: Request<Incoming>,
) -> Response<Body> {
    let held = match admit::park(&worker.shared, &found) {
        Ok(held) => held,
        Err(refused) => return refuse(&worker, open, refused, request.headers()),
    };
    let started = worker.monotonic();
    let woken = admit::wake(&worker.shared, &Asking::of(&request), found, held).await;
    let took = worker.monotonic().saturating_sub(started);
    worker.counters.waited(Waited::Wake, took);
    match woken {
        Ok((found, held)) => {
            open.hold(held);
            send(worker, link, open, found, request).await
        }
        Err(refused) => refuse(&worker, open, refused, request.headers()),
    }
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
    // Known before it is begun: who stops waits for it.
    let called = worker.shared.calls.track_future(called);
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
    let seen = Glance::at(Fields::Map(asked));
    let is_navigation = seen.marks.is_navigation;
    refuse_with(worker, open, refused, is_navigation, seen.request_id())
}

fn refuse_with(
    worker: &Worker,
    mut open: Open,
    refused: Refused,
    is_navigation: bool,
    request_id: Option<HeaderValue>,
) -> Response<Body> {
    answer_for(worker, &mut open, refused, is_navigation, request_id)
        .map(|bytes| Body::own(bytes, open))
}

/// The answer to a request that was found to be for a sandbox, and cannot be sent there.
pub(crate) fn refusal_of(
    worker: &Worker,
    open: &mut Open,
    found: &Found,
    refusal: Refusal,
) -> Response<Bytes> {
    let refused = found.refused(refusal);
    let request_id = found.request_id.clone();
    answer_for(worker, open, refused, found.marks.is_navigation, request_id)
}

fn answer_for(
    worker: &Worker,
    open: &mut Open,
    refused: Refused,
    is_navigation: bool,
    request_id: Option<HeaderValue>,
) -> Response<Bytes> {
    open.ended(refused.refusal.outcome());
    let request_id = request_id.unwrap_or_else(|| worker.new_request_id());
    refused.answer(is_navigation, request_id)
}
