//! Workers and daemons against a real containerd, real containers and a real registry. They need root,
//! `containerd`, `runc`, `docker-registry`, `skopeo`, `umoci` and `busybox`; what is missing makes a test
//! fail and is named.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod capture;
mod daemon;
mod house;
mod node;
