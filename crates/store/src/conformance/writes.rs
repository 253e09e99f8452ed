//! Creating and updating.

use std::sync::Arc;

use model::{
    Generation, Key, Spec as _, Timestamp, Uid, Version, lifecycle::Phase, sandbox::SandboxSpec,
};

use super::{
    KIND, created, find, name, namespace, next_change, pool, sandbox, set_env, watch_from_now,
};
use crate::{
    Change, Draft, Half, Record, Store, StoreError, StoreExt as _, WatchEvent,
    record::MAX_RECORD_BYTES,
};

pub async fn a_created_record_gets_uid_version_generation_and_creation_time(store: Arc<dyn Store>) {
    let mut draft = sandbox("team", "box");
    draft.metadata.labels.insert("app", "agent");
    set_env(&mut draft, 1);
    draft.status.phase = Phase::Starting;
    let made = store.create_object(&draft).await.unwrap();
    assert!(made.metadata.uid.is_some());
    assert!(made.version() > Version::ZERO);
    assert_eq!(made.metadata.generation, Generation(1));
    assert!(made.metadata.creation_timestamp.is_some());
    assert_eq!(made.metadata.deletion_timestamp, None);
    assert_eq!(made.metadata.labels, draft.metadata.labels);
    assert_eq!(made.spec, draft.spec);
    assert_eq!(made.status, draft.status);
    assert_eq!(find(&*store, &made.key()).await, Some(made));
}

pub async fn a_draft_cannot_choose_what_the_store_assigns(store: Arc<dyn Store>) {
    let mut draft = sandbox("team", "box");
    let chosen = Uid::from_random(1);
    let long_ago = Timestamp::from_micros(1);
    draft.metadata.uid = Some(chosen);
    draft.metadata.generation = Generation(40);
    draft.metadata.creation_timestamp = Some(long_ago);
    draft.metadata.deletion_timestamp = Some(long_ago);
    let made = store.create_object(&draft).await.unwrap();
    assert_ne!(made.uid(), chosen);
    assert_eq!(made.metadata.generation, Generation(1));
    assert_ne!(made.metadata.creation_timestamp, Some(long_ago));
    assert_eq!(made.metadata.deletion_timestamp, None);
}

pub async fn creating_over_a_record_is_refused_and_changes_nothing(store: Arc<dyn Store>) {
    let first = created(&*store, "team", "box").await;
    let mut second = sandbox("team", "box");
    set_env(&mut second, 2);
    match store.create_object(&second).await {
        Err(StoreError::AlreadyExists(key)) => assert_eq!(key, first.key()),
        other => panic!("{other:?}"),
    }
    assert_eq!(find(&*store, &first.key()).await, Some(first));
}

pub async fn a_name_is_its_own_in_each_kind_and_namespace(store: Arc<dyn Store>) {
    let here = created(&*store, "team", "same").await;
    let there = created(&*store, "team-2", "same").await;
    let pool = store.create_object(&pool("team", "same")).await.unwrap();
    assert_ne!(here.uid(), there.uid());
    assert_ne!(here.uid(), pool.uid());
    assert_eq!(find(&*store, &here.key()).await, Some(here));
    assert_eq!(find(&*store, &there.key()).await, Some(there));
}

pub async fn versions_increase_across_kinds(store: Arc<dyn Store>) {
    let mut last = Version::ZERO;
    for i in 0..5 {
        let sandbox = created(&*store, "team", &format!("box-{i}")).await;
        assert!(sandbox.version() > last);
        let pool = store
            .create_object(&pool("team", &format!("pool-{i}")))
            .await
            .unwrap();
        assert!(pool.version() > sandbox.version());
        let removed = store.delete_object(&sandbox).await.unwrap();
        last = match removed {
            crate::Deletion::Removed(record) => record.version(),
            crate::Deletion::Marked(_) => panic!("it had no finalizers"),
        };
        assert!(last > pool.version());
    }
}

pub async fn an_update_of_an_old_version_is_refused_and_names_both(store: Arc<dyn Store>) {
    let old = created(&*store, "team", "box").await;
    let mut new = old.clone();
    set_env(&mut new, 1);
    let new = store.update_spec(&new).await.unwrap();
    let mut late = old.clone();
    set_env(&mut late, 2);
    let late_status = {
        let mut late = old.clone();
        late.status.phase = Phase::Running;
        late
    };
    for refused in [
        store.update_spec(&late).await,
        store.update_status(&late_status).await,
    ] {
        match refused {
            Err(StoreError::Conflict {
                key,
                expected,
                actual,
            }) => {
                assert_eq!(
                    (key, expected, actual),
                    (old.key(), old.version(), new.version())
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(find(&*store, &old.key()).await, Some(new));
}

pub async fn an_update_of_another_of_the_same_name_is_refused(store: Arc<dyn Store>) {
    let first = created(&*store, "team", "box").await;
    store.delete_object(&first).await.unwrap();
    let second = created(&*store, "team", "box").await;
    let mut change = Change::spec(&second);
    change.uid = first.metadata.uid;
    match store.update(change).await {
        Err(StoreError::OtherUid {
            key,
            expected,
            actual,
        }) => {
            assert_eq!(
                (key, expected, actual),
                (second.key(), first.uid(), second.uid())
            );
        }
        other => panic!("{other:?}"),
    }
    // Where the caller does not know the uid, the version alone decides.
    let mut change = Change::spec(&second);
    change.uid = None;
    store.update(change).await.unwrap();
}

pub async fn an_update_of_what_is_not_there_is_not_found(store: Arc<dyn Store>) {
    let gone = created(&*store, "team", "box").await;
    store.delete_object(&gone).await.unwrap();
    for refused in [
        store.update_spec(&gone).await,
        store.update_status(&gone).await,
    ] {
        match refused {
            Err(StoreError::NotFound(key)) => assert_eq!(key, gone.key()),
            other => panic!("{other:?}"),
        }
    }
    let key = Key::namespaced(KIND, namespace("team"), name("never"));
    assert_eq!(find(&*store, &key).await, None);
}

pub async fn the_generation_counts_changes_of_the_spec_only(store: Arc<dyn Store>) {
    let mut sandbox = created(&*store, "team", "box").await;
    set_env(&mut sandbox, 1);
    let mut sandbox = store.update_spec(&sandbox).await.unwrap();
    assert_eq!(sandbox.metadata.generation, Generation(2));
    sandbox.metadata.labels.insert("a", "b");
    let mut sandbox = store.update_spec(&sandbox).await.unwrap();
    assert_eq!(sandbox.metadata.generation, Generation(2));
    sandbox.status.phase = Phase::Running;
    let sandbox = store.update_status(&sandbox).await.unwrap();
    assert_eq!(sandbox.metadata.generation, Generation(2));
}

pub async fn a_status_update_leaves_the_spec_half_alone(store: Arc<dyn Store>) {
    let before = created(&*store, "team", "box").await;
    let mut changed = before.clone();
    set_env(&mut changed, 99);
    changed.metadata.labels.insert("not", "meant");
    changed
        .metadata
        .finalizers
        .push("example.com/not-meant".into());
    changed.status.phase = Phase::Running;
    let after = store.update_status(&changed).await.unwrap();
    assert!(after.version() > before.version());
    assert_eq!(after.spec, before.spec);
    assert_eq!(after.metadata.labels, before.metadata.labels);
    assert_eq!(after.metadata.finalizers, before.metadata.finalizers);
    assert_eq!(after.status, changed.status);
    assert_eq!(find(&*store, &after.key()).await, Some(after));
}

pub async fn a_spec_update_leaves_the_status_alone(store: Arc<dyn Store>) {
    let mut before = created(&*store, "team", "box").await;
    super::set_phase(&*store, &mut before, Phase::Running).await;
    let mut changed = before.clone();
    set_env(&mut changed, 1);
    changed.metadata.annotations.insert("a", "b");
    changed.status.phase = Phase::Failed;
    let after = store.update_spec(&changed).await.unwrap();
    assert_eq!(after.status, before.status);
    assert_eq!(after.spec, changed.spec);
    assert_eq!(after.metadata.annotations, changed.metadata.annotations);
    assert_eq!(find(&*store, &after.key()).await, Some(after));
}

pub async fn an_update_that_changes_nothing_keeps_the_version_and_is_not_watched(
    store: Arc<dyn Store>,
) {
    let mut draft = sandbox("team", "box");
    draft.metadata.labels.insert("a", "b");
    let before = store.create_object(&draft).await.unwrap();
    let mut watch = watch_from_now(&*store).await;
    assert_eq!(store.update_spec(&before).await.unwrap(), before);
    assert_eq!(store.update_status(&before).await.unwrap(), before);
    let marker = created(&*store, "team", "marker").await;
    match next_change(&mut *watch).await {
        WatchEvent::Put { record, .. } => assert_eq!(record.key(), marker.key()),
        other => panic!("{other:?}"),
    }
}

pub async fn what_the_store_owns_in_metadata_cannot_be_changed(store: Arc<dyn Store>) {
    let before = created(&*store, "team", "box").await;
    let mut changed = before.clone();
    let moment = Timestamp::from_micros(1);
    changed.metadata.generation = Generation(40);
    changed.metadata.creation_timestamp = Some(moment);
    changed.metadata.deletion_timestamp = Some(moment);
    changed.metadata.labels.insert("a", "b");
    let after = store.update_spec(&changed).await.unwrap();
    assert_eq!(after.uid(), before.uid());
    assert_eq!(after.metadata.generation, before.metadata.generation);
    assert_eq!(
        after.metadata.creation_timestamp,
        before.metadata.creation_timestamp
    );
    assert_eq!(after.metadata.deletion_timestamp, None);
    assert!(after.version() > before.version());
}

pub async fn fields_of_a_newer_version_are_kept(store: Arc<dyn Store>) {
    let mut draft = Draft::of(&sandbox("team", "box"));
    draft.spec = r#"{"env":{"A":"1"},"laterField":{"deep":[1,{"x":null}]}}"#.into();
    draft.status = r#"{"phase":"Running","laterStatus":"é"}"#.into();
    draft
        .meta
        .unknown
        .insert("laterMeta".into(), serde_json::json!({"k": [1, 2]}));
    let unknown = draft.meta.unknown.clone();
    let made: Arc<Record> = store.create(draft).await.unwrap();
    // A read, a change and a write by a version that does not know the fields.
    let mut object = made.decode::<SandboxSpec>().unwrap();
    set_env(&mut object, 1);
    let mut object = store.update_spec(&object).await.unwrap();
    object.status.phase = Phase::Paused;
    store.update_status(&object).await.unwrap();
    let read = store.get(&object.key()).await.unwrap().unwrap();
    let spec: serde_json::Value = serde_json::from_str(&read.spec).unwrap();
    let status: serde_json::Value = serde_json::from_str(&read.status).unwrap();
    assert_eq!(
        spec["laterField"],
        serde_json::json!({"deep": [1, {"x": null}]})
    );
    assert_eq!(spec["env"]["N"], "1");
    assert_eq!(status["laterStatus"], "é");
    assert_eq!(status["phase"], "Paused");
    assert_eq!(read.meta.unknown, unknown);
}

pub async fn a_record_over_the_limit_is_refused(store: Arc<dyn Store>) {
    let huge = format!(r#"{{"env":{{"A":"{}"}}}}"#, "x".repeat(MAX_RECORD_BYTES));
    let mut draft = Draft::of(&sandbox("team", "box"));
    draft.spec = huge.as_str().into();
    match store.create(draft).await {
        Err(StoreError::TooLarge { size, limit, .. }) => assert!(size > limit),
        other => panic!("{other:?}"),
    }
    let fits = created(&*store, "team", "box").await;
    let mut change = Change::spec(&fits);
    let Half::Spec { spec, .. } = &mut change.half else {
        panic!("a spec change has a spec");
    };
    *spec = huge.into();
    match store.update(change).await {
        Err(StoreError::TooLarge { key, .. }) => assert_eq!(key, fits.key()),
        other => panic!("{other:?}"),
    }
    assert_eq!(find(&*store, &fits.key()).await, Some(fits));
}

pub async fn an_acknowledged_write_is_read_at_once(store: Arc<dyn Store>) {
    let mut sandbox = created(&*store, "team", "box").await;
    for i in 0..50 {
        set_env(&mut sandbox, i);
        sandbox = store.update_spec(&sandbox).await.unwrap();
        assert_eq!(find(&*store, &sandbox.key()).await.as_ref(), Some(&sandbox));
        let query = crate::Query::kind(SandboxSpec::KIND);
        let (listed, version) = store.list_objects::<SandboxSpec>(&query).await.unwrap();
        assert_eq!(listed, [sandbox.clone()]);
        assert!(version >= sandbox.version());
    }
}
