//! Random histories against a model that is too simple to be wrong: a map.

use std::{collections::BTreeMap, sync::Arc};

use kit::Entropy;
use model::{Key, Sandbox, Version, lifecycle::Phase, sandbox::SandboxSpec};

use super::{KIND, name, namespace, next, sandbox, set_env};
use crate::{Deletion, Precondition, Query, Scope, Store, StoreError, StoreExt as _, WatchEvent};

const STEPS: usize = 400;

pub async fn a_random_history_agrees_with_a_simple_model(store: Arc<dyn Store>) {
    // Another history each time; the seed that failed is in the message.
    let seed = Entropy::from_os().u64();
    println!("seed {seed}");
    let dice = Entropy::seeded(seed);
    let mut model: BTreeMap<Key, Sandbox> = BTreeMap::new();
    let begin = store.list(&Query::kind(KIND)).await.unwrap().version;
    let mut watch = store.watch(Scope::kind(KIND), begin).await.unwrap();
    let mut head = begin;
    for step in 0..STEPS {
        let key = Key::namespaced(
            KIND,
            namespace(["a", "a-b", "b"][dice.below(3)]),
            name(["x", "x-1", "y", "z"][dice.below(4)]),
        );
        let context = format!("seed {seed}, step {step}, {key}");
        let before = model.get(&key).cloned();
        match dice.below(8) {
            0 | 1 => create(&*store, &dice, &mut model, &key, &mut head, &context).await,
            2 => delete(&*store, &dice, &mut model, &key, &mut head, &context).await,
            _ => update(&*store, &dice, &mut model, &key, &mut head, step, &context).await,
        }
        let read = store.find::<SandboxSpec>(&key).await.unwrap();
        assert_eq!(read.as_ref(), model.get(&key), "{context}, was {before:?}");
        if step % 8 == 0 {
            compare_listings(&*store, &dice, &model, &context).await;
        }
    }
    // Everything that happened, told by the watch, ends where the model is.
    let end = store.create_object(&sandbox("end", "end")).await.unwrap();
    model.insert(end.key(), end.clone());
    let mut replayed: BTreeMap<Key, Sandbox> = BTreeMap::new();
    let mut at = begin;
    while at < end.version() {
        let event = next(&mut *watch).await;
        assert!(event.version() > at, "seed {seed}: {event:?} after {at:?}");
        at = event.version();
        match event {
            WatchEvent::Put { record, .. } => {
                replayed.insert(record.key(), record.decode().unwrap());
            }
            WatchEvent::Removed { record } => {
                replayed.remove(&record.key());
            }
            WatchEvent::Bookmark(_) => {}
        }
    }
    assert_eq!(replayed, model, "seed {seed}");
}

async fn create(
    store: &dyn Store,
    dice: &Entropy,
    model: &mut BTreeMap<Key, Sandbox>,
    key: &Key,
    head: &mut Version,
    context: &str,
) {
    let mut draft = sandbox(key.namespace.as_ref().unwrap().as_str(), key.name.as_str());
    if dice.chance(0.3) {
        draft.metadata.finalizers.push("example.com/f".into());
    }
    relabel(&mut draft, dice);
    match store.create_object(&draft).await {
        Ok(made) => {
            assert!(!model.contains_key(key), "{context}");
            advance(head, made.version(), context);
            assert_eq!(made.spec, draft.spec, "{context}");
            model.insert(key.clone(), made);
        }
        Err(StoreError::AlreadyExists(_)) => assert!(model.contains_key(key), "{context}"),
        Err(other) => panic!("{context}: {other:?}"),
    }
}

async fn delete(
    store: &dyn Store,
    dice: &Entropy,
    model: &mut BTreeMap<Key, Sandbox>,
    key: &Key,
    head: &mut Version,
    context: &str,
) {
    let current = model.get(key);
    let stale = dice.chance(0.2).then_some(Version::ZERO);
    let only_if = Precondition {
        uid: current.map(Sandbox::uid),
        version: stale,
    };
    match (store.delete(key, only_if).await, current) {
        (Err(StoreError::NotFound(_)), None) => {}
        (Err(StoreError::Conflict { .. }), Some(_)) => assert!(stale.is_some(), "{context}"),
        (Ok(Deletion::Removed(last)), Some(current)) => {
            assert!(
                current.metadata.finalizers.is_empty() && stale.is_none(),
                "{context}"
            );
            advance(head, last.version(), context);
            model.remove(key);
        }
        (Ok(Deletion::Marked(marked)), Some(current)) => {
            assert!(
                !current.metadata.finalizers.is_empty() && stale.is_none(),
                "{context}"
            );
            let marked: Sandbox = marked.decode().unwrap();
            assert!(marked.metadata.is_deleting(), "{context}");
            if current.metadata.is_deleting() {
                assert_eq!(&marked, current, "{context}");
            } else {
                advance(head, marked.version(), context);
            }
            model.insert(key.clone(), marked);
        }
        (other, current) => panic!("{context}: {other:?} for {current:?}"),
    }
}

async fn update(
    store: &dyn Store,
    dice: &Entropy,
    model: &mut BTreeMap<Key, Sandbox>,
    key: &Key,
    head: &mut Version,
    step: usize,
    context: &str,
) {
    let Some(current) = model.get(key).cloned() else {
        return;
    };
    let mut wanted = current.clone();
    let spec_half = dice.chance(0.5);
    if spec_half {
        match dice.below(4) {
            0 => set_env(&mut wanted, step),
            1 => relabel(&mut wanted, dice),
            2 => wanted.metadata.finalizers.clear(),
            _ => {}
        }
    } else {
        wanted.status.phase = Phase::ALL[dice.below(Phase::ALL.len())];
    }
    let stale = dice.chance(0.2);
    if stale {
        wanted.metadata.resource_version = Some(Version::ZERO);
    }
    let written = if spec_half {
        store.update_spec(&wanted).await
    } else {
        store.update_status(&wanted).await
    };
    match written {
        Err(StoreError::Conflict { actual, .. }) => {
            assert!(stale, "{context}");
            assert_eq!(actual, current.version(), "{context}");
        }
        Ok(written) => {
            assert!(!stale, "{context}");
            assert_eq!(
                (&written.spec, &written.status),
                (&wanted.spec, &wanted.status),
                "{context}"
            );
            assert_eq!(written.metadata.labels, wanted.metadata.labels, "{context}");
            let gone = wanted.metadata.is_deleting() && wanted.metadata.finalizers.is_empty();
            if written.version() == current.version() {
                assert_eq!(written, current, "{context}");
                assert!(!gone, "{context}");
            } else {
                advance(head, written.version(), context);
            }
            let bump = u64::from(wanted.spec != current.spec);
            let generation = current.metadata.generation.0 + bump;
            assert_eq!(written.metadata.generation.0, generation, "{context}");
            if gone {
                model.remove(key);
            } else {
                model.insert(key.clone(), written);
            }
        }
        Err(other) => panic!("{context}: {other:?}"),
    }
}

async fn compare_listings(
    store: &dyn Store,
    dice: &Entropy,
    model: &BTreeMap<Key, Sandbox>,
    context: &str,
) {
    let mut query = Query::kind(KIND);
    if dice.chance(0.4) {
        query = query.within(namespace(["a", "a-b", "b"][dice.below(3)]));
    }
    let colour = ["red", "blue"][dice.below(2)];
    let by_colour = dice.chance(0.5);
    if by_colour {
        query = query.label("colour", colour);
    }
    let phase = Phase::ALL[dice.below(Phase::ALL.len())];
    let by_phase = dice.chance(0.3);
    if by_phase {
        query = query.field("status.phase", phase.as_str());
    }
    let expected: Vec<_> = model
        .iter()
        .filter(|(key, s)| {
            (query.namespace.is_none() || query.namespace == key.namespace)
                && (!by_colour || s.metadata.labels.get("colour") == Some(colour))
                && (!by_phase || s.status.phase == phase)
        })
        .map(|(_, s)| s.clone())
        .collect();
    let mut found = Vec::new();
    query.limit = Some(1 + dice.below(6));
    loop {
        let listing = store.list(&query).await.unwrap();
        for record in &listing.records {
            query.after = Some((record.meta.namespace.clone(), record.meta.name.clone()));
            found.push(record.decode::<SandboxSpec>().unwrap());
        }
        if !listing.more {
            break;
        }
    }
    assert_eq!(found, expected, "{context}: {query:?}");
}

fn relabel(sandbox: &mut Sandbox, dice: &Entropy) {
    match dice.below(3) {
        0 => sandbox.metadata.labels.remove("colour"),
        n => sandbox
            .metadata
            .labels
            .insert("colour", ["red", "blue"][n - 1]),
    };
}

fn advance(head: &mut Version, to: Version, context: &str) {
    assert!(to > *head, "{context}: {to:?} is not after {head:?}");
    *head = to;
}
