//! The writes of a sandbox's status at which a test can end the process.

use failpoints::{Step, reached};
use model::{lifecycle::Phase, sandbox::SandboxStatus};

/// What a write says that the record did not say before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moves {
    FallsAsleep,
    SleepsOnFiles,
    Wakes,
    IsAwake,
    Other,
}

impl Moves {
    pub(crate) fn between(from: &SandboxStatus, to: &SandboxStatus) -> Self {
        match (from.phase, to.phase) {
            (from, Phase::Pausing) if from != Phase::Pausing => Self::FallsAsleep,
            (_, Phase::Paused) if from.snapshot.is_none() && to.snapshot.is_some() => {
                Self::SleepsOnFiles
            }
            (from, Phase::Resuming) if from != Phase::Resuming => Self::Wakes,
            (Phase::Paused | Phase::Resuming, Phase::Running) => Self::IsAwake,
            _ => Self::Other,
        }
    }

    pub(crate) fn before(self) {
        match self {
            Self::SleepsOnFiles => reached(Step::PausedUnsaid),
            Self::IsAwake => reached(Step::AwakeUnsaid),
            Self::FallsAsleep | Self::Wakes | Self::Other => {}
        }
    }

    pub(crate) fn after(self) {
        match self {
            Self::FallsAsleep => reached(Step::PausingSaid),
            Self::SleepsOnFiles => reached(Step::PausedSaid),
            Self::Wakes => reached(Step::ResumingSaid),
            Self::IsAwake => reached(Step::AwakeSaid),
            Self::Other => {}
        }
    }
}
