//! From a captured layer to an upper directory.

use std::{
    fs::File,
    io::{self, BufReader},
    path::Path,
    thread,
};

use model::Digest;

use super::{Ids, Limits, unpack};
use crate::{
    digest::{Hashing, finish, verify},
    error::{Doing as _, Result},
};

/// Fills an empty upper directory from an archive, and proves that the archive is the one that
/// its digest names. Proving takes as long as filling, so both go on at once; neither changes what
/// the other reads.
///
/// # Errors
/// If the archive is another, or the disk fails; what was made until then is the caller's to
/// remove.
pub fn restore(archive: &Path, digest: &Digest, upper: &Path, ids: Ids) -> Result<()> {
    let open = || File::open(archive).doing("open the layer");
    let (file, again) = (open()?, open()?);
    thread::scope(|scope| {
        let proof = scope.spawn(move || prove(again, digest));
        let buffered = BufReader::with_capacity(1 << 16, file);
        // It has been on this disk already.
        let filled = unpack(buffered, upper, &[], ids, Limits::NONE);
        let proven = proof.join().map_err(|_| io::Error::other("it panicked"));
        // An archive that is another has a reason to be malformed, too.
        proven.doing("read the layer")?.and(filled)
    })
}

fn prove(file: File, digest: &Digest) -> Result<()> {
    let mut hashing = Hashing::new(file);
    let mut buffer = vec![0; 1 << 17];
    while io::Read::read(&mut hashing, &mut buffer).doing("read the layer")? > 0 {}
    verify(format!("layer {digest}"), digest, finish(hashing.hash))
}
