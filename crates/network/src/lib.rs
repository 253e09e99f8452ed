//! The network of sandboxes on one machine.
//!
//! ```text
//!  sandbox ══ veth ══ host ──────────▶ internet      one routed /32 each, no bridge
//!                      │ policy table (nftables)     who may reach what, in both directions
//!                      └ name server ──▶ upstream    knows who asks; opens what names lead to
//! ```
//!
//! Everything that decides about a packet is in the kernel: one table for each engine, whose sets
//! hold what every sandbox may do. A server that dies takes nothing with it; the next one puts
//! table and sets in force again, from the records, in one step. There is no IPv6 for sandboxes.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`options`], [`error`] | what can be chosen, what can go wrong |
//! | `policy`, `ranges`, `name` | from an owner's lists to sets of addresses and names; pure |
//! | `network` | who is connected: adopt, attach, set the policy, detach |
//! | `link` | the cable between host and sandbox |
//! | `left` | what engines left that never start again |
//! | `table` | the rules, and the elements of their sets |
//! | `dns` | the name server |
//! | `netlink`, `nft` | messages to the kernel |
//! | [`probe`] | what this host can do |

pub mod error;
pub mod options;
pub mod probe;

mod dns;
mod left;
mod link;
mod name;
mod netlink;
mod network;
mod nft;
mod policy;
mod ranges;
mod table;

pub use error::NetworkError;
pub use left::{Left, Taken, left};
pub use network::{Adopted, Network};
pub use options::{Block, NameLimits, Options};
pub use policy::{Policy, PolicyError};
