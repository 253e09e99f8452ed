//! Plugins: a say in what pools and sandboxes are made, and word of what becomes of them.
//!
//! ```text
//!  resource API ──pool created, changed, deleted──▶ may refuse
//!  control, E2B API ──sandboxes to be made or given──▶ admit all, or some: ask again in a while
//!  control ──a sandbox is ready, is released──▶ hear of it
//! ```
//!
//! A plugin is a type that implements [`Plugin`], given to [`Plugins`] where the server is put
//! together. It is asked in the order of that list, and each is asked for no more than those before
//! it admitted. One that does not answer within [`PATIENCE`] is taken to admit nothing for now: what
//! cannot be asked must not be passed by.
//!
//! A plugin that has to remember what it admitted until it is written answers with a [`Hold`] for
//! each: dropped, it is given back.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`plugin`] | the trait, and what a plugin is asked and answers |
//! | [`registry`] | all plugins of a server, as those that ask see them |

pub mod plugin;
pub mod registry;

pub use plugin::{Admission, Creation, Hold, Plugin, Purpose, Refusal};
pub use registry::{Admitted, Holds, Limited, PATIENCE, Plugins, Refused};

/// The guide, so that what it shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/plugins.md")]
struct Guide;
