//! The resource API: the registry of kinds, served in the REST shape of Kubernetes.
//!
//! Handlers know records and the registry ([`model::kinds`]), never one kind (but for what plugins
//! are asked about): another kind is a row there. Stock `kubectl` is a client. Intent goes to the store and nowhere else.
//!
//! | Module | What it holds |
//! |---|---|
//! | `resource_api` | what handlers share: store, clock, limits |
//! | `auth`, `layers` | bearer tokens kept as hashes; what happens around every request |
//! | `health`, `discovery`, `openapi` | what tools ask before they ask for objects |
//! | `place`, `params`, `negotiate`, `selector`, `body` | a request, taken apart |
//! | `read`, `page`, `watch` | get, list in pages, follow changes |
//! | `warnings` | what was wrong of late with the one object that is asked for |
//! | `submission`, `write`, `patch`, `delete` | create, replace, patch, delete |
//! | `gate` | what plugins say to that |
//! | `served`, `render`, `table` | records as objects, lists, tables |
//! | `namespaces` | the namespaces that have something in them |
//! | `refusal` | errors as clients see them: one table |
//! | `collection` | collections that are data: what a stand-in for Kubernetes serves instead of the registry |
//! | `dispatch`, `object`, `foreign` | their paths, records and writes; all else is shared |
//! | `lists`, `apply` | merging by the keys of lists, and what each manager applied |

mod apply;
mod auth;
mod body;
mod collection;
mod delete;
mod discovery;
mod dispatch;
mod foreign;
mod gate;
mod health;
mod layers;
mod lists;
mod namespaces;
mod negotiate;
mod object;
mod openapi;
mod page;
mod params;
mod patch;
mod place;
mod read;
mod refusal;
mod render;
mod resource_api;
mod selector;
mod served;
mod submission;
mod table;
mod warnings;
mod watch;
mod write;

use std::sync::Arc;

use axum::{
    Router, middleware,
    routing::{MethodRouter, get},
};
use model::meta::{GROUP, GROUP_VERSION};

pub use auth::Authenticator;
pub use collection::{Admission, Catalogue, Collection, Denied, Part};
pub use resource_api::{Limits, Readiness, ResourceApi, Stats};

/// The whole API as a router, for the server to put behind TLS.
pub fn router(api: Arc<ResourceApi>) -> Router {
    let kinds = format!("/apis/{GROUP_VERSION}");
    let mut router: Router<Arc<ResourceApi>> = Router::new()
        .route("/healthz", get(health::live))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/version", get(health::version))
        .route("/api", get(discovery::core_versions))
        .route("/api/v1", get(discovery::core_resources))
        .route("/api/v1/namespaces", get(namespaces::list))
        .route("/api/v1/namespaces/{name}", get(namespaces::get))
        .route("/api/v1/{plural}", get(read::list_or_watch))
        .route(
            "/api/v1/namespaces/{namespace}/{plural}",
            get(read::list_or_watch),
        )
        .route(
            "/api/v1/namespaces/{namespace}/{plural}/{name}",
            get(read::get),
        )
        .route("/apis", get(discovery::groups))
        .route(&format!("/apis/{GROUP}"), get(discovery::one_group))
        .route(&kinds, get(discovery::kinds))
        .route("/openapi/v3", get(openapi::index))
        .route("/openapi/v3/api/v1", get(openapi::of_core))
        .route(
            &format!("/openapi/v3/apis/{GROUP_VERSION}"),
            get(openapi::of_kinds),
        );
    for within in [kinds.clone(), format!("{kinds}/namespaces/{{namespace}}")] {
        router = router
            .route(&format!("{within}/{{plural}}"), collection())
            .route(&format!("{within}/{{plural}}/{{name}}"), item())
            .route(&format!("{within}/{{plural}}/{{name}}/status"), status());
    }
    let router = router.fallback(|| async { refusal::Refusal::no_such_path() });
    layered(router, api)
}

/// What the catalogue of an API serves, as a router.
pub fn catalogue_router(api: Arc<ResourceApi>) -> Router {
    let router = Router::new()
        .route("/healthz", get(health::live))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/version", get(health::version))
        .route("/openapi/v3", get(openapi::catalogue_index))
        .route("/openapi/v3/{*of}", get(openapi::of_catalogue))
        .fallback(dispatch::serve);
    layered(router, api)
}

fn layered(router: Router<Arc<ResourceApi>>, api: Arc<ResourceApi>) -> Router {
    router
        .layer(middleware::from_fn(layers::explain))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&api),
            layers::bound_unread,
        ))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&api),
            layers::guard,
        ))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&api),
            layers::with_request_id,
        ))
        .with_state(api)
}

fn collection() -> MethodRouter<Arc<ResourceApi>> {
    get(read::list_or_watch)
        .post(write::create)
        .delete(delete::delete_collection)
}

fn item() -> MethodRouter<Arc<ResourceApi>> {
    get(read::get)
        .put(write::replace)
        .patch(patch::patch)
        .delete(delete::delete)
}

fn status() -> MethodRouter<Arc<ResourceApi>> {
    get(read::get)
        .put(write::replace_status)
        .patch(patch::patch_status)
}
