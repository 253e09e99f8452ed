//! From a captured layer to an upper directory.

use std::{
    fs::File,
    io::{self, BufReader, Read as _},
    path::Path,
    thread,
};

use model::Digest;

use super::{Ids, Limits, unpack};
use crate::{
    digest::{Hashing, finish, verify},
    error::{Doing as _, Result},
};

/// Up to this size a layer is filled and proven by one thread: a second one would only take turns
/// with whoever starts the sandbox meanwhile.
const SMALL: u64 = 8 << 20;

/// Fills an empty upper directory from an archive, and proves that the archive is the one that
/// its digest names.
///
/// # Errors
/// If the archive is another, or the disk fails; what was made until then is the caller's to
/// remove.
pub fn restore(archive: &Path, digest: &Digest, upper: &Path, ids: Ids) -> Result<()> {
    restore_and_tell(archive, digest, upper, ids, || ())
}

/// The same; `filled` is called as soon as the directory is filled, which may be before anything is
/// proven.
///
/// # Errors
/// As [`restore`].
pub fn restore_and_tell(
    archive: &Path,
    digest: &Digest,
    upper: &Path,
    ids: Ids,
    filled: impl FnOnce(),
) -> Result<()> {
    let open = || File::open(archive).doing("open the layer");
    let (file, again) = (open()?, open()?);
    let size = file.metadata().doing("open the layer")?.len();
    let fill = || {
        let buffered = BufReader::with_capacity(1 << 16, file);
        // It has been on this disk already.
        unpack(buffered, upper, &[], ids, Limits::NONE).map(|()| filled())
    };
    let prove = || prove(again, digest);
    let (filled, proven) = if size > SMALL {
        at_once(fill, prove)?
    } else {
        (fill(), prove())
    };
    // An archive that is another has a reason to be malformed, too.
    proven.and(filled)
}

/// Neither changes what the other reads.
fn at_once(
    fill: impl FnOnce() -> Result<()>,
    prove: impl FnOnce() -> Result<()> + Send,
) -> Result<(Result<()>, Result<()>)> {
    thread::scope(|scope| {
        let beside = thread::Builder::new().spawn_scoped(scope, prove);
        let beside = beside.doing("start a thread that reads the layer")?;
        let filled = fill();
        let proven = beside.join().map_err(|_| io::Error::other("it panicked"));
        Ok((filled, proven.doing("read the layer")?))
    })
}

fn prove(file: File, digest: &Digest) -> Result<()> {
    let mut hashing = Hashing::new(file);
    let mut buffer = [0; 1 << 15];
    while hashing.read(&mut buffer).doing("read the layer")? > 0 {}
    verify(format!("layer {digest}"), digest, finish(hashing.hash))
}
