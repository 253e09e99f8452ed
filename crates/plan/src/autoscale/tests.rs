//! Tables: what is needed against what is kept; then any history of demand.

use model::{Name, autoscale::Schedule};
use proptest::prelude::*;

use super::*;

const T0: Timestamp = Timestamp::from_micros(1_794_000_000_000_000);

fn pool(min_idle: u32, max_idle: u32, max: u32) -> PoolSpec {
    let mut spec = PoolSpec::new(Name::new("template").unwrap(), min_idle, max_idle, max);
    spec.autoscale = Some(Box::default());
    spec
}

fn waiting(waiting: u32) -> Demand {
    Demand { waiting, recent: 0 }
}

fn recent(recent: u32) -> Demand {
    Demand { waiting: 0, recent }
}

const OVER: Due = Due {
    up: true,
    quiet: true,
};

fn decide(spec: &PoolSpec, status: Option<&AutoscaleStatus>, demand: Demand, due: Due) -> Decision {
    plan_autoscale(View {
        spec,
        status,
        demand,
        free: status.map_or(0, |status| status.min_idle),
        settled: true,
        due,
        now: T0,
    })
    .expect("it follows demand")
}

fn kept(min_idle: u32) -> AutoscaleStatus {
    AutoscaleStatus {
        min_idle,
        quiet_since: Some(T0.minus(Duration::from_secs(400))),
        ..AutoscaleStatus::default()
    }
}

#[test]
fn a_pool_that_does_not_follow_demand_is_left_alone() {
    let mut spec = pool(1, 10, 20);
    spec.autoscale = None;
    let view = View {
        spec: &spec,
        status: None,
        demand: waiting(5),
        free: 0,
        settled: true,
        due: OVER,
        now: T0,
    };
    assert_eq!(plan_autoscale(view), None);
}

#[test]
fn what_waits_or_comes_often_raises_what_is_kept_up_to_the_most() {
    use AutoscaleReason::{ClaimRate, Configured, Queue};
    let spec = pool(2, 10, 20);
    for (demand, count, reason) in [
        (waiting(0), 2, Configured),
        (waiting(3), 5, Queue),
        (waiting(100), 10, Queue),
        // A quarter of a minute of 20 a minute.
        (recent(20), 5, ClaimRate),
        (recent(1), 2, Configured),
        (recent(u32::MAX), 10, ClaimRate),
    ] {
        let decision = decide(&spec, None, demand, OVER);
        let got = (decision.status.min_idle, decision.status.reason);
        assert_eq!(got, (count, reason), "{demand:?}");
        assert_eq!(decision.note.is_some(), count > 2, "{demand:?}");
        assert!(!decision.status.message.is_empty(), "{demand:?}");
    }
    // The most of all is also the most that may exist.
    let small = pool(1, 10, 4);
    assert_eq!(decide(&small, None, waiting(9), OVER).status.min_idle, 4);
}

#[test]
fn each_signal_can_be_left_out_of_account() {
    let mut spec = pool(1, 10, 20);
    if let Some(rules) = &mut spec.autoscale {
        rules.by_queue = false;
        rules.claim_rate.cover_seconds = 0;
    }
    let demand = Demand {
        waiting: 5,
        recent: 500,
    };
    assert_eq!(decide(&spec, None, demand, OVER).status.min_idle, 1);
}

#[test]
fn within_the_cooldown_nothing_is_raised_and_before_quiet_nothing_is_lowered() {
    let spec = pool(1, 10, 20);
    let soon = Due {
        up: false,
        quiet: false,
    };
    let raised = decide(&spec, Some(&kept(3)), waiting(8), soon);
    assert_eq!((raised.status.min_idle, raised.note), (3, None));
    let lowered = decide(&spec, Some(&kept(8)), waiting(0), soon);
    assert_eq!((lowered.status.min_idle, lowered.trim), (8, false));
    assert_eq!(lowered.status.quiet_since, kept(8).quiet_since);
}

#[test]
fn quiet_lowers_it_half_way_each_time_and_members_above_it_go_then() {
    let spec = pool(1, 10, 20);
    let mut status = kept(10);
    let mut seen = Vec::new();
    while status.min_idle > 1 {
        let decision = decide(&spec, Some(&status), waiting(0), OVER);
        assert!(decision.trim);
        assert_eq!(decision.note.unwrap().reason, "ScaledDown");
        status = decision.status;
        seen.push(status.min_idle);
        status.quiet_since.get_or_insert(T0);
    }
    assert_eq!(seen, [5, 3, 2, 1]);
}

#[test]
fn members_that_came_back_go_after_the_same_quiet() {
    let spec = pool(1, 10, 20);
    let view = |status, due| {
        plan_autoscale(View {
            spec: &spec,
            status: Some(status),
            demand: waiting(0),
            free: 4,
            settled: true,
            due,
            now: T0,
        })
        .unwrap()
    };
    let fresh = AutoscaleStatus {
        min_idle: 1,
        ..AutoscaleStatus::default()
    };
    // The timer begins now: that another one is over says nothing.
    let first = view(&fresh, OVER);
    assert_eq!((first.status.quiet_since, first.trim), (Some(T0), false));
    let then = view(&kept(1), OVER);
    assert_eq!((then.trim, then.note), (true, None));
    assert_eq!(then.status.quiet_since, None);
}

#[test]
fn nothing_is_lowered_while_it_waits_to_see_what_it_asked_for() {
    let spec = pool(1, 10, 20);
    let decision = plan_autoscale(View {
        spec: &spec,
        status: Some(&kept(8)),
        demand: waiting(0),
        free: 8,
        settled: false,
        due: OVER,
        now: T0,
    });
    let decision = decision.unwrap();
    assert_eq!((decision.status.min_idle, decision.trim), (8, false));
}

#[test]
fn a_schedule_raises_it_at_once_and_its_end_is_like_any_quiet() {
    let mut spec = pool(1, 10, 20);
    let begins = "2026-11-16T08:00:00Z".parse::<Timestamp>().unwrap();
    spec.autoscale = Some(Box::new(Autoscale {
        schedules: vec![Schedule {
            cron: "0 8 * * 1-5".into(),
            time_zone: None,
            duration_seconds: 3600,
            min_idle: 6,
        }],
        ..Autoscale::default()
    }));
    let at = |status: Option<&AutoscaleStatus>, now, due| {
        plan_autoscale(View {
            spec: &spec,
            status,
            demand: Demand::default(),
            free: 0,
            settled: true,
            due,
            now,
        })
        .unwrap()
        .status
    };
    let rules = spec.autoscale.as_deref().unwrap();
    let before = begins.minus(Duration::from_secs(30));
    assert_eq!(next_look(rules, before), Some(Duration::from_secs(30)));
    assert_eq!(next_look(rules, begins), Some(LOOK_AT_SCHEDULES));
    let quiet = at(None, before, OVER);
    assert_eq!(quiet.min_idle, 1);
    let raised = at(Some(&quiet), begins, Due::default());
    assert_eq!(
        (raised.min_idle, raised.reason),
        (6, AutoscaleReason::Schedule)
    );
    let over = begins.plus(Duration::from_secs(3600));
    let waits = at(Some(&raised), over, Due::default());
    assert_eq!((waits.min_idle, waits.quiet_since), (6, Some(over)));
    let lowered = at(Some(&waits), over, OVER);
    assert_eq!(lowered.min_idle, 3);
}

#[test]
fn a_change_of_its_bounds_is_followed_at_once() {
    let soon = Due::default();
    let fewer = decide(&pool(1, 4, 20), Some(&kept(9)), waiting(0), soon);
    assert_eq!(fewer.status.min_idle, 4);
    let more = decide(&pool(5, 9, 20), Some(&kept(2)), waiting(0), soon);
    assert_eq!(more.status.min_idle, 5);
}

#[test]
fn a_window_counts_what_came_in_it() {
    let (mut window, minute) = (Window::default(), Duration::from_secs(60));
    let at = Duration::from_secs;
    assert_eq!(window.observe(0, at(100), minute), 0);
    assert_eq!(window.until_fewer(at(100), minute), None);
    assert_eq!(window.observe(3, at(110), minute), 3);
    assert_eq!(window.observe(3, at(120), minute), 3);
    assert_eq!(window.observe(5, at(150), minute), 5);
    assert_eq!(window.until_fewer(at(150), minute), Some(at(20)));
    assert_eq!(window.observe(5, at(170), minute), 2);
    assert_eq!(window.observe(5, at(210), minute), 0);
    // Another process counts from the beginning.
    assert_eq!(window.observe(1, at(211), minute), 0);
}

#[derive(Clone, Debug)]
struct Moment {
    passes: u32,
    /// What the wall clock jumps by.
    jump: i64,
    demand: Demand,
    free: u32,
    settled: bool,
}

fn moments() -> impl Strategy<Value = Vec<Moment>> {
    let moment = (
        0u32..400,
        prop_oneof![8 => Just(0i64), 1 => -90_000i64..90_000],
        prop_oneof![3 => Just(0u32), 2 => 0u32..40],
        prop_oneof![2 => Just(0u32), 1 => 0u32..200],
        0u32..30,
        any::<bool>(),
    );
    let moment = moment.prop_map(|(passes, jump, waiting, recent, free, settled)| Moment {
        passes,
        jump,
        demand: Demand { waiting, recent },
        free,
        settled,
    });
    proptest::collection::vec(moment, 1..60)
}

proptest! {
    /// Elapsed time is counted apart from the wall clock, as the control loop does.
    #[test]
    fn it_keeps_its_bounds_and_never_changes_its_mind_within_a_cooldown(
        min in 0u32..5, idle in 0u32..20, max in 0u32..25, moments in moments(),
    ) {
        let spec = pool(min, min + idle, max);
        let rules = spec.autoscale.as_deref().unwrap();
        let most = top(&spec);
        let (up, down) = (rules.up_cooldown_seconds, rules.down_cooldown_seconds);
        let (mut elapsed, mut wall) = (0u32, T0);
        let mut status: Option<AutoscaleStatus> = None;
        let (mut raised, mut quiet) = (None::<u32>, None::<u32>);
        let mut lowered = None::<u32>;
        for moment in moments {
            elapsed += moment.passes;
            wall = wall.plus(Duration::from_secs(moment.passes.into()));
            wall = Timestamp::from_micros(wall.as_micros() + moment.jump * 1_000_000);
            let due = Due {
                up: raised.is_none_or(|at| elapsed - at >= up),
                quiet: quiet.is_some_and(|at| elapsed - at >= down),
            };
            let decision = plan_autoscale(View {
                spec: &spec,
                status: status.as_ref(),
                demand: moment.demand,
                free: moment.free,
                settled: moment.settled,
                due,
                now: wall,
            }).unwrap();
            let next = decision.status;
            prop_assert!(next.min_idle <= most);
            prop_assert!(next.min_idle >= min.min(most));
            if let Some(before) = &status {
                if next.min_idle > before.min_idle {
                    prop_assert!(raised.is_none_or(|at| elapsed - at >= up));
                    prop_assert!(moment.demand.waiting > 0 || moment.demand.recent > 0);
                    raised = Some(elapsed);
                }
                if next.min_idle < before.min_idle {
                    prop_assert_eq!(moment.demand.waiting, 0);
                    prop_assert!(raised.is_none_or(|at| elapsed - at >= down));
                    prop_assert!(lowered.is_none_or(|at| elapsed - at >= down));
                    lowered = Some(elapsed);
                }
            } else if next.raised_at.is_some() {
                raised = Some(elapsed);
            }
            if decision.trim {
                prop_assert!(moment.settled && moment.demand.waiting == 0);
            }
            quiet = match (next.quiet_since, status.as_ref().and_then(|s| s.quiet_since)) {
                (None, _) => None,
                (Some(now), Some(before)) if now == before => quiet,
                (Some(_), _) => Some(elapsed),
            };
            status = Some(next);
        }
    }
}
