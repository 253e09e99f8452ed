//! The trait, and what a plugin is asked and answers.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use model::{
    Name, Namespace, Sandbox, SandboxId, SandboxPool, Version, sandbox::SandboxSpec,
    validate::Problem,
};
use thiserror::Error;

/// Has a say in what is made, and hears what becomes of it.
///
/// Everything has an answer that changes nothing: a plugin implements what it is about. What it
/// is told of may be told twice, after a crash; it is never told too early.
#[async_trait]
pub trait Plugin: Send + Sync + Debug {
    /// What people know it by, in messages: as `team-quota`.
    fn name(&self) -> &'static str;

    /// A client asks for a pool.
    ///
    /// # Errors
    /// If there must be no such pool.
    async fn before_pool_create(&self, _pool: &SandboxPool) -> Result<(), Refusal> {
        Ok(())
    }

    /// A client asks for a change of a pool.
    ///
    /// # Errors
    /// If it must not be changed like this.
    async fn before_pool_update(
        &self,
        _old: &SandboxPool,
        _new: &SandboxPool,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    /// A client asks for the end of a pool.
    ///
    /// # Errors
    /// If it must stay.
    async fn before_pool_delete(&self, _pool: &SandboxPool) -> Result<(), Refusal> {
        Ok(())
    }

    /// Sandboxes are about to be made, members of a pool to be given to an owner, or one to count for
    /// more than it did. Some of them can be admitted now, and the others asked for again later.
    async fn before_create(&self, wanted: &Creation<'_>) -> Admission {
        Admission::all(wanted)
    }

    /// A sandbox is ready for its owner, who has not heard of it yet.
    async fn on_ready(&self, _sandbox: &Sandbox) {}

    /// A delivery is over: the sandbox is about to be forgotten, or to go back to its pool.
    async fn on_release(&self, _sandbox: &Sandbox) {}
}

/// What is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct Creation<'a> {
    /// What for.
    pub purpose: Purpose<'a>,
    /// Whose they are, or whose pool it is.
    pub team: &'a Namespace,
    /// What each of them is to be.
    pub spec: &'a SandboxSpec,
    /// How many.
    pub count: u32,
    /// The ids they will have, where they will have an owner: as many as are wanted.
    pub ids: &'a [SandboxId],
}

/// What sandboxes are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// To wait in a pool.
    Member {
        /// The pool.
        pool: &'a Name,
    },
    /// For a declarative claim, from a pool.
    Claim {
        /// The claim.
        claim: &'a Name,
        /// The pool.
        pool: &'a Name,
    },
    /// For a client that waits for the answer. The API sees to its quotas by itself.
    Request,
    /// For a client of the resource API, which sees to no quotas.
    Applied,
    /// There is this sandbox, and a client of the resource API wants it larger, or awake again.
    Changed,
    /// There is this sandbox, of which another process says that it was admitted there, and it is about
    /// to be started.
    Promised,
    /// There is this sandbox, and it is about to wake, where whoever woke it knows no quotas.
    Woken,
}

/// How many of what is wanted may be made now.
#[derive(Debug)]
pub struct Admission {
    /// How many.
    pub admitted: u32,
    /// Why not all.
    pub why: Box<str>,
    /// When it is worth asking for the rest.
    pub retry_after: Duration,
    /// What is remembered of those that are admitted, one each, in order; or nothing.
    pub holds: Vec<Box<dyn Hold>>,
}

impl Admission {
    /// All of it.
    #[must_use]
    pub fn all(wanted: &Creation<'_>) -> Self {
        Self::some(wanted.count, "", Duration::ZERO)
    }

    /// Some of it, or nothing.
    #[must_use]
    pub fn some(admitted: u32, why: impl Into<Box<str>>, retry_after: Duration) -> Self {
        Self {
            admitted,
            why: why.into(),
            retry_after,
            holds: Vec::new(),
        }
    }
}

/// Something that was set aside for a sandbox until it is written. Dropped, it is given back.
pub trait Hold: Send + Debug {
    /// The sandbox was written, at this version.
    fn written(self: Box<Self>, version: Version);
}

/// Why a pool is not created, changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A field is wrong: whoever sent it has to change it.
    #[error("{0}")]
    Invalid(Problem),
    /// It is not allowed as things are: whoever asked has to do something else first.
    #[error("{0}")]
    Forbidden(Box<str>),
    /// It cannot be said now: asking again may help.
    #[error("{why}")]
    NotNow {
        /// Why.
        why: Box<str>,
        /// When to ask again.
        retry_after: Duration,
    },
}
