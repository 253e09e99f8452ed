//! What every request passes on its way: it is counted, bounded in time, and told to wait where the
//! API server says so.
//!
//! There are two lanes over the same connections. Whoever waits for an answer goes in the
//! *foreground* and is never held back here. Work that nobody waits for goes in the *background*,
//! where only so many requests are on their way at once: claims are not throttled behind it.
//!
//! A request that the API server has too many of (429) was not looked at, so it is sent again after
//! the time that the answer names. One that only reads and whose connection was lost is sent once
//! more, over a fresh one. Nothing else is repeated: a write that failed in any other way may have
//! happened.

use std::{sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode, header::RETRY_AFTER};
use kit::{Backoff, Entropy};
use kube::{Client, client::Body};
use thiserror::Error;
use tokio::{sync::Semaphore, time::timeout};
use tower::BoxError;

use crate::{connection::Fresh, counts::Counts, error::is_cut_off};

/// Most requests of the background that are on their way at once.
const BACKGROUND: usize = 32;
/// An API server that does not answer for this long is given up on, alive as it may be: its own limit is
/// a minute. Of connections that are dead the request knows long before.
const PATIENCE: Duration = Duration::from_secs(65);
/// How often a request is sent again because there were too many.
const RESENDS: u32 = 6;
/// The longest wait before that, whatever the answer says.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    cap: LONGEST_WAIT,
};

/// The API server did not answer in time.
#[derive(Clone, Copy, Debug, Error)]
#[error("the API server did not answer in time")]
pub(crate) struct Silence;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Foreground,
    Background,
}

/// The way to an API server.
pub(crate) struct Road {
    client: Client,
    counts: Arc<Counts>,
    background: Semaphore,
    entropy: Entropy,
}

impl Road {
    pub(crate) fn new(client: Client, counts: Arc<Counts>) -> Arc<Self> {
        Arc::new(Self {
            client,
            counts,
            background: Semaphore::new(BACKGROUND),
            entropy: Entropy::from_os(),
        })
    }

    /// A client whose requests take this lane.
    pub(crate) fn lane(self: &Arc<Self>, lane: Lane) -> Client {
        let road = Arc::clone(self);
        let service = tower::service_fn(move |request| {
            let road = Arc::clone(&road);
            async move { road.send(lane, request).await }
        });
        Client::new(service, self.client.default_namespace())
    }

    async fn send(&self, lane: Lane, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let watches = is_watch(&request);
        // A watch is on its way for minutes and costs nothing: it must not hold a place.
        let _place = match lane {
            Lane::Background if !watches => Some(self.background.acquire().await?),
            Lane::Background | Lane::Foreground => None,
        };
        let mut request = request;
        let reads = request.method() == Method::GET;
        let (mut resends, mut is_fresh) = (0, false);
        loop {
            let again = copy(&request);
            self.counts.note(&request);
            let answer = timeout(PATIENCE, self.client.send(request)).await;
            match (answer.map_err(|_| Silence)?, again) {
                (Ok(answer), Some(again))
                    if answer.status() == StatusCode::TOO_MANY_REQUESTS && resends < RESENDS =>
                {
                    resends += 1;
                    tokio::time::sleep(self.wait_before(resends, &answer)).await;
                    request = again;
                }
                (Err(error), Some(mut again)) if reads && !is_fresh && is_cut_off(&error) => {
                    is_fresh = true;
                    again.extensions_mut().insert(Fresh);
                    request = again;
                }
                (answer, _) => return Ok(answer?),
            }
        }
    }

    fn wait_before(&self, resend: u32, answer: &Response<Body>) -> Duration {
        let jitter = BACKOFF.delay(resend, &self.entropy);
        let seconds = answer.headers().get(RETRY_AFTER);
        let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
        // Those who were told the same time must not all come back in the same moment.
        let told = seconds.map_or(Duration::ZERO, Duration::from_secs);
        told.min(LONGEST_WAIT) + jitter / 4
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let body = request.body().try_clone()?;
    let mut copy = Request::new(body);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}
