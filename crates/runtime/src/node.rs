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

use model::Digest;
use serde::{Deserialize, Serialize};

/// The port that node daemons listen on, unless told otherwise.
pub const PORT: u16 = 7946;

/// Whose processes are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The uid of its Pod.
    pub pod_uid: Box<str>,
    /// The name of its container in the Pod.
    pub container: Box<str>,
    /// The id of that container, as the Pod's status or as containerd has it.
    pub container_id: Box<str>,
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
