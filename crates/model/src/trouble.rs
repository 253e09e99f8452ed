//! Why something is not ready, or has ended: one word each, for programs and people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::workload::BootFailure;

/// The condition that says what is wrong. It is there only while something is.
pub const TROUBLED: &str = "Troubled";

/// What is wrong with a sandbox, or with the members of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Trouble {
    /// Its image is being fetched.
    Pulling,
    /// Its image could not be fetched, and is tried again later.
    PullBackOff,
    /// Its image does not exist, may not be had, or cannot be run here.
    ImageUnusable,
    /// Its start command could not be started, or ended with a failure.
    StartCommandFailed,
    /// Its ready command cannot be run.
    ReadyCommandFailed,
    /// Its ready command did not succeed in time.
    NotReadyInTime,
    /// It ends again and again before it is ready.
    CrashLoop,
    /// A hook that had to succeed has failed.
    HookFailed,
    /// Processes were killed because memory ran out.
    OomKilled,
    /// Its first process has ended.
    Exited,
    /// Its workload is gone.
    Lost,
    /// It asks for what cannot be.
    Misconfigured,
    /// Something of its last owner could not be removed.
    NotClean,
    /// All that there may be are in use.
    NoCapacity,
    /// A quota, or another plugin, admits no more.
    Limited,
    /// What runs sandboxes has failed.
    RuntimeFailed,
}

impl Trouble {
    const ALL: [Self; 16] = [
        Self::Pulling,
        Self::PullBackOff,
        Self::ImageUnusable,
        Self::StartCommandFailed,
        Self::ReadyCommandFailed,
        Self::NotReadyInTime,
        Self::CrashLoop,
        Self::HookFailed,
        Self::OomKilled,
        Self::Exited,
        Self::Lost,
        Self::Misconfigured,
        Self::NotClean,
        Self::NoCapacity,
        Self::Limited,
        Self::RuntimeFailed,
    ];

    /// The word, as conditions spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pulling => "Pulling",
            Self::PullBackOff => "PullBackOff",
            Self::ImageUnusable => "ImageUnusable",
            Self::StartCommandFailed => "StartCommandFailed",
            Self::ReadyCommandFailed => "ReadyCommandFailed",
            Self::NotReadyInTime => "NotReadyInTime",
            Self::CrashLoop => "CrashLoop",
            Self::HookFailed => "HookFailed",
            Self::OomKilled => "OomKilled",
            Self::Exited => "Exited",
            Self::Lost => "Lost",
            Self::Misconfigured => "Misconfigured",
            Self::NotClean => "NotClean",
            Self::NoCapacity => "NoCapacity",
            Self::Limited => "Limited",
            Self::RuntimeFailed => "RuntimeFailed",
        }
    }

    /// The trouble that a condition names.
    #[must_use]
    pub fn find(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }

    /// What it is called when it happens to one after the other.
    #[must_use]
    pub const fn again(self) -> Self {
        match self {
            Self::ImageUnusable | Self::Pulling => Self::PullBackOff,
            Self::StartCommandFailed
            | Self::ReadyCommandFailed
            | Self::NotReadyInTime
            | Self::Exited => Self::CrashLoop,
            Self::PullBackOff
            | Self::CrashLoop
            | Self::HookFailed
            | Self::OomKilled
            | Self::Lost
            | Self::Misconfigured
            | Self::NotClean
            | Self::NoCapacity
            | Self::Limited
            | Self::RuntimeFailed => self,
        }
    }
}

impl From<BootFailure> for Trouble {
    fn from(failure: BootFailure) -> Self {
        match failure {
            BootFailure::StartCommand => Self::StartCommandFailed,
            BootFailure::ReadyCommand => Self::ReadyCommandFailed,
            BootFailure::Deadline => Self::NotReadyInTime,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_again_and_is_how_it_is_written() {
        for trouble in Trouble::ALL {
            assert_eq!(Trouble::find(trouble.as_str()), Some(trouble));
            let written = serde_json::to_value(trouble).unwrap();
            assert_eq!(written, trouble.as_str());
            assert_eq!(trouble.again().again(), trouble.again());
        }
        assert_eq!(Trouble::find("Running"), None);
    }
}
