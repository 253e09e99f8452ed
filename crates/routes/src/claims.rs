//! The id index: which route an id resolves to.
//!
//! Readers see only the published map, without a lock; everything else belongs to the writer. An
//! entry is the route itself, not a pointer to a key, so a reader can never combine an id with
//! somebody else's route. Changing a route under the same id is one swap: there is no moment in
//! which the id is unknown.
//!
//! Records that share an id (a fault: ids are minted for one delivery) are *contested*: all are
//! remembered, and the greatest [`Rank`] is published. Which one that is follows from the live
//! records alone.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};

use crate::route::Route;

/// What readers see.
pub(crate) type Published = papaya::HashMap<SandboxId, Arc<Route>>;

type Rank = (Version, Epoch, Uid, Namespace, Name);

fn rank(route: &Route) -> Rank {
    (
        route.version,
        route.epoch,
        route.uid,
        route.namespace.clone(),
        route.name.clone(),
    )
}

/// The writer's side of the id index.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Every record of each id that has more than one.
    contested: HashMap<SandboxId, BTreeMap<Rank, Arc<Route>>>,
    /// The full route of each id that is published without its address.
    withheld: HashMap<SandboxId, Arc<Route>>,
}

impl Claims {
    /// How many ids have more than one record.
    pub(crate) fn contested(&self) -> usize {
        self.contested.len()
    }

    /// One key's record went from `old` to `new`: publishes what follows.
    pub(crate) fn change(
        &mut self,
        published: &Published,
        old: Option<&Arc<Route>>,
        new: Option<&Arc<Route>>,
    ) {
        let old_id = old.and_then(|route| route.id.as_ref());
        let new_id = new.and_then(|route| route.id.as_ref());
        if old_id == new_id {
            if let Some(id) = new_id {
                self.settle(published, id, old, new);
            }
            return;
        }
        // First the old id, so that it is gone before the new delivery can be reached.
        if let Some(id) = old_id {
            self.settle(published, id, old, None);
        }
        if let Some(id) = new_id {
            self.settle(published, id, None, new);
        }
    }

    fn settle(
        &mut self,
        published: &Published,
        id: &SandboxId,
        leaving: Option<&Arc<Route>>,
        arriving: Option<&Arc<Route>>,
    ) {
        let guard = published.pin();
        let current = guard.get(id);
        // Whatever is said of an id lifts the doubt about its address.
        let withheld = self.withheld.remove(id);
        if let Some(all) = self.contested.get_mut(id) {
            if let Some(route) = leaving {
                all.remove(&rank(route));
            }
            if let Some(route) = arriving {
                all.insert(rank(route), Arc::clone(route));
            }
            let winner = all.last_key_value().map(|(_, route)| Arc::clone(route));
            if all.len() < 2 {
                self.contested.remove(id);
            }
            publish(published, id, winner);
            return;
        }
        let stranger = current.filter(|route| leaving.is_none_or(|old| !old.same_key(route)));
        if let (Some(stranger), Some(arriving)) = (stranger, arriving) {
            let stranger = withheld.unwrap_or_else(|| Arc::clone(stranger));
            let all = BTreeMap::from([
                (rank(&stranger), stranger),
                (rank(arriving), Arc::clone(arriving)),
            ]);
            let winner = all.last_key_value().map(|(_, route)| Arc::clone(route));
            self.contested.insert(id.clone(), all);
            publish(published, id, winner);
            return;
        }
        publish(published, id, arriving.cloned());
    }

    /// Publishes a route without the address that was found stale.
    pub(crate) fn withhold_address(&mut self, published: &Published, id: &SandboxId) {
        let guard = published.pin();
        let Some(route) = guard.get(id).filter(|route| route.address.is_some()) else {
            return;
        };
        let without = Route {
            address: None,
            ..Route::clone(route)
        };
        self.withheld.insert(id.clone(), Arc::clone(route));
        publish(published, id, Some(Arc::new(without)));
    }

    /// The store still says the same of this route: any doubt about its address is lifted.
    pub(crate) fn confirm(&mut self, published: &Published, route: &Route) {
        if let Some(id) = &route.id {
            self.restore_address(published, id, route.uid, route.version);
        }
    }

    /// Publishes the address again, if the doubt was about this version.
    pub(crate) fn restore_address(
        &mut self,
        published: &Published,
        id: &SandboxId,
        uid: Uid,
        version: Version,
    ) -> bool {
        let is_it = |route: &Arc<Route>| route.uid == uid && route.version == version;
        if !self.withheld.get(id).is_some_and(is_it) {
            return false;
        }
        let full = self.withheld.remove(id);
        publish(published, id, full);
        true
    }
}

fn publish(published: &Published, id: &SandboxId, route: Option<Arc<Route>>) {
    let guard = published.pin();
    match route {
        Some(route) => {
            // The key shares the route's text, so an id is kept once.
            let id = route.id.clone().unwrap_or_else(|| id.clone());
            guard.insert(id, route);
        }
        None => {
            guard.remove(id);
        }
    }
}
