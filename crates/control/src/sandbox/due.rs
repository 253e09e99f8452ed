//! Which of a sandbox's timers have run out.

use std::time::Duration;

use model::{Sandbox, Timestamp};
use plan::{
    idle::{Activity, Idle},
    sandbox::Due,
    timers::{Timers, timers},
};

use crate::{deadlines::Timer, world::World};

/// Which timers have run out, and how long until the next one does.
pub(super) fn judge(
    world: &World,
    sandbox: &Sandbox,
    activity: Activity,
) -> (Due, Option<Duration>) {
    let Timers {
        end,
        idle,
        descend,
        retention,
        retry,
    } = timers(sandbox, activity);
    let key = sandbox.key();
    let mut next = None::<Duration>;
    let mut look = |after: Duration| next = Some(next.map_or(after, |n| n.min(after)));
    let judge = |which, at, whole| world.deadlines.judge(&key, which, at, whole);
    let lease = plan::claim::open_lease(sandbox);
    let idle = match idle {
        Idle::Off => judge("idle", None, None),
        Idle::Look(after) => {
            look(after);
            judge("idle", None, None)
        }
        Idle::Timer {
            at,
            whole,
            left,
            look: again,
        } => {
            again.into_iter().for_each(&mut look);
            match judge("idle", Some(at), Some(whole)) {
                Timer::In(recorded) => Timer::In(recorded.max(left)),
                Timer::Over if !left.is_zero() => Timer::In(left),
                other => other,
            }
        }
    };
    let mut over = |timer| match timer {
        Timer::Off => false,
        Timer::Over => true,
        Timer::In(left) => {
            look(left);
            false
        }
    };
    let lasting = |which, timer: Option<(Timestamp, Duration)>| {
        judge(which, timer.map(|t| t.0), timer.map(|t| t.1))
    };
    let due = Due {
        end: over(judge("end", end, None)),
        idle: over(idle),
        descend: over(lasting("descend", descend)),
        retention: over(lasting("retention", retention)),
        retry: over(lasting("retry", retry)),
        lease: over(judge("lease", lease.map(|l| l.until), None)),
        claimer_lost: lease.is_some_and(|lease| world.is_abandoned(lease)),
    };
    (due, next)
}
