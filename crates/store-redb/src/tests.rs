//! The backend as a whole: what every backend must pass, and what only one with a file can fail.

mod conformance;
mod crash;
mod damage;
mod directory;
mod full;
mod platter;
mod power;
mod restore;

use std::{path::Path, sync::Arc};

use kit::{Entropy, SystemClock};
use model::{Key, Metadata, Name, Namespace, Object, Sandbox, Spec as _, sandbox::SandboxSpec};
use store::{Query, Store, StoreExt as _};

use crate::{OpenError, Options, RedbStore, disk::Disk};

const KIND: model::KindName = SandboxSpec::KIND;

/// Enough for a test; the disks of some are small.
const OPTIONS: Options = Options {
    cache_bytes: 1 << 20,
    history: 4096,
    queue: 64,
    headroom_bytes: 0,
};

fn open(directory: &Path) -> Result<RedbStore, OpenError> {
    open_with(directory, OPTIONS)
}

fn open_with(directory: &Path, options: Options) -> Result<RedbStore, OpenError> {
    RedbStore::open(
        directory,
        Arc::new(SystemClock::default()),
        Arc::new(Entropy::from_os()),
        options,
    )
}

/// Opens a store on a disk of the test's own.
fn open_on(disk: impl Disk + 'static) -> Result<RedbStore, OpenError> {
    RedbStore::start(
        Box::new(disk),
        None,
        Arc::new(SystemClock::default()),
        Arc::new(Entropy::from_os()),
        OPTIONS,
    )
}

/// A sandbox whose spec, label and index rows all carry a number.
fn numbered(name: &str, number: usize) -> Sandbox {
    let metadata = Metadata::new(Namespace::new("team").ok(), Name::new(name).unwrap());
    let mut sandbox = Object::new(metadata, SandboxSpec::default());
    set_number(&mut sandbox, number);
    sandbox
}

fn set_number(sandbox: &mut Sandbox, number: usize) {
    sandbox.spec.env.insert("N", number.to_string());
    // Some index rows change each time, some now and then.
    sandbox.spec.template = Name::new(format!("t-{number}")).ok();
    sandbox
        .metadata
        .labels
        .insert("tens", (number / 10).to_string());
}

fn number(sandbox: &Sandbox) -> usize {
    sandbox.spec.env.get("N").unwrap().parse().unwrap()
}

fn key(name: &str) -> Key {
    let namespace = Namespace::new("team").unwrap();
    Key::namespaced(SandboxSpec::KIND, namespace, Name::new(name).unwrap())
}

async fn find(store: &RedbStore, name: &str) -> Option<Sandbox> {
    store.find(&key(name)).await.unwrap()
}

async fn all(store: &RedbStore) -> Vec<Sandbox> {
    let query = Query::kind(SandboxSpec::KIND);
    store.list_objects(&query).await.unwrap().0
}

/// Every record is found through each of its index rows, and no index row finds anything else.
async fn assert_indexes_agree(store: &RedbStore) {
    let all = all(store).await;
    for sandbox in &all {
        let n = number(sandbox);
        let by_field = Query::kind(SandboxSpec::KIND).field("spec.template", format!("t-{n}"));
        let by_label = Query::kind(SandboxSpec::KIND).label("tens", (n / 10).to_string());
        for (query, wanted) in [
            (by_field, all.iter().filter(|s| number(s) == n).count()),
            (
                by_label,
                all.iter().filter(|s| number(s) / 10 == n / 10).count(),
            ),
        ] {
            let found = store.list(&query).await.unwrap().records.len();
            assert_eq!(found, wanted, "{query:?}");
        }
    }
    let rows = store.index_rows();
    // The template, the phase and the label of each.
    assert_eq!(rows, 3 * all.len());
}

impl RedbStore {
    /// How many rows the index has.
    fn index_rows(&self) -> usize {
        use redb::{ReadableDatabase as _, ReadableTableMetadata as _};
        let db = self.shared.database().unwrap();
        let index = db
            .begin_read()
            .unwrap()
            .open_table(crate::rows::INDEX)
            .unwrap();
        usize::try_from(index.len().unwrap()).unwrap()
    }
}
