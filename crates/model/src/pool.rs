//! A SandboxPool: sandboxes kept ready, so that a claim takes one write.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Generation, KindName, Name, StringMap, Timestamp,
    autoscale::{Autoscale, AutoscaleStatus},
    event::Warning,
    hook::Hook,
    limits,
    meta::{Condition, Object, Spec, is_default},
    sandbox::{Resources, Timeouts},
    template::ImagePullPolicy,
    trouble::Trouble,
};

/// A pool of ready sandboxes.
pub type SandboxPool = Object<PoolSpec>;

/// Held by control until every member is gone.
pub const POOL_FINALIZER: &str = "dormouse.dev/members";
/// Label on each member, with the pool's name.
pub const POOL_LABEL: &str = "dormouse.dev/pool";
/// Label on each member, with the revision of the template it was made from.
pub const REVISION_LABEL: &str = "dormouse.dev/revision";

/// What is wanted of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// Template its members are made from.
    pub template: Name,
    /// At least this many wait to be claimed.
    pub min_idle: u32,
    /// At most this many wait; more are removed.
    pub max_idle: u32,
    /// At most this many exist, claimed ones included.
    pub max: u32,
    /// How the number of idle members follows demand; absent means it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<Box<Autoscale>>,
    /// Images its members idle on, by container, in place of the template's. The template's are put
    /// in their place for whoever claims one, unless the claim names others.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::PINNED_IMAGE }>)]
    pub idle_images: StringMap,
    /// When images of its members are pulled, in place of what the template says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Limits of each member, in place of the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How a changed template reaches idle members.
    #[serde(default, skip_serializing_if = "is_default")]
    pub update_strategy: UpdateStrategy,
    /// What happens to a released member.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recycle_policy: RecyclePolicy,
    /// Timeouts of a claim that names none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub default_timeouts: Timeouts,
    /// What a request that names this pool gets while no member is idle.
    #[serde(default, skip_serializing_if = "is_default")]
    pub when_empty: WhenEmpty,
    /// How claims wait for members.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queue: QueuePolicy,
    /// Labels and annotations of the template that its members do not get, by key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::LABEL_KEYS), inner(length(max = limits::LABEL_KEY)))]
    pub ignore_template_keys: Vec<Box<str>>,
    /// What is done inside a member before who claimed it hears of it, besides what the template
    /// says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
}

impl PoolSpec {
    /// A pool of members of a template, with everything else as it is unless said otherwise.
    #[must_use]
    pub fn new(template: Name, min_idle: u32, max_idle: u32, max: u32) -> Self {
        Self {
            template,
            min_idle,
            max_idle,
            max,
            autoscale: None,
            idle_images: StringMap::new(),
            image_pull_policy: None,
            resources: None,
            update_strategy: UpdateStrategy::default(),
            recycle_policy: RecyclePolicy::default(),
            default_timeouts: Timeouts::default(),
            when_empty: WhenEmpty::default(),
            queue: QueuePolicy::default(),
            ignore_template_keys: Vec::new(),
            hooks: Vec::new(),
        }
    }
}

impl Spec for PoolSpec {
    type Status = PoolStatus;
    const KIND: KindName = KindName("SandboxPool");
    const SELECTABLE: &'static [&'static str] = &["spec.template"];

    fn fields(object: &Object<Self>) -> StringMap {
        [("spec.template", object.spec.template.as_str())]
            .into_iter()
            .collect()
    }
}

/// How a changed template reaches idle members. Claimed ones are never touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// Per cent of the idle members that may be replaced at a time; at least one is.
    pub max_unavailable_percent: u8,
}

impl Default for UpdateStrategy {
    fn default() -> Self {
        Self {
            max_unavailable_percent: 20,
        }
    }
}

/// What happens to a released member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RecyclePolicy {
    /// It is destroyed and replaced.
    #[default]
    Destroy,
    /// It goes back to the pool, once nothing of its last owner is left; else it is destroyed.
    Recycle,
}

/// What a request that names a pool gets while no member is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenEmpty {
    /// A sandbox made for it, outside of the pool.
    #[default]
    Create,
    /// A place in the pool's queue. The pool makes members for those that wait, up to its `max`.
    Queue,
}

/// How claims wait for members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueuePolicy {
    /// At most this many wait; more are turned away.
    pub limit: u32,
    /// How many turns in a row those of one user have, by the user's or else the key's name; one
    /// that is not named has one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<Box<str>, u32>,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            limit: 1024,
            weights: BTreeMap::new(),
        }
    }
}

/// What is observed of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolStatus {
    /// The spec generation this was observed at.
    #[serde(skip_serializing_if = "is_default")]
    pub observed_generation: Generation,
    /// All members.
    pub total: u32,
    /// Members being started.
    pub starting: u32,
    /// Members that can be claimed now.
    pub idle: u32,
    /// Members that have an owner.
    pub claimed: u32,
    /// Members on their way out, or back to idle.
    pub stopping: u32,
    /// Members that failed.
    pub failed: u32,
    /// Claims that wait for a member.
    #[serde(skip_serializing_if = "is_default")]
    pub waiting_claims: u32,
    /// How it follows demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<Box<AutoscaleStatus>>,
    /// Members that ended before anybody had them, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<Box<Failing>>,
    /// Revision of the template that new members are made from.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub revision: Box<str>,
    /// Why it is not at its target; empty when it is.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub why: Box<str>,
    /// Observed aspects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What was wrong of late: only in the answer to a request for this one object.
    #[serde(skip_serializing_if = "<[Warning]>::is_empty")]
    pub recent_warnings: Box<[Warning]>,
}

/// Members that end before anybody has them are replaced later each time, until one comes up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    /// How often in a row members that ended were replaced.
    pub times: u32,
    /// When that was last.
    pub at: Timestamp,
    /// Why the last of them ended, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Trouble>,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub message: Box<str>,
}
