//! The open database, shared between the writer and readers, and how it is opened.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use model::Version;
use parking_lot::Mutex;
use redb::{Builder, Database, DatabaseError, ReadableDatabase as _, RepairSession};
use store::{Outcome, StoreError, history::History};

use crate::{
    disk::{Medium, Overlay},
    error::{EngineError, widen},
    read,
    rows::{FORMAT, INDEX, META, RECORDS, VERSION},
};

/// The format of the rows that this version writes.
pub(crate) const FORMAT_NOW: u32 = 1;

/// Opens the database on a medium that holds one, repairing what a crash left.
pub(crate) fn open(medium: Medium, cache_bytes: usize) -> Result<(Database, Version), EngineError> {
    without_panic(|| {
        let db = Builder::new()
            .set_cache_size(cache_bytes)
            .create_with_backend(medium)
            .map_err(widen)?;
        let version = read::version(&db.begin_read()?)?;
        Ok((db, version))
    })
}

/// Reads everything and compares it with its checksums, changing nothing on the medium. The engine
/// does this by itself after a crash; after a clean end it would believe whatever it finds.
pub(crate) fn verify(medium: Medium, cache_bytes: usize) -> Result<(), EngineError> {
    without_panic(|| {
        let opened = Builder::new()
            .set_cache_size(cache_bytes)
            .set_repair_callback(RepairSession::abort)
            .create_with_backend(Overlay::new(medium));
        let mut db = match opened {
            Ok(db) => db,
            // There was a crash: opening will look at everything.
            Err(DatabaseError::RepairAborted) => return Ok(()),
            Err(error) => return Err(widen(error)),
        };
        match db.check_integrity() {
            Ok(true) => Ok(()),
            Ok(false) => Err(EngineError::Corrupted("checksums do not match".into())),
            Err(error) => Err(widen(error)),
        }
    })
}

/// The engine checks much of what it reads by assertions. A damaged file must not take the process
/// with it.
fn without_panic<T>(open: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
        let reason = "the engine found something impossible in it; the log has the details";
        Err(EngineError::Corrupted(reason.into()))
    })
}

/// Makes an empty database at a version. It is durable when this returns.
pub(crate) fn initialise(medium: Medium, version: Version) -> Result<Database, EngineError> {
    let db = Builder::new()
        .set_cache_size(1 << 20)
        .create_with_backend(medium)
        .map_err(widen)?;
    let transaction = db.begin_write()?;
    {
        transaction.open_table(RECORDS)?;
        transaction.open_table(INDEX)?;
        let mut meta = transaction.open_table(META)?;
        meta.insert(FORMAT, u64::from(FORMAT_NOW))?;
        meta.insert(VERSION, version.to_u64())?;
    }
    transaction.commit()?;
    Ok(db)
}

/// What readers and the writer share.
#[derive(Debug)]
pub(crate) struct Shared {
    slot: Mutex<Slot>,
    pub(crate) history: Arc<History>,
}

#[derive(Debug)]
enum Slot {
    Open(Arc<Database>),
    /// Not open, and why: being reopened after an error, or the store is gone.
    Closed(Box<str>),
}

impl Shared {
    pub(crate) fn new(db: Database, history: Arc<History>) -> Self {
        Self {
            slot: Mutex::new(Slot::Open(Arc::new(db))),
            history,
        }
    }

    /// The database, if it is open. Held for one read, so that it can be closed soon.
    pub(crate) fn database(&self) -> Result<Arc<Database>, StoreError> {
        match &*self.slot.lock() {
            Slot::Open(db) => Ok(Arc::clone(db)),
            Slot::Closed(reason) => Err(unavailable(Outcome::NotApplied, reason.clone())),
        }
    }

    /// Puts a reopened database in place.
    pub(crate) fn put(&self, db: Database) {
        *self.slot.lock() = Slot::Open(Arc::new(db));
    }

    /// Closes the database: returns when no reader has it any more and its file is released.
    pub(crate) fn close(&self, reason: &str) {
        let slot = std::mem::replace(&mut *self.slot.lock(), Slot::Closed(reason.into()));
        let Slot::Open(mut shared) = slot else { return };
        // Readers hold it for the length of one read, and no new one can get it.
        while let Err(still_shared) = Arc::try_unwrap(shared).map(drop) {
            shared = still_shared;
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The error for what the store could not do.
pub(crate) fn unavailable(outcome: Outcome, reason: impl Into<Box<str>>) -> StoreError {
    StoreError::Unavailable {
        outcome,
        reason: reason.into(),
    }
}
