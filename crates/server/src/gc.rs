//! Images and captured layers that no record needs: found again and again, and removed after a
//! grace; by hand with `dormouse gc`.
//!
//! What records need is read from the store itself, not from a cache. A layer may be handed from
//! one record to another while they are read, so they are read until nothing has changed meanwhile,
//! and what any reading has seen counts. Besides, a thing goes only if no sweep of the last grace
//! has seen it needed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::Authenticator;
use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use images::{InUse, Kept, Origin, Reference, Sweep, Swept};
use kit::{Clock, Tasks};
use model::{
    Digest, Object, Sandbox, SandboxPool, SandboxSnapshot, SandboxTemplate, Spec, StringMap,
    Version, pool::PoolSpec, sandbox::SandboxSpec, snapshot::SnapshotSpec, template::TemplateSpec,
};
use runtime_local::LocalRuntime;
use serde::Deserialize;
use serde_json::{Value, json};
use store::{Store, StoreError, StoreExt as _};

use crate::admin::{refusal, refused};

/// How often records are read again because something changed meanwhile.
const READINGS: usize = 4;

/// How often a sweep is tried that something was in the way of.
const ATTEMPTS: usize = 5;
const AGAIN: Duration = Duration::from_millis(200);

/// Sweeps the images of one data directory.
#[derive(Debug)]
pub(crate) struct Collector {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: LocalRuntime,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) grace: Duration,
    pub(crate) admins: Authenticator,
}

impl Collector {
    /// Sweeps every `interval` until the server stops.
    pub(crate) fn start(self: &Arc<Self>, interval: Duration, tasks: &Tasks) {
        let (this, stop) = (Arc::clone(self), tasks.stopping().clone());
        tasks.spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(interval) => {}
                }
                match this.sweep(false, this.grace).await {
                    Ok(swept) if swept.is_empty() => {}
                    Ok(swept) => tracing::info!(
                        images = swept.images.len(),
                        blobs = swept.blobs.len(),
                        bytes = swept.bytes,
                        "removed what nothing led to"
                    ),
                    Err(error) => tracing::warn!(%error, "images were not swept"),
                }
            }
        });
    }

    async fn sweep(&self, dry_run: bool, grace: Duration) -> anyhow::Result<Swept> {
        let used = used(&*self.store).await?;
        let how = Sweep {
            dry_run,
            grace,
            at: self.clock.monotonic(),
        };
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            match self.runtime.sweep_images(how, used.clone()).await {
                // A process that was forked and has not executed yet holds the lock too.
                Err(error) if error.is_retryable() && left > 0 => {
                    tracing::debug!(%error, "images are swept in a moment");
                    tokio::time::sleep(AGAIN).await;
                }
                other => return Ok(other?),
            }
        }
    }
}

/// What the records of a store need.
///
/// # Errors
/// If it cannot be read.
pub(crate) async fn used(store: &dyn Store) -> Result<InUse, StoreError> {
    let mut used = InUse::from(Kept::Only(BTreeSet::new()));
    for _ in 0..READINGS {
        // Layers come from snapshots into sandboxes and the other way round.
        let first = read(store, &mut used, of_snapshot).await?;
        read(store, &mut used, of_sandbox).await?;
        read(store, &mut used, of_template).await?;
        let last = read(store, &mut used, of_pool).await?;
        if first == last {
            return Ok(used);
        }
    }
    read(store, &mut used, of_snapshot).await?;
    Ok(used)
}

async fn read<S: Spec>(
    store: &dyn Store,
    used: &mut InUse,
    note: fn(&mut InUse, &Object<S>),
) -> Result<Version, StoreError> {
    let (objects, version) = store
        .list_objects::<S>(&store::Query::kind(S::KIND))
        .await?;
    objects.iter().for_each(|object| note(used, object));
    Ok(version)
}

fn of_sandbox(used: &mut InUse, sandbox: &Sandbox) {
    let user = said::<SandboxSpec>(sandbox);
    sandbox
        .status
        .layers()
        .for_each(|layer| needs(used, layer, &user));
    images(used, &sandbox.spec.images, &user);
    images(used, &sandbox.spec.idle_images, &user);
}

fn of_snapshot(used: &mut InUse, snapshot: &SandboxSnapshot) {
    let user = said::<SnapshotSpec>(snapshot);
    for container in &snapshot.status.containers {
        needs(used, &container.digest, &user);
    }
    if let Some(recipe) = &snapshot.status.recipe {
        images(used, &recipe.images, &user);
    }
}

fn of_template(used: &mut InUse, template: &SandboxTemplate) {
    let user = said::<TemplateSpec>(template);
    image(used, &template.spec.image, &user);
}

fn of_pool(used: &mut InUse, pool: &SandboxPool) {
    images(used, &pool.spec.idle_images, &said::<PoolSpec>(pool));
}

fn said<S: Spec>(object: &Object<S>) -> String {
    let metadata = &object.metadata;
    match &metadata.namespace {
        Some(namespace) => format!("{} {namespace}/{}", S::KIND.0, metadata.name),
        None => format!("{} {}", S::KIND.0, metadata.name),
    }
}

fn needs(used: &mut InUse, layer: &Digest, user: &str) {
    used.add(layer, user);
    if let Kept::Only(kept) = &mut used.captures {
        kept.insert(layer.clone());
    }
}

fn images(used: &mut InUse, images: &StringMap, user: &str) {
    images.iter().for_each(|(_, name)| image(used, name, user));
}

/// Images have names that keep them; one that is asked for by its digest may have lost its own.
fn image(used: &mut InUse, name: &str, user: &str) {
    let digest = name.parse::<Reference>().ok();
    if let Some(digest) = digest.and_then(|name| name.digest().cloned()) {
        used.add(&digest, user);
        used.origins.push(Origin::Image { digest });
    }
}

/// Who asks for an image by this name.
///
/// # Errors
/// If the store cannot be read.
pub(crate) async fn users_of(store: &dyn Store, name: &str) -> Result<Vec<String>, StoreError> {
    let canonical = |name: &str| match name.parse::<Reference>() {
        Ok(reference) => reference.to_string(),
        Err(_) => name.to_owned(),
    };
    let wanted = canonical(name);
    let any = |images: &StringMap| images.iter().any(|(_, image)| canonical(image) == wanted);
    let mut users = Vec::new();
    let all = |kind| store::Query::kind(kind);
    let (sandboxes, _) = store
        .list_objects::<SandboxSpec>(&all(SandboxSpec::KIND))
        .await?;
    let asks = sandboxes
        .iter()
        .filter(|s| any(&s.spec.images) || any(&s.spec.idle_images));
    users.extend(asks.map(said));
    let (templates, _) = store
        .list_objects::<TemplateSpec>(&all(TemplateSpec::KIND))
        .await?;
    let asks = templates
        .iter()
        .filter(|t| canonical(&t.spec.image) == wanted);
    users.extend(asks.map(said));
    let (pools, _) = store.list_objects::<PoolSpec>(&all(PoolSpec::KIND)).await?;
    users.extend(pools.iter().filter(|p| any(&p.spec.idle_images)).map(said));
    let (snapshots, _) = store
        .list_objects::<SnapshotSpec>(&all(SnapshotSpec::KIND))
        .await?;
    let asks = snapshots.iter().filter(|s| {
        let recipe = s.status.recipe.as_ref();
        recipe.is_some_and(|recipe| any(&recipe.images))
    });
    users.extend(asks.map(said));
    Ok(users)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    #[serde(default)]
    dry_run: bool,
}

/// `POST /dormouse/gc?dryRun=true`, for administrators.
pub(crate) fn router(collector: Arc<Collector>) -> Router {
    Router::new()
        .route("/dormouse/gc", post(collect))
        .with_state(collector)
}

async fn collect(
    State(collector): State<Arc<Collector>>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = refused(&collector.admins, &headers) {
        return refusal;
    }
    // What it would do by itself, by now or later: the grace holds for whoever asks too.
    match collector.sweep(asked.dry_run, collector.grace).await {
        Ok(swept) => Json(shown(&swept)).into_response(),
        Err(error) => {
            tracing::warn!(%error, "images were not swept");
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            refusal(
                code,
                "InternalError",
                &format!("nothing was removed: {error}"),
            )
        }
    }
}

/// As `dormouse gc` prints it.
pub(crate) fn shown(swept: &Swept) -> Value {
    json!({
        "images": swept.images, "layers": swept.layers, "blobs": swept.blobs,
        "downloads": swept.partial, "bytes": swept.bytes, "kept": swept.kept,
    })
}
