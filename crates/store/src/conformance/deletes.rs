//! Deleting, with and without finalizers.

use std::sync::Arc;

use model::{Sandbox, Uid, lifecycle::Phase};

use super::{created, find, sandbox, set_env, set_phase};
use crate::{Deletion, Precondition, Store, StoreError, StoreExt as _};

const FINALIZER: &str = "example.com/first";
const SECOND: &str = "example.com/second";
const ANY: Precondition = Precondition {
    uid: None,
    version: None,
};

async fn held(store: &dyn Store) -> Sandbox {
    let mut draft = sandbox("team", "box");
    draft.metadata.finalizers = vec![FINALIZER.into(), SECOND.into()];
    store.create_object(&draft).await.unwrap()
}

async fn mark(store: &dyn Store, sandbox: &Sandbox) -> Sandbox {
    match store.delete(&sandbox.key(), ANY).await.unwrap() {
        Deletion::Marked(record) => record.decode().unwrap(),
        Deletion::Removed(_) => panic!("it has finalizers"),
    }
}

pub async fn a_record_without_finalizers_is_removed_at_once(store: Arc<dyn Store>) {
    let mut sandbox = created(&*store, "team", "box").await;
    set_phase(&*store, &mut sandbox, Phase::Running).await;
    match store.delete(&sandbox.key(), ANY).await.unwrap() {
        Deletion::Removed(last) => {
            assert!(last.version() > sandbox.version());
            assert_eq!(
                last.decode::<model::sandbox::SandboxSpec>().unwrap().status,
                sandbox.status
            );
        }
        Deletion::Marked(_) => panic!("it had no finalizers"),
    }
    assert_eq!(find(&*store, &sandbox.key()).await, None);
    let listing = store.list(&crate::Query::kind(super::KIND)).await.unwrap();
    assert!(listing.records.is_empty());
}

pub async fn deleting_what_is_not_there_is_not_found(store: Arc<dyn Store>) {
    let sandbox = created(&*store, "team", "box").await;
    store.delete_object(&sandbox).await.unwrap();
    match store.delete(&sandbox.key(), ANY).await {
        Err(StoreError::NotFound(key)) => assert_eq!(key, sandbox.key()),
        other => panic!("{other:?}"),
    }
}

pub async fn a_deletion_happens_only_under_its_precondition(store: Arc<dyn Store>) {
    let old = created(&*store, "team", "box").await;
    let mut new = old.clone();
    set_env(&mut new, 1);
    let new = store.update_spec(&new).await.unwrap();
    let key = old.key();
    let other = Uid::from_random(1);
    let of_uid = Precondition {
        uid: Some(other),
        version: None,
    };
    match store.delete(&key, of_uid).await {
        Err(StoreError::OtherUid {
            expected, actual, ..
        }) => {
            assert_eq!((expected, actual), (other, new.uid()));
        }
        other => panic!("{other:?}"),
    }
    let of_version = Precondition {
        uid: Some(old.uid()),
        version: Some(old.version()),
    };
    match store.delete(&key, of_version).await {
        Err(StoreError::Conflict {
            expected, actual, ..
        }) => {
            assert_eq!((expected, actual), (old.version(), new.version()));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(find(&*store, &key).await.as_ref(), Some(&new));
    store.delete_object(&new).await.unwrap();
    assert_eq!(find(&*store, &key).await, None);
}

pub async fn a_record_with_finalizers_is_marked_and_stays(store: Arc<dyn Store>) {
    let before = held(&*store).await;
    let marked = mark(&*store, &before).await;
    assert!(marked.metadata.deletion_timestamp.is_some());
    assert!(marked.version() > before.version());
    assert!(marked.metadata.generation > before.metadata.generation);
    assert_eq!(find(&*store, &before.key()).await, Some(marked));
}

pub async fn a_second_deletion_of_a_marked_record_changes_nothing(store: Arc<dyn Store>) {
    let before = held(&*store).await;
    let marked = mark(&*store, &before).await;
    assert_eq!(mark(&*store, &before).await, marked);
}

pub async fn removing_the_last_finalizer_of_a_marked_record_removes_it(store: Arc<dyn Store>) {
    let before = held(&*store).await;
    let mut sandbox = mark(&*store, &before).await;
    sandbox.metadata.finalizers = vec![SECOND.into()];
    let mut sandbox = store.update_spec(&sandbox).await.unwrap();
    assert_eq!(find(&*store, &sandbox.key()).await.as_ref(), Some(&sandbox));
    sandbox.metadata.finalizers.clear();
    let last = store.update_spec(&sandbox).await.unwrap();
    assert!(last.version() > sandbox.version());
    assert_eq!(find(&*store, &sandbox.key()).await, None);
    // A finalizer that goes before the deletion leaves the record where it is.
    let mut free = held(&*store).await;
    free.metadata.finalizers.clear();
    let free = store.update_spec(&free).await.unwrap();
    assert_eq!(find(&*store, &free.key()).await, Some(free));
}

pub async fn a_deletion_is_neither_called_off_nor_extended(store: Arc<dyn Store>) {
    let before = held(&*store).await;
    let marked = mark(&*store, &before).await;
    let mut changed = marked.clone();
    changed.metadata.deletion_timestamp = None;
    changed.metadata.finalizers.push("example.com/late".into());
    set_env(&mut changed, 1);
    // A backend may refuse the late finalizer or leave it out.
    match store.update_spec(&changed).await {
        Ok(after) => {
            assert_eq!(
                after.metadata.deletion_timestamp,
                marked.metadata.deletion_timestamp
            );
            assert_eq!(after.metadata.finalizers, marked.metadata.finalizers);
        }
        Err(error) => assert_eq!(error.fault(), crate::Fault::Caller),
    }
}

pub async fn a_status_can_be_updated_while_its_record_waits_for_finalizers(store: Arc<dyn Store>) {
    let before = held(&*store).await;
    let mut sandbox = mark(&*store, &before).await;
    set_phase(&*store, &mut sandbox, Phase::Stopping).await;
    let read = find(&*store, &sandbox.key()).await.unwrap();
    assert_eq!(read.status.phase, Phase::Stopping);
    assert!(read.metadata.is_deleting());
}

pub async fn a_freed_name_is_taken_by_a_new_identity(store: Arc<dyn Store>) {
    let first = created(&*store, "team", "box").await;
    store.delete_object(&first).await.unwrap();
    let second = created(&*store, "team", "box").await;
    assert_ne!(second.uid(), first.uid());
    assert!(second.version() > first.version());
    let of_first = Precondition {
        uid: Some(first.uid()),
        version: None,
    };
    assert!(matches!(
        store.delete(&second.key(), of_first).await,
        Err(StoreError::OtherUid { .. })
    ));
    assert_eq!(find(&*store, &second.key()).await, Some(second));
}
