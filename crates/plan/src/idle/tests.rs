use model::{Metadata, Name, Namespace, sandbox::SandboxSpec};
use proptest::prelude::*;

use super::*;

fn running(idle_seconds: u32) -> Sandbox {
    let meta = Metadata::new(Some(Namespace::new("t").unwrap()), Name::new("a").unwrap());
    let mut sandbox = Sandbox::new(meta, SandboxSpec::default());
    sandbox.spec.timeouts.idle_seconds = Some(idle_seconds);
    sandbox.status.phase = Phase::Running;
    sandbox.status.started_at = Some(Timestamp::from_micros(0));
    sandbox
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn at(n: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(n * 1_000_000).unwrap())
}

#[test]
fn nobody_is_put_to_sleep_while_in_use_or_while_a_source_is_unknown() {
    let sandbox = running(10);
    for activity in [Activity::InUse, Activity::Unknown] {
        assert_eq!(plan_idle(&sandbox, activity), Idle::Look(seconds(10)));
    }
}

#[test]
fn the_newest_sign_of_use_counts() {
    let mut sandbox = running(10);
    sandbox.status.last_active_at = Some(at(5));
    let quiet = |last, watched| Activity::Quiet { last, watched };
    for (activity, whole, left, look) in [
        (Activity::RECORD_ONLY, 10, 0, None),
        (quiet(None, seconds(10)), 10, 0, None),
        (quiet(Some(seconds(4)), seconds(10)), 10, 6, None),
        (quiet(Some(seconds(40)), seconds(99)), 10, 0, None),
        // It cannot vouch for the whole patience: what is written can be this old.
        (quiet(None, seconds(9)), 80, 0, Some(1)),
        (quiet(Some(seconds(1)), seconds(9)), 80, 9, Some(1)),
    ] {
        let idle = Idle::Timer {
            at: at(5 + whole),
            whole: seconds(whole),
            left: seconds(left),
            look: look.map(seconds),
        };
        assert_eq!(plan_idle(&sandbox, activity), idle, "{activity:?}");
    }
}

#[test]
fn sources_together_know_the_least_that_any_of_them_allows() {
    let quiet = |last: Option<u64>, watched| Activity::Quiet {
        last: last.map(seconds),
        watched: seconds(watched),
    };
    for (sources, together) in [
        (vec![], Activity::RECORD_ONLY),
        (vec![quiet(Some(3), 9), quiet(None, 5)], quiet(Some(3), 5)),
        (
            vec![quiet(Some(3), 9), quiet(Some(2), 50)],
            quiet(Some(2), 9),
        ),
        (vec![quiet(None, 9), Activity::Unknown], Activity::Unknown),
        (vec![Activity::Unknown, Activity::InUse], Activity::InUse),
    ] {
        assert_eq!(Activity::union(sources), together);
    }
}

/// One thing that happens, and how long after the last.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// A request comes and is open for so long.
    Use(u64),
    /// Nothing.
    Time,
    /// Gateway and control start anew; what was seen is forgotten, the record is not.
    Restart,
}

fn story() -> impl Strategy<Value = (u32, Vec<(u64, Happens)>)> {
    let step = prop_oneof![
        4 => (0u64..300).prop_map(Happens::Use),
        2 => Just(Happens::Time),
        1 => Just(Happens::Restart),
    ];
    (1u32..200, prop::collection::vec((0u64..400, step), 1..40))
}

/// A second-by-second account of one sandbox: what is true, what is seen, what is written.
struct Life {
    sandbox: Sandbox,
    patience: u64,
    now: u64,
    /// Until when it is in use, and when that was last so.
    open_until: u64,
    used: u64,
    /// What the source saw, and since when it watches.
    seen: Option<u64>,
    began: u64,
    restarted: bool,
    /// When control looks next.
    look: u64,
    writes: Vec<Timestamp>,
}

impl Life {
    fn activity(&self) -> Activity {
        if self.now < self.open_until {
            return Activity::InUse;
        }
        Activity::Quiet {
            last: self.seen.map(|seen| seconds(self.now - seen)),
            watched: seconds(self.now - self.began),
        }
    }

    /// Control's turn. Answers whether it acts.
    fn turn(&mut self) -> bool {
        let activity = self.activity();
        if let Some(used) = plan_last_active(&self.sandbox, activity, at(self.now)) {
            assert!(
                Some(used) >= self.sandbox.status.last_active_at,
                "forward only"
            );
            self.sandbox.status.last_active_at = Some(used);
            self.writes.push(used);
        }
        let wait = match plan_idle(&self.sandbox, activity) {
            Idle::Off => unreachable!("it runs and has a patience"),
            Idle::Look(after) => after,
            Idle::Timer {
                at: over,
                left,
                look,
                ..
            } => {
                let wait = over.since(at(self.now)).max(left);
                self.look = self.now + wait.min(look.unwrap_or(wait)).as_secs();
                return wait.is_zero();
            }
        };
        self.look = self.now + wait.as_secs();
        false
    }

    /// One second. Answers whether it was acted upon in it.
    fn second(&mut self) -> bool {
        let acts = self.now >= self.look && self.turn();
        if self.now < self.open_until {
            self.used = self.now + 1;
            self.seen = Some(self.now + 1);
        }
        self.now += 1;
        acts
    }
}

proptest! {
    /// The bounds that the module's documentation states.
    #[test]
    fn idle_is_never_early_and_late_by_no_more_than_stated((patience, story) in story()) {
        let p = u64::from(patience);
        let w = p.max(60);
        let mut life = Life {
            sandbox: running(patience),
            patience: p,
            now: 0,
            open_until: 0,
            used: 0,
            seen: None,
            began: 0,
            restarted: false,
            look: 0,
            writes: Vec::new(),
        };
        let mut acted = None;
        'story: for (after, happens) in story {
            for _ in 0..after {
                if life.second() {
                    acted = Some(life.now - 1);
                    break 'story;
                }
            }
            match happens {
                Happens::Use(open) => life.open_until = life.open_until.max(life.now + open),
                Happens::Time => {}
                Happens::Restart => {
                    // What was open is cut.
                    life.open_until = life.open_until.min(life.now);
                    life.seen = None;
                    life.began = life.now;
                    life.restarted = true;
                    life.look = life.now;
                }
            }
        }
        while acted.is_none() {
            let quiet_for = life.now.saturating_sub(life.used.max(life.open_until));
            prop_assert!(quiet_for <= 3 * p + w + 1, "it is never acted upon");
            if life.second() {
                acted = Some(life.now - 1);
            }
        }
        let acted = acted.unwrap_or_default();
        let p = life.patience;
        prop_assert!(acted >= life.used + p, "early: at {acted}, used until {}", life.used);
        let latest = if life.restarted {
            (life.used + 2 * p + w).max(life.began).min(life.used.max(life.began) + p)
        } else {
            life.used + p
        };
        prop_assert!(acted <= latest, "late: at {acted}, not by {latest}");
        for pair in life.writes.windows(2) {
            prop_assert!(pair[1].since(pair[0]) >= seconds(w), "too often: {:?}", life.writes);
        }
    }
}
