//! The control API of E2B: what unmodified SDKs and the CLI call to create, find, pause, wake and
//! end sandboxes.
//!
//! ```text
//!  client ──▶ route ──▶ handler ──intent, one write──▶ store
//!                          └──────waits, reads────────▶ cache ◀── what control observed
//! ```
//!
//! It calls neither the control loop nor a runtime. A caller is a team, which is a namespace;
//! whatever is another team's answers exactly like what does not exist. Every answer that is not a
//! success has one shape, whichever layer it comes from. Nothing that a client sends is ignored
//! silently: an unknown field or parameter is refused by its name.
//!
//! | Module | What it holds |
//! |---|---|
//! | `service` | what handlers share; options, ports, start |
//! | [`ports`] | what sandboxes use and log, and who administrates, brought by others |
//! | `routes`, `route`, `openapi` | one table: the router, the checks and the document come from it |
//! | `layers`, `body`, `object`, `query`, `refusal` | a request taken apart; errors in one shape |
//! | `wire`, `render`, `state` | bodies as clients know them, and records as such |
//! | `intent` | finding, changing by one write, waiting for what is observed |
//! | `order`, `extension`, `egress`, `names` | what a request asks for, checked |
//! | `create`, `idempotency` | creating, once |
//! | `connect`, `pause`, `rung`, `lifetime` | waking, sleeping, ending |
//! | `roster`, `list` | sandboxes in the order of their start, in pages |
//! | `metrics`, `sampler`, `logs` | what sandboxes use, and what happened to them |
//! | `audit` | who did what |
//! | `builds`, `tags` | building templates, and which build a name means |
//! | `told` | sandboxes of which their owners know more than the cache shows yet |
//! | `ahead`, `stamp` | what other servers wrote that the cache does not show yet, and how far a client has come |
//! | `templates`, `teams` | what is read of the rest |
//! | `meter` | requests by route and ending |

mod ahead;
mod audit;
mod body;
mod builds;
mod connect;
mod create;
mod egress;
mod extension;
mod fork;
mod history;
mod idempotency;
mod intent;
mod layers;
mod lifetime;
mod list;
mod logs;
mod meter;
mod metrics;
mod names;
mod object;
mod openapi;
mod order;
mod pause;
pub mod ports;
mod query;
mod refusal;
mod render;
mod roster;
mod route;
mod routes;
mod rung;
mod sampler;
mod service;
mod snapshots;
mod stamp;
mod state;
mod tags;
mod teams;
mod templates;
mod told;
mod wire;

use std::sync::Arc;

use axum::{Router, extract::Request, middleware, routing::on};

pub use meter::{BOUNDS, Ending, RouteStats};
pub use openapi::openapi;
pub use sampler::Sampler;
pub use service::{Caches, E2b, Options, Ports};

/// The whole API as a router, for the server to put behind a listener.
pub fn router(api: Arc<E2b>) -> Router {
    let mut router = Router::new();
    for (at, row) in routes::all().enumerate() {
        let api = Arc::clone(&api);
        let serve = move |request: Request| route::serve(Arc::clone(&api), row, at, request);
        router = router.route(row.path, on(row.verb.filter(), serve));
    }
    router
        .fallback(|| async { refusal::Refusal::no_such_path() })
        .layer(middleware::from_fn(layers::explain))
        .layer(middleware::from_fn_with_state(api, layers::name))
}
