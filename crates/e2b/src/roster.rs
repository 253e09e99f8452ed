//! The sandboxes of each team in the order of their start.
//!
//! An index over the cache of sandboxes: it keeps places, and reads the values from the cache when
//! it is asked. What orders a sandbox (when it first ran, and its id) does not change while it is
//! its owner's, so a cursor that names such a place neither skips nor repeats one that is there
//! all the time, whatever comes and goes around it; and a page costs what it holds, not what there is.
//!
//! It follows the cache by its dirty keys. A handler that has seen a change in the cache says so
//! with [`Roster::refresh`], so that the next request sees it too.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Range},
    ops::Bound,
    sync::Arc,
};

use cache::{Changes, SandboxCache, StopReason, View};
use model::{Key, Name, Namespace, Sandbox, Spec as _, Timestamp, sandbox::SandboxSpec};
use parking_lot::RwLock;

use crate::{
    idempotency,
    state::{State, state_of},
};

/// Where a sandbox is in the order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) started: Timestamp,
    pub(crate) id: Box<str>,
}

/// Which way to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Oldest first.
    Ascending,
    /// Newest first.
    Descending,
}

/// What to read.
#[derive(Debug)]
pub(crate) struct Wanted<'w> {
    pub(crate) team: &'w Namespace,
    pub(crate) running: bool,
    pub(crate) paused: bool,
    pub(crate) order: Order,
    /// Not before this moment.
    pub(crate) started_after: Option<Timestamp>,
    /// Beyond this one.
    pub(crate) after: Option<Mark>,
    pub(crate) limit: usize,
}

#[derive(Debug)]
pub(crate) struct Roster {
    sandboxes: SandboxCache,
    index: RwLock<Index>,
}

#[derive(Debug, Default)]
struct Index {
    teams: BTreeMap<Namespace, Team>,
    /// What is recorded of each key, so that it can be taken out again.
    entries: BTreeMap<Key, Entry>,
}

#[derive(Debug, Default)]
struct Team {
    running: BTreeMap<Mark, Name>,
    paused: BTreeMap<Mark, Name>,
    /// Sandboxes by what was given as the key of their creation.
    keyed: BTreeMap<Box<str>, BTreeSet<Name>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    team: Namespace,
    name: Name,
    listed: Option<(State, Mark)>,
    key: Option<Box<str>>,
}

impl Roster {
    /// An index of everything in a cache, and what keeps it so.
    pub(crate) async fn new<V>(
        sandboxes: SandboxCache,
        mut changes: Changes<V>,
    ) -> Result<(Self, Changes<V>), StopReason>
    where
        V: View,
    {
        let roster = Self {
            sandboxes,
            index: RwLock::default(),
        };
        while changes.pending() > 0 {
            roster.refresh_all(&changes.next_batch(usize::MAX).await?);
        }
        Ok((roster, changes))
    }

    pub(crate) fn refresh_all(&self, keys: &[Key]) {
        keys.iter().for_each(|key| self.refresh(key));
    }

    /// Takes over what the cache has at a key. The cache never goes back and is read under the
    /// lock, so neither does this.
    pub(crate) fn refresh(&self, key: &Key) {
        let mut index = self.index.write();
        let now = self.sandboxes.find(key).and_then(|s| entry_of(&s));
        if index.entries.get(key) == now.as_ref() {
            return;
        }
        if let Some(old) = index.entries.remove(key) {
            index.take_out(&old);
        }
        if let Some(new) = now {
            index.put_in(&new);
            index.entries.insert(key.clone(), new);
        }
    }

    /// How many sandboxes of a team run.
    pub(crate) fn running(&self, team: &Namespace) -> usize {
        let index = self.index.read();
        index.teams.get(team).map_or(0, |team| team.running.len())
    }

    /// The sandboxes that were created with a key.
    pub(crate) fn find_keyed(&self, team: &Namespace, key: &str) -> Vec<Arc<Sandbox>> {
        let index = self.index.read();
        let names = index.teams.get(team).and_then(|team| team.keyed.get(key));
        names
            .into_iter()
            .flatten()
            .filter_map(|name| self.find(team, name))
            .collect()
    }

    /// A page, and whether there is more after it.
    pub(crate) fn page(
        &self,
        wanted: &Wanted<'_>,
        matches: impl Fn(&Sandbox) -> bool,
    ) -> (Vec<Arc<Sandbox>>, bool) {
        let index = self.index.read();
        let Some(team) = index.teams.get(wanted.team) else {
            return (Vec::new(), false);
        };
        let mut page = Vec::new();
        for name in team.walk(wanted) {
            let found = self.find(wanted.team, name).filter(|s| {
                let wanted_state = match state_of(s) {
                    State::Running => wanted.running,
                    State::Paused => wanted.paused,
                    State::Creating | State::Ending | State::Gone => false,
                };
                wanted_state && matches(s)
            });
            let Some(sandbox) = found else { continue };
            if page.len() == wanted.limit {
                return (page, true);
            }
            page.push(sandbox);
        }
        (page, false)
    }

    fn find(&self, team: &Namespace, name: &Name) -> Option<Arc<Sandbox>> {
        self.sandboxes.find(&Key::namespaced(
            SandboxSpec::KIND,
            team.clone(),
            name.clone(),
        ))
    }
}

/// The place of a sandbox in the order; none before it has run.
pub(crate) fn mark_of(sandbox: &Sandbox) -> Option<Mark> {
    Some(Mark {
        started: sandbox.status.started_at?,
        id: sandbox.spec.sandbox_id.as_ref()?.as_str().into(),
    })
}

fn entry_of(sandbox: &Sandbox) -> Option<Entry> {
    let team = sandbox.metadata.namespace.clone()?;
    sandbox.spec.owner.as_ref()?;
    // Those of builds are nobody's to see.
    if sandbox.metadata.annotations.contains_key(build::ANNOTATION) {
        return None;
    }
    let state = state_of(sandbox);
    let listed = match state {
        State::Running | State::Paused => mark_of(sandbox).map(|mark| (state, mark)),
        State::Creating | State::Ending | State::Gone => None,
    };
    let key = idempotency::key_of(sandbox).map(Into::into);
    let entry = Entry {
        team,
        name: sandbox.metadata.name.clone(),
        listed,
        key,
    };
    (entry.listed.is_some() || entry.key.is_some()).then_some(entry)
}

impl Index {
    fn put_in(&mut self, entry: &Entry) {
        let team = self.teams.entry(entry.team.clone()).or_default();
        if let Some((state, mark)) = &entry.listed {
            let lane = team.lane(*state);
            lane.insert(mark.clone(), entry.name.clone());
        }
        if let Some(key) = &entry.key {
            let names = team.keyed.entry(key.clone()).or_default();
            names.insert(entry.name.clone());
        }
    }

    fn take_out(&mut self, entry: &Entry) {
        let Some(team) = self.teams.get_mut(&entry.team) else {
            return;
        };
        if let Some((state, mark)) = &entry.listed {
            team.lane(*state).remove(mark);
        }
        if let Some(key) = &entry.key
            && let Some(names) = team.keyed.get_mut(key)
        {
            names.remove(&entry.name);
            if names.is_empty() {
                team.keyed.remove(key);
            }
        }
        if team.running.is_empty() && team.paused.is_empty() && team.keyed.is_empty() {
            self.teams.remove(&entry.team);
        }
    }
}

impl Team {
    const fn lane(&mut self, state: State) -> &mut BTreeMap<Mark, Name> {
        match state {
            State::Paused => &mut self.paused,
            State::Running | State::Creating | State::Ending | State::Gone => &mut self.running,
        }
    }

    /// The names in order, from the place after the cursor on.
    fn walk<'t>(&'t self, wanted: &'t Wanted<'_>) -> impl Iterator<Item = &'t Name> {
        let lane = |is_wanted: bool, lane: &'t BTreeMap<Mark, Name>| is_wanted.then_some(lane);
        let mut lanes: Vec<_> = [
            lane(wanted.running, &self.running),
            lane(wanted.paused, &self.paused),
        ]
        .into_iter()
        .flatten()
        .map(|lane| Lane::new(lane, wanted))
        .collect();
        let order = wanted.order;
        std::iter::from_fn(move || {
            let heads = lanes.iter().enumerate();
            let heads = heads.filter_map(|(at, lane)| lane.head.map(|(mark, _)| (mark, at)));
            let (_, next) = match order {
                Order::Ascending => heads.min(),
                Order::Descending => heads.max(),
            }?;
            lanes[next].pop()
        })
    }
}

/// One lane, read in one direction.
struct Lane<'l> {
    rest: Option<Range<'l, Mark, Name>>,
    order: Order,
    head: Option<(&'l Mark, &'l Name)>,
}

impl<'l> Lane<'l> {
    fn new(lane: &'l BTreeMap<Mark, Name>, wanted: &Wanted<'_>) -> Self {
        // No id is less than the empty one: all that started at the moment are after it.
        let floor = wanted.started_after.map(|started| Mark {
            started,
            id: Box::default(),
        });
        let after = wanted.after.clone();
        let rest = match (wanted.order, after, floor) {
            (Order::Descending, Some(after), Some(floor)) if floor > after => None,
            (Order::Descending, after, floor) => Some(lane.range((
                floor.map_or(Bound::Unbounded, Bound::Included),
                after.map_or(Bound::Unbounded, Bound::Excluded),
            ))),
            (Order::Ascending, Some(after), Some(floor)) if after > floor => {
                Some(lane.range((Bound::Excluded(after), Bound::Unbounded)))
            }
            (Order::Ascending, _, Some(floor)) => Some(lane.range(floor..)),
            (Order::Ascending, Some(after), None) => {
                Some(lane.range((Bound::Excluded(after), Bound::Unbounded)))
            }
            (Order::Ascending, None, None) => Some(lane.range(..)),
        };
        let mut lane = Self {
            rest,
            order: wanted.order,
            head: None,
        };
        lane.pop();
        lane
    }

    fn pop(&mut self) -> Option<&'l Name> {
        let rest = self.rest.as_mut();
        let next = rest.and_then(|rest| match self.order {
            Order::Ascending => rest.next(),
            Order::Descending => rest.next_back(),
        });
        std::mem::replace(&mut self.head, next).map(|(_, name)| name)
    }
}
