//! The connection to one gateway: made, kept, and made again.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kit::{Backoff, Clock, Entropy};
use parking_lot::Mutex;
use peer::Identity;
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    frame::Frame,
    kin::{Kin, Stranger},
    view::{Past, View},
};

const CONNECT: Duration = Duration::from_secs(2);
/// A gateway that says nothing for this long cannot be asked.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);
/// The longest frame, in bytes: some four thousand records are half of it.
const LONGEST: usize = 1 << 20;
/// The longest answer to anything else.
const ANSWER: usize = 64 << 10;
const AGAIN: Backoff = Backoff {
    first: Duration::from_millis(50),
    cap: Duration::from_secs(2),
};

type Sender = http2::SendRequest<Full<Bytes>>;

/// Why a gateway did not answer.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("there is no connection to it")]
    Down,
    #[error("connect to it")]
    Connect(#[source] std::io::Error),
    #[error("it did not answer in time")]
    Silent,
    #[error("the connection to it broke")]
    Broken(#[from] hyper::Error),
    #[error(transparent)]
    Stranger(#[from] Stranger),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it sent more than it may")]
    TooLong,
    #[error("it speaks otherwise than expected")]
    Malformed(#[from] serde_json::Error),
    #[error("the stream of its use has ended")]
    Ended,
    #[error("the request could not be written")]
    Request(#[from] http::Error),
}

/// One gateway.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    pub(crate) view: Mutex<View>,
    sender: Mutex<Option<Sender>>,
    kin: Kin,
    past: Arc<Mutex<Past>>,
}

/// What a link is kept with.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    pub(crate) identity: Identity,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<Entropy>,
}

impl Link {
    pub(crate) fn new(address: SocketAddr, kin: Kin, past: Arc<Mutex<Past>>) -> Self {
        Self {
            address,
            view: Mutex::default(),
            sender: Mutex::default(),
            kin,
            past,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.sender.lock().is_some()
    }

    /// Keeps the connection for ever.
    pub(crate) async fn keep(&self, means: &Means) {
        let mut attempt = 0;
        let mut told = None;
        loop {
            let Err(error) = self.once(means, &mut attempt).await;
            *self.sender.lock() = None;
            self.view.lock().cut();
            attempt += 1;
            let is_news = match &error {
                LinkError::Stranger(stranger) => {
                    self.kin.meet(*stranger);
                    told.replace(*stranger) != Some(*stranger)
                }
                // Said once: the first try after a connection that broke is nothing special.
                _ => attempt == 2,
            };
            if is_news {
                tracing::warn!(gateway = %self.address, %error, "a gateway cannot be asked");
            }
            tokio::time::sleep(AGAIN.delay(attempt, &means.entropy)).await;
        }
    }

    async fn once(
        &self,
        means: &Means,
        attempt: &mut u32,
    ) -> Result<std::convert::Infallible, LinkError> {
        let connecting = async {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            means.identity.connect(stream).await
        };
        let stream = timeout(CONNECT, connecting).await;
        let stream = stream
            .map_err(|_| LinkError::Silent)?
            .map_err(LinkError::Connect)?;
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(SILENCE / 2)
            .keep_alive_timeout(SILENCE / 2)
            .keep_alive_while_idle(true);
        let (sender, connection) = http.handshake(TokioIo::new(stream)).await?;
        let mut connection = std::pin::pin!(connection);
        let following = self.follow(sender, means, attempt);
        tokio::select! {
            ended = &mut connection => match ended {
                Ok(()) => Err(LinkError::Ended),
                Err(error) => Err(error.into()),
            },
            failed = following => failed,
        }
    }

    /// Follows its use.
    async fn follow(
        &self,
        mut sender: Sender,
        means: &Means,
        attempt: &mut u32,
    ) -> Result<std::convert::Infallible, LinkError> {
        let request = self.request(Method::GET, "/v1/activity", Bytes::new())?;
        let answer = timeout(SILENCE, sender.send_request(request)).await;
        let answer = answer.map_err(|_| LinkError::Silent)??;
        self.kin.check(answer.headers())?;
        if answer.status() != StatusCode::OK {
            return Err(LinkError::Status(answer.status()));
        }
        *self.sender.lock() = Some(sender);
        self.view.lock().begin();
        let mut body = answer.into_body();
        let mut line = Vec::new();
        loop {
            let chunk = next_chunk(&mut body).await?;
            for part in chunk.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(part);
                if line.len() > LONGEST {
                    return Err(LinkError::TooLong);
                }
                if line.ends_with(b"\n") {
                    let frame: Frame = serde_json::from_slice(&line)?;
                    line.clear();
                    let at = means.clock.monotonic();
                    self.view.lock().take(frame, at, &mut self.past.lock());
                    *attempt = 0;
                }
            }
        }
    }

    /// Asks for something, and waits for the answer as long as the caller does.
    pub(crate) async fn call<T: DeserializeOwned>(&self, path: &str) -> Result<T, LinkError> {
        let request = self.request(Method::GET, path, Bytes::new())?;
        Ok(serde_json::from_slice(&self.send(request).await?)?)
    }

    /// Says something, and waits until it is done.
    pub(crate) async fn tell(&self, path: &str, what: &impl Serialize) -> Result<(), LinkError> {
        let body = serde_json::to_vec(what)?;
        let request = self.request(Method::POST, path, body.into())?;
        self.send(request).await.map(|_| ())
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Bytes, LinkError> {
        let mut sender = self.sender.lock().clone().ok_or(LinkError::Down)?;
        let answer = sender.send_request(request).await?;
        self.kin.check(answer.headers())?;
        if !answer.status().is_success() {
            return Err(LinkError::Status(answer.status()));
        }
        let body = http_body_util::Limited::new(answer.into_body(), ANSWER);
        let body = body.collect().await.map_err(|_| LinkError::TooLong)?;
        Ok(body.to_bytes())
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, LinkError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.kin.sign(request.headers_mut());
        Ok(request)
    }
}

async fn next_chunk(body: &mut Incoming) -> Result<Bytes, LinkError> {
    loop {
        let frame = timeout(SILENCE, body.frame()).await;
        let frame = frame.map_err(|_| LinkError::Silent)?;
        if let Ok(data) = frame.ok_or(LinkError::Ended)??.into_data() {
            return Ok(data);
        }
    }
}
