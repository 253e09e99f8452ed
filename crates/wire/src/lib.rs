//! What travels between a client and the agent inside a sandbox.
//!
//! The messages are envd's, field for field, so that an unmodified E2B SDK is understood. Each one
//! is a plain struct that speaks both codecs of the Connect protocol: protobuf by `prost`, and the
//! JSON mapping of proto3 by `serde` with the helpers in [`json`].
//!
//! A `oneof` is written as several optional fields. On the wire that is the same thing, in both
//! codecs; what it loses, that at most one is set, is asked for where a request is read (for
//! example [`process::ProcessSelector::one`]).

pub mod connect;
pub mod envd;
pub mod filesystem;
pub mod json;
pub mod process;
pub mod secret;
pub mod time;

pub use secret::Secret;
