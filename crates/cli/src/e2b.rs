//! A client of the E2B API, and of the agents in sandboxes behind the gateway.

mod access;
mod endpoint;

use std::time::Duration;

use agent_client::Client as Agent;
use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use kit::{Clock as _, SystemClock, Tasks};
use model::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::{io::AsyncReadExt as _, time::timeout};
use wire::{Secret, envd};

pub use access::Access;
use access::Who;
pub(crate) use endpoint::Endpoint;

/// A create may take the better part of a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// What answers to this has the time to do so.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// The most sandboxes that one request may ask about.
const PAGE: usize = 100;
/// How much of a file is read at once.
const PIECE: usize = 128 << 10;
/// What a sandbox that is woken has at least, in seconds.
const WOKEN_FOR: u32 = 300;

/// The API said no.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub(crate) struct Refused {
    /// The HTTP status.
    pub(crate) status: StatusCode,
    message: String,
}

impl Refused {
    /// Whether an error is a refusal with this status.
    pub(crate) fn is(error: &anyhow::Error, status: StatusCode) -> bool {
        let refused = error.downcast_ref::<Self>();
        refused.is_some_and(|refused| refused.status == status)
    }
}

/// The API of one server.
pub(crate) struct Api {
    endpoint: Endpoint,
    /// Where sandboxes are reached; none to follow the domain that the API names.
    sandboxes: Option<Endpoint>,
    who: Who,
    tasks: Tasks,
}

// Not derived: it holds a key or a token.
impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Api({})", self.endpoint.url())
    }
}

/// A sandbox, as far as the commands look at it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Found {
    #[serde(rename = "sandboxID")]
    pub(crate) id: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    domain: Option<String>,
    #[serde(default)]
    envd_access_token: Option<Secret>,
    #[serde(default)]
    pub(crate) traffic_access_token: Option<String>,
    #[serde(default)]
    network: Option<Network>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    #[serde(default)]
    allow_public_traffic: Option<bool>,
}

impl Found {
    pub(crate) fn is_asleep(&self) -> bool {
        self.state == "paused"
    }

    /// Whether its ports ask for a token.
    pub(crate) fn is_closed(&self) -> bool {
        let network = self.network.as_ref();
        network.is_some_and(|network| network.allow_public_traffic == Some(false))
    }
}

/// How a port of a sandbox is reached.
pub(crate) struct Way {
    pub(crate) endpoint: Endpoint,
    /// Below this; empty where the host says it all.
    pub(crate) prefix: String,
}

impl Api {
    pub(crate) fn new(endpoint: Endpoint, sandboxes: Option<Endpoint>, who: Who) -> Self {
        Self {
            endpoint,
            sandboxes,
            who,
            tasks: Tasks::default(),
        }
    }

    /// Whether it answers.
    pub(crate) async fn health(&self) -> anyhow::Result<()> {
        let asked = self.call(Method::GET, "/health", None);
        match timeout(HEALTH_TIMEOUT, asked).await {
            Ok(answer) => answer.map(|_| ()),
            Err(_) => bail!("the server at {} does not answer", self.endpoint.url()),
        }
    }

    /// Reads something.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(self.call(Method::GET, path, None).await?.1)
    }

    /// Has something done.
    pub(crate) async fn post(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        Ok(self.call(Method::POST, path, Some(&body)).await?.1)
    }

    /// Ends a sandbox.
    pub(crate) async fn kill(&self, id: &str) -> anyhow::Result<()> {
        let path = format!("/sandboxes/{id}");
        self.call(Method::DELETE, &path, None).await.map(|_| ())
    }

    /// Deletes something.
    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.call(Method::DELETE, path, None).await.map(|_| ())
    }

    /// Sends the content of a file, for as long as it takes.
    pub(crate) async fn put(&self, path: &str, content: std::fs::File) -> anyhow::Result<()> {
        let url = self.endpoint.url();
        let length = content.metadata().context("look at what is sent")?.len();
        let file = tokio::fs::File::from_std(content);
        let pieces = futures_util::stream::unfold(file, |mut file| async move {
            let mut piece = bytes::BytesMut::with_capacity(PIECE);
            match file.read_buf(&mut piece).await {
                Ok(0) => None,
                Ok(_) => Some((Ok(Frame::data(piece.freeze())), file)),
                Err(error) => Some((Err(error), file)),
            }
        });
        let request = Request::builder()
            .method(Method::PUT)
            .uri(path)
            .header(header::HOST, self.endpoint.authority())
            .header(header::CONTENT_LENGTH, length)
            .body(StreamBody::new(pieces).boxed_unsync())?;
        let stream = self.endpoint.dial().await;
        let stream = stream.with_context(|| format!("connect to {url}"))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        self.tasks.spawn(async move {
            // Its failure reaches whoever waits for the answer.
            let _ = connection.await;
        });
        let answer = sender.send_request(request).await?;
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await?.to_bytes();
        match parts.status.is_success() {
            true => Ok(()),
            false => Err(self.refused(parts.status, &bytes)),
        }
    }

    /// All pages of a list of sandboxes. `query` narrows it.
    pub(crate) async fn list(&self, query: &[(&str, &str)]) -> anyhow::Result<Vec<Value>> {
        self.pages("/v2/sandboxes", query).await
    }

    /// All pages of a list.
    pub(crate) async fn pages(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<Vec<Value>> {
        let mut all = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let limit = PAGE.to_string();
            let token = next.as_deref().map(|token| ("nextToken", token));
            let pairs = query.iter().copied().chain([("limit", limit.as_str())]);
            let path = with_query(path, pairs.chain(token));
            let (headers, page) = self.call(Method::GET, &path, None).await?;
            let Value::Array(page) = page else {
                bail!("the server answered a list that is none");
            };
            all.extend(page);
            let token = headers.get("x-next-token").and_then(|t| t.to_str().ok());
            let Some(token) = token else { return Ok(all) };
            next = Some(token.to_owned());
        }
    }

    /// What sandboxes used last, by id.
    pub(crate) async fn metrics(&self, ids: &[String]) -> anyhow::Result<Value> {
        let mut all = json!({});
        for some in ids.chunks(PAGE) {
            let path = with_query("/sandboxes/metrics", [("sandbox_ids", &*some.join(","))]);
            let mut answer = self.get(&path).await?;
            if let (Some(all), Some(page)) =
                (all.as_object_mut(), answer["sandboxes"].as_object_mut())
            {
                all.append(page);
            }
        }
        Ok(all)
    }

    /// The sandbox with this id, or with the only one that begins so.
    pub(crate) async fn find(&self, word: &str) -> anyhow::Result<Found> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if word.is_empty() || !word.bytes().all(plain) {
            bail!("{word:?} is not the id of a sandbox: `dormouse sandbox ls` shows them");
        }
        let detail = async |id: &str| {
            let detail = self.get(&format!("/sandboxes/{id}")).await?;
            serde_json::from_value(detail).context("read the sandbox")
        };
        match detail(word).await {
            Err(error) if Refused::is(&error, StatusCode::NOT_FOUND) => {}
            other => return other,
        }
        let all = self.list(&[]).await?;
        let ids = all.iter().filter_map(|s| s["sandboxID"].as_str());
        let some: Vec<&str> = ids.filter(|id| id.starts_with(word)).collect();
        match some.as_slice() {
            [id] => detail(id).await,
            [] => bail!("there is no sandbox {word}: `dormouse sandbox ls` shows those there are"),
            several => bail!(
                "{word} could be any of {}: write more of it",
                several.join(", ")
            ),
        }
    }

    /// The sandbox with this id, woken if it sleeps.
    pub(crate) async fn awake(&self, word: &str) -> anyhow::Result<Found> {
        let found = self.find(word).await?;
        if !found.is_asleep() {
            return Ok(found);
        }
        crate::progress::slow("Waking the sandbox", self.connect(&found)).await
    }

    /// A sandbox with its tokens. One that sleeps is woken.
    pub(crate) async fn connect(&self, found: &Found) -> anyhow::Result<Found> {
        let path = format!("/v2/sandboxes/{}/connect", found.id);
        // Nothing moves no deadline, for it never moves one closer.
        let timeout = if found.is_asleep() { WOKEN_FOR } else { 0 };
        let answer = self.post(&path, json!({"timeout": timeout})).await?;
        serde_json::from_value(answer).context("read the sandbox")
    }

    /// How a port of a sandbox is reached by others than the commands.
    pub(crate) fn way(&self, found: &Found, port: u16) -> anyhow::Result<Way> {
        if let (Some(domain), None) = (&found.domain, &self.sandboxes) {
            return Ok(Way {
                endpoint: Endpoint::parse(&format!("https://{port}-{}.{domain}", found.id))?,
                prefix: String::new(),
            });
        }
        let endpoint = self.sandboxes.as_ref().unwrap_or(&self.endpoint);
        Ok(Way {
            endpoint: endpoint.clone(),
            prefix: format!("/-/{}/{port}", found.id),
        })
    }

    /// The agent of a sandbox.
    pub(crate) fn agent(&self, found: &Found) -> anyhow::Result<Agent> {
        let endpoint = self.way(found, envd::PORT)?.endpoint;
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, endpoint.authority());
        headers.insert("e2b-sandbox-id", HeaderValue::from_str(&found.id)?);
        headers.insert("e2b-sandbox-port", envd::PORT.into());
        let agent = Agent::new(move || {
            let endpoint = endpoint.clone();
            async move { endpoint.dial().await }
        });
        let agent = agent.carrying(headers);
        Ok(match &found.envd_access_token {
            Some(token) => agent.with_token(token)?,
            None => agent,
        })
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(HeaderMap, Value)> {
        let url = self.endpoint.url();
        let request = self.request(method, path, body)?;
        let exchange = async {
            let stream = self.endpoint.dial().await.map_err(|e| {
                anyhow!("no server answers at {url}: {e}; start one with `dormouse serve`")
            })?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            self.tasks.spawn(async move {
                // Its failure reaches whoever waits for the answer.
                let _ = connection.await;
            });
            let talk = || format!("talk to the server at {url}");
            let answer = sender.send_request(request).await.with_context(talk)?;
            let (parts, body) = answer.into_parts();
            anyhow::Ok((parts, body.collect().await.with_context(talk)?.to_bytes()))
        };
        let (parts, bytes) = timeout(ANSWER_TIMEOUT, exchange)
            .await
            .map_err(|_| anyhow!("the server at {url} did not answer in time"))??;
        if !parts.status.is_success() {
            return Err(self.refused(parts.status, &bytes));
        }
        let value = match bytes.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&bytes).context("the answer is not JSON")?,
        };
        Ok((parts.headers, value))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.endpoint.authority())
            .header(
                header::USER_AGENT,
                concat!("dormouse/", env!("CARGO_PKG_VERSION")),
            );
        request = match &self.who {
            Who::Key(key) => request.header("x-api-key", key.reveal()),
            Who::Admin { token, team, .. } => request
                .header(header::AUTHORIZATION, format!("Bearer {}", token.reveal()))
                .header("x-dormouse-team", team),
        };
        let mut bytes = Bytes::new();
        if let Some(value) = body {
            request = request.header(header::CONTENT_TYPE, "application/json");
            bytes = serde_json::to_vec(value)?.into();
        }
        // What is wrong with a header could be a part of a key.
        let request = request.body(Full::new(bytes));
        request.map_err(|_| anyhow!("E2B_API_KEY or the team has characters that cannot be sent"))
    }

    /// What the server said, with what to do about it where that is known.
    fn refused(&self, status: StatusCode, bytes: &[u8]) -> anyhow::Error {
        let body: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let message = match body["message"].as_str() {
            Some(message) => message.to_owned(),
            None => format!("the server answered {status} without saying why"),
        };
        let refused = anyhow::Error::new(Refused { status, message });
        match (status, &self.who) {
            (StatusCode::UNAUTHORIZED, Who::Key(_)) => refused.context(
                "the key in E2B_API_KEY is not one this server knows: `dormouse key create` \
                 makes one, and without the variable the commands use the server's own token",
            ),
            (StatusCode::UNAUTHORIZED, Who::Admin { kubeconfig, .. }) => refused.context(format!(
                "the token in {} is not one this server knows; a server writes its kubeconfig at \
                 each start, so take the newest",
                kubeconfig.display()
            )),
            (StatusCode::TOO_MANY_REQUESTS, _) => refused.context(
                "the team has as much as it may have: `dormouse sandbox ls` shows it, and \
                 `dormouse sandbox kill` or `pause` makes room",
            ),
            (_, _) => refused,
        }
    }
}

/// The moment so many seconds ago, as queries name one.
pub(crate) fn ago(seconds: u32) -> String {
    let now = SystemClock::default().wall_micros();
    let then = now.saturating_sub(i64::from(seconds) * 1_000_000);
    Timestamp::from_micros(then).to_string()
}

/// A path with a query.
pub(crate) fn with_query<'a>(
    path: &str,
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs);
    match query.finish() {
        none if none.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}
