//! A deterministic world: the real control loop, caches, route tables and store rules over the
//! memory store and the fake runtime, on virtual time, in one thread, driven by a seed.
//!
//! ```text
//!  clients ─┐                        ┌─ control (crashes, restarts)
//!           ├─▶ desk ─▶ memory store ┤
//!  checker ◀┘    (who, when)         └─ gateways: cache ─▶ route table ◀─ mesh
//!                                         requests ─▶ gate ─▶ flights ─▶ inside
//!
//!  every process ─▶ mesh core ◀─ network ─▶ mesh core ◀─ every other
//! ```
//!
//! A run has two halves. In the *storm* clients ask for things at random while everything that can
//! go wrong does: lost and lagging watches, stale reads, failed and doubtful writes, slow, failing,
//! half-done and belated runtime calls, lost workloads, crashes of control and gateways, clock jumps,
//! and between processes partitions, one-way links, cuts, frames that are late, lost, repeated,
//! reordered or spoiled. Then it is *quiet*: faults end, roles come back, and
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
//! | [`gateway`] | a gateway: its route table, fed by its watch and by others, its use, its flights |
//! | [`book`] | its table, as its mesh sees it |
//! | [`ear`] | what a replica of the API was told of |
//! | [`voice`] | how a process tells others what it has written |
//! | [`process`] | a process as the others know it: the core of its mesh |
//! | [`network`] | between them |
//! | [`surroundings`] | who is where |
//! | [`traffic`] | requests, and what is inside |
//! | [`faults`] | what goes wrong, drawn from the seed |
//! | [`checker`] | the promises |
//! | [`plant`] | defects on purpose |
//! | [`scale`] | many sandboxes over many gateways, beside what is computed of them |

pub mod book;
pub mod checker;
pub mod clients;
pub mod desk;
pub mod ear;
pub mod faults;
pub mod gateway;
pub mod network;
pub mod plant;
pub mod process;
pub mod scale;
pub mod surroundings;
pub mod traffic;
pub mod voice;
pub mod world;

pub use checker::Violation;
pub use plant::Plant;
pub use world::{Outcome, Size, run};
