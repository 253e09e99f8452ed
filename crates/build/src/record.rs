//! A build, as it is kept on disk.

use model::{
    Name, Namespace, Timestamp, Uid,
    sandbox::{Owner, Resources},
};
use serde::{Deserialize, Serialize};

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It has an id; what is to be built was not said yet, or it waits for its turn.
    Waiting,
    /// It runs.
    Building,
    /// Its template can be used.
    Ready,
    /// It failed.
    Error,
}

impl State {
    /// The word for it on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Error => "error",
        }
    }

    /// Whether nothing more happens to it.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Ready | Self::Error)
    }
}

/// Why a build is in its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// In words.
    pub message: String,
    /// `base`, the number of a step from 1 on, or `finalize`; none if it was none of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// A build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// Its id.
    pub id: Uid,
    /// The id of its template, which all builds of it share.
    pub template: Name,
    /// The name of its template.
    pub name: Box<str>,
    /// The tags that will mean it.
    pub tags: Vec<Box<str>>,
    /// Whose it is.
    pub owner: Owner,
    /// What sandboxes of it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How far it is.
    pub state: State,
    /// Whether it was said what is to be built.
    #[serde(default)]
    pub asked: bool,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

impl Build {
    /// The team.
    #[must_use]
    pub const fn team(&self) -> &Namespace {
        &self.owner.team
    }

    /// The name of its template record.
    ///
    /// # Errors
    /// Never, for ids that were made here.
    pub(crate) fn record(&self) -> Result<Name, model::ids::InvalidId> {
        let bits = self.id.to_u128() >> 96;
        Name::new(format!("{}-{bits:08x}", self.template))
    }
}
