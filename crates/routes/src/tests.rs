//! Tests of the rules through the table, and what they share.

use std::{sync::Arc, time::Duration};

use model::{Epoch, Incarnation, Name, Namespace, SandboxId, Uid, Version};

use crate::{Address, Deletion, Gate, Message, Route, Snapshot, State, Table};

mod convergence;
mod hearsay;
mod history;
mod ids;
mod lies;
mod readers;
mod rules;
mod since;
mod tombstones;

pub(crate) const NOW: Duration = Duration::ZERO;

pub(crate) fn v(sequence: u64) -> Version {
    Version::from_u64(sequence)
}

pub(crate) fn later_life(sequence: u64) -> Version {
    Version::new(Incarnation(1), sequence)
}

pub(crate) fn ns(text: &str) -> Namespace {
    Namespace::new(text).unwrap()
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn id(text: &str) -> SandboxId {
    SandboxId::new(text).unwrap()
}

pub(crate) fn uid(n: u128) -> Uid {
    Uid::from_random(n)
}

/// A running route whose id is `id-` and its name.
pub(crate) fn route(namespace: &str, name: &str, version: u64) -> Route {
    Route {
        version: v(version),
        epoch: Epoch(1),
        uid: uid(1),
        namespace: ns(namespace),
        name: self::name(name),
        id: Some(id(&format!("id-{name}"))),
        state: State::Running,
        address: Some(Address::Netns),
        wake_on_traffic: false,
        is_closing: false,
        agent: Gate::Closed,
        traffic: Gate::Open,
        owner: Some(ns(namespace)),
        mask_host: None,
    }
}

pub(crate) fn up(route: &Route) -> Message {
    Message::from(route.clone())
}

pub(crate) fn gone(namespace: &str, name: &str, version: u64) -> Message {
    Message::Delete(Deletion {
        namespace: ns(namespace),
        name: self::name(name),
        version: v(version),
    })
}

pub(crate) fn listing(version: Version, routes: impl IntoIterator<Item = Route>) -> Snapshot {
    Snapshot {
        version,
        routes: routes.into_iter().map(Arc::new).collect(),
    }
}

/// Every route in the order of keys.
pub(crate) fn content(table: &Table) -> Vec<Route> {
    let mut routes: Vec<Route> = table.routes().iter().map(|r| Route::clone(r)).collect();
    routes.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    routes
}

/// Checks that ids resolve to live records, each to its greatest, and that nothing dangles.
pub(crate) fn assert_index_is_exact(table: &Table) {
    let routes = content(table);
    let mut winners = std::collections::BTreeMap::new();
    for route in &routes {
        let Some(id) = &route.id else { continue };
        let rank = |r: &Route| {
            (
                r.version,
                r.epoch,
                r.uid,
                r.namespace.clone(),
                r.name.clone(),
            )
        };
        let best = winners.entry(id.clone()).or_insert(route);
        if rank(route) > rank(best) {
            *best = route;
        }
    }
    for (id, winner) in &winners {
        assert_eq!(table.lookup(id).as_deref(), Some(*winner), "{id}");
    }
    assert_eq!(
        table.published_ids(),
        winners.len(),
        "an id without a record"
    );
    let stats = table.stats();
    assert_eq!(stats.routes, routes.len());
    let claims = routes.iter().filter(|r| r.id.is_some()).count();
    assert_eq!(stats.contested_ids > 0, claims > winners.len());
}
