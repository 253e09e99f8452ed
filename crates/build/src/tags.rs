//! Which build a name means, and deleting all of them.
//!
//! A tag is put on the build that should have it, and then taken from the one that had it. In
//! between both have it, and the newer one counts.

use std::{sync::Arc, time::Duration};

use cache::{PoolIndex, SandboxIndex};
use model::{
    Key, Name, Namespace, SandboxTemplate, Spec as _, Timestamp, Uid,
    lifecycle::{Traffic, traffic},
    snapshot::DEFAULT_TAG,
    template::{BuildTag, Built, TemplateSpec},
    validate::is_alias,
};
use store::{Deletion, Precondition, StoreError, StoreExt as _};
use tokio::time::Instant;

use crate::{
    ANNOTATION,
    builder::{Builder, plain},
    error::{Refused, Result},
};

const ATTEMPTS: usize = 16;
const CATCH_UP: Duration = Duration::from_secs(10);
/// The most tags that one build has.
pub(crate) const MAX_TAGS: usize = 64;

/// A tag and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// The tag.
    pub tag: Box<str>,
    /// The build.
    pub build: Uid,
    /// Since when.
    pub at: Timestamp,
}

/// What became of the record of a build that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// It is not there any more.
    Gone,
    /// Tags mean it: the build was ready.
    InUse,
}

impl Builder {
    /// The id of a team's own template of this name or id, if it was built.
    #[must_use]
    pub fn template_of(&self, team: &Namespace, name: &str) -> Option<Name> {
        let all = self.on.templates.find_all();
        all.iter().find_map(|record| {
            let build = own(team, record)?;
            let named = &*build.name == name || build.template.as_str() == name;
            named.then(|| build.template.clone())
        })
    }

    /// The records of a team's own template.
    fn records(&self, team: &Namespace, template: &Name) -> Vec<Arc<SandboxTemplate>> {
        let mut all = self.on.templates.find_all();
        all.retain(|record| own(team, record).is_some_and(|build| build.template == *template));
        all
    }

    /// The tags of a template and the builds they mean, by tag.
    ///
    /// # Errors
    /// If the team has no such template.
    pub fn tags(&self, team: &Namespace, name: &str) -> Result<Vec<Tagged>> {
        let template = self.known(team, name)?;
        let mut all: Vec<Tagged> = Vec::new();
        for record in self.records(team, &template) {
            let Some(build) = &record.spec.build else {
                continue;
            };
            for tag in &build.tags {
                let new = Tagged {
                    tag: tag.tag.clone(),
                    build: build.id,
                    at: tag.assigned_at,
                };
                match all.iter_mut().find(|known| known.tag == new.tag) {
                    Some(known) if known.at < new.at => *known = new,
                    Some(_) => {}
                    None => all.push(new),
                }
            }
        }
        all.sort_by(|a, b| a.tag.cmp(&b.tag));
        Ok(all)
    }

    fn known(&self, team: &Namespace, text: &str) -> Result<Name> {
        let unknown = || Refused::NotFound(format!("template {text:?}").into());
        let (name, _) = plain(team, text).map_err(|_| unknown())?;
        self.template_of(team, name).ok_or_else(unknown)
    }

    /// Puts tags on the build that `name[:tag]` means.
    ///
    /// # Errors
    /// If there is none, or a tag is none.
    pub async fn assign(
        &self,
        team: &Namespace,
        target: &str,
        tags: &[String],
    ) -> Result<(Uid, Vec<Box<str>>)> {
        let template = self.known(team, target)?;
        let (name, tag) = plain(team, target)?;
        let meant = tag.unwrap_or(DEFAULT_TAG);
        for tag in tags {
            if !is_alias(&format!("{name}:{tag}")) {
                let why = format!("{tag:?} is not a tag");
                return Err(Refused::bad("tags", why));
            }
        }
        if tags.is_empty() {
            return Err(Refused::bad("tags", "name at least one"));
        }
        let _alone = self.tagging.lock().await;
        let known = self.tags(team, name)?;
        let found = known.into_iter().find(|known| &*known.tag == meant);
        let Some(build) = found.map(|known| known.build) else {
            return Err(Refused::NotFound(format!("template {target:?}").into()));
        };
        let records = self.records(team, &template);
        let record = records
            .iter()
            .find(|record| record.spec.build.as_ref().is_some_and(|b| b.id == build))
            .ok_or_else(|| Refused::NotFound(format!("template {target:?}").into()))?;
        let tags: Vec<Box<str>> = tags.iter().map(|tag| tag.as_str().into()).collect();
        self.put(team, &template, &record.metadata.name, &tags)
            .await?;
        self.prune(team, &template).await;
        Ok((build, tags))
    }

    /// Takes tags away from a template.
    ///
    /// # Errors
    /// If there is no such template or tag, or nothing would be left of its name.
    pub async fn untag(&self, team: &Namespace, name: &str, tags: &[String]) -> Result<()> {
        let template = self.known(team, name)?;
        let _alone = self.tagging.lock().await;
        let known = self.tags(team, name)?;
        for tag in tags {
            if !known.iter().any(|known| *known.tag == **tag) {
                return Err(Refused::NotFound(
                    format!("tag {tag:?} of template {name:?}").into(),
                ));
            }
            if tag == DEFAULT_TAG {
                let why = "the tag \"default\" stays: it is what the name alone means";
                return Err(Refused::bad("tags", why));
            }
        }
        for record in self.records(team, &template) {
            self.take(&record.metadata.name, |tag| {
                tags.iter().any(|gone| **gone == *tag.tag)
            })
            .await?;
        }
        self.prune(team, &template).await;
        Ok(())
    }

    /// Puts tags on a build, which is ready from then on, and takes them from others. Whoever calls
    /// it holds `tagging`. If it answers an error, no tag was moved, unless the store does not know.
    pub(crate) async fn put(
        &self,
        team: &Namespace,
        template: &Name,
        record: &Name,
        tags: &[Box<str>],
    ) -> Result<()> {
        let others = self.records(team, template);
        let known = others.iter().filter_map(|other| other.spec.build.as_ref());
        let last = known
            .flat_map(|build| &build.tags)
            .map(|tag| tag.assigned_at)
            .max();
        // Also if the clock went back: what is put last counts.
        let after = last.map(|last| last.plus(Duration::from_micros(1)));
        let now = self.now().max(after.unwrap_or_else(|| self.now()));
        let mut full = false;
        self.amend(record, |next| {
            next.metadata.annotations.remove(ANNOTATION);
            let Some(build) = &mut next.spec.build else {
                return false;
            };
            build.tags.retain(|known| !tags.contains(&known.tag));
            build.tags.extend(tags.iter().map(|tag| BuildTag {
                tag: tag.clone(),
                assigned_at: now,
            }));
            full = build.tags.len() > MAX_TAGS;
            !full
        })
        .await?;
        if full {
            let why = format!("a build has at most {MAX_TAGS} of them");
            return Err(Refused::bad("tags", why));
        }
        for other in others {
            let name = &other.metadata.name;
            if name != record
                && let Err(error) = self.take(name, |tag| tags.contains(&tag.tag)).await
            {
                // It means the newer one all the same; the next move takes it away.
                tracing::warn!(%name, %error, "a build keeps a tag that another was given");
            }
        }
        Ok(())
    }

    async fn take(&self, record: &Name, which: impl Fn(&BuildTag) -> bool) -> Result<()> {
        self.amend(record, |next| {
            let Some(build) = &mut next.spec.build else {
                return false;
            };
            let before = build.tags.len();
            build.tags.retain(|tag| !which(tag));
            build.tags.len() != before
        })
        .await
    }

    /// Changes a template's record, if `change` says so.
    pub(crate) async fn amend(
        &self,
        record: &Name,
        mut change: impl FnMut(&mut SandboxTemplate) -> bool,
    ) -> Result<()> {
        let key = key_of(record);
        for _ in 0..ATTEMPTS {
            let Some(mut next) = self.on.store.find::<TemplateSpec>(&key).await? else {
                return Err(Refused::NotFound(format!("template {record}").into()));
            };
            if !change(&mut next) {
                return Ok(());
            }
            match self.on.store.update_spec(&next).await {
                Ok(written) => {
                    // Who asks next must see it; a cache that lags is not a failure to write.
                    let deadline = Instant::now() + CATCH_UP;
                    let caught = self
                        .on
                        .templates
                        .wait_for_version(written.version(), deadline);
                    let _ = caught.await;
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refused::Conflict(
            "the template is being changed by many at once: try again".into(),
        ))
    }

    /// Deletes a team's own template: its builds end, its records go. Answers whether there was one.
    ///
    /// # Errors
    /// If something is made from it, or the store fails.
    pub async fn delete(&self, team: &Namespace, text: &str) -> Result<bool> {
        let Ok((name, _)) = plain(team, text) else {
            return Ok(false);
        };
        let found = self.template_of(team, name);
        let Some(template) = found.or_else(|| self.requested(team, name)) else {
            return Ok(false);
        };
        let _alone = self.tagging.lock().await;
        let records = self.records(team, &template);
        for record in &records {
            if let Some(user) = self.user_of(&record.metadata.name) {
                return Err(Refused::Conflict(
                    format!("template {text:?} is in use by {user}: delete that first").into(),
                ));
            }
        }
        self.cancel(team, &template);
        for record in records {
            self.discard(&record.key()).await;
        }
        Ok(true)
    }

    /// Removes the builds of a template that no tag means and nothing is made from.
    pub(crate) async fn prune(&self, team: &Namespace, template: &Name) {
        for record in self.records(team, template) {
            let untagged = record
                .spec
                .build
                .as_ref()
                .is_some_and(|b| b.tags.is_empty());
            let under_way = record.metadata.annotations.contains_key(ANNOTATION);
            if untagged && !under_way && self.user_of(&record.metadata.name).is_none() {
                // As it was seen: whoever gave it a tag since means to use it.
                let seen = Precondition {
                    uid: record.metadata.uid,
                    version: Some(record.version()),
                };
                self.discard_if(&record.key(), seen).await;
            }
        }
    }

    /// What is made from a record, or could not be started again without it.
    fn user_of(&self, record: &Name) -> Option<String> {
        let sandboxes = &self.on.sandboxes;
        let alive = |s: &Arc<model::Sandbox>| {
            traffic(s) != Traffic::Dead && !s.metadata.annotations.contains_key(ANNOTATION)
        };
        let sandbox = sandboxes
            .find_by(SandboxIndex::Template, record.as_str())
            .into_iter()
            .find(alive);
        if let Some(sandbox) = sandbox {
            let id = sandbox.spec.sandbox_id.as_ref();
            let id = id.map_or(sandbox.metadata.name.as_str(), |id| id.as_str());
            return Some(format!("sandbox {id}"));
        }
        let pools = self.on.pools.find_by(PoolIndex::Template, record.as_str());
        if let Some(pool) = pools.first() {
            return Some(format!("pool {}", pool.metadata.name));
        }
        let snapshots = self.on.snapshots.find_all();
        let snapshot = snapshots.iter().find(|snapshot| {
            let recipe = snapshot.status.recipe.as_ref();
            let its = recipe.and_then(|recipe| recipe.template.as_ref());
            its == Some(record) && !snapshot.metadata.annotations.contains_key(ANNOTATION)
        });
        snapshot.map(|snapshot| format!("snapshot {}", snapshot.metadata.name))
    }

    /// Removes the record of a build, unless its tags have made it ready.
    pub(crate) async fn withdraw(&self, record: &Name) -> Withdrawn {
        let key = key_of(record);
        let backoff = kit::Backoff {
            first: Duration::from_millis(50),
            cap: Duration::from_secs(2),
        };
        for attempt in 1..=ATTEMPTS {
            let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
            match self.on.store.find::<TemplateSpec>(&key).await {
                Ok(None) => return Withdrawn::Gone,
                Ok(Some(found)) if found.metadata.is_deleting() => return Withdrawn::Gone,
                Ok(Some(found)) if !found.metadata.annotations.contains_key(ANNOTATION) => {
                    // Who hears that it is ready must find it.
                    let deadline = Instant::now() + CATCH_UP;
                    let seen = self
                        .on
                        .templates
                        .wait_for_version(found.version(), deadline);
                    let _ = seen.await;
                    return Withdrawn::InUse;
                }
                Ok(Some(found)) => {
                    let seen = Precondition {
                        uid: found.metadata.uid,
                        version: Some(found.version()),
                    };
                    self.discard_if(&key, seen).await;
                }
                Err(error) => tracing::warn!(%key, %error, attempt, "what a build left stays"),
            }
            tokio::time::sleep(backoff.delay(attempt, &self.on.entropy)).await;
        }
        Withdrawn::Gone
    }

    /// Removes a record, whatever it is at, and does not give up easily.
    pub(crate) async fn discard(&self, key: &Key) {
        self.discard_if(key, Precondition::default()).await;
    }

    /// The same, if it is what was seen.
    async fn discard_if(&self, key: &Key, seen: Precondition) {
        let backoff = kit::Backoff {
            first: Duration::from_millis(50),
            cap: Duration::from_secs(2),
        };
        for attempt in 1..=8 {
            match self.on.store.delete(key, seen).await {
                Ok(Deletion::Removed(record) | Deletion::Marked(record)) => {
                    let deadline = Instant::now() + CATCH_UP;
                    let version = record.version();
                    let _ = match key.kind {
                        TemplateSpec::KIND => {
                            self.on.templates.wait_for_version(version, deadline).await
                        }
                        _ => self.on.sandboxes.wait_for_version(version, deadline).await,
                    };
                    return;
                }
                Err(
                    StoreError::NotFound(_)
                    | StoreError::Conflict { .. }
                    | StoreError::OtherUid { .. },
                ) => return,
                Err(error) => tracing::warn!(%key, %error, attempt, "what a build left stays"),
            }
            tokio::time::sleep(backoff.delay(attempt, &self.on.entropy)).await;
        }
    }
}

/// The key of a template's record.
pub(crate) fn key_of(record: &Name) -> Key {
    Key {
        kind: TemplateSpec::KIND,
        namespace: None,
        name: record.clone(),
    }
}

/// The build behind a record, if it is a team's own.
fn own<'r>(team: &Namespace, record: &'r SandboxTemplate) -> Option<&'r Built> {
    let build = record.spec.built_by(team);
    build.filter(|_| !record.metadata.is_deleting())
}
