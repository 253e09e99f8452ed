//! Images against real files, real mounts and a real registry. They need root, mmdebstrap,
//! `docker-registry`, `skopeo` and `umoci`; what is missing makes a test fail and is named.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod archives;
mod commit;
mod debian;
mod derive;
mod full;
mod hostile;
mod import;
mod kept;
mod layout;
mod merge;
mod overlay;
mod pin;
mod proof;
mod pull;
mod push;
mod servers;
