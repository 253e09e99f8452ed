//! The stand-in as clients see it: `kube`'s client, a transcript of a real API server, stock kubectl.
#![expect(clippy::unwrap_used, reason = "tests")]

mod faults;
mod kubectl;
mod objects;
mod pods;
mod transcripts;
