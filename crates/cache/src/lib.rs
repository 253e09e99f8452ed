//! A reflector over a [`store::Store`]: indexes, readiness, wait hooks, operation holds.
//!
//! ```text
//!  store ──list, watch──▶ reflector ──decode──▶ table ──▶ find, find_by        (readers)
//!                          one task,            one short   ├─▶ wait_for       (levels)
//!                          one writer           lock        └─▶ subscribe      (dirty keys)
//! ```
//!
//! Three mistakes that caches like this one are known for cannot be made here:
//!
//! - *A reader changes what others read.* Values are behind `Arc`, have no interior mutability,
//!   and nothing hands out `&mut`.
//! - *A start error is lost in a background task.* [`Cache::start`] answers with a cache that has
//!   synced, or with why not. There is no cache that has not synced. One that dies later drops
//!   readiness and says why: [`Cache::health`], and every wait and subscription on it ends with
//!   the reason.
//! - *Two waiters on one object are confused.* Each has its own condition, looked at by itself;
//!   what is exclusive is an *operation*, named by an enum: [`Cache::hold`].
//!
//! # What a lost watch means
//!
//! It is resumed from the last version seen, or, when the store no longer knows that version, by
//! a new list. Meanwhile the cache goes on serving what it has and stays **ready**: for its
//! readers something slightly old, fenced by versions wherever it is acted on, is better than
//! nothing. How long it has been out of touch is in [`Stats::lag`], and why in [`Health`].
//!
//! The table never goes back. It is at one version of the store; whatever is not newer is
//! old news, so a stale list cannot regress an object nor bring a removed one back, and no
//! tombstones need to be kept. The `reflector` module has the argument.
//!
//! # What is deliberately absent
//!
//! *Single flight.* A shared result is as old as its first asker: joined readers would lose
//! read-your-write. Reads here are lookups in memory, so there is nothing to save; operations are
//! shared by joining a [`Hold`], and each joiner then looks for itself.
//!
//! # Modules
//!
//! | Module | What it holds |
//! |---|---|
//! | [`view`] | what of a record is kept: [`View`], [`Full`], indexes and their terms |
//! | [`kinds`] | the indexes of each kind, and a name for each kind's cache |
//! | [`routing`] | the trimmed view of sandboxes for gateways |
//! | [`feed`] | a route table, fed from a store |
//! | [`condition`] | what to wait for, and how to combine it |
//! | `table` | the objects and their indexes at one version: plain data, no locks |
//! | `reflector` | the one writer: list, watch, resume, relist |
//! | `cache` | the handle readers hold |
//! | `wait`, `hold`, `changes` | waiting for a level, operations, dirty keys |
//! | `health` | readiness, errors, statistics |

mod cache;
mod changes;
pub mod condition;
pub mod feed;
mod health;
mod hold;
pub mod kinds;
mod names;
mod notes;
mod place;
mod postings;
mod reflector;
pub mod routing;
mod slots;
mod table;
pub mod view;
mod wait;

pub use cache::{Cache, Options};
pub use changes::Changes;
pub use feed::{RouteFeed, Watched};
pub use health::{Health, StartError, Stats, StopReason, Undecodable, WaitError};
pub use hold::{Hold, OperationConflict};
pub use kinds::{
    ApiKeyCache, ApiKeyIndex, ClaimCache, ClaimIndex, EventCache, EventIndex, PoolCache, PoolIndex,
    SandboxCache, SandboxIndex, SnapshotCache, SnapshotIndex, TeamCache, TemplateCache,
};
pub use names::Names;
pub use routing::{RoutingCache, RoutingIndex};
pub use view::{Full, Identified, Indexes, NoIndex, Share, Term, View};
