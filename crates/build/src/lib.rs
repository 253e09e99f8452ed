//! Building templates.
//!
//! ```text
//!  ask ──▶ queue ──▶ base ──▶ step ──▶ step ──▶ finish
//!                     │        │        │        └ image, a trial start, tags
//!                     └────────┴────────┴ run in a sandbox, then kept: a snapshot by what led to it
//! ```
//!
//! A build goes by records like everybody else: its steps run in a sandbox of the team's, which the
//! control loop makes and which counts against the team's quota, and what a step leaves is a
//! snapshot, hidden from lists, that expires. A snapshot is found again by its key, which is made of
//! everything that led to it; a build starts from the last one it finds. So nothing of a build is
//! lost with the server but the build itself, which is failed at the next start: asked for again, it
//! goes on behind its last kept step. One whose tags were moved by then is ready.
//!
//! The result is a template record of its own for each build, owned by the team, on an image by its
//! digest. Tags, and nothing else, say which build a name means; they are moved last. A build that
//! fails leaves the template as it was.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`recipe`] | what is to be built, checked: pure |
//! | [`surroundings`], [`key`] | what the next step finds, and what a step is kept by: pure |
//! | [`builder`], [`ports`] | builds that wait, run and are over; what they stand on |
//! | `turns`, `entries` | who builds next; builds as they are remembered and forgotten |
//! | `job`, `room`, `provision`, `copy`, `finish` | one build: its sandbox, its steps, its end |
//! | `tags` | which build a name means; deleting |
//! | [`record`], [`log`], [`shelf`], [`archive`] | what is on disk: builds, what they said, uploaded files |
//! | [`error`] | what can go wrong, and whose fault it is |

pub mod archive;
pub mod builder;
pub mod error;
pub mod key;
pub mod log;
pub mod ports;
pub mod recipe;
pub mod record;
pub mod shelf;
pub mod surroundings;

mod copy;
mod entries;
mod finish;
mod job;
mod provision;
mod room;
mod tags;
mod turns;

#[cfg(test)]
mod tests;

pub use builder::{Builder, Options, Wish};
pub use error::{Refused, Result};
pub use log::{Line, Page};
pub use ports::{Made, Ports, Source, Workshop, WorkshopError};
pub use recipe::{Asked, AskedStep, Identity, Login, Recipe};
pub use record::{Build, Reason, State};
pub use tags::Tagged;

/// Annotation on sandboxes and snapshots that only a build needs: nobody sees them in lists.
pub const ANNOTATION: &str = model::sandbox::BUILD_ANNOTATION;
