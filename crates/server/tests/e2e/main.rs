//! The product as its users meet it: real processes, real TLS, real files, stock kubectl.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the tests of the external processor")]
#[path = "../../../ext-proc/tests/it/envoy.rs"]
mod envoy;
#[path = "../../../gateway/tests/it/loopback.rs"]
mod loopback;

#[allow(dead_code, reason = "shared with the tests of images")]
#[path = "../../../images/tests/it/archives.rs"]
mod archives;
#[allow(dead_code, reason = "shared with the tests of images")]
#[path = "../../../images/tests/it/layout.rs"]
mod layout;
#[allow(dead_code, reason = "shared with the tests of images")]
#[path = "../../../images/tests/it/servers.rs"]
mod servers;

mod abuse;
mod commands;
mod config;
mod containers;
mod crashes;
mod diagnosis;
mod doctor;
mod elsewhere;
mod envoy_upgrades;
mod envoys;
mod fake_runtime;
mod full_disk;
mod handovers;
mod hooks;
mod https;
mod image;
mod kept;
mod keys;
mod kubectl;
mod kubectl_changes;
mod lifecycle;
mod local_runtime;
mod pool_input;
mod pools;
mod quotas;
mod registries;
mod run;
mod run_on_server;
mod sandboxes;
mod server;
mod snapshots;
mod ssh;
mod start;
mod start_commands;
mod stops;
mod swaps;
mod templates;
mod traffic;
mod tunnels;
mod upgrades;
mod usage;
mod wakes;
mod watching;
