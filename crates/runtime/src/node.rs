//! What is said between a control loop and what works for it on the nodes of a cluster: the daemon
//! that freezes and thaws, and the worker that captures.
//!
//! | Request of the daemon | Answer |
//! |---|---|
//! | `POST /v1/freeze`, `POST /v1/thaw` with a [`Target`] | [`Standing`] after it |
//! | `GET /v1/state?containerId=…` | [`Standing`] |
//! | `GET /healthz` | whether containerd answers |
//!
//! Whatever is not done is answered with a [`Refusal`]. A worker says how it went in one [`Report`].
//!
//! Every order has a [`Rank`], and a node keeps the highest for each container: what somebody had on
//! its way who does not lead any more is refused where it arrives.

use std::{fmt, num::ParseIntError, str::FromStr};

use model::{Digest, workload::Fence};
use serde::{Deserialize, Serialize};

/// The port that node daemons listen on, unless told otherwise.
pub const PORT: u16 = 7946;

/// How new an order is: see [`Fence`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Rank {
    /// Of the intent that it goes by.
    pub generation: u64,
    /// Of the call, within that.
    pub operation: u64,
}

impl From<Fence> for Rank {
    fn from(fence: Fence) -> Self {
        let (generation, operation) = fence.rank();
        Self {
            generation: generation.0,
            operation: operation.0,
        }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.operation)
    }
}

/// A text that is no rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRank {
    /// It has no dot.
    #[error("a rank is two numbers with a dot between them")]
    Form,
    /// One of them is none.
    #[error(transparent)]
    Number(#[from] ParseIntError),
}

impl FromStr for Rank {
    type Err = NoRank;

    fn from_str(text: &str) -> Result<Self, NoRank> {
        let (generation, operation) = text.split_once('.').ok_or(NoRank::Form)?;
        Ok(Self {
            generation: generation.parse()?,
            operation: operation.parse()?,
        })
    }
}

/// Whose processes are meant, and how new the order is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The uid of its Pod.
    pub pod_uid: Box<str>,
    /// The name of its container in the Pod.
    pub container: Box<str>,
    /// The id of that container, as the Pod's status or as containerd has it.
    pub container_id: Box<str>,
    /// Of the order. Who says none is older than anybody who does.
    #[serde(default)]
    pub rank: Rank,
}

/// What processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// Whether they are stopped where they are.
    pub frozen: bool,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// In a word.
    pub reason: Reason,
    /// For people.
    pub message: Box<str>,
}

/// Why something was not done, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// What was asked makes no sense.
    Invalid,
    /// It is not the sandbox of a Pod of ours.
    Foreign,
    /// It is not on this node.
    Absent,
    /// Its processes have ended.
    Ended,
    /// A newer order was heard.
    Stale,
    /// The node cannot do it now.
    Unavailable,
}

/// How a worker's capture or thaw went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "outcome",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Report {
    /// What was written is durable, and the processes stand still.
    Captured {
        /// The layer.
        layer: Digest,
        /// Its size in bytes.
        size: u64,
        /// The layer it was captured on top of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<Digest>,
        /// The image it was pushed as, by digest.
        image: Box<str>,
    },
    /// The processes go on.
    Thawed,
    /// Nothing of it is of use.
    Failed {
        /// For people.
        error: Box<str>,
        /// Whether trying again may help.
        retry: bool,
        /// The field of a sandbox that has to change for it to work, if one has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        field: Option<Box<str>>,
        /// Whether the processes stand still all the same: they did before, or could not be let go.
        frozen: bool,
    },
}

/// The longest that a Pod can say when it ends.
const MAX_REPORT: usize = 4096;

impl Report {
    /// One that is short enough for a Pod to end with.
    #[must_use]
    pub fn failed(error: &str, retry: bool, field: Option<&str>, frozen: bool) -> Self {
        Self::Failed {
            // Even if each character takes six to be written down.
            error: error.chars().take(MAX_REPORT / 8).collect(),
            retry,
            field: field.map(Into::into),
            frozen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_read_as_it_is_written_and_an_order_without_one_is_the_oldest() {
        let rank = Rank {
            generation: 3,
            operation: 14,
        };
        assert_eq!(rank.to_string().parse(), Ok(rank));
        for bad in ["", "3", "3.", "a.1", "3.1.4"] {
            assert!(bad.parse::<Rank>().is_err(), "{bad}");
        }
        let old = r#"{"podUid": "p", "container": "sandbox", "containerId": "c"}"#;
        let target: Target = serde_json::from_str(old).unwrap();
        assert!(target.rank < rank);
    }

    #[test]
    fn a_report_always_fits_what_a_pod_can_say() {
        let report = Report::failed(&"\u{7}".repeat(100_000), true, Some("a"), true);
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.len() <= MAX_REPORT, "{}", text.len());
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }

    #[test]
    fn a_report_reads_as_it_is_documented() {
        let layer = Digest::new(format!("sha256:{:064x}", 1)).unwrap();
        let report = Report::Captured {
            layer,
            size: 7,
            parent: None,
            image: "r/x@sha256:1".into(),
        };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["outcome"], "captured");
        assert_eq!(json["image"], "r/x@sha256:1");
        assert_eq!(
            serde_json::to_value(Report::Thawed).unwrap()["outcome"],
            "thawed"
        );
    }
}
