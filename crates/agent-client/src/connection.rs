//! The way to the agent: dialling, and using a connection again.

use std::{fmt, io, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use wire::{
    Secret,
    envd::{ACCESS_TOKEN_HEADER, INIT_KEY_HEADER},
};

use crate::error::{Error, Result, code_of};

/// Something that bytes go through in both directions.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for T {}

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
type Sender = http1::SendRequest<Body>;
type Dial = dyn Fn() -> BoxFuture<'static, io::Result<Box<dyn Io>>> + Send + Sync;

/// Connections that are kept for the next call. One: an idle sandbox may cost a server no more.
const IDLE: usize = 1;
/// The longest answer that is taken in one piece.
pub(crate) const MAX_ANSWER: usize = 16 << 20;

/// An agent. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
    token: Option<HeaderValue>,
    user: Option<Arc<str>>,
    headers: Arc<HeaderMap>,
}

struct Pool {
    dial: Box<Dial>,
    idle: Mutex<Vec<Sender>>,
    tasks: kit::Tasks,
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Client")
            .field("token", &self.token.is_some())
            .field("user", &self.user)
            .field("idle", &self.pool.idle.lock().len())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// An agent that is reached by dialling, as often as it takes: each call that is under way has
    /// a connection to itself.
    pub fn new<F, S>(dial: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: Io,
    {
        let dial = move || -> BoxFuture<'static, io::Result<Box<dyn Io>>> {
            let dialled = dial();
            Box::pin(async move { Ok(Box::new(dialled.await?) as Box<dyn Io>) })
        };
        Self {
            pool: Arc::new(Pool {
                dial: Box::new(dial),
                idle: Mutex::default(),
                tasks: kit::Tasks::default(),
            }),
            token: None,
            user: None,
            headers: Arc::default(),
        }
    }

    /// An agent at the other end of a stream, for one call after the other.
    pub fn over(stream: impl Io) -> Self {
        let stream = Arc::new(Mutex::new(Some(stream)));
        Self::new(move || {
            let stream = stream.lock().take();
            async {
                stream.ok_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::NotConnected,
                        "the one stream to the agent is used up or in use",
                    )
                })
            }
        })
    }

    /// The same agent, with every call carrying this token.
    ///
    /// # Errors
    /// If the token cannot be in a header.
    pub fn with_token(mut self, token: &Secret) -> Result<Self> {
        // The value is left out: it would be a part of a token.
        let mut value = HeaderValue::from_str(token.reveal())
            .map_err(|_| Error::Protocol("a token must be printable ASCII".to_owned()))?;
        value.set_sensitive(true);
        self.token = Some(value);
        Ok(self)
    }

    /// The same agent, with every call carrying the key by which it knows the control plane.
    ///
    /// # Errors
    /// If the key cannot be in a header.
    pub fn with_key(mut self, key: &Secret) -> Result<Self> {
        let mut value = HeaderValue::from_str(key.reveal())
            .map_err(|_| Error::Protocol("a key must be printable ASCII".to_owned()))?;
        value.set_sensitive(true);
        let mut headers = HeaderMap::clone(&self.headers);
        headers.insert(INIT_KEY_HEADER, value);
        self.headers = Arc::new(headers);
        Ok(self)
    }

    /// The same agent, with every call made for this user instead of the sandbox's own.
    #[must_use]
    pub fn as_user(mut self, name: &str) -> Self {
        self.user = Some(name.into());
        self
    }

    /// The same agent, with every call carrying these headers: what a gateway on the way asks for.
    /// A `Host` among them replaces the one that would be sent.
    #[must_use]
    pub fn carrying(mut self, headers: HeaderMap) -> Self {
        self.headers = Arc::new(headers);
        self
    }

    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// `Authorization` that names the user, where there is one.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let name = self.user.as_deref()?;
        let value = format!("Basic {}", STANDARD.encode(format!("{name}:")));
        // Base64 is always fit for a header.
        HeaderValue::from_str(&value).ok()
    }

    /// Sends a request, over a connection that is there or a new one.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Answer> {
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::from_static("agent"));
        for (name, value) in &*self.headers {
            headers.insert(name, value.clone());
        }
        if let Some(token) = &self.token {
            headers.insert(ACCESS_TOKEN_HEADER, token.clone());
        }
        loop {
            let kept = self.pool.idle.lock().pop();
            let Some(mut sender) = kept else { break };
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.answer(sender, response)),
                Err(mut why) => match why.take_message() {
                    // Closed in the meantime, and not a byte was sent: as if it had not been.
                    Some(unsent) => request = unsent,
                    None => return Err(why.into_error().into()),
                },
            }
        }
        let mut sender = self.pool.connect().await?;
        let response = sender.send_request(request).await.map_err(sending)?;
        Ok(self.answer(sender, response))
    }

    fn answer(&self, sender: Sender, response: Response<Incoming>) -> Answer {
        Answer {
            response,
            lease: Lease {
                sender,
                pool: Arc::clone(&self.pool),
            },
        }
    }
}

/// A failure that came from the body being sent is the caller's own.
fn sending(why: hyper::Error) -> Error {
    use std::error::Error as _;
    let source = why.source().and_then(|why| why.downcast_ref::<io::Error>());
    match source {
        Some(source) if why.is_user() => Error::Source(io::Error::new(source.kind(), why)),
        Some(_) | None => why.into(),
    }
}

impl Pool {
    async fn connect(&self) -> Result<Sender> {
        let stream = (self.dial)().await.map_err(Error::Unreachable)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        self.tasks.spawn(async move {
            // Its failure is that of the call it carries.
            connection.await.ok();
        });
        Ok(sender)
    }
}

/// A connection whose answer is being read.
pub(crate) struct Lease {
    sender: Sender,
    pool: Arc<Pool>,
}

impl Lease {
    /// Its answer was read to the end: the next call may use it.
    pub(crate) fn give_back(self) {
        let mut idle = self.pool.idle.lock();
        if idle.len() < IDLE && !self.sender.is_closed() {
            idle.push(self.sender);
        }
    }
}

/// An answer whose body has not been read.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
}

impl Answer {
    /// Everything up to the end of the body.
    pub(crate) async fn whole(self) -> Result<(http::response::Parts, Bytes)> {
        let (parts, body) = self.response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body.map_err(|why| match why.downcast::<hyper::Error>() {
            Ok(why) => Error::from(*why),
            Err(why) => Error::Protocol(why.to_string()),
        })?;
        self.lease.give_back();
        Ok((parts, body.to_bytes()))
    }

    /// The answer, if it is one of success; else what it says went wrong.
    pub(crate) async fn successful(self) -> Result<Self> {
        if self.response.status().is_success() {
            return Ok(self);
        }
        let (parts, body) = self.whole().await?;
        Err(refusal(parts.status, &body))
    }
}

/// What an answer without success says, in either of the two forms.
fn refusal(status: StatusCode, body: &[u8]) -> Error {
    if let Ok(why) = serde_json::from_slice::<wire::connect::Error>(body) {
        return why.into();
    }
    let message = match serde_json::from_slice::<wire::envd::HttpError>(body) {
        Ok(said) => said.message,
        Err(_) => format!("it answered {status}"),
    };
    Error::Refused {
        code: code_of(status),
        message,
    }
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}
