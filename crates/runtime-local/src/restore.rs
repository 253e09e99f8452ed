//! What goes on beside a start: its record, and a captured layer on its way into the writable one.
//!
//! Making the record durable, and writing the layer and proving it, each take about as long as all
//! else that a start does before its first process runs, and none looks at another: so all of it goes
//! on at once.
//!
//! ```text
//! start:   directories ─▶ cgroups ─▶ clone ─▶ mounts ─▶ the overlay ─▶ its own mounts ─▶ it runs
//! beside:            ├─▶ layer written ────────────────┘└─▶ layer proven ─────────────────┤
//!                    └─▶ record durable ──────────────────────────────────────────────────┘
//! ```
//!
//! The overlay is mounted over a layer that is there; its first process runs once that is proven, and
//! the record durable. So nothing runs over a layer that is not whole, and whoever finds it damaged
//! has only directories and a process that waits to remove. That the files are on disk is not waited
//! for: see `settle`.

use std::{
    io,
    sync::mpsc::{Receiver, sync_channel},
    thread::{self, Scope, ScopedJoinHandle},
};

use images::{
    ImageError,
    layer::{Ids, restore_and_tell},
};
use model::{Digest, Uid};

use crate::{
    engine::Engine,
    error::{Doing as _, EngineError, Result},
    record::{Place, Record},
};

/// A writable layer that is being filled, if there is anything to fill it from.
#[derive(Debug)]
pub(crate) struct Filling<'scope> {
    filled: Option<Receiver<()>>,
    proving: Proving<'scope>,
}

/// A writable layer that is filled, and may be another than it should: nothing may run over it yet.
#[derive(Debug)]
#[must_use]
pub(crate) struct Proving<'scope> {
    record: Beside<'scope>,
    layer: Option<Beside<'scope>>,
}

type Beside<'scope> = ScopedJoinHandle<'scope, Result<()>>;

impl Engine {
    /// Begins to make the record of a sandbox durable, and to fill its new writable layer. Whatever
    /// becomes of the start, `scope` ends only after this has: nobody removes what is still being
    /// written.
    pub(crate) fn begin_restore<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        uid: Uid,
        place: &'env Place,
        record: &'env Record,
    ) -> Result<Filling<'scope>> {
        let begin = |work: Box<dyn FnOnce() -> Result<()> + Send + 'env>| {
            let thread = thread::Builder::new().spawn_scoped(scope, work);
            thread.doing("start a thread beside the sandbox's start")
        };
        let (mut layer, mut filled) = (None, None);
        if let Some(digest) = &record.layer {
            // Before the record: it is durable with that.
            let mark = place.make_mark()?;
            let (tell, told) = sync_channel(1);
            filled = Some(told);
            layer = Some(begin(Box::new(move || {
                let tell = || {
                    // Who does not hear of it any more has failed already.
                    let _ = tell.try_send(());
                };
                let (file, upper) = (self.layer_file(digest), place.upper());
                restore_and_tell(&file, digest, &upper, Ids::From(record.first_uid), tell)
                    .map_err(|error| damaged(digest, error))?;
                self.settle(uid, place, mark)
            }))?);
        }
        let record = begin(Box::new(|| place.write_record(record, true)))?;
        Ok(Filling {
            filled,
            proving: Proving { record, layer },
        })
    }
}

impl<'scope> Filling<'scope> {
    /// Returns when the layer is there; whether it is the right one is not known yet.
    pub(crate) fn wait(self) -> Result<Proving<'scope>> {
        match self.filled {
            Some(filled) if filled.recv().is_err() => {
                // It has ended without, and says why.
                self.proving.wait()?;
                Err(io::Error::other("nothing was written")).doing("restore the captured layer")
            }
            Some(_) | None => Ok(self.proving),
        }
    }
}

impl Proving<'_> {
    /// Returns when the layer is proven, and the record durable.
    pub(crate) fn wait(self) -> Result<()> {
        self.layer.map_or(Ok(()), join)?;
        join(self.record)
    }
}

fn join(beside: Beside<'_>) -> Result<()> {
    beside.join().unwrap_or_else(|_| {
        Err(io::Error::other("the thread beside has panicked")).doing("start the sandbox")
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
