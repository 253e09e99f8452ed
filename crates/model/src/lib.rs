//! The words of the product: ids, versions, the resources and the sandbox lifecycle.
//!
//! Plain data and pure functions. No IO, no async, no clock, no randomness: times, uids and
//! versions come in as arguments.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`ids`] | newtypes for every id and version, with the rules for names |
//! | [`time`] | wall-clock microseconds |
//! | [`map`] | a compact string map for labels, annotations, env |
//! | [`meta`] | object metadata, conditions, [`meta::Object`] |
//! | [`codec`] | raw JSON to objects and back; unknown fields are named and carried along |
//! | [`sandbox`], [`pool`], [`claim`], [`snapshot`], [`template`] | sandboxes and what they come from |
//! | [`autoscale`] | how a pool follows demand, and schedules |
//! | [`hook`] | what is done inside before an owner hears of a sandbox |
//! | [`team`], [`api_key`] | whose they are |
//! | [`record`] | what a delivery was, once it is over |
//! | [`event`] | what happened to an object, deduplicated and bounded |
//! | [`level`] | how bad a line of a log is |
//! | [`trouble`] | why something is not ready, or has ended |
//! | [`lifecycle`] | the sandbox's state machine and its admission rules |
//! | [`workload`] | what a runtime is asked for, and what it sees |
//! | [`kinds`] | the registry: names, scope, columns, schema of each kind |
//! | [`schema`] | structural JSON schemas, and CRDs and OpenAPI built from them |
//! | [`validate`] | field rules beyond types, each error naming the field and the remedy |

pub mod api_key;
pub mod autoscale;
pub mod claim;
pub mod codec;
pub mod event;
pub mod hook;
pub mod ids;
pub mod kinds;
pub mod level;
pub mod lifecycle;
mod limits;
pub mod map;
pub mod meta;
pub mod pool;
pub mod record;
pub mod sandbox;
pub mod schema;
pub mod snapshot;
pub mod team;
pub mod template;
pub mod time;
pub mod trouble;
pub mod validate;
pub mod workload;

pub use api_key::ApiKey;
pub use claim::SandboxClaim;
pub use event::Event;
pub use ids::{
    Digest, Epoch, Generation, Incarnation, Key, KindName, Name, Namespace, OperationId, SandboxId,
    Uid, Version,
};
pub use level::Level;
pub use map::StringMap;
pub use meta::{Metadata, Object, Spec};
pub use pool::SandboxPool;
pub use record::SandboxRecord;
pub use sandbox::Sandbox;
pub use snapshot::SandboxSnapshot;
pub use team::Team;
pub use template::SandboxTemplate;
pub use time::Timestamp;
