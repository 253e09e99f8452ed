//! The product as its users meet it: real processes, real TLS, real files, stock kubectl.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod abuse;
mod commands;
mod config;
mod doctor;
mod fake_runtime;
mod https;
mod image;
mod keys;
mod kubectl;
mod kubectl_changes;
mod lifecycle;
mod local_runtime;
mod quotas;
mod crashes;
mod diagnosis;
mod run;
mod run_on_server;
mod sandboxes;
mod server;
mod snapshots;
mod ssh;
mod start;
mod start_commands;
mod tunnels;
mod usage;
mod wakes;
mod watching;
mod pool_input;
mod pools;
