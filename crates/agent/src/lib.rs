//! The daemon inside every sandbox.
//!
//! It serves envd's protocol: `process.Process` and `filesystem.Filesystem` over Connect, and
//! `/files`, `/health`, `/init`, `/metrics` and `/envs` over plain HTTP. In a Pod it is also the way to
//! all other ports, by `/forward`. It runs as root, usually as
//! PID 1, and everything it is told comes from whoever holds the sandbox's access token.
//!
//! ```text
//! server ─▶ http ─▶ rpc ─▶ process ─▶ spawn, children, fan, output
//!             │       └──▶ filesystem ─▶ entry, watch
//!             ├──▶ files ─▶ upload, download
//!             └──▶ forward
//! ```
//!
//! One thread serves; file work goes to helpers that end when idle, so that a quiet sandbox costs
//! next to nothing. Every queue is bounded: a reader that is slow makes the writer wait.

mod args;
mod children;
mod entry;
mod fan;
mod files;
mod filesystem;
mod forward;
mod http;
mod install;
mod metrics;
mod output;
mod paths;
mod pid1;
mod poll;
mod process;
mod rpc;
mod server;
mod settings;
mod spawn;
mod surroundings;
mod trust;
mod users;
mod watch;

pub use args::{Args, Listen, UsageError};
pub use install::install;
pub use server::{Agent, ServeError, bind, run};
