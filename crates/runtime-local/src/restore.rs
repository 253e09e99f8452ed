//! A captured layer on its way into the writable one.
//!
//! Reading, proving and writing it takes about as long as all else that a start does before its root
//! is mounted, and neither looks at the other: so both go on at once. Whoever mounts the root waits
//! for the layer first, and nothing runs over one that is not whole and proven.

use std::{
    io,
    thread::{Scope, ScopedJoinHandle},
};

use images::{
    ImageError,
    layer::{Ids, restore},
};
use model::Digest;

use crate::{
    engine::Engine,
    error::{Doing as _, EngineError, Result},
    record::{Place, Record},
};

/// A writable layer that is being filled, if there is anything to fill it from.
#[derive(Debug)]
pub(crate) struct Restoring<'scope>(Option<ScopedJoinHandle<'scope, Result<()>>>);

impl Engine {
    /// Begins to fill the new writable layer of a sandbox. Whatever becomes of the start, `scope`
    /// ends only after this has: nobody removes what is still being written.
    pub(crate) fn begin_restore<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        place: &Place,
        record: &Record,
    ) -> Restoring<'scope> {
        let restoring = record.layer.clone().map(|digest| {
            let (file, upper) = (self.layer_file(&digest), place.upper());
            let ids = Ids::From(record.first_uid);
            scope.spawn(move || {
                restore(&file, &digest, &upper, ids).map_err(|error| damaged(&digest, error))
            })
        });
        Restoring(restoring)
    }
}

impl Restoring<'_> {
    /// Returns when the layer is there, whole and proven.
    pub(crate) fn wait(self) -> Result<()> {
        match self.0.map(ScopedJoinHandle::join) {
            None => Ok(()),
            Some(Ok(restored)) => restored,
            Some(Err(_)) => Err(io::Error::other("the thread that does it has panicked"))
                .doing("restore the captured layer"),
        }
    }
}

/// A layer that was captured here and cannot be used is damaged, whatever is wrong with it.
fn damaged(digest: &Digest, error: ImageError) -> EngineError {
    match error {
        error if error.is_retryable() => error.into(),
        error => EngineError::Damaged {
            what: format!("layer {digest}").into(),
            how: error.to_string().into(),
        },
    }
}
