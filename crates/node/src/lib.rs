//! What works on a node of a cluster: freezing containers, and capturing what they wrote.
//!
//! ```text
//!  control ──mutual TLS──▶ daemon ──┐
//!                                   ├──▶ guard ──▶ containerd (its Unix socket)
//!  control ──Job──▶ commit worker ──┘                  │ upper directory, image
//!                        └──▶ images ──▶ registry ◀────┘
//! ```
//!
//! Nothing here knows Kubernetes but by the labels that its kubelet puts on containers, and nothing
//! touches a container that is not the sandbox of a Pod of ours: [`guard`] is the only way to one.
//!
//! What is frozen, and who spoke last, is known to containerd alone, so a daemon that restarts has forgotten nothing, and a
//! worker that dies leaves a container that anybody can find frozen, and thaw.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`containerd`] | the few calls of containerd's API that are needed |
//! | [`guard`] | from a container's id to a container of ours |
//! | [`orders`] | whose word counts, where several speak of one container |
//! | [`daemon`] | freeze and thaw, for control loops that hold the peer key |
//! | [`commit`] | the worker: freeze, capture, push, report |
//! | [`error`] | what can go wrong |

pub mod commit;
pub mod containerd;
pub mod daemon;
pub mod error;
pub mod guard;
pub mod orders;

pub use containerd::Containerd;
pub use error::NodeError;
pub use guard::Sandbox;
