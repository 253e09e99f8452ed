//! The Store port on custom resources: records are objects of a Kubernetes API server.
//!
//! | The port | Kubernetes |
//! |---|---|
//! | record | custom resource of the kind's definition; see [`crds`] |
//! | version | `resourceVersion`, as a number, in the first incarnation |
//! | compare-and-set | `PUT` of the object or of its `/status`, with uid and `resourceVersion` |
//! | watch | `watch` from a `resourceVersion`, with bookmarks; 410 is "list again" |
//! | namespace | namespace; made when the first record of a team is |
//!
//! What an API server does not do as the port wants it is made up for here, each in its place:
//!
//! - It ignores the status of what is created: a draft that brings one costs a second write
//!   ([`write`]). Claims, resumes and pauses are updates and cost one.
//! - It does not say at which version something was removed: that is looked up ([`delete`]).
//! - It sends bookmarks about once a minute. A watch that is behind what this process wrote asks for
//!   one ([`watch`]).
//! - It keeps no fields of metadata that it does not know: they travel in an annotation ([`wire`]).
//! - It lists in the order of `namespace/name` as one text, and pages only by its own tokens: lists
//!   are read to their end, and put in order here ([`list`]).
//! - It knows nothing of unique fields. Ids of sandboxes and hashes of keys are random and long; an
//!   API edge looks for another that has one before it writes, as with every store.
//! - It lets others write. What is only ours to say of a sandbox is signed ([`proof`]).
//!
//! A call that failed after it was sent is in doubt ([`error`]) and never repeated here.

pub mod crds;
pub mod proof;

mod call;
mod delete;
mod error;
mod fields;
mod kinds;
mod list;
mod progress;
mod watch;
mod wire;
mod write;

use std::sync::Arc;

use async_trait::async_trait;
use cluster_kube::Cluster;
use model::{Key, Spec as _, Version, meta::GROUP, sandbox::SandboxSpec};
use store::{
    Change, Deletion, Draft, Listing, Precondition, Query, Record, Scope, Store, StoreError, Watch,
};

use crate::{
    kinds::Kinds,
    progress::{Past, Progress},
    proof::Vouch,
};

/// A store on the custom resources of a cluster. Clones share what they know.
#[derive(Clone, Debug)]
pub struct KubeStore {
    cluster: Cluster,
    kinds: Arc<Kinds>,
    progress: Progress,
    past: Past,
}

impl KubeStore {
    /// The store of a cluster. Nothing is asked of it yet; [`crds::check`] tells whether it can be
    /// used.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self::of_group(cluster, GROUP)
    }

    /// The store of the kinds of another API group, for tests that must not see each other's records.
    #[must_use]
    pub fn of_group(cluster: Cluster, group: &str) -> Self {
        Self {
            cluster,
            kinds: Arc::new(Kinds::of_group(group)),
            progress: Progress::default(),
            past: Past::default(),
        }
    }

    /// The same store, which signs what is only ours to say and believes nobody else.
    #[must_use]
    pub fn vouched(mut self, vouch: Arc<dyn Vouch>) -> Self {
        let mut kinds = Kinds::clone(&self.kinds);
        kinds.vouch_for(SandboxSpec::KIND, vouch);
        self.kinds = Arc::new(kinds);
        self
    }

    /// Waits until the cluster is found to be older than it was: it was restored from a backup. What was
    /// read before is not what there is, and versions tell no more which is newer; who goes on has to
    /// begin anew.
    pub async fn went_back(&self) {
        self.past.returned().await;
    }

    /// The same store, for work that nobody waits for: its requests keep out of the way of others.
    #[must_use]
    pub fn background(&self) -> Self {
        Self {
            cluster: self.cluster.background(),
            ..self.clone()
        }
    }
}

#[async_trait]
impl Store for KubeStore {
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        self.read(key).await
    }

    async fn list(&self, query: &Query) -> Result<Listing, StoreError> {
        self.read_list(query).await
    }

    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        let record = self.add(draft).await?;
        self.progress.wrote(record.version());
        Ok(record)
    }

    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        let record = self.replace(change).await?;
        self.progress.wrote(record.version());
        Ok(record)
    }

    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError> {
        let deletion = self.remove(key, only_if).await?;
        let (Deletion::Removed(record) | Deletion::Marked(record)) = &deletion;
        self.progress.wrote(record.version());
        Ok(deletion)
    }

    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError> {
        self.follow(scope, after).await
    }
}
