//! An installation on Kubernetes as its users meet it: one process for each role, against the stand-in
//! of a cluster. What only the stand-in can do to itself is in `faults`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod balancer;
#[allow(dead_code, reason = "shared with the tests of the runtime on Pods")]
#[path = "../../../runtime-kube/tests/it/daemon.rs"]
mod daemon;
mod faults;
mod http;
mod installation;
mod installs;
mod lan;
mod leaders;
mod lives;
#[path = "../../../gateway/tests/it/loopback.rs"]
mod loopback;
mod many;
mod partition;
mod rolling;
mod writers;
