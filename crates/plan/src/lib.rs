//! Pure decisions: what is wanted, what is seen and what time has run out go in; steps and the
//! reason come out.
//!
//! Nothing here waits, reads a clock or performs anything. Each function looks at one object and
//! answers the *next* thing to do; whoever performs it looks again and asks again. So a crash
//! between any two steps needs no recovery code of its own: the next look starts from what is.
//!
//! | Module | Decides |
//! |---|---|
//! | [`sandbox`] | the next step in a sandbox's life |
//! | [`failure`] | what a failed step leaves in a sandbox's record |
//! | [`trouble`] | what a sandbox's record says is wrong with it |
//! | [`timers`] | which timers of a sandbox run |
//! | [`idle`] | from what sources of use know: when a sandbox is idle, and what is written of its use |
//! | [`pool`] | how many members a pool makes and removes |
//! | [`autoscale`] | how many of them a pool that follows demand keeps idle |
//! | [`expect`] | what a pool has asked for and not seen yet |
//! | [`snapshot`] | the next step towards a snapshot |
//! | [`claim`] | which members a declarative claim takes, and what a delivery changes |
//! | [`limit`] | who admits only some of what is wanted |
//! | [`history`] | what a delivery was |
//!
//! A plan without steps says why, because operators will ask.

pub mod autoscale;
pub mod claim;
pub mod expect;
pub mod failure;
pub mod history;
pub mod idle;
pub mod limit;
pub mod pool;
pub mod sandbox;
pub mod snapshot;
pub mod timers;
pub mod trouble;

use std::borrow::Cow;

use model::event::Severity;

/// What to do next, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<S> {
    /// In this order; a failure ends the rest.
    pub steps: Vec<S>,
    /// Why these, or why none.
    pub why: Cow<'static, str>,
}

impl<S> Plan<S> {
    /// One step.
    pub fn step(step: S, why: impl Into<Cow<'static, str>>) -> Self {
        Self {
            steps: vec![step],
            why: why.into(),
        }
    }

    /// Nothing to do.
    pub fn rest(why: impl Into<Cow<'static, str>>) -> Self {
        Self {
            steps: Vec::new(),
            why: why.into(),
        }
    }
}

/// Something people should be able to read about an object later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether somebody should look.
    pub severity: Severity,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: Box<str>,
}
