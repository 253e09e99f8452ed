//! Who admits only some of what is wanted, and how that is said.

use model::{
    Generation, Timestamp,
    meta::{Condition, ConditionStatus, set_condition},
};

/// The condition that says whether everything that is wanted is admitted.
pub const ADMITTED: &str = "Admitted";

/// Somebody who admits only some of what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit<'a> {
    /// How many of them.
    pub admitted: u32,
    /// Who says so.
    pub by: &'a str,
    /// Why.
    pub why: &'a str,
}

/// Says who admits only some; and that all is admitted again, where that was said.
pub(crate) fn say(
    conditions: &mut Vec<Condition>,
    limit: Option<Limit<'_>>,
    now: Timestamp,
    observed_generation: Generation,
) {
    if limit.is_none() && !conditions.iter().any(|c| &*c.kind == ADMITTED) {
        return;
    }
    let (status, reason) = match limit {
        Some(_) => (ConditionStatus::False, "Limited"),
        None => (ConditionStatus::True, "Admitted"),
    };
    let message = limit.map(|limit| format!("{}: {}", limit.by, limit.why));
    set_condition(
        conditions,
        Condition {
            kind: ADMITTED.into(),
            status,
            reason: reason.into(),
            message: message.unwrap_or_default().into(),
            last_transition_time: now,
            observed_generation,
        },
    );
}
