//! A deterministic world: the real control loop, caches, route tables and store rules over the
//! memory store and the fake runtime, on virtual time, in one thread, driven by a seed.
//!
//! ```text
//!  clients ─┐                        ┌─ control (crashes, restarts)
//!           ├─▶ desk ─▶ memory store ┤
//!  checker ◀┘    (who, when)         └─ gateways: cache ─▶ route table ◀─ peer messages
//!                                         requests ─▶ gate ─▶ flights ─▶ inside
//! ```
//!
//! A run has two halves. In the *storm* clients ask for things at random while everything that can
//! go wrong does: lost and lagging watches, stale reads, failed and doubtful writes, slow, failing,
//! half-done and belated runtime calls, lost workloads, crashes of control and gateways, duplicated
//! and reordered peer messages, clock jumps. Then it is *quiet*: faults end, roles come back, and
//! the world has to come to rest as promised.
//!
//! One [`checker`] holds the promises. It sees every change of the store at the moment it happens
//! and the truth of the runtime and the route tables. A broken promise ends the run with its seed;
//! `cargo run -p dormouse-sim -- --seed N` replays it. [`plant`] holds defects that can be put in
//! on purpose: each must be caught, or the checker is worth nothing.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`world`] | one run: storm, quiet, verdict |
//! | [`desk`] | the store as one role sees it: delays, attribution |
//! | [`clients`] | what clients ask for |
//! | [`gateway`] | a gateway: its route table, fed by its cache and by peers, its use, its flights |
//! | [`traffic`] | requests, and what is inside |
//! | [`faults`] | what goes wrong, drawn from the seed |
//! | [`checker`] | the promises |
//! | [`plant`] | defects on purpose |

pub mod checker;
pub mod clients;
pub mod desk;
pub mod faults;
pub mod gateway;
pub mod plant;
pub mod traffic;
pub mod world;

pub use checker::Violation;
pub use plant::Plant;
pub use world::{Outcome, Size, run};
