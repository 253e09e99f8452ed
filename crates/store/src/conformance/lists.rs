//! Listing: kinds, namespaces, labels, fields, pages.

use std::{collections::BTreeSet, sync::Arc};

use model::{Name, Namespace, lifecycle::Phase};

use super::{KIND, created, namespace, pool, sandbox, set_phase};
use crate::{Query, Store, StoreExt as _, record::LabelTerm};

/// `namespace/name` of what a query finds.
async fn found(store: &dyn Store, query: &Query) -> Vec<String> {
    let listing = store.list(query).await.unwrap();
    assert!(!listing.more || query.limit.is_some());
    listing.records.iter().map(|record| place(record)).collect()
}

fn place(record: &crate::Record) -> String {
    let namespace = record.meta.namespace.as_ref().map_or("", Namespace::as_str);
    format!("{namespace}/{}", record.meta.name)
}

pub async fn a_listing_is_of_one_kind_in_the_order_of_namespace_and_name(store: Arc<dyn Store>) {
    // Neighbours in text order: "a-b" is between "a" and "ab", and "-" sorts before letters.
    for (namespace, name) in [
        ("ab", "x"),
        ("a", "z"),
        ("a-b", "a"),
        ("a", "z-1"),
        ("a", "b"),
    ] {
        created(&*store, namespace, name).await;
    }
    store.create_object(&pool("a", "c")).await.unwrap();
    let all = found(&*store, &Query::kind(KIND)).await;
    assert_eq!(all, ["a/b", "a/z", "a/z-1", "a-b/a", "ab/x"]);
}

pub async fn a_listing_can_be_narrowed_to_a_namespace(store: Arc<dyn Store>) {
    for (namespace, name) in [("a", "x"), ("a-b", "x"), ("ab", "x"), ("a", "y")] {
        created(&*store, namespace, name).await;
    }
    let within = |name| Query::kind(KIND).within(namespace(name));
    assert_eq!(found(&*store, &within("a")).await, ["a/x", "a/y"]);
    assert_eq!(found(&*store, &within("a-b")).await, ["a-b/x"]);
    assert_eq!(found(&*store, &within("b")).await, [""; 0]);
}

pub async fn label_terms_select_as_they_say(store: Arc<dyn Store>) {
    for (name, label) in [("red", Some("red")), ("blue", Some("blue")), ("none", None)] {
        let mut draft = sandbox("t", name);
        if let Some(label) = label {
            draft.metadata.labels.insert("colour", label);
        }
        store.create_object(&draft).await.unwrap();
    }
    let key = || "colour".into();
    let values = |values: &[&str]| values.iter().map(|v| (*v).into()).collect();
    for (term, expected) in [
        (LabelTerm::In(key(), values(&["red"])), vec!["t/red"]),
        (
            LabelTerm::In(key(), values(&["red", "blue"])),
            vec!["t/blue", "t/red"],
        ),
        (
            LabelTerm::NotIn(key(), values(&["red"])),
            vec!["t/blue", "t/none"],
        ),
        (LabelTerm::Exists(key()), vec!["t/blue", "t/red"]),
        (LabelTerm::Missing(key()), vec!["t/none"]),
    ] {
        let mut query = Query::kind(KIND);
        query.labels.push(term.clone());
        assert_eq!(found(&*store, &query).await, expected, "{term:?}");
    }
}

pub async fn a_field_lists_by_its_present_value(store: Arc<dyn Store>) {
    let mut first = created(&*store, "t", "first").await;
    let second = created(&*store, "t", "second").await;
    set_phase(&*store, &mut first, Phase::Running).await;
    let in_phase = |phase: Phase| Query::kind(KIND).field("status.phase", phase.as_str());
    assert_eq!(found(&*store, &in_phase(Phase::Running)).await, ["t/first"]);
    assert_eq!(
        found(&*store, &in_phase(Phase::Pending)).await,
        ["t/second"]
    );
    set_phase(&*store, &mut first, Phase::Paused).await;
    assert_eq!(found(&*store, &in_phase(Phase::Running)).await, [""; 0]);
    assert_eq!(found(&*store, &in_phase(Phase::Paused)).await, ["t/first"]);
    store.delete_object(&second).await.unwrap();
    assert_eq!(found(&*store, &in_phase(Phase::Pending)).await, [""; 0]);
    // Of another kind, the same value is another matter.
    let mut query = in_phase(Phase::Paused);
    query.kind = <model::pool::PoolSpec as model::Spec>::KIND;
    assert_eq!(found(&*store, &query).await, [""; 0]);
}

pub async fn a_label_lists_by_its_present_value(store: Arc<dyn Store>) {
    let mut draft = sandbox("t", "box");
    draft.metadata.labels.insert("a", "1");
    draft.metadata.labels.insert("b", "1");
    let mut made = store.create_object(&draft).await.unwrap();
    made.metadata.labels.insert("a", "12");
    made.metadata.labels.remove("b");
    let made = store.update_spec(&made).await.unwrap();
    let labelled = |key: &str, value: &str| Query::kind(KIND).label(key, value);
    assert_eq!(found(&*store, &labelled("a", "1")).await, [""; 0]);
    assert_eq!(found(&*store, &labelled("b", "1")).await, [""; 0]);
    assert_eq!(found(&*store, &labelled("a", "12")).await, ["t/box"]);
    store.delete_object(&made).await.unwrap();
    assert_eq!(found(&*store, &labelled("a", "12")).await, [""; 0]);
}

pub async fn every_term_of_a_query_narrows(store: Arc<dyn Store>) {
    for n in 0..12 {
        let mut draft = sandbox(
            if n % 2 == 0 { "even" } else { "odd" },
            &format!("box-{n:02}"),
        );
        draft.metadata.labels.insert("third", (n % 3).to_string());
        draft.spec.template = Name::new(format!("t-{}", n % 4)).ok();
        let mut made = store.create_object(&draft).await.unwrap();
        if n > 5 {
            set_phase(&*store, &mut made, Phase::Running).await;
        }
    }
    let query = Query::kind(KIND)
        .label("third", "0")
        .field("spec.template", "t-2");
    assert_eq!(found(&*store, &query).await, ["even/box-06"]);
    let running = Query::kind(KIND).field("status.phase", "Running");
    let query = running
        .clone()
        .field("spec.template", "t-2")
        .label("third", "1");
    assert_eq!(found(&*store, &query).await, ["even/box-10"]);
    let query = running.clone().label("third", "1").within(namespace("odd"));
    assert_eq!(found(&*store, &query).await, ["odd/box-07"]);
    let query = running.label("third", "7");
    assert_eq!(found(&*store, &query).await, [""; 0]);
}

pub async fn a_limit_cuts_and_says_so(store: Arc<dyn Store>) {
    for n in 0..5 {
        let mut draft = sandbox("t", &format!("box-{n}"));
        draft.metadata.labels.insert("a", "b");
        store.create_object(&draft).await.unwrap();
    }
    for query in [Query::kind(KIND), Query::kind(KIND).label("a", "b")] {
        for limit in 1..7 {
            let mut query = query.clone();
            query.limit = Some(limit);
            let listing = store.list(&query).await.unwrap();
            assert_eq!(listing.records.len(), limit.min(5));
            assert_eq!(listing.more, limit < 5, "limit {limit}");
        }
    }
}

pub async fn pages_neither_skip_nor_repeat_while_others_come_and_go(store: Arc<dyn Store>) {
    let stays: BTreeSet<_> = (0..40)
        .map(|n| format!("t-{}/stays-{n:02}", n % 2))
        .collect();
    for place in &stays {
        let (namespace, name) = place.split_once('/').unwrap();
        let mut draft = sandbox(namespace, name);
        draft.metadata.labels.insert("a", "b");
        store.create_object(&draft).await.unwrap();
    }
    for terms in [Query::kind(KIND), Query::kind(KIND).label("a", "b")] {
        let mut seen = Vec::new();
        let mut query = terms;
        query.limit = Some(7);
        loop {
            let listing = store.list(&query).await.unwrap();
            seen.extend(listing.records.iter().map(|record| place(record)));
            let Some(last) = listing.records.last() else {
                break;
            };
            query.after = Some((last.meta.namespace.clone(), last.meta.name.clone()));
            if !listing.more {
                break;
            }
            // Something comes before and after the place the next page continues from, and the
            // record that it continues from may go.
            let n = seen.len();
            for namespace in ["t-0", "t-1"] {
                let mut draft = sandbox(namespace, &format!("comes-{n}"));
                draft.metadata.labels.insert("a", "b");
                let comes = store.create_object(&draft).await.unwrap();
                if n % 2 == 0 {
                    store.delete_object(&comes).await.unwrap();
                }
            }
            if last.meta.name.as_str().starts_with("comes") {
                store
                    .delete(&last.key(), crate::Precondition::default())
                    .await
                    .unwrap();
            }
        }
        assert!(seen.is_sorted(), "{seen:?}");
        let once: BTreeSet<_> = seen.iter().cloned().collect();
        assert_eq!(
            once.len(),
            seen.len(),
            "something was listed twice: {seen:?}"
        );
        assert!(once.is_superset(&stays), "something was skipped: {seen:?}");
        let comers = store.list(&Query::kind(KIND)).await.unwrap().records;
        for comer in comers.iter().filter(|r| !stays.contains(&place(r))) {
            store
                .delete(&comer.key(), crate::Precondition::default())
                .await
                .unwrap();
        }
    }
}
