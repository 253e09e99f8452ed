//! What every backend must pass.

use std::sync::Arc;

use store::Store;

use crate::cluster::Lab;

async fn make() -> (Arc<dyn Store>, Lab) {
    let lab = Lab::new().await;
    (Arc::new(lab.store()), lab)
}

store::conformance_tests!(make, of a backend that remembers very much);

mod vouched {
    use super::*;
    use crate::proofs::ours;

    async fn make() -> (Arc<dyn Store>, Lab) {
        let lab = Lab::new().await;
        (Arc::new(ours(&lab)), lab)
    }

    store::conformance_tests!(make, of a backend that remembers very much);
}
