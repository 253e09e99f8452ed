//! The indexes of each kind, and a name for each kind's cache.

use model::{
    Object,
    api_key::ApiKeySpec,
    claim::ClaimSpec,
    event::{ABOUT_LABEL, EventSpec},
    lifecycle::{Phase, Request, Standing, Verdict, admit},
    pool::PoolSpec,
    sandbox::{Sandbox, SandboxSpec},
    snapshot::SnapshotSpec,
    team::TeamSpec,
    template::TemplateSpec,
};

use crate::{Cache, Full, Indexes, Names, NoIndex, Share, Term};

/// A cache of sandboxes.
pub type SandboxCache = Cache<Full<SandboxSpec, SandboxIndex>>;
/// A cache of pools.
pub type PoolCache = Cache<Full<PoolSpec, PoolIndex>>;
/// A cache of declarative claims.
pub type ClaimCache = Cache<Full<ClaimSpec, ClaimIndex>>;
/// A cache of snapshots.
pub type SnapshotCache = Cache<Full<SnapshotSpec, SnapshotIndex>>;
/// A cache of templates.
pub type TemplateCache = Cache<Full<TemplateSpec, NoIndex>>;
/// A cache of teams.
pub type TeamCache = Cache<Full<TeamSpec, NoIndex>>;
/// A cache of keys.
pub type ApiKeyCache = Cache<Full<ApiKeySpec, ApiKeyIndex>>;
/// A cache of events.
pub type EventCache = Cache<Full<EventSpec, EventIndex>>;

/// By what sandboxes are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxIndex {
    /// The sandbox id, exact.
    Id,
    /// The owner's team.
    Owner,
    /// The pool it is a member of, within its namespace.
    Pool,
    /// The pool it can be claimed from now, within its namespace: idle, nobody's, not going.
    Claimable,
    /// The observed phase, by [`model::lifecycle::Phase::as_str`].
    Phase,
    /// The template it is made from.
    Template,
    /// The snapshot it waits for, within its namespace: it was not started yet.
    WaitsForSnapshot,
}

impl Indexes<Sandbox> for SandboxIndex {
    const ALL: &'static [Self] = &[
        Self::Id,
        Self::Owner,
        Self::Pool,
        Self::Claimable,
        Self::Phase,
        Self::Template,
        Self::WaitsForSnapshot,
    ];

    fn terms<'v>(self, sandbox: &'v Sandbox, emit: &mut dyn FnMut(Term<'v>)) {
        let spec = &sandbox.spec;
        let namespace = sandbox.metadata.namespace.as_ref();
        let pool = spec
            .pool
            .as_ref()
            .map(|p| Term::within(namespace, p.as_str()));
        let term = match self {
            Self::Id => spec.sandbox_id.as_ref().map(|id| id.as_str().into()),
            Self::Owner => spec.owner.as_ref().map(|owner| owner.team.as_str().into()),
            Self::Pool => pool,
            Self::Claimable => pool.filter(|_| is_claimable(sandbox)),
            Self::Phase => Some(sandbox.status.phase.as_str().into()),
            Self::Template => spec.template.as_ref().map(|name| name.as_str().into()),
            Self::WaitsForSnapshot => spec
                .snapshot
                .as_ref()
                .filter(|_| sandbox.status.phase == Phase::Pending)
                .map(|name| Term::within(namespace, name.as_str())),
        };
        term.into_iter().for_each(emit);
    }
}

fn is_claimable(sandbox: &Sandbox) -> bool {
    admit(Request::Claim, Standing::of(sandbox, false)) == Verdict::Do
}

impl Share for SandboxSpec {
    fn share(sandbox: &mut Object<Self>, names: &mut Names) {
        let spec = &mut sandbox.spec;
        if let Some(owner) = &mut spec.owner {
            names.share_namespace(&mut owner.team);
        }
        for name in [&mut spec.template, &mut spec.pool].into_iter().flatten() {
            names.share_name(name);
        }
        // Decoded lists have room for four; most sandboxes have one condition.
        sandbox.status.conditions.shrink_to_fit();
    }
}

/// By what pools are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolIndex {
    /// The template its members are made from.
    Template,
}

impl Indexes<Object<PoolSpec>> for PoolIndex {
    const ALL: &'static [Self] = &[Self::Template];

    fn terms<'v>(self, pool: &'v Object<PoolSpec>, emit: &mut dyn FnMut(Term<'v>)) {
        match self {
            Self::Template => emit(pool.spec.template.as_str().into()),
        }
    }
}

impl Share for PoolSpec {}

/// By what claims are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimIndex {
    /// The pool it asks, within its namespace.
    Pool,
    /// Each sandbox it is bound to, within its namespace.
    Bound,
}

impl Indexes<Object<ClaimSpec>> for ClaimIndex {
    const ALL: &'static [Self] = &[Self::Pool, Self::Bound];

    fn terms<'v>(self, claim: &'v Object<ClaimSpec>, emit: &mut dyn FnMut(Term<'v>)) {
        let namespace = claim.metadata.namespace.as_ref();
        match self {
            Self::Pool => emit(Term::within(namespace, claim.spec.pool.as_str())),
            Self::Bound => {
                let bound = claim.status.bound.iter();
                bound.for_each(|name| emit(Term::within(namespace, name.as_str())));
            }
        }
    }
}

impl Share for ClaimSpec {}

/// By what snapshots are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotIndex {
    /// The sandbox it captures, within its namespace.
    Sandbox,
    /// The team it belongs to.
    Team,
    /// What people call it, with its tag, within its namespace.
    Alias,
}

impl Indexes<Object<SnapshotSpec>> for SnapshotIndex {
    const ALL: &'static [Self] = &[Self::Sandbox, Self::Team, Self::Alias];

    fn terms<'v>(self, snapshot: &'v Object<SnapshotSpec>, emit: &mut dyn FnMut(Term<'v>)) {
        let namespace = snapshot.metadata.namespace.as_ref();
        let term = match self {
            Self::Sandbox => Some(Term::within(namespace, snapshot.spec.sandbox.as_str())),
            Self::Team => namespace.map(|team| team.as_str().into()),
            Self::Alias => {
                let alias = snapshot.spec.alias.as_deref();
                alias.map(|alias| Term::within(namespace, alias))
            }
        };
        term.into_iter().for_each(emit);
    }
}

impl Share for SnapshotSpec {}
impl Share for TemplateSpec {}
impl Share for TeamSpec {}

/// By what keys are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKeyIndex {
    /// The hash of the key, exact.
    Hash,
    /// The team.
    Team,
}

impl Indexes<Object<ApiKeySpec>> for ApiKeyIndex {
    const ALL: &'static [Self] = &[Self::Hash, Self::Team];

    fn terms<'v>(self, key: &'v Object<ApiKeySpec>, emit: &mut dyn FnMut(Term<'v>)) {
        match self {
            Self::Hash => emit(key.spec.hash.as_str().into()),
            Self::Team => {
                let team = key.metadata.namespace.as_ref();
                team.map(|team| Term::from(team.as_str()))
                    .into_iter()
                    .for_each(emit);
            }
        }
    }
}

impl Share for ApiKeySpec {}

/// By what events are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventIndex {
    /// The uid of the object it speaks of, as printed.
    About,
}

impl Indexes<Object<EventSpec>> for EventIndex {
    const ALL: &'static [Self] = &[Self::About];

    fn terms<'v>(self, event: &'v Object<EventSpec>, emit: &mut dyn FnMut(Term<'v>)) {
        match self {
            Self::About => {
                let about = event.metadata.labels.get(ABOUT_LABEL);
                about.map(Term::from).into_iter().for_each(emit);
            }
        }
    }
}

impl Share for EventSpec {}
