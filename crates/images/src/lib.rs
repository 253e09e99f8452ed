//! Images: pulled, imported, verified, unpacked once and shared by all sandboxes of a host.
//!
//! ```text
//!  registry ──pull──┐
//!                   ├─▶ blobs ──unpack──▶ layers ──▶ image ──▶ name
//!  archive ─import──┘   (by digest)       (by chain)  (by digest)
//! ```
//!
//! | Module | What it holds |
//! |---|---|
//! | [`reference`], [`manifest`] | names of images, and what registries say they are |
//! | [`store`] | images on disk: what is where, who may use it, what is swept |
//! | [`flight`] | transfers under way, shared by all who wait |
//! | [`registry`] | pulling and pushing over HTTP |
//! | `pin` | from a tag to a digest, remembered for a while |
//! | [`publish`] | captured layers to a registry and back |
//! | [`import`], [`export`] | OCI layouts and Docker's archives |
//! | [`commit`] | a captured layer as an image |
//! | [`carry`] | the same, on an image that somebody else keeps |
//! | [`debian`], `derive` | a Debian root made on this host, an image made of another |
//! | [`layer`] | archives to directories and back; hostile ones are refused |
//! | [`error`] | what can go wrong, and whose fault it is |
//! | [`digest`], `compression`, [`tree`] | hashing, gzip and zstd, removing directories |

pub mod carry;
pub mod commit;
pub mod debian;
mod derive;
pub mod digest;
pub mod error;
pub mod export;
pub mod flight;
pub mod import;
pub mod layer;
pub mod manifest;
mod pin;
pub mod publish;
pub mod reference;
pub mod registry;
pub mod store;
pub mod tree;

mod compression;

pub use carry::{Blobs, Foreign};
pub use commit::{Commit, Committed};
pub use compression::Compression;
pub use debian::Debian;
pub use error::{Fault, Hostile, ImageError, Result};
pub use export::Format;
pub use flight::{Flight, Progress};
pub use import::Imported;
pub use manifest::ImageConfig;
pub use publish::{Fetched, Pushed};
pub use reference::Reference;
pub use registry::{Credentials, Login, Reach, RegistryOptions};
pub use store::{
    BASE, Image, InUse, Kept, Note, OnSweep, Options, Origin, Pinned, Store, Sweep, Swept,
};
