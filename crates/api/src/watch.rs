//! Watching: a stream of changes, one JSON object a line.
//!
//! The stream belongs to its response: when the client leaves, it is dropped and with it the
//! store's watch. It ends by itself at its timeout, when the server stops, and when the store has
//! forgotten changes it should have told; the client then continues from the last version it saw.

use std::{collections::VecDeque, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, header};
use model::Version;
use serde_json::{Value, json};
use store::{Record, Scope, StoreError, Watch, WatchEvent};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep_until},
};

use crate::{
    negotiate::View, params::Params, place::Place, read, refusal::Refusal, render::Renderer,
    resource_api::Api, selector::Selector, table,
};

/// A client may ask for less than the server's timeout, not for more than this.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn open(
    api: Api,
    place: Place,
    selector: Selector,
    renderer: Renderer,
    params: &Params,
) -> Result<Response, Refusal> {
    let from_start = api.catalogue.is_some() && params.is_on("sendInitialEvents")?;
    if api.catalogue.is_none() && params.get("sendInitialEvents").is_some() {
        // What a server without the feature answers; clients then list first.
        return Err(Refusal::invalid_option(
            "sendInitialEvents",
            "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        ));
    }
    if from_start && params.get("resourceVersionMatch") != Some("NotOlderThan") {
        return Err(Refusal::invalid_option(
            "resourceVersionMatch",
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    if params.get("resourceVersionMatch").is_some() && !from_start {
        return Err(Refusal::invalid_option(
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ));
    }
    if params.get("continue").is_some() {
        return Err(Refusal::bad_field(
            "continue",
            "a watch has no pages: leave it out",
        ));
    }
    let bookmarks = params.is_on("allowWatchBookmarks")?;
    let timeout = match params.number("timeoutSeconds")? {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds).min(LONGEST),
        Some(_) | None => api.limits.watch_timeout,
    };
    let Ok(permit) = Arc::clone(&api.watch_permits).try_acquire_owned() else {
        api.watches_refused
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        return Err(Refusal::too_many_watches(api.limits.watches));
    };
    let (initial, after) = match params.version()? {
        version if from_start || version.is_none_or(|v| v == Version::ZERO) => {
            let listing = read::find(&api, &selector, None, None).await?;
            (listing.records.into(), listing.version)
        }
        version => {
            let after = version.unwrap_or_default();
            let current = read::current_version(&api, place.served.kind()).await?;
            if after > current {
                return Err(Refusal::too_new(after, current));
            }
            (VecDeque::new(), after)
        }
    };
    let scope = Scope {
        kind: place.served.kind(),
        namespace: place.namespace,
    };
    let watch = match api.store.watch(scope, after).await {
        // As Kubernetes says it: the stream begins, and ends at once.
        Err(error @ StoreError::Expired { .. }) if api.catalogue.is_some() => {
            let status = Refusal::from(error).to_status();
            return Ok(streamed(Body::from(line("ERROR", &status))));
        }
        watch => watch?,
    };
    let now = Instant::now();
    let state = Open {
        bookmark_at: bookmarks.then(|| now + api.limits.bookmark_interval),
        deadline: now + timeout,
        api,
        watch,
        selector,
        renderer,
        initial,
        initial_end: from_start,
        at: after,
        headings: true,
        ended: false,
        _permit: permit,
    };
    let lines = stream::unfold(state, |mut state| async move {
        let line = state.next_line().await?;
        Some((Ok::<_, Infallible>(line), state))
    });
    Ok(streamed(Body::from_stream(lines)))
}

fn streamed(body: Body) -> Response {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// An open watch.
struct Open {
    api: Api,
    watch: Box<dyn Watch>,
    selector: Selector,
    renderer: Renderer,
    /// What there was when it began, still to be told.
    initial: VecDeque<Arc<Record>>,
    /// Whether the end of that is to be told.
    initial_end: bool,
    /// Everything up to here was told.
    at: Version,
    bookmark_at: Option<Instant>,
    deadline: Instant,
    /// Whether a table still needs its headings.
    headings: bool,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

enum Happened {
    Change(Result<WatchEvent, StoreError>),
    BookmarkDue,
    TimeOver,
    Stopping,
}

impl Open {
    async fn next_line(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        if let Some(record) = self.initial.pop_front() {
            return Some(self.told("ADDED", &record));
        }
        if std::mem::take(&mut self.initial_end) {
            let end = json!({"k8s.io/initial-events-end": "true"});
            return Some(self.bookmark(Some(end)));
        }
        loop {
            match self.wait().await {
                Happened::Change(Ok(event)) => {
                    self.at = event.version();
                    if let Some(line) = self.tell(&event) {
                        return Some(line);
                    }
                }
                Happened::Change(Err(error)) => {
                    self.ended = true;
                    let status = Refusal::from(error).to_status();
                    return Some(line("ERROR", &status));
                }
                Happened::BookmarkDue => {
                    self.bookmark_at = Some(Instant::now() + self.api.limits.bookmark_interval);
                    return Some(self.bookmark(None));
                }
                Happened::TimeOver | Happened::Stopping => {
                    self.ended = true;
                    // Lets the client continue from here, however quiet it was.
                    return self.bookmark_at.map(|_| self.bookmark(None));
                }
            }
        }
    }

    async fn wait(&mut self) -> Happened {
        let stopping = pin!(self.api.tasks.stopping().cancelled());
        let deadline = pin!(sleep_until(self.deadline));
        let bookmark = pin!(async {
            match self.bookmark_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        });
        tokio::select! {
            biased;
            () = stopping => Happened::Stopping,
            () = deadline => Happened::TimeOver,
            () = bookmark => Happened::BookmarkDue,
            change = self.watch.next() => Happened::Change(change),
        }
    }

    /// What a change means to this watcher: a record that begins to match appears, one that stops
    /// matching goes.
    fn tell(&mut self, event: &WatchEvent) -> Option<Bytes> {
        match event {
            WatchEvent::Put { record, previous } => {
                let was = previous.as_ref().filter(|p| self.selector.matches(p));
                match (was, self.selector.matches(record)) {
                    (None, true) => Some(self.told("ADDED", record)),
                    (Some(_), true) => Some(self.told("MODIFIED", record)),
                    (Some(was), false) => {
                        // As it was when it still matched, at the version of the change.
                        let mut last = Record::clone(was);
                        last.meta.resource_version = record.meta.resource_version;
                        Some(self.told("DELETED", &last))
                    }
                    (None, false) => None,
                }
            }
            WatchEvent::Removed { record } => self
                .selector
                .matches(record)
                .then(|| self.told("DELETED", record)),
            WatchEvent::Bookmark(_) => None,
        }
    }

    fn told(&mut self, what: &str, record: &Record) -> Bytes {
        let renderer = self.renderer.at(self.api.now());
        let headings = std::mem::replace(&mut self.headings, false);
        match renderer.one(record, headings) {
            Ok(object) => line(what, &object),
            Err(refusal) => {
                self.ended = true;
                line("ERROR", &refusal.to_status())
            }
        }
    }

    fn bookmark(&mut self, annotations: Option<Value>) -> Bytes {
        let mut metadata = json!({"resourceVersion": self.at, "creationTimestamp": null});
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        let served = self.renderer.served;
        let object = match self.renderer.view() {
            View::Object => json!({
                "kind": served.shown_kind(),
                "apiVersion": served.api_version(),
                "metadata": metadata,
            }),
            View::Partial => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }),
            View::Table => {
                let headings = std::mem::replace(&mut self.headings, false);
                json!({
                    "kind": "Table",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": self.at},
                    "columnDefinitions": if headings { table::headings(served) } else { Vec::new() },
                    "rows": [],
                })
            }
        };
        line("BOOKMARK", &object)
    }
}

fn line(what: &str, object: &Value) -> Bytes {
    let mut text = json!({"type": what, "object": object}).to_string();
    text.push('\n');
    text.into()
}
