//! Sandboxes that are spoken to in HTTP/2.
//!
//! gRPC cannot be said in HTTP/1, and servers of it on a plain port expect HTTP/2 from the first
//! byte. So a request that came in HTTP/2 and whose body is gRPC goes on in HTTP/2; everything else
//! goes on in HTTP/1.1, which every program speaks. The agent speaks HTTP/1 only.
//!
//! One connection per (uid, epoch, port) and thread carries all of that port's calls. It is let go
//! when its route leads to another delivery or nowhere, and when nobody has used it for a while.

use std::{cell::RefCell, collections::HashMap, rc::Rc, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use model::SandboxId;
use routes::{Route, Table};

use crate::{
    address::Port,
    answer::Refusal,
    forward::connect,
    metrics::Waited,
    pool::Key,
    upload::{Upload, UploadError},
    worker::Worker,
};

const PING: Duration = Duration::from_secs(20);

/// One thread's connections.
#[derive(Debug, Default)]
pub(crate) struct Shared(RefCell<HashMap<Key, Call>>);

#[derive(Debug)]
struct Call {
    id: SandboxId,
    sender: SendRequest<Upload>,
    used: u32,
}

impl Shared {
    fn take(&self, key: Key, now: u32) -> Option<SendRequest<Upload>> {
        let mut calls = self.0.borrow_mut();
        let call = calls.get_mut(&key)?;
        if call.sender.is_closed() {
            calls.remove(&key);
            return None;
        }
        call.used = now;
        Some(call.sender.clone())
    }

    /// Lets go of connections that have ended or rest for too long, and of all whose route leads to
    /// another delivery or nowhere. What is under way on them goes on.
    pub(crate) fn sweep(&self, routes: &Table, oldest: u32) {
        self.0.borrow_mut().retain(|key, call| {
            let leads = routes.check(&call.id, key.uid, key.epoch).is_ok();
            leads && call.used >= oldest && !call.sender.is_closed()
        });
    }
}

/// Sends a request and waits for the head of the answer.
pub(crate) async fn forward(
    worker: &Rc<Worker>,
    route: &Arc<Route>,
    port: Port,
    request: Request<Upload>,
) -> Result<Response<Incoming>, Refusal> {
    let key = Key::of(route, port);
    let now = worker.now();
    let mut sender = match worker.calls.take(key, now) {
        Some(sender) => {
            worker.counters.reused();
            sender
        }
        None => start(worker, route, port, key).await?,
    };
    let fate = request.body().fate();
    let started = worker.monotonic();
    let answered = async {
        sender.ready().await?;
        sender.send_request(request).await
    };
    let response = answered.await.map_err(|error| {
        tracing::debug!(%error, "a sandbox gave no answer");
        fate.ended().map_or(Refusal::NoAnswer, UploadError::refusal)
    })?;
    fate.answered();
    let took = worker.monotonic().saturating_sub(started);
    worker.counters.waited(Waited::FirstByte, took);
    Ok(response)
}

async fn start(
    worker: &Rc<Worker>,
    route: &Arc<Route>,
    port: Port,
    key: Key,
) -> Result<SendRequest<Upload>, Refusal> {
    let started = worker.monotonic();
    let stream = connect(worker, route, port).await?.into_stream();
    let took = worker.monotonic().saturating_sub(started);
    worker.counters.waited(Waited::Connect, took);
    let limits = &worker.shared.options.limits;
    let id = route.id.clone().ok_or(Refusal::NotFound)?;
    let (sender, connection) = Builder::new(worker.tasks.clone())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(512 << 10)
        .initial_connection_window_size(2 << 20)
        .max_send_buf_size(limits.buffer_bytes)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| Refusal::NoAnswer)?;
    worker.tasks.run(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a sandbox ended");
        }
    });
    let call = Call {
        id,
        sender: sender.clone(),
        used: worker.now(),
    };
    worker.calls.0.borrow_mut().insert(key, call);
    Ok(sender)
}
