//! How processes of one installation tell each other of changed routes.
//!
//! The store is the truth, and every process follows it by a watch of its own. A watch can lag or be
//! lost; the mesh is there for speed, and for repair meanwhile:
//!
//! - Who has *written* something pushes it at once to everybody it has a link to. What it heard from
//!   others it does not pass on.
//! - Once a round each asks one of the others for what is newer than what it has.
//! - Who knows nothing yet takes everything another knows.
//!
//! What is exchanged are [`routes::Message`]s, and the rules of the table decide what becomes of
//! them: the mesh adds none. What is lost, late or repeated changes nothing in the end. Who holds the
//! peer key is believed, as one who could write the store; nobody else is heard.
//!
//! ```text
//!   say ──▶ ring ──▶ a place in it for each peer ──▶ Push ─── link ───▶ table or ear
//!                                ▲                                          │
//!   heard(version) waits for ────┴──────────────────── Ack ◀────────────────┘
//! ```
//!
//! | Module | What it holds |
//! |---|---|
//! | [`core`] | what is decided: pure, driven by the transport and by the simulator |
//! | [`frame`] | what goes over a link |
//! | [`book`] | the table and the ear, as seen from here |
//! | [`mesh`] | the transport: the core, driven over TLS; how peers are let in |
//! | [`wires`] | one link as bytes |
//! | [`why`] | why links end |
//! | [`stats`] | counts |

pub mod book;
pub mod core;
pub mod frame;
pub mod mesh;
pub mod options;
pub mod stats;
pub mod why;
pub mod wires;

pub use book::{Book, Heard};
pub use frame::Role;
pub use mesh::{Means, Mesh, Others, Seeds};
pub use options::Options;
pub use stats::{Counts, Stats};
pub use why::Why;
pub use wires::ALPN;
