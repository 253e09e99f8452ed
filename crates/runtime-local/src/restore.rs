//! A captured layer on its way into the writable one.
//!
//! Writing and proving it takes about as long as all else that a start does before its first process
//! runs, and neither looks at the other: so both go on at once.
//!
//! ```text
//! start:   directories ─▶ cgroups ─▶ clone ─▶ mounts ─▶ the overlay ─▶ handed over ─▶ it runs
//!                      └─▶ the layer is written ────────┘              │
//!                                               └─▶ and proven ────────┘
//! ```
//!
//! The overlay is mounted over a layer that is there; its first process gets it, and goes on, once
//! that is proven. So nothing runs over one that is not whole, and whoever finds it damaged has
//! only directories and a process that waits to remove.

use std::{
    io,
    sync::mpsc::{Receiver, sync_channel},
    thread::{self, Scope, ScopedJoinHandle},
};

use images::{
    ImageError,
    layer::{Ids, restore_and_tell},
};
use model::Digest;

use crate::{
    engine::Engine,
    error::{Doing as _, EngineError, Result},
    record::{Place, Record},
};

/// A writable layer that is being filled, if there is anything to fill it from.
#[derive(Debug)]
pub(crate) struct Restoring<'scope>(Option<(Receiver<()>, Proving<'scope>)>);

/// A writable layer that is filled, and being proven.
#[derive(Debug)]
pub(crate) struct Proving<'scope>(Option<ScopedJoinHandle<'scope, Result<()>>>);

impl Engine {
    /// Begins to fill the new writable layer of a sandbox. Whatever becomes of the start, `scope`
    /// ends only after this has: nobody removes what is still being written.
    pub(crate) fn begin_restore<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        place: &Place,
        record: &Record,
    ) -> Result<Restoring<'scope>> {
        let Some(digest) = record.layer.clone() else {
            return Ok(Restoring(None));
        };
        let (file, upper) = (self.layer_file(&digest), place.upper());
        let ids = Ids::From(record.first_uid);
        let (tell, filled) = sync_channel(1);
        let work = move || {
            // Who fails to hear of it has failed already.
            let tell = || {
                let _ = tell.try_send(());
            };
            restore_and_tell(&file, &digest, &upper, ids, tell)
                .map_err(|error| damaged(&digest, error))
        };
        let thread = thread::Builder::new().spawn_scoped(scope, work);
        let thread = thread.doing("start a thread that restores the captured layer")?;
        Ok(Restoring(Some((filled, Proving(Some(thread))))))
    }
}

impl<'scope> Restoring<'scope> {
    /// Returns when the layer is there; whether it is the right one is not known yet.
    pub(crate) fn wait_until_filled(self) -> Result<Proving<'scope>> {
        let Some((filled, mut proving)) = self.0 else {
            return Ok(Proving(None));
        };
        if filled.recv().is_err() {
            // It has ended without: it says why.
            proving.0.take().map_or(Ok(()), join)?;
        }
        Ok(proving)
    }
}

impl Proving<'_> {
    /// Returns when the layer is proven.
    pub(crate) fn wait(self) -> Result<()> {
        self.0.map_or(Ok(()), join)
    }
}

fn join(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| {
        Err(io::Error::other("the thread that does it has panicked"))
            .doing("restore the captured layer")
    })
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
