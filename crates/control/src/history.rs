//! Keeps what a delivery was, before its sandbox is forgotten or its member idle again.
//!
//! The record's name comes from the delivery and from when it ended, so a turn that dies between
//! keeping it and going on keeps it once.

use std::{cmp::Reverse, time::Duration};

use model::{
    Key, Metadata, Sandbox, SandboxRecord, Spec as _, Timestamp,
    record::RecordSpec,
    sandbox::{BUILD_ANNOTATION, Resources},
    template::TemplateSpec,
};
use store::{Precondition, Query, StoreError, StoreExt as _};

use crate::world::{Done, World, lost};

/// Records that are looked at in one go.
const PAGE: usize = 1000;

/// How much history there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long a record is kept.
    pub keep: Duration,
    /// The most records that are kept, of all teams together; the oldest go first.
    pub most: usize,
    /// How often what is too old or too much is looked for.
    pub every: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(7 * 24 * 3600),
            most: 100_000,
            every: Duration::from_secs(600),
        }
    }
}

/// Makes the record of the delivery that is over durable, where there was one.
pub(crate) async fn keep(
    world: &World,
    sandbox: &Sandbox,
    recycled: Option<Timestamp>,
) -> Result<(), Done> {
    let now = world.now();
    let limits = limits(world, sandbox);
    let Some(spec) = plan::history::finished(sandbox, limits, recycled, now) else {
        return Ok(());
    };
    let at = spec.ended.as_ref().map_or(now, |ended| ended.at);
    let Some(name) = spec.name(at) else {
        tracing::error!(key = %sandbox.key(), "a delivery has no record: it cannot be named");
        return Ok(());
    };
    // Before it is durable that it is over: after a crash they hear of it twice, never not at all.
    world.plugins.on_release(sandbox).await;
    let mut meta = Metadata::new(sandbox.metadata.namespace.clone(), name);
    if let Some(build) = sandbox.metadata.annotations.get(BUILD_ANNOTATION) {
        meta.annotations.insert(BUILD_ANNOTATION, build);
    }
    let record = SandboxRecord::new(meta, spec);
    match world.ports.store.create_object(&record).await {
        Ok(_) | Err(StoreError::AlreadyExists(_)) => Ok(()),
        Err(error) => Err(lost(&record.key(), &error)),
    }
}

fn limits(world: &World, sandbox: &Sandbox) -> Option<Resources> {
    let template = world.caches.templates.find(&Key {
        kind: TemplateSpec::KIND,
        namespace: None,
        name: sandbox.spec.template.clone()?,
    })?;
    template.spec.resources
}

/// Forgets what is older than it has to be, and the oldest of what is too much.
///
/// # Errors
/// If the store cannot be read; the next sweep tries again.
pub(crate) async fn sweep(world: &World) -> Result<(), StoreError> {
    let Retention { keep, most, .. } = world.options.history;
    let store = &world.ports.store;
    let mut found = Vec::new();
    let mut query = Query {
        limit: Some(PAGE),
        ..Query::kind(RecordSpec::KIND)
    };
    loop {
        let page = store.list(&query).await?.records;
        // Names say when: the records themselves need not be read.
        let known = page.iter().filter_map(|record| {
            let ended = RecordSpec::ended_at(&record.meta.name)?;
            Some((ended, record.key(), record.uid()))
        });
        found.extend(known);
        let Some(last) = page.last().filter(|_| page.len() == PAGE) else {
            break;
        };
        query.after = Some((last.meta.namespace.clone(), last.meta.name.clone()));
    }
    found.sort_by_key(|(ended, _, _)| Reverse(*ended));
    let now = world.now();
    for (at, (ended, key, uid)) in found.iter().enumerate() {
        if at >= most || now.since(*ended) >= keep {
            let only_if = Precondition {
                uid: Some(*uid),
                version: None,
            };
            // One that is gone already is as good; one that cannot go now goes the next time.
            let _ = store.delete(key, only_if).await;
        }
    }
    Ok(())
}
