//! Waking sandboxes for traffic.
//!
//! A *flight* is one attempt to wake one delivery of one sandbox. It belongs to this table and not
//! to a request: whoever comes while it is under way joins it, whoever leaves takes back only their
//! own wait, and all who stay hear how it ended.
//!
//! ```text
//!            refused: too many wait
//!               ▲
//!  request ─────┤                    ┌─ lost a race: look again ─┐
//!               ▼                    ▼                           │
//!           join or begin ─▶ wait for a place ─▶ look ─▶ write the intent ─▶ wait for it
//!                                                 │                            │
//!                                 not to be woken ▼                            ▼ awake, gone, failed
//! ```
//!
//! The intent to be awake and the new deadline are one compare-and-set. What comes after is read
//! from a cache whose versions say whether it is an answer to that write, or told by whoever sees it
//! awake, at a version too; nothing is ever asked of control or a runtime. What a team may have awake
//! is reserved before that write.
//!
//! | Module | What it holds |
//! |---|---|
//! | `flight` | the flights themselves |
//! | `board` | who waits for which, and who gives way when too many wait |
//! | `news` | what is told of a sandbox before its record says it |
//! | `turns` | so many at once, fair between teams |
//! | [`quota`] | what teams may have awake |
//! | [`stats`] | what happened, as numbers |

mod board;
mod flight;
mod news;
mod options;
pub mod quota;
pub mod stats;
mod turns;

pub use flight::Flights;
pub use options::Options;
pub use quota::{NoQuota, Quota, Reserved, TeamLimit};
pub use routes::WakeError;
