//! What every backend must pass.

use std::sync::Arc;

use kit::{Entropy, SystemClock};
use store::Store;
use tempfile::TempDir;

use crate::{Options, RedbStore};

async fn make() -> (Arc<dyn Store>, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        history: 512,
        ..Options::default()
    };
    let clock = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::seeded(1));
    let store = RedbStore::open(directory.path(), clock, entropy, options).unwrap();
    (Arc::new(store), directory)
}

store::conformance_tests!(make);
