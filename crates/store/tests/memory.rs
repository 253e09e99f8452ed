//! The memory backend passes what every backend must.

use std::sync::Arc;

use kit::{Entropy, SystemClock};
use store::{Store, memory::MemoryStore};

async fn make() -> (Arc<dyn Store>, ()) {
    let clock = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::seeded(1));
    (Arc::new(MemoryStore::new(clock, entropy)), ())
}

store::conformance_tests!(make);
