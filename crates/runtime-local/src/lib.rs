//! Sandboxes as containers on this host: a small engine of our own behind the Runtime port.
//!
//! A sandbox is a PID 1 in namespaces of its own, over an overlay whose upper directory is the
//! sandbox's writable layer. Nothing of it depends on the server: PID 1 outlives it, and what the
//! server must know again after a restart is in `sandboxes/<uid>/`.
//!
//! ```text
//!            create                       delete
//!  Absent ──────────▶ (making) ─▶ Present ──────────▶ (removing) ─▶ Absent
//!                        │           │ ▲                  │
//!                   died │    reset, │ │             died │
//!                        ▼      swap ▼ │                  ▼
//!                     Partial     (restarting) ─died─▶ Partial ──delete──▶ Absent
//! ```
//!
//! Every arrow into brackets writes the stage to disk before it does anything, and every arrow out
//! of them removes the note last, so a death in between is seen as `Partial`.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`options`], [`probe`], [`error`] | what can be asked for, what the host can do, what can go wrong |
//! | `runtime` | the port: which call runs which verb, one at a time for each sandbox |
//! | `create`, `boot`, `arm`, `hook`, `freeze`, `capture`, `reset`, `delete`, `inspect`, `adopt` | one verb each |
//! | `start`, `child` | from directories to a running PID 1, on either side of the clone |
//! | `restore`, `settle` | a captured layer into a new sandbox's directory, beside its start; when that is on disk |
//! | `oci` | the same start by an OCI runtime, for classes other than the engine's own |
//! | `rootfs`, `base`, `fingerprint`, `mounts` | what a root filesystem is made of |
//! | `disk` | limits of disk space |
//! | `look` | what a sandbox looks like from outside, and whether a reset one looks fresh |
//! | `usage` | what a sandbox uses |
//! | `socket` | sockets in a sandbox's network namespace |
//! | `image` | what a sandbox lies on |
//! | `publish` | captured layers to a registry and back |
//! | `cgroups`, `ranges`, `record` | limits, user ids, what is on disk |
//! | `instance` | what an engine is called on its host |
//! | `strays` | what is left of engines whose data directory was removed |
//! | `kernel` | every system call that no library wraps safely: all `unsafe` of this crate but the call to it in `start` |

pub mod error;
pub mod options;
pub mod probe;

mod adopt;
mod arm;
mod base;
mod boot;
mod capture;
mod cgroups;
mod child;
mod create;
mod delete;
mod disk;
mod engine;
mod fingerprint;
mod freeze;
mod hook;
mod image;
mod inspect;
mod instance;
mod kernel;
mod look;
mod mounts;
mod network;
mod oci;
mod output;
mod publish;
mod ranges;
mod record;
mod reset;
mod restore;
mod rootfs;
mod runtime;
mod seccomp;
mod settle;
mod socket;
mod start;
mod strays;
mod usage;
mod workload;

use images::tree;

pub use error::EngineError;
pub use image::in_use;
pub use look::Look;
pub use options::{Limits, Options, Step};
pub use output::{OutputLine, Source};
pub use probe::{Capability, State, probe_essential, probe_optional};
pub use runtime::LocalRuntime;
pub use usage::{DiskUsage, Usage};
