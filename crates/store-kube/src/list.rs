//! Listing.
//!
//! A list is read page by page at one version, to its end. An API server narrows by labels and by
//! those fields whose absence means nothing; whether a record is asked for is decided here.

use std::sync::Arc;

use cluster_kube::Reason;
use http::Method;
use model::{
    Name, Namespace, Version,
    validate::{is_label_key, is_label_value},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use store::{Listing, Query, Record, StoreError, record::LabelTerm};

use crate::{
    KubeStore,
    error::{self, Does},
    kinds::Kind,
    wire,
};

/// Objects in one page.
const PAGE: &str = "500";
/// How often a list is begun again because its version was forgotten while it was read.
const TRIES: usize = 3;

/// A page of a list.
#[derive(Deserialize)]
pub(crate) struct Page<'j> {
    pub(crate) metadata: PageMetadata,
    #[serde(borrow)]
    items: Vec<&'j RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageMetadata {
    pub(crate) resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

impl KubeStore {
    pub(crate) async fn read_list(&self, query: &Query) -> Result<Listing, StoreError> {
        let kind = self.kinds.find(query.kind)?;
        let mut tries = 0;
        let (mut records, version) = loop {
            tries += 1;
            match self.read_pages(kind, query).await {
                Err(StoreError::Expired { .. }) if tries < TRIES => {}
                read => break read?,
            }
        };
        records.sort_by(|a, b| place(a).cmp(&place(b)));
        if let Some((namespace, name)) = &query.after {
            let after = (namespace.as_ref(), name);
            records.drain(..records.partition_point(|record| place(record) <= after));
        }
        let more = query.limit.is_some_and(|limit| records.len() > limit);
        records.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(Listing {
            records,
            version,
            more,
        })
    }

    async fn read_pages(
        &self,
        kind: &Kind,
        query: &Query,
    ) -> Result<(Vec<Arc<Record>>, Version), StoreError> {
        let path = kind.collection(query.namespace.as_ref());
        let (labels, fields) = (label_selector(query), field_selector(kind, query));
        let mut records = Vec::new();
        let mut next = String::new();
        loop {
            let mut asked = vec![("limit", PAGE)];
            for (name, value) in [
                ("labelSelector", &labels),
                ("fieldSelector", &fields),
                ("continue", &next),
            ] {
                if !value.is_empty() {
                    asked.push((name, value));
                }
            }
            let text = match self.send(Method::GET, &path, &asked, Vec::new()).await {
                Ok(text) => text,
                Err(e) if e.reason() == Some(Reason::Expired) => {
                    return Err(StoreError::Expired {
                        after: Version::ZERO,
                    });
                }
                Err(e) if e.reason() == Some(Reason::NotFound) => {
                    return self
                        .is_served(kind, &e)
                        .map(|()| (Vec::new(), Version::ZERO));
                }
                Err(e) => return Err(error::unavailable(&e, Does::Read)),
            };
            let page: Page<'_> =
                serde_json::from_str(&text).map_err(|e| error::garbled(e, Does::Read))?;
            for item in page.items {
                match wire::record(kind, item.get()) {
                    Ok(record) if query.matches(&record) => records.push(record),
                    Ok(_) => {}
                    // One that somebody wrote past the rules must not hide all others.
                    Err(error) => {
                        tracing::warn!(kind = %kind.info.kind, %error, "an object is left out");
                    }
                }
            }
            next = page.metadata.next;
            if next.is_empty() {
                let version = wire::version(&page.metadata.resource_version)
                    .ok_or_else(|| error::garbled("its list has no version", Does::Read))?;
                return Ok((records, version));
            }
        }
    }
}

fn place(record: &Record) -> (Option<&Namespace>, &Name) {
    (record.meta.namespace.as_ref(), &record.meta.name)
}

/// The labels that an API server can be asked for. No object has others.
fn label_selector(query: &Query) -> String {
    let one_of = |values: &[Box<str>]| {
        let fit = !values.is_empty() && values.iter().all(|value| is_label_value(value));
        fit.then(|| values.join(","))
    };
    let terms = query.labels.iter().filter_map(|term| match term {
        LabelTerm::In(key, values) if is_label_key(key) => {
            Some(format!("{key} in ({})", one_of(values)?))
        }
        LabelTerm::NotIn(key, values) if is_label_key(key) => {
            Some(format!("{key} notin ({})", one_of(values)?))
        }
        LabelTerm::Exists(key) if is_label_key(key) => Some(key.to_string()),
        LabelTerm::Missing(key) if is_label_key(key) => Some(format!("!{key}")),
        LabelTerm::In(..) | LabelTerm::NotIn(..) | LabelTerm::Exists(_) | LabelTerm::Missing(_) => {
            None
        }
    });
    terms.collect::<Vec<_>>().join(",")
}

/// The fields that an API server can be asked for: one that is absent is empty to it, so what stands
/// for an absent one is not asked for.
fn field_selector(kind: &Kind, query: &Query) -> String {
    let plain = |value: &str| {
        !value.is_empty()
            && value
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.:@/".contains(&b))
    };
    let terms = query.fields.iter().filter(|(path, value)| {
        kind.info.selectable.contains(&&**path)
            && plain(value)
            && kind.default_fields.get(path) != Some(value)
    });
    let terms = terms.map(|(path, value)| format!("{path}={value}"));
    terms.collect::<Vec<_>>().join(",")
}
