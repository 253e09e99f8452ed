//! What E2B's clients are told of where a sandbox is in its life.

use model::{
    Sandbox,
    lifecycle::{Phase, Traffic, traffic},
    sandbox::DesiredState,
};

/// The states of a sandbox as its owner sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its owner has not heard of it yet.
    Creating,
    /// Awake.
    Running,
    /// Asleep, on the way there, or waking.
    Paused,
    /// It is being ended.
    Ending,
    /// It has ended, or is not its owner's any more.
    Gone,
}

impl State {
    /// The name on the wire of a state that is shown.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Creating | Self::Running | Self::Ending | Self::Gone => "running",
        }
    }
}

/// The state of a sandbox.
pub(crate) fn state_of(sandbox: &Sandbox) -> State {
    match traffic(sandbox) {
        Traffic::Creating => State::Creating,
        Traffic::Running => State::Running,
        Traffic::Pausing | Traffic::Paused | Traffic::Resuming => State::Paused,
        // Nobody can tell: what is wanted is the best guess.
        Traffic::Unknown => match sandbox.spec.desired_state {
            DesiredState::Running => State::Running,
            DesiredState::Paused => State::Paused,
        },
        Traffic::Dead
            if sandbox.metadata.is_deleting() || sandbox.status.phase == Phase::Stopping =>
        {
            State::Ending
        }
        Traffic::Dead | Traffic::Idle => State::Gone,
    }
}
