//! What plugins say of pools that clients create, change and delete, and of sandboxes they create, make
//! larger or wake.
//!
//! They are asked after everything else was checked and before the store hears of it, for a dry
//! run too.

use model::{
    Namespace, Sandbox, SandboxPool, Spec as _,
    pool::PoolSpec,
    sandbox::{DesiredState, SandboxSpec},
};
use plugins::{Creation, Holds, Purpose};
use store::{Change, Draft, Half, Record};

use crate::{refusal::Refusal, resource_api::ResourceApi, served::Served};

/// A client asks for an object. What plugins set aside for it is to be told when it is written.
pub(crate) async fn before_create(
    api: &ResourceApi,
    draft: &Draft,
    served: Served,
) -> Result<Holds, Refusal> {
    if api.plugins.is_empty() {
        return Ok(Holds::default());
    }
    let refused = |error| Refusal::plugin(served.about(draft.meta.name.as_str()), error);
    match draft.kind {
        PoolSpec::KIND => {
            let pool: SandboxPool = as_record(draft).decode()?;
            let asked = api.plugins.before_pool_create(&pool).await;
            asked.map_err(refused)?;
            Ok(Holds::default())
        }
        SandboxSpec::KIND => {
            let sandbox: Sandbox = as_record(draft).decode()?;
            let owner = sandbox.spec.owner.as_ref().map(|owner| &owner.team);
            let Some(team) = owner.or(sandbox.metadata.namespace.as_ref()) else {
                return Ok(Holds::default());
            };
            one(api, Purpose::Applied, team, &sandbox.spec).await
        }
        _ => Ok(Holds::default()),
    }
}

async fn one(
    api: &ResourceApi,
    purpose: Purpose<'_>,
    team: &Namespace,
    spec: &SandboxSpec,
) -> Result<Holds, Refusal> {
    let wanted = Creation {
        purpose,
        team,
        spec,
        count: 1,
        ids: spec.sandbox_id.as_slice(),
    };
    let mut admitted = api.plugins.before_create(&wanted).await;
    match &admitted.limited {
        Some(limited) => Err(Refusal::limited(limited)),
        None => Ok(admitted.next_holds()),
    }
}

/// A client asks for a change of an object. What plugins set aside for it is to be told when it is written.
pub(crate) async fn before_update(
    api: &ResourceApi,
    current: &Record,
    change: &Change,
    served: Served,
) -> Result<Holds, Refusal> {
    let Half::Spec { meta, spec } = &change.half else {
        return Ok(Holds::default());
    };
    if api.plugins.is_empty() {
        return Ok(Holds::default());
    }
    let mut next = current.clone();
    next.meta = (**meta).clone();
    next.spec = spec.clone();
    match current.kind {
        PoolSpec::KIND => {
            let (old, new): (SandboxPool, SandboxPool) = (current.decode()?, next.decode()?);
            let asked = api.plugins.before_pool_update(&old, &new).await;
            let refused = |error| Refusal::plugin(served.about(current.meta.name.as_str()), error);
            asked.map_err(refused)?;
            Ok(Holds::default())
        }
        SandboxSpec::KIND => {
            let (old, new): (Sandbox, Sandbox) = (current.decode()?, next.decode()?);
            let owner = new.spec.owner.as_ref().map(|owner| &owner.team);
            match owner.or(new.metadata.namespace.as_ref()) {
                Some(team) if may_count_for_more(&old.spec, &new.spec) => {
                    one(api, Purpose::Changed, team, &new.spec).await
                }
                Some(_) | None => Ok(Holds::default()),
            }
        }
        _ => Ok(Holds::default()),
    }
}

/// Whether a change may make a sandbox count for more than it did. One that is to sleep counts for as much
/// whatever its size.
fn may_count_for_more(old: &SandboxSpec, new: &SandboxSpec) -> bool {
    let wakes = old.desired_state == DesiredState::Paused;
    new.desired_state == DesiredState::Running && (wakes || old.resources != new.resources)
}

/// A client asks for the end of an object.
pub(crate) async fn before_delete(
    api: &ResourceApi,
    current: &Record,
    served: Served,
) -> Result<(), Refusal> {
    if api.plugins.is_empty() || current.kind != PoolSpec::KIND {
        return Ok(());
    }
    let pool: SandboxPool = current.decode()?;
    let asked = api.plugins.before_pool_delete(&pool).await;
    asked.map_err(|error| Refusal::plugin(served.about(current.meta.name.as_str()), error))
}

/// A draft as it will be, but for what the store gives it.
fn as_record(draft: &Draft) -> Record {
    let draft = draft.clone();
    Record {
        kind: draft.kind,
        meta: draft.meta,
        spec: draft.spec,
        status: draft.status,
        fields: draft.fields,
    }
}
