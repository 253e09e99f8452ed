//! Snapshots: the files of a sandbox under an id, and under a name if it was given one.
//!
//! A snapshot is created from like a template. Its id is `record:default`, or `team/name:tag` while it
//! is what that name means: the newest of the name. One that a newer one took the name from is still
//! there under its record's id. A name that a template or a pool has is never a snapshot's.
//!
//! A snapshot that its client did not hear of is removed: nobody would know its id.

mod named;

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use cache::WaitError;
use http::{HeaderValue, StatusCode};
use model::{
    Key, Metadata, Name, Sandbox, SandboxId, SandboxSnapshot, Timestamp,
    snapshot::{SnapshotPhase, SnapshotSpec},
};
use store::{Deletion, Precondition, StoreError, StoreExt as _};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    body,
    list::{MAX_PAGE, NEXT_TOKEN},
    refusal::Refusal,
    route::{Answer, Call, Param, json, nothing},
    service::E2b,
    wire::NewSnapshot,
};

pub(crate) use named::Start;

pub(crate) const QUERY: &[Param] = &[
    Param::new("sandboxID", "Taken of this sandbox"),
    Param::new("name", "With this name or id; of any tag, if it names none"),
    Param::new("limit", "1 to 100; 100 if absent"),
    Param::new("nextToken", "Continue after the page that gave this"),
];

/// Annotation on a snapshot that only a fork needs: it is nobody's to see, and goes with the fork.
pub(crate) const FORK_ANNOTATION: &str = "dormouse.dev/fork";
/// How often a removal that nobody waits for is tried while the store is unavailable.
const REMOVALS: u32 = 8;
const CATCH_UP: Duration = Duration::from_secs(10);

/// `POST /sandboxes/{id}/snapshots`.
pub(crate) async fn create(call: Call) -> Answer {
    let asked: NewSnapshot = body::parse_or_default(&call.body)?;
    let api = Arc::clone(&call.api);
    let team = call.caller.team.clone();
    if asked.memory == Some(true) {
        let why = "a snapshot keeps files, not memory: leave it out, or say false, and what is \
                   created from it starts its processes anew";
        return Err(Refusal::bad_field("memory", why));
    }
    api.can_capture("snapshots")?;
    let source = api.find_live(&team, call.subject())?;
    let name = asked.name.as_deref().filter(|name| !name.is_empty());
    let alias = name.map(|name| api.new_alias(&team, name)).transpose()?;
    let mut wanted = api.snapshot_of(&source)?;
    wanted.spec.alias = alias;
    let (mut tell, hear) = oneshot::channel();
    let work = Arc::clone(&api);
    api.tasks.spawn(async move {
        let key = wanted.key();
        let taken = tokio::select! {
            biased;
            taken = work.take(&source, wanted) => taken,
            () = tell.closed() => return work.discard_snapshot(&key).await,
        };
        if tell.send(taken).is_err() {
            work.discard_snapshot(&key).await;
        }
    });
    let taken = hear.await.unwrap_or_else(|_| {
        Err(Refusal::internal(
            "the request failed unexpectedly: see the server's log",
        ))
    })?;
    json(StatusCode::CREATED, &api.render_snapshot(&team, &taken))
}

/// `GET /snapshots`.
pub(crate) async fn list(call: Call) -> Answer {
    let (api, team, query) = (&call.api, &call.caller.team, &call.query);
    let limit = query.number("limit", 1, MAX_PAGE)?.unwrap_or(MAX_PAGE);
    let limit = usize::try_from(limit).unwrap_or(1);
    let after = query.get("nextToken").map(read_token).transpose()?;
    let of = query.get("sandboxID");
    let named = query.get("name");
    let mut page: Vec<_> = api
        .snapshots(team)
        .into_iter()
        .filter(|snapshot| of.is_none_or(|id| is_of(snapshot, id)))
        .filter(|snapshot| named.is_none_or(|text| api.is_named(team, snapshot, text)))
        .map(|snapshot| (mark_of(&snapshot), snapshot))
        .filter(|(mark, _)| after.as_ref().is_none_or(|after| mark < after))
        .collect();
    // By what never changes, newest first, so that pages neither skip nor repeat.
    page.sort_by(|(a, _), (b, _)| b.cmp(a));
    let more = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| more);
    let next = next.and_then(|(mark, _)| write_token(mark));
    let rendered: Vec<_> = page
        .iter()
        .map(|(_, snapshot)| api.render_snapshot(team, snapshot))
        .collect();
    let mut response = json(StatusCode::OK, &rendered)?;
    if let Some(token) = next {
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    Ok(response)
}

/// `DELETE /templates/{id}`: of a snapshot, or of a template that the team has built. Others belong
/// to the installation.
pub(crate) async fn delete(call: Call) -> Answer {
    let api = Arc::clone(&call.api);
    let (team, text) = (&call.caller.team, call.subject());
    let found = api.all_meant(team, text);
    if found.is_empty() {
        return crate::builds::delete(&call).await;
    }
    let work = Arc::clone(&api);
    let removed = api
        .outlive(async move {
            let mut removed = false;
            for snapshot in found {
                let only = Precondition {
                    uid: snapshot.metadata.uid,
                    version: None,
                };
                removed |= work.remove_snapshot(&snapshot.key(), only).await?;
            }
            Ok(removed)
        })
        .await?;
    match removed {
        true => Ok(nothing()),
        false => Err(Refusal::no_template(text)),
    }
}

impl E2b {
    /// Refuses where the runtime cannot keep files without memory.
    pub(crate) fn can_capture(&self, what: &str) -> Result<(), Refusal> {
        match self.options.filesystem_pause {
            true => Ok(()),
            false => Err(Refusal::filesystem_only(
                what,
                "this server cannot keep the files of a sandbox without its memory",
            )),
        }
    }

    /// A new snapshot of a delivery.
    pub(crate) fn snapshot_of(&self, source: &Sandbox) -> Result<SandboxSnapshot, Refusal> {
        let id = SandboxId::from_random(self.entropy.u128());
        let name = Name::new(format!("s{id}"))
            .map_err(|_| Refusal::internal("an id could not be made"))?;
        let spec = SnapshotSpec {
            sandbox_id: source.spec.sandbox_id.clone(),
            ..SnapshotSpec::of(source.metadata.name.clone())
        };
        let meta = Metadata::new(source.metadata.namespace.clone(), name);
        Ok(SandboxSnapshot::new(meta, spec))
    }

    /// Takes a snapshot, and waits until it is ready. One that failed, or took too long, is removed.
    pub(crate) async fn take(
        &self,
        source: &Sandbox,
        wanted: SandboxSnapshot,
    ) -> Result<Arc<SandboxSnapshot>, Refusal> {
        let key = wanted.key();
        let deadline = Instant::now() + self.options.operation_timeout;
        let taken = self.write_and_wait(&wanted, deadline).await;
        let refusal = match taken {
            Ok(Some(ready)) if ready.status.phase == SnapshotPhase::Ready => return Ok(ready),
            Ok(Some(failed)) => self.why_not_taken(source, &failed),
            Ok(None) => Refusal::conflict("the snapshot was deleted while it was being taken"),
            Err(refusal) => refusal,
        };
        self.discard_snapshot(&key).await;
        Err(refusal)
    }

    async fn write_and_wait(
        &self,
        wanted: &SandboxSnapshot,
        deadline: Instant,
    ) -> Result<Option<Arc<SandboxSnapshot>>, Refusal> {
        let written = self.store.create_object(wanted).await?;
        let snapshots = &self.caches.snapshots;
        let settled = |snapshot: Option<&SandboxSnapshot>| {
            snapshot.is_none_or(|snapshot| {
                matches!(
                    snapshot.status.phase,
                    SnapshotPhase::Ready | SnapshotPhase::Failed
                )
            })
        };
        let waited = async {
            let seen = snapshots.wait_for_version(written.version(), deadline);
            seen.await?;
            snapshots.wait_for(&wanted.key(), settled, deadline).await
        };
        waited.await.map_err(|error| match error {
            WaitError::DeadlineReached { .. } => {
                Refusal::unavailable("the snapshot was not ready in time and was removed")
                    .not_to_be_repeated()
            }
            error @ WaitError::CacheStopped(_) => error.into(),
        })
    }

    /// A sandbox that is there no more says so itself; any other reason is the snapshot's.
    fn why_not_taken(&self, source: &Sandbox, failed: &SandboxSnapshot) -> Refusal {
        let team = source.metadata.namespace.as_ref();
        let id = source.spec.sandbox_id.as_ref();
        match team
            .zip(id)
            .map(|(team, id)| self.find_live(team, id.as_str()))
        {
            Some(Err(gone)) => gone,
            Some(Ok(_)) | None => Refusal::operation_failed("captured", &failed.status.reason),
        }
    }

    /// Removes a snapshot. Answers whether there was one.
    pub(crate) async fn remove_snapshot(
        &self,
        key: &Key,
        only: Precondition,
    ) -> Result<bool, StoreError> {
        match self.store.delete(key, only).await {
            Ok(Deletion::Removed(record) | Deletion::Marked(record)) => {
                // Who asks next must find it gone; a cache that lags is not a failure to remove.
                let deadline = Instant::now() + CATCH_UP;
                let snapshots = &self.caches.snapshots;
                let _ = snapshots.wait_for_version(record.version(), deadline).await;
                Ok(true)
            }
            Err(StoreError::NotFound(_) | StoreError::OtherUid { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a snapshot that nobody was told of, and does not give up easily.
    pub(crate) async fn discard_snapshot(&self, key: &Key) {
        let backoff = kit::Backoff {
            first: Duration::from_millis(50),
            cap: Duration::from_secs(5),
        };
        for attempt in 1..=REMOVALS {
            match self.remove_snapshot(key, Precondition::default()).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%key, %error, attempt, "a snapshot was not removed");
                }
            }
            tokio::time::sleep(backoff.delay(attempt, &self.entropy)).await;
        }
        tracing::error!(%key, "a snapshot that nobody was told of is left");
    }
}

fn is_of(snapshot: &SandboxSnapshot, id: &str) -> bool {
    // Old clients append the id of a client.
    let plain = id.split_once('-').map_or(id, |(id, _)| id);
    let source = snapshot.status.source.as_ref();
    let its = source.and_then(|source| source.sandbox_id.as_ref());
    its.is_some_and(|its| [id, plain].contains(&its.as_str()))
}

/// Where a snapshot stands in a list.
type Mark = (Timestamp, Name);

fn mark_of(snapshot: &SandboxSnapshot) -> Mark {
    let meta = &snapshot.metadata;
    let made = meta.creation_timestamp;
    (made.unwrap_or(Timestamp::from_micros(0)), meta.name.clone())
}

fn write_token((made, name): &Mark) -> Option<HeaderValue> {
    HeaderValue::from_str(&BASE64_URL_SAFE_NO_PAD.encode(format!("{made}__{name}"))).ok()
}

fn read_token(token: &str) -> Result<Mark, Refusal> {
    let read = || {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token.trim_end_matches('='));
        let text = String::from_utf8(bytes.ok()?).ok()?;
        let (made, name) = text.split_once("__")?;
        Some((made.parse().ok()?, Name::new(name).ok()?))
    };
    read().ok_or_else(|| Refusal::bad_field("nextToken", "it is not one that a list gave"))
}
