//! The open database, shared between the writer and readers, and how it is opened.

use std::{sync::Arc, thread, time::Duration};

use model::Version;
use parking_lot::Mutex;
use redb::{Builder, Database, ReadableDatabase as _};
use store::{Outcome, StoreError, history::History};

use crate::{
    disk::Medium,
    error::{EngineError, widen},
    read,
    rows::{FORMAT, INDEX, META, RECORDS, VERSION},
};

/// The format of the rows that this version writes.
pub(crate) const FORMAT_NOW: u32 = 1;

/// Opens the database on a medium that holds one, repairing what a crash left.
pub(crate) fn open(medium: Medium, cache_bytes: usize) -> Result<(Database, Version), EngineError> {
    let db = Builder::new()
        .set_cache_size(cache_bytes)
        .create_with_backend(medium)
        .map_err(widen)?;
    let version = read::version(&db.begin_read()?)?;
    Ok((db, version))
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
            Slot::Closed(reason) => Err(unavailable(Outcome::NotApplied, reason)),
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
pub(crate) fn unavailable(outcome: Outcome, reason: impl ToString) -> StoreError {
    StoreError::Unavailable {
        outcome,
        reason: reason.to_string().into(),
    }
}
