//! A SandboxTemplate: what sandboxes are made from. It belongs to the whole installation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Generation, KindName, Name, Namespace, StringMap, Timestamp, Uid,
    hook::Hook,
    limits,
    meta::{Condition, Object, Spec, is_default},
    sandbox::{PausePolicy, Resources},
    snapshot::DEFAULT_TAG,
};

/// A template.
pub type SandboxTemplate = Object<TemplateSpec>;

/// What sandboxes made from a template are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateSpec {
    /// The image of the main container.
    #[schemars(length(max = limits::PINNED_IMAGE))]
    pub image: Box<str>,
    /// When the image is pulled.
    #[serde(default, skip_serializing_if = "is_default")]
    pub image_pull_policy: ImagePullPolicy,
    /// What isolates its sandboxes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub runtime_class: RuntimeClass,
    /// Whether programs inside may raise their privileges, up to root inside.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sudo: bool,
    /// Command started at boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::WORDS), inner(length(max = limits::WORD)))]
    pub start_command: Vec<Box<str>>,
    /// Command that succeeds once the sandbox is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::WORDS), inner(length(max = limits::WORD)))]
    pub ready_command: Vec<Box<str>>,
    /// What is done inside a sandbox before its owner hears of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Environment given to every process.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::VARIABLE }>)]
    pub env: StringMap,
    /// User that commands run as; absent means `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::USER))]
    pub user: Option<Box<str>>,
    /// Directory that commands run in; absent means the user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::PATH))]
    pub workdir: Option<Box<str>>,
    /// How its sandboxes sleep, unless they say otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_policy: Option<Box<PausePolicy>>,
    /// Teams that may use it; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TEAMS))]
    pub teams: Vec<Namespace>,
    /// Other names it answers to besides its own, each as `name` or `name:tag`. A name of a
    /// template goes before an alias, and of several with the same alias the first by name is meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ALIASES), inner(length(max = limits::ALIAS)))]
    pub aliases: Vec<Box<str>>,
    /// The build that made it; absent where it was written by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Box<Built>>,
}

impl TemplateSpec {
    /// The names and tags it answers to besides its own name.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.aliases.iter().map(|alias| &**alias);
        let all = all.map(|alias| alias.split_once(':').unwrap_or((alias, DEFAULT_TAG)));
        all.chain(self.build.iter().flat_map(|build| build.aliases()))
    }

    /// The build that made it, if it is a team's own.
    #[must_use]
    pub fn built_by(&self, team: &Namespace) -> Option<&Built> {
        let build = self.build.as_deref()?;
        let is_own = match &build.team {
            Some(builder) => builder == team,
            None => self.teams == [team.clone()],
        };
        is_own.then_some(build)
    }
}

/// The build that made a template. Each build of one is a record of its own, and they share an id
/// and a name; tags say which of them is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Built {
    /// The id that its builds share.
    pub template: Name,
    /// The name that its builds share.
    #[schemars(length(max = limits::ALIAS))]
    pub name: Box<str>,
    /// The team that built it, and may build it again, whoever else may use it. Absent in records of
    /// before, where it is the only one that may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<Namespace>,
    /// Which build this is.
    #[schemars(with = "String")]
    pub id: Uid,
    /// The tags that mean this build. One that two builds have means where it was put last. Without
    /// any, nobody finds it by the name: it is being built, or another took its tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ALIASES))]
    pub tags: Vec<BuildTag>,
}

impl Built {
    /// The names and tags it answers to.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = |tag| [(&*self.name, tag), (self.template.as_str(), tag)];
        self.tags.iter().flat_map(move |tag| names(&*tag.tag))
    }

    /// When a tag was put on it; none if it does not have it.
    #[must_use]
    pub fn tagged_at(&self, tag: &str) -> Option<Timestamp> {
        let found = self.tags.iter().find(|known| &*known.tag == tag);
        found.map(|tag| tag.assigned_at)
    }
}

/// A tag of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildTag {
    /// The tag.
    #[schemars(length(max = limits::ALIAS))]
    pub tag: Box<str>,
    /// When it was put on this build.
    pub assigned_at: Timestamp,
}

impl Spec for TemplateSpec {
    type Status = TemplateStatus;
    const KIND: KindName = KindName("SandboxTemplate");
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// Where it is not there yet.
    #[default]
    IfNotPresent,
    /// At each start, to learn what its tag names now.
    Always,
    /// Never.
    Never,
}

/// What isolates a sandbox on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RuntimeClass {
    /// The built-in engine.
    #[default]
    Native,
    /// The OCI runtime `runc`.
    Runc,
    /// gVisor's `runsc`: a kernel of its own.
    Runsc,
}

/// What is observed of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TemplateStatus {
    /// The spec generation this was observed at.
    #[serde(skip_serializing_if = "is_default")]
    pub observed_generation: Generation,
    /// Observed aspects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
