//! Reads: each in one snapshot of the last durable commit.

use std::{ops::Bound, sync::Arc};

use model::{Key, KindName, Namespace, Version};
use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase as _};
use store::{Listing, Query, Record, StoreError, record::LabelTerm};

use crate::{
    error::EngineError,
    rows::{self, INDEX, Indexed, META, RECORDS, VERSION},
};

type Records = ReadOnlyTable<&'static [u8], &'static [u8]>;
type Index = ReadOnlyTable<&'static [u8], ()>;

/// The answer, the caller's error, or the engine's.
pub(crate) type Read<T> = Result<Result<T, StoreError>, EngineError>;

/// The record at a key.
pub(crate) fn get(db: &Database, key: &Key) -> Read<Option<Arc<Record>>> {
    let records = db.begin_read()?.open_table(RECORDS)?;
    fetch(&records, key.kind, &rows::record_key(key))
}

/// The last version.
pub(crate) fn version(snapshot: &ReadTransaction) -> Result<Version, EngineError> {
    let meta = snapshot.open_table(META)?;
    let packed = meta.get(VERSION)?.map(|v| v.value());
    let packed = packed
        .ok_or_else(|| EngineError::Corrupted("the row that holds the version is gone".into()))?;
    Ok(Version::from_u64(packed))
}

/// The records that a query asks for.
pub(crate) fn list(db: &Database, query: &Query) -> Read<Listing> {
    let snapshot = db.begin_read()?;
    let version = version(&snapshot)?;
    let records = snapshot.open_table(RECORDS)?;
    let index = snapshot.open_table(INDEX)?;
    let mut page = Page {
        query,
        listing: Listing {
            records: Vec::new(),
            version,
            more: false,
        },
    };
    let kind = rows::kind_prefix(query.kind);
    let plan = plan(&index, query)?;
    let prefix = plan.as_deref().unwrap_or(&kind);
    let start = start(prefix, query);
    let from = (start.as_ref().map(Vec::as_slice), Bound::Unbounded);
    let within = within(prefix, query.namespace.as_ref());
    if plan.is_some() {
        for row in index.range::<&[u8]>(from)? {
            let (row, _) = row?;
            if !row.value().starts_with(&within) {
                break;
            }
            let key = [&kind, &row.value()[prefix.len()..]].concat();
            match fetch(&records, query.kind, &key)? {
                Ok(Some(record)) => {
                    if page.is_full_for(record) {
                        break;
                    }
                }
                // The index is written with the records, so a row without one cannot be.
                Ok(None) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
    } else {
        for row in records.range::<&[u8]>(from)? {
            let (row, value) = row?;
            if !row.value().starts_with(&within) {
                break;
            }
            match decode(query.kind, row.value(), value.value()) {
                Ok(record) => {
                    if page.is_full_for(record) {
                        break;
                    }
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }
    Ok(Ok(page.listing))
}

/// The listing that a walk fills.
struct Page<'q> {
    query: &'q Query,
    listing: Listing,
}

impl Page<'_> {
    /// Takes the record, if it matches. True ends the walk: there are more than the limit.
    fn is_full_for(&mut self, record: Arc<Record>) -> bool {
        if !self.query.matches(&record) {
            return false;
        }
        let limit = self.query.limit.unwrap_or(usize::MAX);
        self.listing.more = self.listing.records.len() >= limit;
        if !self.listing.more {
            self.listing.records.push(record);
        }
        self.listing.more
    }
}

/// Rows of each candidate that are counted to find the narrowest.
const LOOK: usize = 64;

/// The beginning of the index rows that serve a query best, if any do.
fn plan(index: &Index, query: &Query) -> Result<Option<Vec<u8>>, EngineError> {
    let fields = query
        .fields
        .iter()
        .map(|(path, value)| rows::index_prefix(Indexed::Field, query.kind, path, value));
    let labels = query.labels.iter().filter_map(|term| match term {
        LabelTerm::In(key, values) => match values.as_slice() {
            [value] => Some(rows::index_prefix(Indexed::Label, query.kind, key, value)),
            _ => None,
        },
        LabelTerm::NotIn(..) | LabelTerm::Exists(_) | LabelTerm::Missing(_) => None,
    });
    let mut candidates: Vec<_> = fields.chain(labels).collect();
    if candidates.len() < 2 {
        return Ok(candidates.pop());
    }
    let mut best = None;
    for candidate in candidates {
        let mut count = 0;
        for row in index.range::<&[u8]>(candidate.as_slice()..)?.take(LOOK) {
            if !row?.0.value().starts_with(&candidate) {
                break;
            }
            count += 1;
        }
        if best.as_ref().is_none_or(|(least, _)| count < *least) {
            best = Some((count, candidate));
        }
    }
    Ok(best.map(|(_, prefix)| prefix))
}

/// Where the walk begins: at the namespace, or after the last record of the page before.
fn start(prefix: &[u8], query: &Query) -> Bound<Vec<u8>> {
    let from = within(prefix, query.namespace.as_ref());
    let Some((namespace, name)) = &query.after else {
        return Bound::Included(from);
    };
    let mut after = prefix.to_vec();
    rows::push_place(&mut after, namespace.as_ref(), name);
    if after < from {
        Bound::Included(from)
    } else {
        Bound::Excluded(after)
    }
}

/// What every row of the walk begins with.
fn within(prefix: &[u8], namespace: Option<&Namespace>) -> Vec<u8> {
    let mut row = prefix.to_vec();
    if namespace.is_some() {
        rows::push_namespace(&mut row, namespace);
    }
    row
}

fn fetch(records: &Records, kind: KindName, row: &[u8]) -> Read<Option<Arc<Record>>> {
    Ok(match records.get(row)? {
        None => Ok(None),
        Some(value) => decode(kind, row, value.value()).map(Some),
    })
}

fn decode(kind: KindName, row: &[u8], value: &[u8]) -> Result<Arc<Record>, StoreError> {
    rows::decode(kind, value)
        .map(Arc::new)
        .map_err(|source| match rows::key_of(kind, row) {
            Some(key) => StoreError::Undecodable { key, source },
            None => StoreError::Unavailable {
                outcome: store::Outcome::NotApplied,
                reason: format!(
                    "a row of kind {kind} has neither a readable key nor a readable value: {source}"
                )
                .into(),
            },
        })
}
