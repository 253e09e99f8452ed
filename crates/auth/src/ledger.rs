//! Quotas under concurrent requests.
//!
//! What a team has is counted from the cache of sandboxes, which sees a new one a moment after it
//! was written. Two requests that both looked before either wrote would both be let through. So a
//! request takes a *reservation* before it writes:
//!
//! ```text
//!  reserve ──▶ held ──written(version)──▶ held until the cache is at that version ──▶ gone
//!               └── dropped: the write failed, or never was
//! ```
//!
//! One lock per team covers looking and taking. A reservation and the record it became are never
//! counted both: the id that is minted for a delivery before it is written says that they are one.
//! So a team gets exactly what it may have, however many ask at once.
//!
//! The reservations are in the memory of one process; several that serve one team would each let
//! through what the others are just making.

use std::{collections::BTreeMap, fmt, sync::Arc};

use cache::{SandboxCache, SandboxIndex, TemplateCache};
use model::{
    Key, Name, Namespace, SandboxId, Spec as _, Version,
    lifecycle::Phase,
    sandbox::{Sandbox, SandboxSpec},
    template::TemplateSpec,
};
use parking_lot::Mutex;

use crate::{
    QuotaExceeded, Usage,
    quota::{self, Account, Size, Used},
};

/// What teams have, and what is being made for them.
#[derive(Debug)]
pub struct Ledger {
    sandboxes: SandboxCache,
    templates: TemplateCache,
    otherwise: Size,
    teams: Mutex<BTreeMap<Namespace, Arc<Mutex<Book>>>>,
}

/// What a sandbox counts for.
type Weigh = fn(&Sandbox, Size) -> Usage;

/// The reservations of one team.
#[derive(Debug, Default)]
struct Book {
    next: u64,
    held: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    id: SandboxId,
    key: Option<Name>,
    weight: Usage,
    /// The version at which it became a record.
    written: Option<Version>,
}

impl Ledger {
    /// Counts what is in these caches. A sandbox for which neither it nor its template says how
    /// large it is counts as `otherwise`.
    #[must_use]
    pub fn new(sandboxes: SandboxCache, templates: TemplateCache, otherwise: Size) -> Self {
        Self {
            sandboxes,
            templates,
            otherwise,
            teams: Mutex::default(),
        }
    }

    /// Takes what a sandbox will count for once it is written like this and awake: a new one, one
    /// that is claimed, or one that is woken. `id` is the id that it has then.
    ///
    /// # Errors
    /// If the team may not have that much more, or not with this key.
    pub fn reserve(
        &self,
        account: &Account,
        id: &SandboxId,
        wanted: &SandboxSpec,
    ) -> Result<Reservation, QuotaExceeded> {
        self.take(account, id, wanted, quota::weigh)
    }

    /// Takes what a sandbox counts for that its owner, or traffic, wants awake and that still sleeps. Others
    /// like it count for nothing awake until they have taken theirs: it is asked here in turn.
    ///
    /// # Errors
    /// If the team may not have that much more, or not with this key.
    pub fn wake(
        &self,
        account: &Account,
        id: &SandboxId,
        wanted: &SandboxSpec,
    ) -> Result<Reservation, QuotaExceeded> {
        self.take(account, id, wanted, quota::weigh_observed)
    }

    /// Whether a sandbox that was written and not begun is within what its team may have, after all that
    /// were begun or made before it. One that is not in the cache has nothing before it.
    ///
    /// # Errors
    /// If the others are too many already.
    pub fn in_turn(&self, account: &Account, id: &SandboxId) -> Result<(), QuotaExceeded> {
        let Some(own) = self.sandboxes.find_one_by(SandboxIndex::Id, id.as_str()) else {
            return Ok(());
        };
        let place = |sandbox: &Sandbox| (sandbox.metadata.creation_timestamp, sandbox.uid());
        let mut used = Used::default();
        for sandbox in self.sandboxes_of(&account.team) {
            let has_begun = sandbox.status.phase != Phase::Pending;
            if sandbox.uid() != own.uid() && (has_begun || place(&sandbox) < place(&own)) {
                self.add(&mut used, account, &sandbox, quota::weigh);
            }
        }
        quota::check(account, used, self.size(&own.spec).awake())
    }

    fn take(
        &self,
        account: &Account,
        id: &SandboxId,
        wanted: &SandboxSpec,
        weigh: Weigh,
    ) -> Result<Reservation, QuotaExceeded> {
        let weight = self.size(wanted).awake();
        if account.is_unlimited() {
            return Ok(Reservation(None));
        }
        let book = self.book(&account.team);
        let place = {
            let mut book = book.lock();
            let (used, before) = self.count(&mut book, account, Some(id), weigh);
            quota::check(account, used, weight.beyond(before))?;
            let place = book.next;
            book.next += 1;
            let held = Held {
                id: id.clone(),
                key: account.key.clone(),
                weight,
                written: None,
            };
            book.held.insert(place, held);
            place
        };
        Ok(Reservation(Some((book, place))))
    }

    /// How many more like this one may wait in pools of the team, at most `most`, if all that wait
    /// there already were claimed; and what there would be too much of.
    #[must_use]
    pub fn room(
        &self,
        account: &Account,
        wanted: &SandboxSpec,
        pools: &[Name],
        most: u32,
    ) -> (u32, Option<QuotaExceeded>) {
        let book = self.book(&account.team);
        let mut used = {
            let mut book = book.lock();
            self.count(&mut book, account, None, quota::weigh).0
        };
        for pool in pools {
            let members = self
                .sandboxes
                .find_by(SandboxIndex::Pool, (&account.team, pool));
            for member in members.iter().filter(|member| waits(member)) {
                used.team = used.team.plus(self.size(&member.spec).awake());
            }
        }
        let one = self.size(wanted).awake();
        for count in 0..most {
            if let Err(exceeded) = quota::check(account, used, one) {
                return (count, Some(exceeded));
            }
            used.team = used.team.plus(one);
        }
        (most, None)
    }

    /// What a team has and what is had with a key, as far as it is written and seen.
    #[must_use]
    pub fn used(&self, account: &Account) -> Used {
        let mut used = Used::default();
        for sandbox in self.sandboxes_of(&account.team) {
            self.add(&mut used, account, &sandbox, quota::weigh);
        }
        used
    }

    fn book(&self, team: &Namespace) -> Arc<Mutex<Book>> {
        let mut teams = self.teams.lock();
        Arc::clone(teams.entry(team.clone()).or_default())
    }

    /// What is used or reserved by now, and what of it is the sandbox with this id.
    fn count(
        &self,
        book: &mut Book,
        account: &Account,
        id: Option<&SandboxId>,
        weigh: Weigh,
    ) -> (Used, Usage) {
        // The version first: what the cache has by then, it still has, or something newer, when the
        // sandboxes are looked at.
        let seen = self.sandboxes.version();
        book.held
            .retain(|_, held| held.written.is_none_or(|version| version > seen));
        // Two requests that wake one sandbox are one sandbox.
        let mut reserved: BTreeMap<&SandboxId, (Option<&Name>, Usage)> = BTreeMap::new();
        for held in book.held.values() {
            let entry = reserved
                .entry(&held.id)
                .or_insert((held.key.as_ref(), Usage::default()));
            entry.1 = entry.1.max(held.weight);
        }
        let mut used = Used::default();
        let mut before = Usage::default();
        for sandbox in self.sandboxes_of(&account.team) {
            let own = sandbox.spec.sandbox_id.as_ref();
            if own.is_some_and(|own| reserved.contains_key(own)) {
                continue;
            }
            let weight = self.add(&mut used, account, &sandbox, weigh);
            if own.is_some() && own == id {
                before = weight;
            }
        }
        for (own, (key, weight)) in reserved {
            used.team = used.team.plus(weight);
            if key.is_some() && key == account.key.as_ref() {
                used.key = used.key.plus(weight);
            }
            if Some(own) == id {
                before = weight;
            }
        }
        (used, before)
    }

    fn add(&self, used: &mut Used, account: &Account, sandbox: &Sandbox, weigh: Weigh) -> Usage {
        let weight = weigh(sandbox, self.size(&sandbox.spec));
        used.team = used.team.plus(weight);
        let key = sandbox.spec.owner.as_ref().and_then(|o| o.key.as_ref());
        if key.is_some() && key == account.key.as_ref() {
            used.key = used.key.plus(weight);
        }
        weight
    }

    fn sandboxes_of(&self, team: &Namespace) -> Vec<Arc<Sandbox>> {
        self.sandboxes.find_by(SandboxIndex::Owner, team.as_str())
    }

    fn size(&self, spec: &SandboxSpec) -> Size {
        let resources = spec.resources.or_else(|| {
            let template = self.templates.find(&Key {
                kind: TemplateSpec::KIND,
                namespace: None,
                name: spec.template.clone()?,
            })?;
            template.spec.resources
        });
        self.otherwise.of(resources)
    }
}

/// Whether a member has no owner and may get one.
fn waits(member: &Sandbox) -> bool {
    let over = matches!(member.status.phase, Phase::Stopped | Phase::Failed);
    member.spec.owner.is_none() && !member.metadata.is_deleting() && !over
}

/// What was taken of a quota and is not yet in the cache. Dropped, it is given back: keep it until
/// the write is done, and then say so. A write of which nobody knows whether it happened has to be
/// looked up first.
#[must_use = "dropped, it is given back"]
pub struct Reservation(Option<(Arc<Mutex<Book>>, u64)>);

impl Reservation {
    /// It became a record, at this version.
    pub fn written(mut self, version: Version) {
        if let Some((book, place)) = self.0.take()
            && let Some(held) = book.lock().held.get_mut(&place)
        {
            held.written = Some(version);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some((book, place)) = self.0.take() {
            book.lock().held.remove(&place);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((_, place)) => write!(f, "Reservation({place})"),
            None => f.write_str("Reservation(unlimited)"),
        }
    }
}
