//! Which members a declarative claim takes.
//!
//! A claim makes the same write on a member as any other claimer and records the member's name.
//! The member carries the claim's name, so that a claim whose own record is behind (a crash
//! between the two writes) finds what it has taken.

use model::{
    Name, Sandbox, SandboxClaim, SandboxId, Timestamp, Uid,
    claim::{ClaimPhase, ClaimStatus},
    lifecycle::{Request, Standing, Verdict, admit},
    sandbox::{DesiredState, Owner, Timeouts},
};

use crate::Plan;

/// Annotation on a claimed member, with the name of the claim that took it: for people.
pub const CLAIM_ANNOTATION: &str = "dormouse.dev/claim";
/// Annotation on a claimed member, with the uid of the claim that took it: a namesake is another.
pub const CLAIM_UID_ANNOTATION: &str = "dormouse.dev/claim-uid";

/// Annotation on a member that was delivered with other images than it idled on. It stays through
/// the release, because it says that the member cannot go back as it is.
pub const SWAPPED_ANNOTATION: &str = "dormouse.dev/swapped-images";

/// What the decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The claim.
    pub claim: &'a SandboxClaim,
    /// Members that carry the claim's name.
    pub taken: &'a [Name],
    /// Whether its time to wait is over.
    pub timed_out: bool,
    /// Whether its time to be kept is over.
    pub expired: bool,
    /// For stamping records.
    pub now: Timestamp,
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
    status.reason = "Waiting".into();
    let mut steps = vec![Step::Take(missing)];
    if status != claim.status {
        steps.insert(0, Step::Publish(Box::new(status)));
    }
    Plan {
        steps,
        why: format!("{missing} members are missing").into(),
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
    pub env: model::StringMap,
    /// Its images, where they differ from the pool's.
    pub images: model::StringMap,
    /// Its metadata.
    pub metadata: model::StringMap,
    /// When it ends or sleeps by itself.
    pub timeouts: Timeouts,
    /// The declarative claim behind it.
    pub claim: Option<(Name, Uid)>,
}

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
    for (container, image) in delivery.images.iter() {
        if spec.images.get(container) != Some(image) {
            spec.images.insert(container, image);
            next.metadata.annotations.insert(SWAPPED_ANNOTATION, "true");
        }
    }
    spec.metadata = delivery.metadata.clone();
    spec.timeouts = delivery.timeouts;
    if let Some((claim, uid)) = &delivery.claim {
        let annotations = &mut next.metadata.annotations;
        annotations.insert(CLAIM_ANNOTATION, claim.as_str());
        annotations.insert(CLAIM_UID_ANNOTATION, uid.to_string());
    }
    Some(next)
}

/// The member as it is given back: nothing of its owner stays in the record.
#[must_use]
pub fn released(member: &Sandbox) -> Sandbox {
    let mut next = member.clone();
    let spec = &mut next.spec;
    spec.owner = None;
    spec.sandbox_id = None;
    spec.claimed_at = None;
    spec.env = model::StringMap::new();
    spec.metadata = model::StringMap::new();
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
