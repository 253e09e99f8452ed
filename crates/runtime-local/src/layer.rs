//! Writable layers as archives: the upper directory of an overlay to an OCI layer, and back.
//!
//! An archive is a plain tar. Names are sorted and ids are those inside, so the same content has
//! the same digest whichever sandbox it came from. Whiteouts are files `.wh.<name>`, opaque
//! directories hold `.wh..wh..opq`, attributes are `SCHILY.xattr` records, holes are left out in the
//! way of GNU tar. Sockets are left out too: nobody listens on them any more.

mod attributes;
mod capture;
mod restore;
mod sparse;

pub(crate) use capture::capture;
pub(crate) use restore::restore;

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

#[cfg(test)]
mod tests;
