//! What writers share: every key with what is known of it, and the marks.
//!
//! One writer at a time works here. Readers see the published index only.

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    ptr,
    sync::Arc,
    time::Duration,
};

use model::{Name, Namespace, SandboxId, Uid, Version};

use crate::{
    claims::{Claims, Published},
    graves::{Graves, Key},
    merge::{Delete, Marks, Slot, Upsert, judge_delete, judge_upsert},
    message::{Deletion, Message, Snapshot, Writer},
    outcome::{Change, Counts, Ignored, Invalid, Outcome, Resync},
    recent::Recent,
    route::{Route, keep},
    table::{Changes, Everything, Limits, Stats},
};

/// How many steps one mutation spends on tombstones. It leaves at most one, and one takes at most
/// two steps to go, so they cannot pile up.
const SWEEP_STEPS: usize = 4;

/// Every key with what is known of it.
#[derive(Debug)]
pub(crate) struct Records {
    /// Two levels, so that a namespace's text is kept once however many routes it has.
    spaces: HashMap<Namespace, HashMap<Name, Kept>>,
    live: usize,
    claims: Claims,
    graves: Graves,
    recent: Recent,
    marks: Marks,
    /// Who gave the base.
    based_on: Option<Writer>,
    /// How far the own watch has passed, and how far that or a peer whose snapshot was taken has.
    passed: Version,
    watched: Version,
    /// Routes and tombstones beyond the own watch that only a peer has told of.
    unconfirmed: BTreeSet<(Version, Key)>,
    counts: Counts,
}

/// What is known of a key, and the stamp of its last change.
#[derive(Debug)]
struct Kept {
    slot: Slot,
    stamp: u64,
}

/// A snapshot made ready before the lock is taken: one route for each key, in order.
#[derive(Debug)]
pub(crate) struct Listed {
    version: Version,
    routes: Vec<Arc<Route>>,
    keys: HashMap<Namespace, HashSet<Name>>,
}

impl Listed {
    pub(crate) fn new(
        Snapshot {
            version,
            mut routes,
        }: Snapshot,
    ) -> Self {
        // The greatest account of a key comes first, and is the one that stays.
        routes.sort_unstable_by(|a, b| {
            (&a.namespace, &a.name)
                .cmp(&(&b.namespace, &b.name))
                .then_with(|| b.cmp(a))
        });
        routes.dedup_by(|later, first| later.same_key(first));
        // What was dead by then is the same as absent.
        routes.retain(|route| route.version > version || keep(route.state));
        let mut keys = HashMap::<_, HashSet<_>>::new();
        for route in &routes {
            let names = keys.entry(route.namespace.clone()).or_default();
            names.insert(route.name.clone());
        }
        Self {
            version,
            routes,
            keys,
        }
    }

    pub(crate) fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }

    /// Newer than the list, so a delta like any other, even if the list is too old; or invalid, and
    /// then the key keeps what it had.
    fn is_delta(&self, route: &Route) -> bool {
        route.version > self.version || route.version == Version::ZERO
    }

    fn names(&self, namespace: &Namespace, name: &Name) -> bool {
        let names = self.keys.get(namespace);
        names.is_some_and(|names| names.contains(name))
    }
}

impl Records {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            spaces: HashMap::new(),
            live: 0,
            claims: Claims::default(),
            graves: Graves::new(limits.retention, limits.max_tombstones),
            recent: Recent::new(limits.max_recent),
            marks: Marks::default(),
            based_on: None,
            passed: Version::ZERO,
            watched: Version::ZERO,
            unconfirmed: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    fn slot(&self, namespace: &Namespace, name: &Name) -> Option<&Slot> {
        Some(&self.spaces.get(namespace)?.get(name)?.slot)
    }

    pub(crate) fn find(&self, namespace: &Namespace, name: &Name) -> Option<Arc<Route>> {
        match self.slot(namespace, name)? {
            Slot::Live { route, .. } => Some(Arc::clone(route)),
            Slot::Dead { .. } => None,
        }
    }

    pub(crate) fn routes(&self) -> Vec<Arc<Route>> {
        let mut routes = Vec::with_capacity(self.live);
        for kept in self.spaces.values().flat_map(HashMap::values) {
            match &kept.slot {
                Slot::Live { route, .. } => routes.push(Arc::clone(route)),
                Slot::Dead { .. } => {}
            }
        }
        routes
    }

    /// See [`crate::Table::since`].
    pub(crate) fn since(&self, after: Version, told: Option<u64>) -> Option<Changes> {
        let is_vouched = self.based_on == Some(Writer::Watch);
        // What a snapshot or a collected tombstone settled has left no trace. Of a peer's snapshot
        // nothing is told anyway.
        if is_vouched && after < self.marks.base || after < self.marks.floor {
            return None;
        }
        let keys = self.recent.after(after, told)?;
        let messages = keys.filter_map(|(namespace, name)| {
            Some(match self.slot(namespace, name)? {
                Slot::Live { route, .. } => Message::Upsert(Arc::clone(route)),
                Slot::Dead { version, .. } => Message::Delete(Deletion {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    version: *version,
                }),
            })
        });
        Some(Changes {
            messages: messages.collect(),
            stamp: self.recent.last(),
            watched: if is_vouched {
                self.watched
            } else {
                Version::ZERO
            },
        })
    }

    /// See [`crate::Table::everything`].
    pub(crate) fn everything(&self) -> Option<Everything> {
        if self.based_on != Some(Writer::Watch) {
            return None;
        }
        let mut deletions = Vec::new();
        for (namespace, space) in &self.spaces {
            for (name, kept) in space {
                match &kept.slot {
                    Slot::Dead { version, .. } if *version > self.watched => {
                        deletions.push(Deletion {
                            namespace: namespace.clone(),
                            name: name.clone(),
                            version: *version,
                        });
                    }
                    Slot::Dead { .. } | Slot::Live { .. } => {}
                }
            }
        }
        Some(Everything {
            snapshot: Snapshot {
                version: self.watched,
                routes: self.routes(),
            },
            deletions,
            stamp: self.recent.last(),
        })
    }

    pub(crate) fn watched(&self) -> Version {
        self.watched
    }

    #[cfg(test)]
    pub(crate) fn tombstones(&self) -> Vec<(Namespace, Name, Version)> {
        let mut tombstones = Vec::new();
        for (namespace, space) in &self.spaces {
            for (name, kept) in space {
                match &kept.slot {
                    Slot::Dead { version, .. } => {
                        tombstones.push((namespace.clone(), name.clone(), *version));
                    }
                    Slot::Live { .. } => {}
                }
            }
        }
        tombstones.sort();
        tombstones
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            routes: self.live,
            tombstones: self.graves.len(),
            contested_ids: self.claims.contested(),
            base: self.marks.base,
            floor: self.marks.floor,
            watched: self.watched,
            counts: self.counts,
        }
    }

    pub(crate) fn count(&mut self, outcome: &Outcome) {
        self.counts.count(outcome);
    }

    /// See [`crate::Table::watch_passed`].
    pub(crate) fn watch_passed(&mut self, published: &Published, version: Version) -> bool {
        self.passed = self.passed.max(version);
        self.watched = self.watched.max(version);
        if self.based_on == Some(Writer::Peer) {
            // What the watch brought up to the base was not looked at.
            return self.passed >= self.marks.base;
        }
        let mut is_doubtful = false;
        while let Some((first, _)) = self.unconfirmed.first()
            && *first <= self.passed
        {
            if let Some((version, key)) = self.unconfirmed.pop_first() {
                is_doubtful |= self.refute(published, version, &key);
            }
        }
        is_doubtful
    }

    /// Drops a route or tombstone that a peer has told of and the own watch has passed without bringing
    /// it. What a tombstone has hidden is not known any more: only a list can tell.
    ///
    /// Nothing dead comes back by that. What was older is at or below what the own watch has passed, so
    /// no peer can say it again, and the own watch said nothing of a death.
    fn refute(&mut self, published: &Published, version: Version, (namespace, name): &Key) -> bool {
        let Some(space) = self.spaces.get_mut(namespace) else {
            return false;
        };
        let is_it = |kept: &mut Kept| kept.slot.is_peers() && kept.slot.version() == version;
        if !space.get_mut(name).is_some_and(is_it) {
            return false;
        }
        let Some(Kept { slot, stamp }) = space.remove(name) else {
            return false;
        };
        if space.is_empty() {
            self.spaces.remove(namespace);
        }
        self.recent.forget(stamp);
        match slot {
            Slot::Live { route, .. } => {
                self.live -= 1;
                self.claims.change(published, Some(&route), None);
                self.counts.refuted += 1;
            }
            Slot::Dead { ticket, .. } => {
                self.graves.forget(ticket, version);
                self.counts.refuted_deletes += 1;
            }
        }
        true
    }

    pub(crate) fn upsert(
        &mut self,
        published: &Published,
        route: Arc<Route>,
        by: Writer,
    ) -> Outcome {
        if route.version == Version::ZERO {
            return Outcome::Invalid(Invalid::NoVersion);
        }
        let slot = self.slot(&route.namespace, &route.name);
        match judge_upsert(self.marks, slot, &route, by) {
            Upsert::Ignore(why) => Outcome::Ignored(why),
            Upsert::Vouch => {
                self.vouch(&route.namespace, &route.name);
                Outcome::Ignored(Ignored::Duplicate)
            }
            // What there was at that version the own watch has brought.
            Upsert::Take if by == Writer::Peer && route.version <= self.passed => {
                Outcome::Ignored(Ignored::Passed)
            }
            Upsert::Take => Outcome::Applied(self.put(published, route, by)),
            Upsert::TakeInConflict => {
                self.counts.conflicts += 1;
                Outcome::Applied(self.put(published, route, by))
            }
        }
    }

    pub(crate) fn delete(
        &mut self,
        published: &Published,
        namespace: Namespace,
        name: Name,
        version: Version,
        by: Writer,
        now: Duration,
    ) -> Outcome {
        if version == Version::ZERO {
            return Outcome::Invalid(Invalid::NoVersion);
        }
        let slot = self.slot(&namespace, &name);
        match judge_delete(self.marks, slot, version, by) {
            Delete::Ignore(why) => return Outcome::Ignored(why),
            Delete::Vouch => {
                self.vouch(&namespace, &name);
                return Outcome::Ignored(Ignored::Duplicate);
            }
            // What was gone at that version the own watch has said.
            Delete::Take if by == Writer::Peer && version <= self.passed => {
                return Outcome::Ignored(Ignored::Passed);
            }
            Delete::Take => {}
        }
        let dead = |ticket| Slot::Dead {
            version,
            ticket,
            writer: by,
        };
        match slot {
            Some(Slot::Dead {
                version: from,
                ticket,
                ..
            }) => {
                let (from, ticket) = (*from, *ticket);
                self.graves.advance(ticket, from, version);
                self.set(namespace, name, dead(ticket));
                return Outcome::Applied(Change::default());
            }
            None if self.graves.is_full() => return Outcome::Ignored(Ignored::TooManyTombstones),
            Some(Slot::Live { .. }) | None => {}
        }
        let ticket = self
            .graves
            .bury((namespace.clone(), name.clone()), version, now);
        let before = match self.set(namespace, name, dead(ticket)) {
            Some(Slot::Live { route, .. }) => Some(route),
            Some(Slot::Dead { .. }) | None => None,
        };
        if before.is_some() {
            self.live -= 1;
            self.claims.change(published, before.as_ref(), None);
        }
        Outcome::Applied(Change {
            before,
            after: None,
        })
    }

    /// See [`crate::Table::replace_all`].
    pub(crate) fn replace_all(
        &mut self,
        published: &Published,
        listed: &Listed,
        now: Duration,
    ) -> Resync {
        let (mut changed, mut newer) = (0, 0);
        let is_older = listed.version < self.marks.base;
        if !is_older {
            self.recent.settle(listed.version);
        }
        for route in &listed.routes {
            if listed.is_delta(route) {
                self.take_delta(published, route, Writer::Watch, now);
                continue;
            }
            if is_older {
                continue;
            }
            match self.slot(&route.namespace, &route.name) {
                Some(slot) if slot.version() > listed.version => newer += 1,
                Some(Slot::Live { route: known, .. }) if known == route => {
                    let known = Arc::clone(known);
                    self.vouch(&known.namespace, &known.name);
                    self.claims.confirm(published, &known);
                }
                // Even over a higher version: a restored store has lost those writes.
                Some(Slot::Live { .. } | Slot::Dead { .. }) | None => {
                    self.put(published, Arc::clone(route), Writer::Watch);
                    changed += 1;
                }
            }
        }
        if is_older {
            return match self.based_on {
                Some(Writer::Peer) => Resync::OlderThanTold,
                Some(Writer::Watch) | None => Resync::Older,
            };
        }
        let deleted = self.drop_unlisted(published, listed);
        self.settle_at(listed.version, Writer::Watch);
        self.passed = self.passed.max(listed.version);
        Resync::Taken {
            changed,
            deleted,
            newer,
        }
    }

    /// Takes routes of a peer's snapshot that there is nothing about, each as a word of its own, and
    /// answers how many. The others wait for the whole: see [`crate::Table::adopt`].
    pub(crate) fn foretell(
        &mut self,
        published: &Published,
        listed: &Listed,
        routes: &[Arc<Route>],
    ) -> usize {
        let mut taken = 0;
        for route in routes {
            let is_known = self.slot(&route.namespace, &route.name).is_some();
            if !is_known && !listed.is_delta(route) {
                let outcome = self.upsert(published, Arc::clone(route), Writer::Peer);
                taken += usize::from(matches!(outcome, Outcome::Applied(_)));
            }
        }
        taken
    }

    /// See [`crate::Table::adopt`]. So many of its routes were taken before.
    pub(crate) fn adopt(
        &mut self,
        published: &Published,
        listed: &Listed,
        now: Duration,
        foretold: usize,
    ) -> Resync {
        let (mut changed, mut newer) = (foretold, 0);
        let is_known = self.based_on.is_some() && listed.version <= self.passed;
        let is_older = is_known || listed.version < self.marks.base;
        if !is_older {
            self.recent.settle(listed.version);
            self.settle_at(listed.version, Writer::Peer);
        }
        for route in &listed.routes {
            if listed.is_delta(route) {
                self.take_delta(published, route, Writer::Peer, now);
                continue;
            }
            // The own watch knows what there was at the versions that it has passed.
            if is_older || route.version <= self.passed {
                continue;
            }
            match self.slot(&route.namespace, &route.name) {
                Some(slot) if slot.version() > listed.version => newer += 1,
                Some(Slot::Live {
                    route: known,
                    writer: Writer::Watch,
                }) if known.version >= route.version => {}
                Some(Slot::Live { route: known, .. }) if known == route => {}
                Some(Slot::Live { .. } | Slot::Dead { .. }) | None => {
                    self.put(published, Arc::clone(route), Writer::Peer);
                    changed += 1;
                }
            }
        }
        if is_older {
            return Resync::Older;
        }
        Resync::Taken {
            changed,
            deleted: self.drop_unlisted(published, listed),
            newer,
        }
    }

    fn settle_at(&mut self, version: Version, by: Writer) {
        self.marks.base = version;
        self.based_on = Some(by);
        self.watched = self.watched.max(version);
        // What is not newer than the base stands or falls with that.
        while self
            .unconfirmed
            .first()
            .is_some_and(|(of, _)| *of <= version)
        {
            self.unconfirmed.pop_first();
        }
        self.counts.snapshots += 1;
    }

    /// Drops what a snapshot lacks, and answers how many routes that were.
    fn drop_unlisted(&mut self, published: &Published, listed: &Listed) -> usize {
        let mut deleted = 0;
        let Self {
            spaces,
            live,
            claims,
            graves,
            recent,
            ..
        } = self;
        spaces.retain(|namespace, space| {
            space.retain(|name, Kept { slot, stamp }| {
                if slot.version() > listed.version || listed.names(namespace, name) {
                    return true;
                }
                // No tombstone: from here on the base refuses all that one would.
                recent.forget(*stamp);
                match slot {
                    Slot::Live { route, .. } => {
                        claims.change(published, Some(route), None);
                        *live -= 1;
                        deleted += 1;
                    }
                    Slot::Dead {
                        version, ticket, ..
                    } => graves.forget(*ticket, *version),
                }
                false
            });
            !space.is_empty()
        });
        deleted
    }

    fn take_delta(&mut self, published: &Published, route: &Arc<Route>, by: Writer, now: Duration) {
        let outcome = if keep(route.state) {
            self.upsert(published, Arc::clone(route), by)
        } else {
            let (namespace, name) = (route.namespace.clone(), route.name.clone());
            self.delete(published, namespace, name, route.version, by, now)
        };
        self.counts.count(&outcome);
    }

    pub(crate) fn withhold_address(&mut self, published: &Published, id: &SandboxId) {
        self.claims.withhold_address(published, id);
    }

    pub(crate) fn restore_address(
        &mut self,
        published: &Published,
        id: &SandboxId,
        uid: Uid,
        version: Version,
    ) -> bool {
        self.claims.restore_address(published, id, uid, version)
    }

    pub(crate) fn sweep(&mut self, now: Duration) {
        for _ in 0..SWEEP_STEPS {
            let Some(((namespace, name), version)) = self.graves.collect(now, self.watched) else {
                continue;
            };
            self.marks.floor = self.marks.floor.max(version);
            if let Some(space) = self.spaces.get_mut(&namespace) {
                if let Some(kept) = space.remove(&name) {
                    self.recent.forget(kept.stamp);
                }
                if space.is_empty() {
                    self.spaces.remove(&namespace);
                }
            }
        }
    }

    /// The own watch says the same as a peer did.
    fn vouch(&mut self, namespace: &Namespace, name: &Name) {
        let space = self.spaces.get_mut(namespace);
        if let Some(kept) = space.and_then(|space| space.get_mut(name)) {
            kept.slot.vouch();
        }
    }

    /// Makes this the key's route, whatever was there.
    fn put(&mut self, published: &Published, mut route: Arc<Route>, writer: Writer) -> Change {
        self.share_text(&mut route);
        let slot = Slot::Live {
            route: Arc::clone(&route),
            writer,
        };
        let before = match self.set(route.namespace.clone(), route.name.clone(), slot) {
            Some(Slot::Live { route, .. }) => Some(route),
            Some(Slot::Dead {
                version, ticket, ..
            }) => {
                self.graves.forget(ticket, version);
                None
            }
            None => None,
        };
        self.live += usize::from(before.is_none());
        self.claims.change(published, before.as_ref(), Some(&route));
        Change {
            before,
            after: Some(route),
        }
    }

    fn set(&mut self, namespace: Namespace, name: Name, slot: Slot) -> Option<Slot> {
        let version = slot.version();
        let key = (namespace.clone(), name.clone());
        if slot.is_peers() && version > self.marks.base {
            self.unconfirmed.insert((version, key.clone()));
        }
        let space = self.spaces.entry(namespace).or_default();
        match space.entry(name) {
            Entry::Occupied(mut kept) => {
                let kept = kept.get_mut();
                let before = kept.slot.version();
                if kept.slot.is_peers() && before != version {
                    self.unconfirmed.remove(&(before, key.clone()));
                }
                kept.stamp = self.recent.note(Some(kept.stamp), key, version);
                Some(std::mem::replace(&mut kept.slot, slot))
            }
            Entry::Vacant(none) => {
                let stamp = self.recent.note(None, key, version);
                none.insert(Kept { slot, stamp });
                None
            }
        }
    }

    /// Every decoded message has its own copies of the same few words; the table keeps one.
    fn share_text(&self, route: &mut Arc<Route>) {
        let Some((namespace, space)) = self.spaces.get_key_value(&route.namespace) else {
            return;
        };
        let name = space
            .get_key_value(&route.name)
            .map_or(&route.name, |(name, _)| name)
            .clone();
        let owner = route
            .owner
            .as_ref()
            .map(|o| if o == namespace { namespace } else { o });
        let owner = owner.cloned();
        let shared = ptr::eq(namespace.as_str(), route.namespace.as_str())
            && ptr::eq(name.as_str(), route.name.as_str())
            && owner.as_ref().map(|o| o.as_str().as_ptr())
                == route.owner.as_ref().map(|o| o.as_str().as_ptr());
        if !shared {
            let route = Arc::make_mut(route);
            route.namespace = namespace.clone();
            route.name = name;
            route.owner = owner;
        }
    }
}
