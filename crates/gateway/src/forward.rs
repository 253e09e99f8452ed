//! Sends a request to its sandbox and waits for the head of the answer.

use std::{future::poll_fn, rc::Rc, sync::Arc, time::Duration};

use http::Response;
use routes::Route;

use crate::{
    address::Port,
    answer::Refusal,
    codec::Length,
    dial::reach,
    exchange::{Exchange, ExchangeError, RequestBody},
    metrics::Waited,
    pool::Key,
    upstream::Upstream,
    worker::Worker,
};

/// A request whose head was written for the sandbox.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) body: RequestBody,
    pub(crate) length: Length,
    /// It asks for the head of an answer only.
    pub(crate) to_head: bool,
    /// Sending it twice does no harm, and nothing but the head is needed for it.
    pub(crate) can_repeat: bool,
    pub(crate) request_id: Option<&'a [u8]>,
}

/// The head of an answer, and where the rest comes from.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<()>,
    pub(crate) exchange: Exchange,
}

/// Sends a request.
///
/// A kept connection may turn out to have ended. What was not sent goes out again on another one;
/// what was sent in part does only if it can be repeated. Whatever the pool does, a new connection
/// is tried once.
pub(crate) async fn forward(
    worker: &Rc<Worker>,
    route: &Arc<Route>,
    port: Port,
    mut outgoing: Outgoing<'_>,
) -> Result<Answer, Refusal> {
    let key = Key::of(route, port);
    let started = worker.monotonic();
    while let Some(upstream) = worker.pool.take(key) {
        worker.counters.reused();
        match exchange(worker, upstream, &mut outgoing, started).await {
            Ok(answer) => return Ok(answer),
            Err(ExchangeError::NotSent) => {}
            Err(ExchangeError::Lost(_)) if outgoing.can_repeat => break,
            Err(error) => return Err(refusal(&error)),
        }
    }
    let connecting = worker.monotonic();
    let upstream = Box::pin(connect(worker, route, port)).await?;
    let connected = worker.monotonic();
    let took = connected.saturating_sub(connecting);
    worker.counters.waited(Waited::Connect, took);
    exchange(worker, upstream, &mut outgoing, connected)
        .await
        .map_err(|error| refusal(&error))
}

fn refusal(error: &ExchangeError) -> Refusal {
    tracing::debug!(%error, "a sandbox gave no answer");
    match error {
        ExchangeError::Upload(why) => why.refusal(),
        ExchangeError::NotSent
        | ExchangeError::Lost(_)
        | ExchangeError::Head(_)
        | ExchangeError::Framing => Refusal::NoAnswer,
    }
}

async fn exchange(
    worker: &Rc<Worker>,
    upstream: Upstream,
    outgoing: &mut Outgoing<'_>,
    started: Duration,
) -> Result<Answer, ExchangeError> {
    let body = std::mem::replace(&mut outgoing.body, RequestBody::Empty);
    let mut exchange = Exchange::new(
        worker.clone(),
        upstream,
        outgoing.head,
        body,
        outgoing.length,
        outgoing.to_head,
    );
    let head = poll_fn(|context| exchange.poll_head(context, outgoing.request_id)).await;
    if let Err(ExchangeError::NotSent) = head {
        outgoing.body = exchange.into_unsent();
        return Err(ExchangeError::NotSent);
    }
    let response = head?;
    let took = worker.monotonic().saturating_sub(started);
    worker.counters.waited(Waited::FirstByte, took);
    Ok(Answer { response, exchange })
}

/// A new connection.
pub(crate) async fn connect(
    worker: &Worker,
    route: &Route,
    port: Port,
) -> Result<Upstream, Refusal> {
    let stream = reach(&worker.shared, route, port).await?;
    worker.counters.dialled();
    Ok(Upstream::new(stream))
}
