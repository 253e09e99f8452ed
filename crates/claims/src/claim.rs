//! The write that every claim is.

use std::{sync::Arc, time::Duration};

use model::{Key, Sandbox, sandbox::SandboxSpec};
use store::{Outcome, Store, StoreError, StoreExt as _};
use thiserror::Error;
use tokio::time::Instant;

use crate::{Desk, Stock, Ticket, desk::Full};

/// What is asked of a desk.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Where the claim is written.
    pub store: &'a dyn Store,
    /// The pool.
    pub pool: &'a Key,
    /// Who asks, as far as turns go.
    pub tenant: &'a str,
    /// What to do while nobody is idle.
    pub wait: Wait,
}

/// What to do while no member is idle, or others are first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Say so.
    No,
    /// Wait in line.
    Until(Instant),
}

/// Why nothing was claimed.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// No member is idle, and waiting was not asked for.
    #[error("no member is idle: {0}")]
    NoneIdle(Stock),
    /// The line is as long as it may be.
    #[error(transparent)]
    Full(#[from] Full),
    /// No turn came in time.
    #[error("no member was free within {} s: {stock}", .waited.as_secs())]
    TimedOut {
        /// How long it waited.
        waited: Duration,
        /// How the pool stands.
        stock: Stock,
    },
    /// Who asked is gone.
    #[error("who asked has left")]
    Left,
    /// The claim may have been written, and nobody can tell.
    #[error("nobody knows whether {key} was claimed: {source}")]
    Doubtful {
        /// The member.
        key: Key,
        /// Why nobody knows.
        source: StoreError,
    },
    /// The store refused.
    #[error("write the claim: {0}")]
    Store(#[source] StoreError),
}

/// What became of one try.
#[derive(Debug)]
pub enum Tried {
    /// The member is the claimer's, as written.
    Claimed(Box<Sandbox>),
    /// Somebody else was first, or it cannot be claimed any more.
    Lost,
}

impl Desk {
    /// Claims a member: waits for a turn, and makes the one write that `claimed` gives for the
    /// member that is offered. Until that write begins, `left` ends the waiting.
    ///
    /// # Errors
    /// See [`ClaimError`]. Only after [`ClaimError::Doubtful`] may a member have been claimed.
    pub async fn claim(
        self: &Arc<Self>,
        ask: Ask<'_>,
        mut claimed: impl FnMut(&Sandbox) -> Option<Sandbox>,
        left: impl Future<Output = ()>,
    ) -> Result<Sandbox, ClaimError> {
        let ticket = match ask.wait {
            Wait::No => match self.enter_now(ask.pool, ask.tenant) {
                Some(ticket) => ticket,
                None => return Err(ClaimError::NoneIdle(self.stock(ask.pool))),
            },
            Wait::Until(_) => self.enter_bounded(ask.pool, ask.tenant)?,
        };
        let begun = Instant::now();
        tokio::pin!(left);
        loop {
            let member = match (ticket.offer(), ask.wait) {
                (Some(member), _) => member,
                (None, Wait::No) => {
                    drop(ticket);
                    return Err(ClaimError::NoneIdle(self.stock(ask.pool)));
                }
                (None, Wait::Until(deadline)) => {
                    let waited = tokio::select! {
                        biased;
                        member = ticket.offered() => Ok(member),
                        () = &mut left => Err(ClaimError::Left),
                        () = tokio::time::sleep_until(deadline) => Err(ClaimError::TimedOut {
                            waited: begun.elapsed(),
                            stock: self.stock(ask.pool),
                        }),
                    };
                    waited?
                }
            };
            match attempt(ask.store, &ticket, &member, &mut claimed).await? {
                Tried::Claimed(sandbox) => return Ok(*sandbox),
                Tried::Lost => {}
            }
        }
    }
}

/// Tries to claim the member that was offered to a ticket. If somebody else was first, the ticket
/// is next in turn again.
///
/// # Errors
/// If the store refused, or nobody knows what happened.
pub async fn attempt(
    store: &dyn Store,
    ticket: &Ticket,
    member: &Sandbox,
    mut claimed: impl FnMut(&Sandbox) -> Option<Sandbox>,
) -> Result<Tried, ClaimError> {
    let Some(next) = claimed(member) else {
        ticket.lost();
        return Ok(Tried::Lost);
    };
    match store.update_spec(&next).await {
        Ok(written) => {
            ticket.taken();
            return Ok(Tried::Claimed(Box::new(written)));
        }
        Err(
            StoreError::Conflict { .. } | StoreError::NotFound(_) | StoreError::OtherUid { .. },
        ) => {}
        Err(
            error @ StoreError::Unavailable {
                outcome: Outcome::Unknown,
                ..
            },
        ) => {
            // It may have happened: a look that shows it tells; one that does not may be old, and the
            // write still on its way. Its id must not be given to another member then.
            let key = member.key();
            match store.find::<SandboxSpec>(&key).await {
                Ok(Some(there)) if there.spec.sandbox_id == next.spec.sandbox_id => {
                    ticket.taken();
                    return Ok(Tried::Claimed(Box::new(there)));
                }
                Ok(_) | Err(_) => {
                    ticket.taken();
                    return Err(ClaimError::Doubtful { key, source: error });
                }
            }
        }
        Err(error) => return Err(ClaimError::Store(error)),
    }
    ticket.lost();
    Ok(Tried::Lost)
}
