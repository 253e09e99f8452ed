//! One request inside a write transaction: read the record, ask the rules, change the rows.

use std::sync::Arc;

use model::{Key, Uid, Version};
use redb::{ReadableTable as _, Table, WriteTransaction};
use store::{
    Change, Draft, Precondition, Record, StoreError, WatchEvent,
    rules::{self, Effect, Stamp},
};

use crate::{
    error::EngineError,
    rows::{self, INDEX, Indexed, META, RECORDS, VERSION},
};

/// Something to be written.
#[derive(Debug)]
pub(crate) enum Request {
    Create(Draft, Uid),
    Update(Change),
    Delete(Key, Precondition),
}

impl Request {
    fn key(&self) -> Key {
        match self {
            Self::Create(draft, _) => draft.key(),
            Self::Update(change) => change.key.clone(),
            Self::Delete(key, _) => key.clone(),
        }
    }

    /// About how many bytes it brings.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Create(draft, _) => draft.spec.len() + draft.status.len(),
            Self::Update(change) => match &change.half {
                store::Half::Spec { spec, .. } => spec.len(),
                store::Half::Status { status } => status.len(),
            },
            Self::Delete(..) => 0,
        }
    }
}

/// The tables of a write transaction.
pub(crate) struct Tables<'t> {
    records: Table<'t, &'static [u8], &'static [u8]>,
    index: Table<'t, &'static [u8], ()>,
}

impl<'t> Tables<'t> {
    pub(crate) fn open(transaction: &'t WriteTransaction) -> Result<Self, EngineError> {
        Ok(Self {
            records: transaction.open_table(RECORDS)?,
            index: transaction.open_table(INDEX)?,
        })
    }

    /// Does what a request asks, and says what watchers will see. The inner error is the request's
    /// own and changed nothing; the outer one is the engine's and spoils the transaction.
    pub(crate) fn apply(
        &mut self,
        request: Request,
        at: Stamp,
    ) -> Result<Result<(Effect, Option<WatchEvent>), StoreError>, EngineError> {
        let key = request.key();
        let row = rows::record_key(&key);
        let current = match self.records.get(row.as_slice())? {
            None => None,
            Some(value) => match rows::decode(key.kind, value.value()) {
                Ok(record) => Some(Arc::new(record)),
                Err(source) => return Ok(Err(StoreError::Undecodable { key, source })),
            },
        };
        let effect = match request {
            Request::Create(draft, uid) => rules::create(current.as_ref(), draft, uid, at),
            Request::Update(change) => rules::update(current.as_ref(), change, at),
            Request::Delete(key, only_if) => rules::delete(current.as_ref(), &key, only_if, at),
        };
        let effect = match effect {
            Ok(effect) => effect,
            Err(refused) => return Ok(Err(refused)),
        };
        let event = match &effect {
            Effect::Unchanged(_) => None,
            Effect::Put(record) => {
                self.records
                    .insert(row.as_slice(), rows::encode(record).as_slice())?;
                self.reindex(current.as_deref(), Some(record))?;
                Some(WatchEvent::Put {
                    record: Arc::clone(record),
                    previous: current,
                })
            }
            Effect::Remove(record) => {
                self.records.remove(row.as_slice())?;
                self.reindex(current.as_deref(), None)?;
                Some(WatchEvent::Removed {
                    record: Arc::clone(record),
                })
            }
        };
        Ok(Ok((effect, event)))
    }

    /// Changes only the index rows that differ: most writes touch none.
    fn reindex(&mut self, old: Option<&Record>, new: Option<&Record>) -> Result<(), EngineError> {
        for (record, other, is_new) in [(old, new, false), (new, old, true)] {
            let Some(record) = record else { continue };
            for (of, path, value) in rows::index_rows(record) {
                if other.and_then(|r| indexed(r, of, path)) == Some(value) {
                    continue;
                }
                let mut row = rows::index_prefix(of, record.kind, path, value);
                rows::push_place(&mut row, record.meta.namespace.as_ref(), &record.meta.name);
                if is_new {
                    self.index.insert(row.as_slice(), ())?;
                } else {
                    self.index.remove(row.as_slice())?;
                }
            }
        }
        Ok(())
    }
}

fn indexed<'r>(record: &'r Record, of: Indexed, path: &str) -> Option<&'r str> {
    match of {
        Indexed::Field => record.fields.get(path),
        Indexed::Label => record.meta.labels.get(path),
    }
}

/// Records the last version of a transaction in it.
pub(crate) fn set_version(
    transaction: &WriteTransaction,
    version: Version,
) -> Result<(), EngineError> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(VERSION, version.to_u64())?;
    Ok(())
}
