//! The control loop: looks, asks [`plan`], and performs the one step it is told to.
//!
//! ```text
//!  caches ──dirty keys──▶ queue ──turn──▶ driver ──look──▶ plan ──step──▶ store, runtime
//!                           ▲    one turn per lane at a time    │
//!                           └────────── again, later ◀──────────┘
//! ```
//!
//! - **One task drives one sandbox.** The queue never gives out two turns of one lane; a sandbox
//!   and the snapshots taken of it share a lane.
//! - **Level-triggered.** A turn starts from what is, never from what happened. Events only enqueue.
//! - **Fenced.** Every write names the version it was decided on; every call on the runtime
//!   carries (uid, generation, operation). A turn that lost a race looks again.
//! - **Reads its own writes.** A turn waits until the caches have seen what the last turn of its
//!   key wrote, so a lagging cache never makes it decide twice.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`queue`] | keys to look at, when, one turn per lane, backoff per key |
//! | [`deadlines`] | whether a timer has run out, by elapsed time |
//! | `admission` | closing a sandbox to traffic before it is frozen or cleaned |
//! | [`sandbox`], [`pool`], [`snapshot`], [`claim`] | the drivers, one per kind |
//! | `publish` | captured layers to a registry and back |
//! | `moves` | the writes at which a test can end the process |
//! | `reception` | sandboxes that came by themselves |
//! | `limits` | what plugins admit |
//! | `flights` | calls that last as long as somebody else likes, and that no turn waits for |
//! | `registries` | what waits for a registry that a team named, and how much of it at a time |
//! | [`sweep`] | workloads that no record speaks of; events nobody reads any more |
//! | [`events`] | what people read later |
//! | [`history`] | what deliveries were, once they are over |
//! | `wakes` | how long waking takes, and whom |
//! | `waking` | what wakes, weighed where nobody else does |
//! | [`world`] | the ports and caches that all drivers share |
//! | [`control`] | the builder, the workers, start and drain |

mod admission;
pub mod claim;
pub mod control;
pub mod deadlines;
pub mod events;
mod flights;
pub mod history;
mod limits;
mod moves;
pub mod pool;
mod publish;
pub mod queue;
mod reception;
mod recipe;
mod registries;
pub mod sandbox;
pub mod snapshot;
pub mod sweep;
mod wakes;
mod waking;
pub mod world;

pub use control::{Builder, Control, Options};
pub use events::EventSink;
pub use reception::Reception;
pub use world::{ActivitySource, AgentTokens, Followers, Waiters};
