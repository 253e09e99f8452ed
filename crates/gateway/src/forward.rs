//! Sends a request to its sandbox and waits for the head of the answer.

use std::{rc::Rc, sync::Arc};

use http::{Request, Response, request};
use hyper::body::{Body as _, Incoming};
use routes::Route;

use crate::{
    address::Port,
    answer::Refusal,
    dial::reach,
    headers,
    metrics::Waited,
    pool::Key,
    upstream::{ExchangeError, RequestBody, Upstream},
    worker::Worker,
};

/// The head of an answer, and where the rest comes from.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) upstream: Upstream,
}

/// Sends a request whose head was made for the sandbox.
///
/// A kept connection may turn out to have ended. What was not sent goes out again on another one;
/// what was sent in part does only if sending it twice does no harm and nothing is needed for it
/// but the head. Whatever the pool does, a new connection is tried once.
pub(crate) async fn forward(
    worker: &Rc<Worker>,
    route: &Arc<Route>,
    port: Port,
    head: request::Parts,
    body: Incoming,
) -> Result<Answer, Refusal> {
    let key = Key::of(route, port);
    let started = worker.monotonic();
    let mut request = Request::from_parts(head, RequestBody::Client(body));
    let mut spare = copy_of(&request);
    // What can be sent again need not be sure of its connection.
    while let Some(mut upstream) = worker.pool.take(key, spare.is_none()) {
        worker.counters.reused();
        match upstream.exchange(request).await {
            Ok(response) => {
                let took = worker.monotonic().saturating_sub(started);
                worker.counters.waited(Waited::FirstByte, took);
                return Ok(Answer { response, upstream });
            }
            Err(ExchangeError::NotSent(unsent)) => request = *unsent,
            Err(ExchangeError::Lost(error)) => {
                let Some(copy) = spare.take() else {
                    tracing::debug!(%error, "a kept connection gave no answer");
                    return Err(Refusal::NoAnswer);
                };
                request = copy;
                break;
            }
        }
    }
    Box::pin(forward_anew(worker, route, port, request)).await
}

/// The same on a new connection.
async fn forward_anew(
    worker: &Rc<Worker>,
    route: &Arc<Route>,
    port: Port,
    request: Request<RequestBody>,
) -> Result<Answer, Refusal> {
    let started = worker.monotonic();
    let mut upstream = connect(worker, route, port).await?;
    let connected = worker.monotonic();
    worker
        .counters
        .waited(Waited::Connect, connected.saturating_sub(started));
    match upstream.exchange(request).await {
        Ok(response) => {
            let took = worker.monotonic().saturating_sub(connected);
            worker.counters.waited(Waited::FirstByte, took);
            Ok(Answer { response, upstream })
        }
        Err(ExchangeError::NotSent(_)) => Err(Refusal::NoAnswer),
        Err(ExchangeError::Lost(error)) => {
            tracing::debug!(%error, "a sandbox gave no answer");
            Err(Refusal::NoAnswer)
        }
    }
}

async fn connect(worker: &Rc<Worker>, route: &Arc<Route>, port: Port) -> Result<Upstream, Refusal> {
    let stream = reach(&worker.shared, route, port).await?;
    worker.counters.dialled();
    Upstream::start(stream, &worker.shared.options.limits)
        .await
        .map_err(|_| Refusal::NoAnswer)
}

/// What is needed to send a request again, if that does no harm.
fn copy_of(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.body().is_end_stream() || !headers::is_idempotent(request.method()) {
        return None;
    }
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}
