//! The route table: one set of rules, used by every process that routes.
//!
//! Two writers feed a table: the process's own watch of the store, and pushes from peers that saw
//! a change first. They may arrive in any order, twice, or arbitrarily late. The table ends the
//! same, because each key keeps only the *greatest* thing it was told:
//!
//! ```text
//!              upsert, newer                  delete, equal or newer
//!   (nothing) ───────────────▶  Live(version) ───────────────────────▶ Dead(version)
//!       │                          ▲    │                              ▲     │    │
//!       │   delete                 │    └── upsert, newer ──▶ Live     │     │    │
//!       └──────────────────────────┼───────────────────────────────────┘     │    │
//!                                  └────────── upsert, newer ────────────────┘    │
//!   (nothing) ◀── collected: the own watch has passed it, and retention is over ──┘
//!                 the floor rises to its version
//! ```
//!
//! "Greatest" orders by version; at the same version a delete beats a route, the own watch beats
//! a peer, and then the greater content wins (see [`Route`]). Taking the maximum is commutative,
//! associative and idempotent, which is the whole argument for convergence.
//!
//! Forgetting a tombstone would let a late message resurrect a route. Two marks prevent it:
//!
//! | Mark | Set by | Refuses |
//! |---|---|---|
//! | **base** | a full snapshot at that version | any delta at or below it: the snapshot knew better. This also fences off an older life of the store, whose lost writes may carry higher versions than the restored records |
//! | **floor** | collecting a tombstone | a delta at or below it for a key the table does not know |
//!
//! The floor never refuses a live route: it is at most what the own watch has passed, and that
//! watch delivered everything which was alive then.
//!
//! The store is the truth, and a peer's word, of a route or of its end, is good until the own watch has
//! passed its version: what that did not bring is void, and the store is listed again. A peer's full snapshot is confirmed by an
//! own list; one that is older than it tells that the store went back.
//!
//! A sandbox id resolves through a second index. Ids are minted for one delivery, so two records
//! with one id are a fault; then the newest record has it, and when that one goes, the next. The
//! answer depends on the live records only, never on the order they came in.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`route`] | a route, its state and the one keep-or-delete predicate, address, gates |
//! | [`message`] | what a writer says, and the tolerant form of it on the wire |
//! | [`outcome`] | what became of a message, and the counts |
//! | [`table`] | the table: apply, replace, look up, re-check |
//! | `records` | what writers share: every key, and the marks |
//! | `merge` | which of two accounts of one key wins |
//! | `claims` | the id index, which readers use without locks |
//! | `recent` | what changed lately, for peers that are behind |
//! | `graves` | tombstones and when they may go |
//! | [`waking`] | why a sandbox was not woken: the one list for those who wake and those who ask |

mod claims;
mod graves;
mod merge;
pub mod message;
pub mod outcome;
mod recent;
mod records;
pub mod route;
pub mod table;
#[cfg(test)]
mod tests;
pub mod waking;

pub use message::{Deletion, Message, Snapshot, Writer};
pub use outcome::{Change, Counts, Ignored, Invalid, Outcome, Resync};
pub use route::{Address, Gate, Route, State, TokenHash, keep};
pub use table::{Changes, Ear, Everything, Limits, Refused, StaleReport, Stats, Table};
pub use waking::WakeError;
