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
//! | [`flight`] | pulls under way, shared by all who wait |
//! | [`registry`] | pulling over HTTP |
//! | [`import`] | OCI layouts and Docker's archives |
//! | [`debian`] | a Debian root made on this host |
//! | [`layer`] | archives to directories and back; hostile ones are refused |
//! | [`error`] | what can go wrong, and whose fault it is |
//! | [`digest`], `compression`, [`tree`] | hashing, gzip and zstd, removing directories |

pub mod debian;
pub mod digest;
pub mod error;
pub mod flight;
pub mod import;
pub mod layer;
pub mod manifest;
pub mod reference;
pub mod registry;
pub mod store;
pub mod tree;

mod compression;

pub use debian::Debian;
pub use error::{Fault, Hostile, ImageError, Result};
pub use flight::{Flight, Progress};
pub use import::Imported;
pub use manifest::ImageConfig;
pub use reference::Reference;
pub use registry::{Credentials, RegistryOptions};
pub use store::{BASE, Image, InUse, Kept, Options, Origin, Pinned, Store, Swept};
