//! From a captured layer to an upper directory.

use std::{
    fs::File,
    io::{BufReader, Read as _},
    path::Path,
};

use model::Digest;

use super::{Ids, Limits, unpack};
use crate::{
    digest::{Hashing, finish, verify},
    error::{Doing as _, Result},
};

/// Fills an empty upper directory from an archive, and proves that the archive is the one that
/// its digest names.
///
/// # Errors
/// If the archive is another, or the disk fails; what was made until then is the caller's to
/// remove.
pub fn restore(archive: &Path, digest: &Digest, upper: &Path, ids: Ids) -> Result<()> {
    let file = File::open(archive).doing("open the layer")?;
    let mut hashing = Hashing::new(file);
    let buffered = BufReader::with_capacity(1 << 18, hashing.by_ref());
    // It has been on this disk already.
    unpack(buffered, upper, &[], ids, Limits::NONE)?;
    verify(format!("layer {digest}"), digest, finish(hashing.hash))
}
