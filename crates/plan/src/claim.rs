//! Which members a declarative claim takes.
//!
//! A claim makes the same write on a member as any other claimer and records the member's name.
//! The member carries the claim's name, so that a claim whose own record is behind (a crash
//! between the two writes) finds what it has taken.

use model::{
    Name, Sandbox, SandboxClaim, SandboxId, SandboxTemplate, StringMap, Timestamp, Uid,
    claim::{ClaimPhase, ClaimStatus},
    hook::{Hook, merged},
    lifecycle::{Request, Standing, Verdict, admit},
    pool::PoolSpec,
    sandbox::{
        DesiredState, GivenBack, Lease, NetworkPolicy, Owner, StopCause, StopReason, Stopped,
        Timeouts,
    },
};

use crate::{
    Plan,
    limit::{self, Limit},
    snapshot::MAIN_CONTAINER,
};

/// Annotation on a claimed member, with the name of the claim that took it: for people.
pub const CLAIM_ANNOTATION: &str = "dormouse.dev/claim";
/// Annotation on a claimed member, with the uid of the claim that took it: a namesake is another.
pub const CLAIM_UID_ANNOTATION: &str = "dormouse.dev/claim-uid";

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The claim.
    pub claim: &'a SandboxClaim,
    /// Members that carry the claim's name.
    pub taken: &'a [Name],
    /// How its pool stands.
    pub supply: Supply,
    /// How many more it may take now.
    pub admitted: u32,
    /// Who admits no more, if not all.
    pub limit: Option<Limit<'a>>,
    /// Whether its time to wait is over.
    pub timed_out: bool,
    /// Whether its time to be kept is over.
    pub expired: bool,
    /// For stamping records.
    pub now: Timestamp,
}

/// Whether there is something to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// Members are idle, or will be.
    Coming,
    /// All that there may be have owners.
    AtMax,
    /// There is no such pool in the claim's namespace.
    NoPool,
}

impl Supply {
    /// One word for a claim that waits.
    const fn reason(self) -> &'static str {
        match self {
            Self::Coming => "Waiting",
            Self::AtMax => "NoCapacity",
            Self::NoPool => "NoSuchPool",
        }
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take this many members, as far as there are any.
    Take(u32),
    /// Give back members taken twice for one place: a crash came between taking and recording.
    GiveBack(Vec<Name>),
    /// Write what is observed.
    Publish(Box<ClaimStatus>),
    /// Forget the claim.
    DeleteRecord,
}

/// Decides the next step.
#[must_use]
pub fn plan_claim(view: View<'_>) -> Plan<Step> {
    let View { claim, taken, .. } = view;
    if claim.metadata.is_deleting() {
        return Plan::rest("its deletion was asked for");
    }
    let mut status = claim.status.clone();
    match status.phase {
        ClaimPhase::Completed if view.expired => {
            return Plan::step(Step::DeleteRecord, "its time to be kept is over");
        }
        ClaimPhase::Completed => return Plan::rest("it is complete"),
        ClaimPhase::Claiming => {}
    }
    status.observed_generation = claim.metadata.generation;
    let surplus = taken.len().saturating_sub(claim.spec.count as usize);
    if surplus > 0 {
        let unrecorded = taken.iter().filter(|name| !status.bound.contains(name));
        let back = unrecorded.take(surplus).cloned().collect();
        return Plan::step(Step::GiveBack(back), "it has more than it asked for");
    }
    status.bound = taken.to_vec();
    let generation = claim.metadata.generation;
    limit::say(&mut status.conditions, view.limit, view.now, generation);
    let have = u32::try_from(taken.len()).unwrap_or(u32::MAX);
    let missing = claim.spec.count.saturating_sub(have);
    if missing == 0 || view.timed_out {
        status.phase = ClaimPhase::Completed;
        status.completed_at = Some(view.now);
        status.reason = if missing == 0 {
            "Bound".into()
        } else {
            "TimedOut".into()
        };
        return Plan::step(Step::Publish(Box::new(status)), "it ends with what it has");
    }
    let (word, why) = match view.limit {
        Some(limit) => {
            let all = have + limit.admitted;
            let why = format!("{} admits {all} of {}", limit.by, claim.spec.count);
            ("Limited", why)
        }
        None => (
            view.supply.reason(),
            format!("{missing} members are missing"),
        ),
    };
    status.reason = word.into();
    let takes = missing.min(view.admitted);
    let mut steps = Vec::new();
    if status != claim.status {
        steps.push(Step::Publish(Box::new(status)));
    }
    if takes > 0 {
        steps.push(Step::Take(takes));
    }
    Plan {
        steps,
        why: why.into(),
    }
}

/// The settings of one delivery, whoever asks for it.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Whose it becomes.
    pub owner: Owner,
    /// What the owner calls it: freshly minted.
    pub id: SandboxId,
    /// Its environment.
    pub env: StringMap,
    /// Its images, where they differ from those that the pool's members idle on.
    pub images: StringMap,
    /// Its hooks.
    pub hooks: Vec<Hook>,
    /// Its metadata.
    pub metadata: StringMap,
    /// When it ends or sleeps by itself.
    pub timeouts: Timeouts,
    /// What it may reach, and who may reach it.
    pub network: Option<Box<NetworkPolicy>>,
    /// By when it must be ready, and who waits for that.
    pub lease: Option<Lease>,
    /// The declarative claim behind it.
    pub claim: Option<(Name, Uid)>,
}

impl Delivery {
    /// A delivery with nothing but an owner and an id.
    #[must_use]
    pub fn new(owner: Owner, id: SandboxId) -> Self {
        Self {
            owner,
            id,
            env: StringMap::new(),
            images: StringMap::new(),
            hooks: Vec::new(),
            metadata: StringMap::new(),
            timeouts: Timeouts::default(),
            network: None,
            lease: None,
            claim: None,
        }
    }
}

/// The images of a delivery: those that were asked for, and the template's where the pool's members
/// idle on others. Empty means what they idle on.
#[must_use]
pub fn delivered_images(
    pool: &PoolSpec,
    template: Option<&SandboxTemplate>,
    asked: &StringMap,
) -> StringMap {
    let mut images = asked.clone();
    if let Some(template) = template
        && !pool.idle_images.is_empty()
        && !images.contains_key(MAIN_CONTAINER)
    {
        images.insert(MAIN_CONTAINER, template.spec.image.clone());
    }
    images
}

/// The hooks of a delivery as they are when it is written: a template that changes or goes while they
/// are run takes none away.
#[must_use]
pub fn delivered_hooks(pool: &PoolSpec, template: Option<&SandboxTemplate>) -> Vec<Hook> {
    let of_template = template.map_or(&[][..], |template| &template.spec.hooks);
    merged(of_template, &pool.hooks)
}

/// How long a delivery has to be ready where neither it nor its pool says so.
pub const STARTUP: std::time::Duration = std::time::Duration::from_secs(120);

/// The member as it becomes its owner's: everything a claim changes, in one write. `None` if it
/// cannot be claimed as it stands.
#[must_use]
pub fn claimed(member: &Sandbox, delivery: &Delivery, now: Timestamp) -> Option<Sandbox> {
    match admit(Request::Claim, Standing::of(member, false)) {
        Verdict::Do => {}
        Verdict::Already | Verdict::Deferred(_) | Verdict::Denied(_) => return None,
    }
    let mut next = member.clone();
    let spec = &mut next.spec;
    spec.owner = Some(delivery.owner.clone());
    spec.sandbox_id = Some(delivery.id.clone());
    spec.epoch = spec.epoch.next();
    spec.claimed_at = Some(now);
    spec.env = delivery.env.clone();
    // One that was made before members said what they idle on: it is what it has.
    if spec.idle_images.is_empty() {
        spec.idle_images = spec.images.clone();
    }
    for (container, image) in delivery.images.iter() {
        spec.images.insert(container, image);
    }
    spec.hooks = delivery.hooks.clone();
    spec.metadata = delivery.metadata.clone();
    spec.timeouts = delivery.timeouts;
    spec.network = delivery.network.clone();
    spec.lease = delivery.lease.clone().map(Box::new);
    spec.given_back = None;
    if let Some((claim, uid)) = &delivery.claim {
        let annotations = &mut next.metadata.annotations;
        annotations.insert(CLAIM_ANNOTATION, claim.as_str());
        annotations.insert(CLAIM_UID_ANNOTATION, uid.to_string());
    }
    Some(next)
}

/// The lease of a delivery that is not ready for its owner yet.
#[must_use]
pub fn open_lease(sandbox: &Sandbox) -> Option<&Lease> {
    let open = sandbox.spec.owner.is_some() && sandbox.status.armed_epoch != sandbox.spec.epoch;
    sandbox.spec.lease.as_deref().filter(|_| open)
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// Why.
    pub reason: StopReason,
    /// What ended it, where it was not its owner.
    pub cause: Option<StopCause>,
    /// When.
    pub at: Timestamp,
}

impl Ending {
    /// Its owner ended it.
    #[must_use]
    pub const fn by_owner(at: Timestamp) -> Self {
        Self {
            reason: StopReason::Completed,
            cause: None,
            at,
        }
    }

    /// A standing order ended it.
    #[must_use]
    pub const fn by(cause: StopCause, at: Timestamp) -> Self {
        let reason = match cause {
            StopCause::Timeout | StopCause::RetentionTimeout => StopReason::Completed,
            StopCause::IdleTimeout | StopCause::StartupTimeout => StopReason::Released,
            StopCause::ClaimerLost => StopReason::Canceled,
            StopCause::StartFailed
            | StopCause::Exited
            | StopCause::Lost
            | StopCause::Evicted
            | StopCause::NodeLost => StopReason::Failed,
        };
        Self {
            reason,
            cause: Some(cause),
            at,
        }
    }
}

/// The member as it is given back. What its owner had stays behind only for the history.
#[must_use]
pub fn released(member: &Sandbox, ending: Ending) -> Sandbox {
    let mut next = member.clone();
    let never_ready = member.status.armed_epoch != member.spec.epoch;
    let spec = &mut next.spec;
    let (owner, id) = (spec.owner.take(), spec.sandbox_id.take());
    if let Some((owner, sandbox_id)) = owner.zip(id) {
        let reason = match ending.reason {
            StopReason::Completed if never_ready => StopReason::Canceled,
            other => other,
        };
        spec.given_back = Some(Box::new(GivenBack {
            sandbox_id,
            owner,
            claimed_at: spec.claimed_at,
            metadata: spec.metadata.clone(),
            ended: Stopped {
                reason,
                at: ending.at,
                exit_code: None,
                cause: ending.cause,
                message: Box::default(),
            },
        }));
    }
    spec.claimed_at = None;
    spec.lease = None;
    spec.env = StringMap::new();
    if !spec.idle_images.is_empty() {
        spec.images = StringMap::new();
    }
    spec.hooks = Vec::new();
    spec.metadata = StringMap::new();
    spec.timeouts = Timeouts::default();
    spec.desired_state = DesiredState::Running;
    spec.wake_on_traffic = false;
    spec.network = None;
    spec.access = None;
    spec.pause_policy = None;
    next.metadata.annotations.remove(CLAIM_ANNOTATION);
    next.metadata.annotations.remove(CLAIM_UID_ANNOTATION);
    next
}

#[cfg(test)]
mod tests;
