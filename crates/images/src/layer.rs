//! Layers as archives: the upper directory of an overlay to an OCI layer, and any layer to a
//! directory that an overlay can use.
//!
//! An archive is a plain tar. Whiteouts are files `.wh.<name>`, opaque directories hold
//! `.wh..wh..opq`, attributes are `SCHILY.xattr` records. In a directory, a whiteout is the device
//! 0:0 and an opaque directory has an attribute, as overlayfs wants them.
//!
//! What is captured has sorted names and the ids inside, so the same content has the same digest
//! whichever sandbox it came from. Sockets are left out: nobody listens on them any more.
//!
//! What is unpacked was written by somebody else. Nothing of it is trusted: see [`unpack`].
//!
//! | Module | What it holds |
//! |---|---|
//! | [`capture`] | from an upper directory to an archive |
//! | `archive` | the entries of an archive, whatever wrote it |
//! | [`unpack`], [`restore`] | entries to files, beneath one directory |
//! | `sparse` | files with holes |
//! | `lowers` | what the layers below say about a path |
//! | [`ids`], `attributes` | ids inside and on the host, and attributes that hold ids |

mod archive;
mod attributes;
pub mod capture;
pub mod ids;
mod lowers;
pub mod restore;
mod sparse;
pub mod unpack;

pub use capture::{Earlier, Written, capture, capture_all};
pub use ids::Ids;
pub use restore::{restore, restore_and_tell};
pub use unpack::{Limits, unpack};

/// Deeper than anything but an attack, and shallow enough for a stack and a table of descriptors.
pub const DEPTH: usize = 256;

/// Prefix of the name of a whiteout.
const WHITEOUT: &[u8] = b".wh.";
/// Name of the file that makes its directory opaque.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Marks a file that has the name of a whiteout and is none.
const LITERAL: &str = "DORMOUSE.literal";
/// An attribute whose name a record cannot hold: in hexadecimal.
const HEX_XATTR: &str = "DORMOUSE.xattr.";
/// An attribute.
const XATTR: &str = "SCHILY.xattr.";
/// What makes a directory opaque for overlayfs.
const OPAQUE_XATTR: &std::ffi::CStr = c"trusted.overlay.opaque";

#[cfg(test)]
mod tests;
