//! HTTPS to one server, trusting that server's CA and nobody else's.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use kit::Tasks;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use thiserror::Error;
use tokio::{net::TcpStream, sync::Mutex, time::timeout};
use tokio_rustls::TlsConnector;

use crate::kubeconfig::{Credentials, Target};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks for rows and columns, with JSON as what to do where there are none.
pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
/// Asks for objects.
pub(crate) const JSON: &str = "application/json";
/// A patch in the form of what it changes.
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";

/// The server's refusal, as it states it.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    /// The HTTP status.
    pub(crate) code: u16,
    /// One word, as `NotFound`.
    pub(crate) reason: String,
    message: String,
    causes: Vec<(String, String)>,
}

impl Refusal {
    /// From a `Status` object, or whatever else the body was.
    pub(crate) fn from_status(code: u16, body: &Value) -> Self {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let message = match text("message") {
            empty if empty.is_empty() => format!("the server answered {code} without saying why"),
            message => message,
        };
        let causes = body["details"]["causes"].as_array().into_iter().flatten();
        let causes = causes.map(|cause| {
            let text = |name: &str| cause[name].as_str().unwrap_or_default().to_owned();
            (text("field"), text("message"))
        });
        Self {
            code,
            reason: text("reason"),
            message,
            causes: causes.collect(),
        }
    }

    /// Fields and what is wrong with them, where the message does not say it already.
    pub(crate) fn details(&self) -> impl Iterator<Item = (&str, &str)> {
        let known = |text: &str| self.message.contains(text);
        self.causes
            .iter()
            .map(|(field, message)| (field.as_str(), message.as_str()))
            .filter(move |(field, message)| !(known(field) && known(message)))
    }

    /// Whether an error is a refusal with this HTTP status.
    pub(crate) fn is(error: &anyhow::Error, code: StatusCode) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|refusal| refusal.code == code.as_u16())
    }
}

/// What is sent: known in whole, or as it comes.
pub(crate) type Sent = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) fn whole(bytes: Bytes) -> Sent {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A client of one server.
pub(crate) struct Client {
    target: Target,
    kubeconfig: PathBuf,
    host: String,
    port: u16,
    tls: TlsConnector,
    // One connection is enough for commands that ask one thing after the other.
    idle: Mutex<Option<SendRequest<Sent>>>,
    tasks: Tasks,
}

// Not derived: it holds a token.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.target.server)
    }
}

impl Client {
    /// A client of the server that a kubeconfig describes. Nothing is sent yet.
    pub(crate) fn new(target: Target, kubeconfig: PathBuf) -> anyhow::Result<Self> {
        let wrong = || {
            format!(
                "`{}` in {} is not a server",
                target.server,
                kubeconfig.display()
            )
        };
        let uri: Uri = target.server.parse().with_context(wrong)?;
        let host = uri
            .host()
            .with_context(wrong)?
            .trim_matches(['[', ']'])
            .to_owned();
        // A token must never travel in the clear.
        if uri.scheme_str() != Some("https") {
            bail!("{}: it must begin with https://", wrong());
        }
        let mut roots = RootCertStore::empty();
        CertificateDer::from_pem_slice(target.ca_pem.as_bytes())
            .map_err(anyhow::Error::from)
            .and_then(|ca| Ok(roots.add(ca)?))
            .with_context(|| format!("the CA in {} is damaged", kubeconfig.display()))?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match &target.who {
            Credentials::Token(_) => config.with_no_client_auth(),
            Credentials::Certificate { chain_pem, key_pem } => {
                let damaged = || {
                    format!(
                        "the client certificate in {} is damaged",
                        kubeconfig.display()
                    )
                };
                let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes());
                let chain = chain.collect::<Result<_, _>>().with_context(damaged)?;
                let key =
                    PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).with_context(damaged)?;
                config
                    .with_client_auth_cert(chain, key)
                    .with_context(damaged)?
            }
        };
        Ok(Self {
            port: uri.port_u16().unwrap_or(443),
            host,
            target,
            kubeconfig,
            tls: TlsConnector::from(Arc::new(config)),
            idle: Mutex::new(None),
            tasks: Tasks::default(),
        })
    }

    /// The namespace to use when none is given.
    pub(crate) fn default_namespace(&self) -> &str {
        &self.target.namespace
    }

    /// Reads JSON.
    pub(crate) async fn get(&self, path: &str, accept: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, accept, None).await
    }

    /// Sends a request, with a body of a media type, and reads the JSON it answers.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, &Value)>,
    ) -> anyhow::Result<Value> {
        let late = || {
            anyhow!(
                "the server at {} did not answer in time",
                self.target.server
            )
        };
        let request = self.request(method, path, accept, body)?;
        let answer = async {
            let response = self.send(request).await?;
            let status = response.status();
            let bytes = response
                .into_body()
                .collect()
                .await
                .context("read the answer")?;
            anyhow::Ok((status, bytes.to_bytes()))
        };
        let (status, bytes) = timeout(ANSWER_TIMEOUT, answer)
            .await
            .map_err(|_| late())??;
        self.judge(status, &bytes)
    }

    /// Opens a stream of JSON lines, on a connection of its own.
    pub(crate) async fn stream(&self, path: &str, accept: &str) -> anyhow::Result<Lines> {
        let request = self.request(Method::GET, path, accept, None)?;
        self.open(request).await
    }

    /// Sends what may be large, and reads an answer that may be so, too, as it comes.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Sent,
    ) -> anyhow::Result<Lines> {
        let request = self.request(method, path, JSON, None)?;
        self.open(request.map(|_| body)).await
    }

    async fn open(&self, request: Request<Sent>) -> anyhow::Result<Lines> {
        let path = request.uri().path().to_owned();
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await;
        let response = response.with_context(|| format!("ask for {path}"))?;
        let status = response.status();
        let body = response.into_body();
        if status != StatusCode::OK {
            let bytes = body.collect().await.context("read the answer")?.to_bytes();
            self.judge(status, &bytes)?;
            bail!("the server answered {status} to {path}");
        }
        Ok(Lines {
            body,
            buffer: BytesMut::new(),
            _sender: sender,
        })
    }

    fn judge(&self, status: StatusCode, bytes: &[u8]) -> anyhow::Result<Value> {
        if status.is_success() {
            return serde_json::from_slice(bytes).context("the answer is not JSON");
        }
        let body = serde_json::from_slice(bytes).unwrap_or_default();
        let refusal = Refusal::from_status(status.as_u16(), &body);
        if status == StatusCode::UNAUTHORIZED {
            // The causes of a refusal stay with it, so the hint goes around it.
            return Err(refusal).with_context(|| {
                format!(
                    "the token in {} is not one this server knows; a server writes its kubeconfig \
                     at each start, so take the newest",
                    self.kubeconfig.display()
                )
            });
        }
        Err(refusal.into())
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, &Value)>,
    ) -> anyhow::Result<Request<Sent>> {
        let authority = if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, authority)
            .header(header::ACCEPT, accept)
            .header(
                header::USER_AGENT,
                concat!("dormouse/", env!("CARGO_PKG_VERSION")),
            );
        if let Credentials::Token(token) = &self.target.who {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let mut bytes = Bytes::new();
        if let Some((media_type, value)) = body {
            request = request.header(header::CONTENT_TYPE, media_type);
            bytes = serde_json::to_vec(value)?.into();
        }
        request
            .body(whole(bytes))
            .with_context(|| format!("ask for {path}"))
    }

    async fn send(&self, request: Request<Sent>) -> anyhow::Result<Response<Incoming>> {
        let mut idle = self.idle.lock().await;
        let mut usable = None;
        if let Some(mut sender) = idle.take()
            && sender.ready().await.is_ok()
        {
            usable = Some(sender);
        }
        let mut sender = match usable {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let response = sender
            .send_request(request)
            .await
            .with_context(|| format!("talk to the server at {}", self.target.server))?;
        *idle = Some(sender);
        Ok(response)
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Sent>> {
        let server = &self.target.server;
        let from = self.kubeconfig.display();
        let dial = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port))
                .await
                .map_err(|e| {
                    anyhow!(
                        "no server answers at {server} (named in {from}): {e}; start one with \
                     `dormouse serve`"
                    )
                })?;
            stream.set_nodelay(true)?;
            let name = self.target.tls_name.as_ref().unwrap_or(&self.host);
            let name = ServerName::try_from(name.clone())?;
            let stream = self.tls.connect(name, stream).await.map_err(|e| {
                anyhow!("what answers at {server} is not the server that {from} describes: {e}")
            })?;
            let io = TokioIo::new(stream);
            anyhow::Ok(hyper::client::conn::http1::handshake(io).await?)
        };
        let (sender, connection) = timeout(CONNECT_TIMEOUT, dial).await.map_err(|_| {
            anyhow!("the server at {server} (named in {from}) did not answer in time")
        })??;
        self.tasks.spawn(async move {
            // Its failure reaches whoever waits for an answer.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

/// A stream of JSON, one value a line.
#[derive(Debug)]
pub(crate) struct Lines {
    body: Incoming,
    buffer: BytesMut,
    // The connection lasts as long as somebody could still send on it.
    _sender: SendRequest<Sent>,
}

impl Lines {
    /// The next bytes, whatever they are.
    pub(crate) async fn bytes(&mut self) -> anyhow::Result<Option<Bytes>> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.context("read the answer")?.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The next value, `None` when the server has ended the stream.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return serde_json::from_slice(&line)
                    .map(Some)
                    .context("a line of the watch is not JSON");
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.context("read the watch")?;
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}
