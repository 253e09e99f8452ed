//! A SandboxRecord: one delivery of a sandbox, from its claim to its end.
//!
//! A sandbox that lives and one that has ended have the same shape. The record of an ended one is
//! durable before the sandbox is forgotten or its member idle again. Its name begins with the time
//! of the end, counted down, so that the order of names is from the newest to the oldest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Epoch, KindName, Name, SandboxId, StringMap, Timestamp, Uid,
    lifecycle::Phase,
    meta::{Condition, Object, Spec, is_default},
    sandbox::{Owner, Resources, Stopped},
};

/// A record of a delivery.
pub type SandboxRecord = Object<RecordSpec>;

/// What is known of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordSpec {
    /// What its owner calls it.
    pub sandbox_id: SandboxId,
    /// The sandbox that was delivered, in the record's own namespace.
    pub sandbox: Name,
    /// Its identity.
    #[schemars(with = "String")]
    pub uid: Uid,
    /// Which of the sandbox's deliveries it is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub epoch: Epoch,
    /// Whose it is.
    pub owner: Owner,
    /// Pool it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Name>,
    /// Template it is made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Name>,
    /// Where it is in its life; `Stopped` once it has ended.
    pub phase: Phase,
    /// When it was claimed or created for its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    /// When it was ready for its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When its member was clean and idle again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recycled_at: Option<Timestamp>,
    /// How and when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Stopped>,
    /// The images it ran, by container.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub images: StringMap,
    /// Free pairs of the owner's.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    pub metadata: StringMap,
    /// Its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

impl RecordSpec {
    /// The name of the record of a delivery that ended then: the later, the earlier in the order.
    #[must_use]
    pub fn name(&self, ended: Timestamp) -> Option<Name> {
        let first = Self::first_name(ended);
        // An id that cannot be in a name was not minted here; the uid and epoch are as good.
        Name::new(format!("{first}-{}", self.sandbox_id))
            .or_else(|_| Name::new(format!("{first}-{}", self.epoch.0)))
            .ok()
    }

    /// What comes before the names of all records of deliveries that ended then or earlier, and
    /// after those of all that ended later.
    #[must_use]
    pub fn first_name(ended: Timestamp) -> String {
        let counted_down = i64::MAX.saturating_sub(ended.as_micros().max(0));
        format!("{counted_down:016x}")
    }

    /// When the delivery ended whose record has this name.
    #[must_use]
    pub fn ended_at(name: &Name) -> Option<Timestamp> {
        let digits = name.as_str().get(..16)?;
        let counted_down = i64::from_str_radix(digits, 16).ok()?;
        Some(Timestamp::from_micros(i64::MAX - counted_down))
    }
}

impl Spec for RecordSpec {
    type Status = RecordStatus;
    const KIND: KindName = KindName("SandboxRecord");
    const SELECTABLE: &'static [&'static str] = &[
        "spec.owner.user",
        "spec.pool",
        "spec.sandboxId",
        "spec.template",
    ];

    fn fields(object: &Object<Self>) -> StringMap {
        let spec = &object.spec;
        [
            ("spec.owner.user", spec.owner.user.as_deref()),
            ("spec.pool", spec.pool.as_ref().map(Name::as_str)),
            ("spec.sandboxId", Some(spec.sandbox_id.as_str())),
            ("spec.template", spec.template.as_ref().map(Name::as_str)),
        ]
        .into_iter()
        .filter_map(|(path, value)| value.map(|value| (path, value)))
        .collect()
    }
}

/// What is observed of a record: nothing, for it is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordStatus {
    /// Observed aspects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
