//! Who gets the next idle member of a pool.
//!
//! ```text
//!  enter ──▶ Ticket, in the pool's line ──offer of a member──▶ one compare-and-set ──▶ claimed
//!               ▲  ▲                                              │
//!               │  └── somebody else was first: the next in turn ─┘
//!               └── woken by the event that frees a member
//! ```
//!
//! Every claim goes through a [`Desk`], whoever asks: a request to the API waits in a line of the
//! pool, a declarative claim holds a [`Ticket`] and looks at it whenever it has a turn. The desk
//! offers each idle member to one ticket at a time, so claimers of one process never fight over a
//! member. Claimers of different processes may: the store decides, and who loses is next in turn.
//!
//! A line is fair between tenants: weighted turns, first come first served within each. It is
//! bounded; who does not get in, or waits in vain, is told how the pool stands.
//!
//! Nothing here is durable but the claim itself. A process that dies loses its lines, and their
//! clients with them; what it had claimed and not handed over is known by its lease.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`fair`] | the order of those that wait, pure |
//! | [`desk`] | lines and tickets, fed by the cache of sandboxes |
//! | [`claim`] | the write |
//! | [`handover`] | telling of a delivery the moment it is ready |
//! | [`stock`] | how a pool stands, for those that are turned away |

pub mod claim;
pub mod desk;
pub mod fair;
pub mod handover;
pub mod stock;

pub use claim::{Ask, ClaimError, Wait};
pub use desk::{Desk, Full, Ticket};
pub use handover::Expected;
pub use stock::Stock;
