//! What snapshots are called, and what a name means.

use std::sync::Arc;

use cache::{SnapshotIndex, Term};
use model::{
    Key, Name, Namespace, Sandbox, SandboxSnapshot, Spec as _,
    sandbox::SandboxSpec,
    snapshot::{DEFAULT_TAG, Recipe, SnapshotPhase, SnapshotSpec},
    validate::is_alias,
};

use super::FORK_ANNOTATION;
use crate::{names::Meant, refusal::Refusal, service::E2b, wire::SnapshotInfo};

/// What a sandbox that starts from a snapshot takes over from it.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    snapshot: Name,
    recipe: Recipe,
}

impl Start {
    fn of(snapshot: &SandboxSnapshot) -> Option<Self> {
        Some(Self {
            snapshot: snapshot.metadata.name.clone(),
            recipe: snapshot.status.recipe.as_deref()?.clone(),
        })
    }

    /// As a sandbox was made itself, from a snapshot that is to be taken of it.
    pub(crate) fn again(source: &Sandbox, snapshot: &Name) -> Self {
        let spec = &source.spec;
        let before = source.status.origin.as_ref().map(|origin| &origin.recipe);
        let template = spec.template.as_ref();
        Self {
            snapshot: snapshot.clone(),
            recipe: Recipe {
                template: template.or_else(|| before?.template.as_ref()).cloned(),
                image_pull_policy: spec.image_pull_policy.or_else(|| before?.image_pull_policy),
                resources: spec.resources.or_else(|| before?.resources),
                ..Recipe::default()
            },
        }
    }

    /// The template that is behind it, or else its own name.
    pub(crate) fn template(&self) -> Name {
        let template = self.recipe.template.as_ref();
        template.unwrap_or(&self.snapshot).clone()
    }

    /// Makes a sandbox start from it. Its images are the snapshot's own.
    pub(crate) fn apply(&self, spec: &mut SandboxSpec) {
        spec.snapshot = Some(self.snapshot.clone());
        spec.template = self.recipe.template.clone();
        spec.resources = self.recipe.resources;
        spec.image_pull_policy = self.recipe.image_pull_policy;
    }
}

impl E2b {
    /// The alias that a client means by a name.
    pub(super) fn new_alias(&self, team: &Namespace, text: &str) -> Result<Box<str>, Refusal> {
        let Some((name, tag)) = said(team, text) else {
            return Err(Refusal::bad_field(
                "name",
                "it names another team: leave that out",
            ));
        };
        let alias = format!("{name}:{}", tag.unwrap_or(DEFAULT_TAG));
        if !is_alias(&alias) {
            let why = "use lower-case letters, digits, - and _, and a tag after a colon if need be";
            return Err(Refusal::bad_field("name", why));
        }
        let taken = self
            .meant(team, name)
            .is_ok_and(|meant| meant.start.is_none());
        match taken {
            true => Err(Refusal::conflict(format!(
                "name: a template or a pool is called {name:?}: use another"
            ))),
            false => Ok(alias.into()),
        }
    }

    /// The ready snapshots of a team.
    pub(super) fn snapshots(&self, team: &Namespace) -> Vec<Arc<SandboxSnapshot>> {
        let mut all = self
            .caches
            .snapshots
            .find_by(SnapshotIndex::Team, team.as_str());
        all.retain(|snapshot| is_shown(snapshot));
        all
    }

    /// Those that have an alias, the one that it means last.
    fn with_alias(&self, team: &Namespace, alias: &str) -> Vec<Arc<SandboxSnapshot>> {
        let term = Term::within(Some(team), alias);
        let mut all = self.caches.snapshots.find_by(SnapshotIndex::Alias, term);
        all.retain(|snapshot| is_shown(snapshot));
        all.sort_by_key(|s| (s.status.captured_at, s.metadata.name.clone()));
        all
    }

    /// What a client means by the id or the name of a snapshot, as what to create from.
    pub(crate) fn start_meant(&self, team: &Namespace, text: &str) -> Option<Meant> {
        let start = Start::of(&*self.all_meant(team, text).pop()?)?;
        let template = start.template();
        Some(Meant {
            found: self.template(team, &template),
            template,
            pool: None,
            start: Some(start),
        })
    }

    /// Everything that goes with an id or a name: one snapshot, or all that ever had the alias.
    pub(super) fn all_meant(&self, team: &Namespace, text: &str) -> Vec<Arc<SandboxSnapshot>> {
        let Some((name, tag)) = said(team, text) else {
            return Vec::new();
        };
        let tag = tag.unwrap_or(DEFAULT_TAG);
        let record = Name::new(name).ok().filter(|_| tag == DEFAULT_TAG);
        let record = record.and_then(|name| {
            let key = Key::namespaced(SnapshotSpec::KIND, team.clone(), name);
            self.caches.snapshots.find(&key)
        });
        match record.filter(|snapshot| is_shown(snapshot)) {
            Some(snapshot) => vec![snapshot],
            None => self.with_alias(team, &format!("{name}:{tag}")),
        }
    }

    /// Whether a snapshot is among those that a filter by name means.
    pub(super) fn is_named(
        &self,
        team: &Namespace,
        snapshot: &SandboxSnapshot,
        text: &str,
    ) -> bool {
        let Some((name, tag)) = said(team, text) else {
            return false;
        };
        let is_record = snapshot.metadata.name.as_str() == name;
        let by_id = is_record && tag.is_none_or(|tag| tag == DEFAULT_TAG);
        let by_alias = self
            .alias_of(team, snapshot)
            .is_some_and(|(known, its)| known == name && tag.is_none_or(|tag| tag == its));
        by_id || by_alias
    }

    /// The alias that means a snapshot now.
    fn alias_of<'s>(
        &self,
        team: &Namespace,
        snapshot: &'s SandboxSnapshot,
    ) -> Option<(&'s str, &'s str)> {
        let alias = snapshot.spec.alias()?;
        let newest = self
            .with_alias(team, snapshot.spec.alias.as_deref()?)
            .pop()?;
        (newest.metadata.uid == snapshot.metadata.uid).then_some(alias)
    }

    pub(super) fn render_snapshot(
        &self,
        team: &Namespace,
        snapshot: &SandboxSnapshot,
    ) -> SnapshotInfo {
        match self.alias_of(team, snapshot) {
            Some((name, tag)) => {
                let full = format!("{team}/{name}:{tag}");
                SnapshotInfo {
                    snapshot_id: full.clone(),
                    names: vec![full],
                }
            }
            None => SnapshotInfo {
                snapshot_id: format!("{}:{DEFAULT_TAG}", snapshot.metadata.name),
                names: Vec::new(),
            },
        }
    }
}

/// The name and the tag of `[team/]name[:tag]`; `None` if it is another team's.
fn said<'t>(team: &Namespace, text: &'t str) -> Option<(&'t str, Option<&'t str>)> {
    let (name, tag) = match text.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (text, None),
    };
    let name = match name.split_once('/') {
        Some((of, name)) => (of == team.as_str()).then_some(name)?,
        None => name,
    };
    Some((name, tag))
}

fn is_shown(snapshot: &SandboxSnapshot) -> bool {
    snapshot.status.phase == SnapshotPhase::Ready
        && !snapshot.metadata.is_deleting()
        && !snapshot.metadata.annotations.contains_key(FORK_ANNOTATION)
        && !snapshot
            .metadata
            .annotations
            .contains_key(build::ANNOTATION)
}
