//! Watching.
//!
//! ```text
//!  open ──▶ Open ──▶ a change or a bookmark ──▶ Open
//!    ▲        │ ended by the server, or cut off: open again from the last version, at once
//!    │        │ behind what this process wrote: nudge, then open for a short time
//!    └────────┘ a second failure in a row, or 410: told to the caller
//! ```
//!
//! Each change carries its version, so a stream that ends is opened again from the last one without a
//! gap. A failure to open is the caller's to know: it has a backoff and a health of its own.
//!
//! # Moving on when nothing happens
//!
//! Versions are of the whole cluster. Who wrote an object of one kind and waits until the watch of
//! another has passed that version waits for a bookmark, and an API server sends one about once a
//! minute, but also two seconds before a watch reaches the end it was opened with. So a watch that
//! stays behind what this process wrote is opened again from where it is, for three seconds. Before
//! that, as before every opening, it asks for a list of nothing: an API server that answers from its cache brings the cache up
//! to date first, and the bookmark says what the cache has reached. The version of the list itself is
//! no bookmark: changes up to it may still be on their way.
//!
//! # A cluster that went back
//!
//! One that is restored from a backup has older versions, and a watch from a version that it has not
//! reached hears nothing until it has. So whenever a stream is opened it is asked first how far the cluster
//! is: a version that is older than what was watched already means that what was read is no more. Whoever watches is told to list again, and the process that it has to begin anew
//! ([`KubeStore::went_back`]): its caches go by versions, too.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::{Buf as _, BytesMut};
use cluster_kube::{ClusterError, Reason};
use futures_util::future::BoxFuture;
use http::Method;
use http_body_util::BodyExt as _;
use kube::{client::Body, core::Status};
use model::{Incarnation, Key, Name, Version};
use serde::Deserialize;
use serde_json::value::RawValue;
use store::{Scope, StoreError, Watch, WatchEvent};
use tokio::{sync::watch, time::Instant};

use crate::{
    KubeStore, call,
    error::{self, Does},
    kinds::Kind,
    wire,
};

/// An API server ends a watch after this time.
const LONG: Duration = Duration::from_secs(290);
/// A watch that is opened for a bookmark ends after this time.
const SHORT: Duration = Duration::from_secs(3);
/// Past its end a watch is taken for dead.
const GRACE: Duration = Duration::from_secs(15);
/// An API server says something once a minute. A watch that hears nothing for longer is opened again:
/// a proxy may hold on to it and have nobody behind it. A connection that is dead ends by itself.
const SILENT: Duration = Duration::from_secs(90);
/// How long a watch may be behind what this process wrote before it asks for a bookmark.
const BEHIND: Duration = Duration::from_millis(150);
/// The shortest time between two such requests, while others keep writing.
const BETWEEN: Duration = Duration::from_secs(10);
/// A version that is too old is refused in the first event. It comes at once, or not at all.
const FIRST_WORD: Duration = Duration::from_millis(50);
/// A watch that ended this soon without a word is not opened again without a pause.
const TOO_SOON: Duration = Duration::from_secs(1);

impl KubeStore {
    pub(crate) async fn follow(
        &self,
        scope: Scope,
        after: Version,
    ) -> Result<Box<dyn Watch>, StoreError> {
        if after.incarnation() != Incarnation(0) {
            return Err(StoreError::Expired { after });
        }
        self.kinds.find(scope.kind)?;
        let mut watch = KubeWatch {
            store: self.clone(),
            wrote: self.progress.subscribe(),
            scope,
            at: after,
            state: State::Closed,
            behind_since: None,
            nudged: None,
        };
        let opening = watch.opening(LONG);
        let mut stream = opening.await?;
        // Cancelling this wait loses nothing: what arrived stays in the stream.
        let kind = self.kinds.find(watch.scope.kind)?;
        if let Ok(ready) = tokio::time::timeout(FIRST_WORD, stream.wait()).await {
            ready?;
            if let Some(error) = stream.peek_error(kind, after) {
                return Err(error);
            }
        }
        watch.state = State::Open(Box::new(stream));
        Ok(Box::new(watch))
    }
}

/// A watch that opens its stream again and again.
struct KubeWatch {
    store: KubeStore,
    scope: Scope,
    /// Everything up to here was told.
    at: Version,
    state: State,
    /// What this process wrote.
    wrote: watch::Receiver<Version>,
    /// Since when this watch is behind that.
    behind_since: Option<Instant>,
    /// When it last asked for a bookmark.
    nudged: Option<Instant>,
}

enum State {
    /// The next wait opens it.
    Closed,
    /// Kept here, so that a wait that is given up does not give up the opening.
    Opening(BoxFuture<'static, Result<Stream, StoreError>>),
    Open(Box<Stream>),
}

impl fmt::Debug for KubeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeWatch")
            .field("scope", &self.scope)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Watch for KubeWatch {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            let nudge = self.nudge_at();
            match &mut self.state {
                State::Closed => self.state = State::Opening(Box::pin(self.opening(LONG))),
                State::Opening(opening) => {
                    let opened = opening.await;
                    self.state = State::Closed;
                    self.state = State::Open(Box::new(opened?));
                }
                State::Open(stream) => {
                    let kind = self.store.kinds.find(self.scope.kind)?;
                    let event = tokio::select! {
                        biased;
                        event = stream.next(kind) => event,
                        // Cancelling the stream's wait for these loses nothing.
                        _ = self.wrote.changed() => continue,
                        () = sleep_until(nudge) => {
                            self.nudge();
                            continue;
                        }
                    };
                    match event {
                        Ok(Some(event)) if event.version() > self.at => {
                            self.at = event.version();
                            self.behind_since = None;
                            return Ok(event);
                        }
                        // An API server that is behind the others, or a cluster that went back: opening
                        // anew tells which.
                        Ok(Some(event)) if event.version() < self.at => self.state = State::Closed,
                        Ok(Some(_)) => {}
                        Ok(None) => self.ended()?,
                        Err(error) => {
                            self.state = State::Closed;
                            return Err(error);
                        }
                    }
                }
            }
        }
    }
}

impl KubeWatch {
    fn opening(&self, time: Duration) -> impl Future<Output = Result<Stream, StoreError>> + use<> {
        let (store, scope, at) = (self.store.clone(), self.scope.clone(), self.at);
        async move {
            let kind = store.kinds.find(scope.kind)?;
            if let Some(nothing) = nothing_of(&scope) {
                let now = store.newest_version(kind, &nothing).await?;
                store.past.check(now, at)?;
            }
            let path = kind.collection(scope.namespace.as_ref());
            Stream::open(&store, &path, at, time, &[]).await
        }
    }

    /// The stream ended, as streams do.
    fn ended(&mut self) -> Result<(), StoreError> {
        let State::Open(stream) = std::mem::replace(&mut self.state, State::Closed) else {
            return Ok(());
        };
        if stream.heard || stream.opened.elapsed() >= TOO_SOON {
            return Ok(());
        }
        Err(StoreError::Unavailable {
            outcome: store::Outcome::NotApplied,
            reason: "the API server ended a watch that it had just begun".into(),
        })
    }

    /// When to ask for a bookmark, if this watch is behind.
    fn nudge_at(&mut self) -> Option<Instant> {
        if *self.wrote.borrow_and_update() <= self.at {
            self.behind_since = None;
            return None;
        }
        let since = *self.behind_since.get_or_insert_with(Instant::now);
        let soonest = since + BEHIND;
        Some(
            self.nudged
                .map_or(soonest, |last| soonest.max(last + BETWEEN)),
        )
    }

    fn nudge(&mut self) {
        self.nudged = Some(Instant::now());
        self.state = State::Opening(Box::pin(self.opening(SHORT)));
    }
}

/// A key at which there is never anything.
fn nothing_of(scope: &Scope) -> Option<Key> {
    Some(Key {
        kind: scope.kind,
        namespace: scope.namespace.clone(),
        name: Name::new("nothing-has-this-name").ok()?,
    })
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// One answer to a watch: lines of JSON, as they come.
pub(crate) struct Stream {
    body: Body,
    read: BytesMut,
    /// Up to here there is no end of a line in what was read.
    searched: usize,
    over: bool,
    /// Whether anything came.
    heard: bool,
    opened: Instant,
    /// When something came last.
    heard_at: Instant,
    dead_at: Instant,
    after: Version,
}

#[derive(Deserialize)]
struct Line<'j> {
    #[serde(rename = "type")]
    what: &'j str,
    #[serde(borrow)]
    object: &'j RawValue,
}

#[derive(Deserialize)]
struct Head {
    metadata: HeadMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadMetadata {
    resource_version: String,
}

impl Stream {
    pub(crate) async fn open(
        store: &KubeStore,
        path: &str,
        after: Version,
        time: Duration,
        selectors: &[(&str, &str)],
    ) -> Result<Self, StoreError> {
        let (after_text, seconds) = (after.to_string(), time.as_secs().to_string());
        let mut query = vec![
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", &after_text),
            ("timeoutSeconds", &seconds),
        ];
        query.extend_from_slice(selectors);
        let unavailable = |e: &ClusterError| match e.reason() {
            Some(Reason::Expired) => StoreError::Expired { after },
            _ => error::unavailable(e, Does::Read),
        };
        let request = call::request(Method::GET, path, &query, Vec::new());
        let request = request.map_err(|e| unavailable(&e))?;
        let client = store.cluster.client();
        let answer = client.send(request.map(Body::from)).await;
        let answer = answer.map_err(|e| unavailable(&e.into()))?;
        let code = answer.status();
        if !code.is_success() {
            let text = answer.into_body().collect_bytes().await;
            let text = text.map_err(|e| unavailable(&e.into()))?;
            let status: Status = serde_json::from_slice(&text)
                .unwrap_or_else(|_| Status::failure("it gave no reason", ""));
            let status = status.with_code(code.as_u16()).boxed();
            return Err(unavailable(&kube::Error::Api(status).into()));
        }
        let opened = Instant::now();
        Ok(Self {
            body: answer.into_body(),
            read: BytesMut::new(),
            searched: 0,
            over: false,
            heard: false,
            opened,
            heard_at: opened,
            dead_at: opened + time + GRACE,
            after,
        })
    }

    /// The next event; `None` when the stream has ended. Cancelling the wait loses nothing.
    pub(crate) async fn next(&mut self, kind: &Kind) -> Result<Option<WatchEvent>, StoreError> {
        loop {
            self.wait().await?;
            let Some(end) = self.line_end() else {
                return Ok(None);
            };
            let line = self.read.split_to(end);
            self.read.advance(1);
            self.searched = 0;
            self.heard = true;
            if let Some(event) = self.event(kind, &line)? {
                return Ok(Some(event));
            }
        }
    }

    /// Waits until there is a whole line, or the end of the stream. Cancelling the wait loses nothing.
    async fn wait(&mut self) -> Result<(), StoreError> {
        while !self.over && self.line_end().is_none() {
            let dead_at = self.dead_at.min(self.heard_at + SILENT);
            let frame = tokio::select! {
                biased;
                frame = self.body.frame() => frame,
                () = tokio::time::sleep_until(dead_at) => None,
            };
            match frame {
                Some(Ok(frame)) => {
                    self.heard_at = Instant::now();
                    if let Ok(data) = frame.into_data() {
                        self.read.extend_from_slice(&data);
                    }
                }
                // How a stream was cut off does not matter: what it told holds, and the next one goes
                // on from there.
                Some(Err(_)) | None => self.over = true,
            }
        }
        Ok(())
    }

    fn line_end(&mut self) -> Option<usize> {
        let found = self.read[self.searched..].iter().position(|b| *b == b'\n');
        match found {
            Some(at) => Some(self.searched + at),
            None => {
                self.searched = self.read.len();
                None
            }
        }
    }

    /// The error that the stream begins with, if it does.
    fn peek_error(&mut self, kind: &Kind, after: Version) -> Option<StoreError> {
        let end = self.line_end()?;
        let line = self.read[..end].to_vec();
        let line: Line<'_> = serde_json::from_slice(&line).ok()?;
        (line.what == "ERROR").then(|| self.ended_by(kind, after, line.object))
    }

    fn ended_by(&self, kind: &Kind, after: Version, status: &RawValue) -> StoreError {
        let status: Status = serde_json::from_str(status.get()).unwrap_or_default();
        if Reason::of(&status) == Reason::Expired {
            return StoreError::Expired { after };
        }
        tracing::debug!(kind = %kind.info.kind, ?status, "a watch was ended");
        error::unavailable(&kube::Error::Api(status.boxed()).into(), Does::Read)
    }

    fn event(&self, kind: &Kind, line: &[u8]) -> Result<Option<WatchEvent>, StoreError> {
        let garbled = |e: serde_json::Error| error::garbled(e, Does::Read);
        let line: Line<'_> = serde_json::from_slice(line).map_err(garbled)?;
        let at = |object: &RawValue| -> Result<Version, StoreError> {
            let head: Head = serde_json::from_str(object.get()).map_err(garbled)?;
            wire::version(&head.metadata.resource_version)
                .ok_or_else(|| error::garbled("an event has no version", Does::Read))
        };
        let record = match line.what {
            "ADDED" | "MODIFIED" | "DELETED" => wire::record(kind, line.object.get()),
            "BOOKMARK" => return Ok(Some(WatchEvent::Bookmark(at(line.object)?))),
            "ERROR" => return Err(self.ended_by(kind, self.after, line.object)),
            // A newer API server may have more to say.
            _ => return Ok(None),
        };
        Ok(Some(match (line.what, record) {
            ("DELETED", Ok(record)) => WatchEvent::Removed { record },
            (_, Ok(record)) => WatchEvent::Put {
                record,
                previous: None,
            },
            (_, Err(error)) => {
                tracing::warn!(kind = %kind.info.kind, %error, "an object is left out");
                WatchEvent::Bookmark(at(line.object)?)
            }
        }))
    }
}
