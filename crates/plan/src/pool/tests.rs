//! Tables: what the pool has against what it does; then any history of a pool.

mod history;

use model::{Generation, Incarnation, KindName, Metadata, Name, Namespace, pool::PoolSpec};

use super::*;
use crate::limit::ADMITTED;

fn pool(min_idle: u32, max_idle: u32, max: u32) -> SandboxPool {
    let namespace = Some(Namespace::new("team").unwrap());
    let mut meta = Metadata::new(namespace, Name::new("pool").unwrap());
    meta.generation = Generation(1);
    meta.finalizers.push(POOL_FINALIZER.into());
    let spec = PoolSpec::new(Name::new("template").unwrap(), min_idle, max_idle, max);
    SandboxPool::new(meta, spec)
}

fn member(n: u32, phase: Phase) -> Member {
    Member {
        key: Key {
            kind: KindName("Sandbox"),
            namespace: Some(Namespace::new("team").unwrap()),
            name: Name::new(format!("m{n}")).unwrap(),
        },
        uid: Uid::from_random(n.into()),
        version: Version::new(Incarnation(1), u64::from(n) + 1),
        phase,
        owned: false,
        dirty: false,
        deleting: false,
        current: true,
        created: Timestamp::from_micros(n.into()),
        ended: None,
    }
}

/// Members by letters: `i`dle, `s`tarting, `f`ailed, `c`laimed, `x` claimed and stopped,
/// `r`eleased a moment ago, `d`eleting, `o`ut-dated and idle, `u` out-dated and not ready,
/// `O`ut-dated and claimed.
fn members(letters: &str) -> Vec<Member> {
    let of = |(n, letter): (usize, char)| {
        let phase = match letter {
            's' | 'u' => Phase::Starting,
            'f' => Phase::Failed,
            'c' | 'O' => Phase::Running,
            'x' => Phase::Stopped,
            'r' | 'd' => Phase::Stopping,
            _ => Phase::Idle,
        };
        Member {
            owned: matches!(letter, 'c' | 'O' | 'x'),
            dirty: letter == 'r',
            deleting: letter == 'd',
            current: !matches!(letter, 'o' | 'u' | 'O'),
            ..member(u32::try_from(n).unwrap(), phase)
        }
    };
    letters.chars().enumerate().map(of).collect()
}

fn view<'a>(pool: &'a SandboxPool, members: &'a [Member]) -> View<'a> {
    View {
        pool,
        members,
        unseen: (0, 0),
        demand: Demand::default(),
        due: Due::default(),
        limit: None,
        template: true,
        revision: "r1",
        now: Timestamp::from_micros(1),
    }
}

fn next(pool: &SandboxPool, members: &[Member], unseen: (usize, usize)) -> Plan<Step> {
    plan_pool(View {
        unseen,
        ..view(pool, members)
    })
}

fn waiting(waiting: u32) -> Demand {
    Demand { waiting, recent: 0 }
}

fn published(plan: &Plan<Step>) -> PoolStatus {
    let status = plan.steps.iter().find_map(|step| match step {
        Step::Publish(status) => Some((**status).clone()),
        _ => None,
    });
    status.unwrap_or_else(|| panic!("{plan:?}"))
}

/// The steps but for the publication: `+n`, or the indexes of those removed.
fn words(plan: &Plan<Step>) -> String {
    assert!(!plan.why.is_empty(), "{plan:?}");
    let word = |step: &Step| match step {
        Step::Create(n) => Some(format!("+{n}")),
        Step::Delete(member) => Some(member.key.name.as_str().replace('m', "-")),
        Step::LetGo(member) => Some(member.key.name.as_str().replace('m', "~")),
        Step::AddFinalizer | Step::RemoveFinalizer => Some(format!("{step:?}")),
        Step::Publish(_) | Step::Tell(_) => None,
    };
    let words: Vec<_> = plan.steps.iter().filter_map(word).collect();
    words.join(" ")
}

#[track_caller]
fn table(pool: &SandboxPool, rows: &[(&str, &str)]) {
    for (letters, expected) in rows {
        let plan = next(pool, &members(letters), (0, 0));
        assert_eq!(words(&plan), *expected, "{letters:?}: {}", plan.why);
    }
}

#[test]
fn it_makes_what_is_missing_and_removes_what_is_too_much() {
    table(
        &pool(2, 3, 5),
        &[
            ("", "+2"),
            ("i", "+1"),
            ("s", "+1"),
            ("ii", ""),
            ("is", ""),
            ("iii", ""),
            ("iiii", "-0"),
            // Not ready first, then the oldest.
            ("iiis", "-3"),
            ("iiiis", "-4 -0"),
        ],
    );
}

#[test]
fn claimed_and_going_members_count_towards_max_only() {
    table(
        &pool(2, 3, 5),
        &[
            ("ccc", "+2"),
            ("cccc", "+1"),
            ("ccccc", ""),
            ("ccccd", ""),
            ("ccd", "+2"),
            ("xxxx", "+1"),
            ("iicccc", "-0"),
            ("cccccc", ""),
        ],
    );
}

#[test]
fn a_lower_max_removes_idle_members_and_never_claimed_ones() {
    table(
        &pool(2, 3, 3),
        &[
            ("iic", ""),
            ("iicc", "-0"),
            ("iiccc", "-0 -1"),
            ("icccc", "-0"),
            ("ccccc", ""),
            // One on its way out is already less.
            ("iicd", ""),
        ],
    );
}

#[test]
fn members_that_ended_are_replaced_unless_they_have_an_owner() {
    table(
        &pool(2, 3, 5),
        &[("fii", "-0"), ("ffx", "-0 -1"), ("xii", "")],
    );
}

#[test]
fn a_member_given_back_is_neither_surplus_nor_a_reason_for_more() {
    table(
        &pool(2, 2, 5),
        &[
            // It may come back: no third one is made, and nobody clean goes for it.
            ("ir", ""),
            ("iir", ""),
            ("iiir", "-0"),
            ("iirr", ""),
        ],
    );
}

#[test]
fn it_waits_until_it_has_seen_what_it_asked_for() {
    let pool = pool(2, 3, 5);
    for unseen in [(1, 0), (0, 1)] {
        for letters in ["", "iiiii", "ff", "oo"] {
            let plan = next(&pool, &members(letters), unseen);
            assert_eq!(words(&plan), "", "{letters:?}");
        }
    }
    let plan = next(&pool, &[], (2, 1));
    assert!(
        plan.why.contains("2 creations and 1 deletions"),
        "{}",
        plan.why
    );
}

#[test]
fn it_says_what_it_lacks() {
    let full = next(&pool(2, 3, 3), &members("ccc"), (0, 0));
    assert!(full.why.contains("at its max of 3"), "{}", full.why);
    let short = next(&pool(3, 3, 4), &members("cc"), (0, 0));
    assert_eq!(words(&short), "+2");
    assert!(short.why.contains("1 fewer"), "{}", short.why);
    let lost = plan_pool(View {
        template: false,
        ..view(&pool(1, 1, 1), &[])
    });
    assert!(lost.why.contains("template does not exist"), "{}", lost.why);
}

#[test]
fn a_rollout_replaces_idle_members_within_its_budget() {
    table(
        &pool(5, 10, 20),
        &[
            ("ooooo", "-0"),
            ("oooooooooo", "-0 -1"),
            // The replacement is not ready: the next one waits.
            ("oooos", ""),
            // So does it while one is still going.
            ("oooood", ""),
            ("ooooi", "-0"),
            // Those that serve nobody go free of budget.
            ("oooou", "-4"),
            ("ooouu", "-3 -4"),
            // Claimed ones are never touched.
            ("iiiiiO", ""),
        ],
    );
    // Nor does a full pool keep what is out-dated for ever.
    table(&pool(2, 2, 3), &[("oOO", "-0"), ("iOO", "")]);
}

#[test]
fn a_deleted_pool_removes_idle_members_and_leaves_the_others_to_their_owners() {
    let mut pool = pool(2, 3, 5);
    pool.metadata.deletion_timestamp = Some(Timestamp::from_micros(1));
    table(
        &pool,
        &[
            ("", "RemoveFinalizer"),
            ("isfr", "-0 -1 -2 -3"),
            ("cd", "~0"),
            ("d", ""),
            ("ic", "-0"),
            ("cc", "~0 ~1"),
        ],
    );
    let unseen = next(&pool, &[], (1, 0));
    assert_eq!(words(&unseen), "", "a member it made may still appear");
    pool.metadata.finalizers.clear();
    assert_eq!(words(&next(&pool, &members("i"), (0, 0))), "");
}

#[test]
fn a_deleted_pool_says_what_it_waits_for() {
    let mut pool = pool(2, 3, 5);
    pool.metadata.deletion_timestamp = Some(Timestamp::from_micros(1));
    let plan = next(&pool, &members("dd"), (0, 0));
    let [Step::Publish(status)] = &plan.steps[..] else {
        panic!("{plan:?}");
    };
    assert_eq!(&*status.why, "2 members are still being ended");
    pool.status = (**status).clone();
    assert_eq!(next(&pool, &members("dd"), (0, 0)).steps, []);
}

#[test]
fn members_are_made_for_claims_that_wait_up_to_max() {
    let pool = pool(1, 2, 5);
    let plan = |claims, letters| {
        let members = members(letters);
        let plan = plan_pool(View {
            demand: waiting(claims),
            ..view(&pool, &members)
        });
        words(&plan)
    };
    assert_eq!(plan(0, ""), "+1");
    assert_eq!(plan(3, ""), "+3");
    assert_eq!(
        plan(3, "sss"),
        "",
        "those that start are for those that wait"
    );
    assert_eq!(plan(9, "cc"), "+3");
    assert_eq!(plan(0, "iii"), "-0", "nobody waits any more");
}

#[test]
fn the_number_of_those_that_wait_is_published_when_it_tells_something() {
    let cases = [
        (0, 1, 1),
        (1, 0, 0),
        (100, 110, 100),
        (100, 125, 125),
        (10, 7, 7),
        (3, 3, 3),
    ];
    for (published, now, next) in cases {
        assert_eq!(mirrored(published, now), next, "{published} {now}");
    }
}

#[test]
fn a_member_has_the_labels_of_its_pool_and_over_them_those_of_its_template() {
    let mut pool = pool(1, 2, 5);
    let set = |map: &mut StringMap, pairs: &[(&str, &str)]| {
        pairs.iter().for_each(|(key, value)| {
            map.insert(*key, *value);
        });
    };
    set(
        &mut pool.metadata.labels,
        &[("both", "pool"), ("own", "pool")],
    );
    set(&mut pool.metadata.annotations, &[(LAST_APPLIED, "{}")]);
    let mut template = Metadata::new(None, Name::new("template").unwrap());
    set(
        &mut template.labels,
        &[
            ("both", "template"),
            ("docs", "x"),
            ("dormouse.dev/pool", "no"),
        ],
    );
    set(
        &mut template.annotations,
        &[("note", "template"), ("docs", "x")],
    );
    pool.spec.ignore_template_keys = vec!["docs".into()];
    let (labels, annotations) = inherited((&pool.metadata, &pool.spec), Some(&template));
    let expected = [("both", "template"), ("own", "pool")];
    assert_eq!(labels, expected.into_iter().collect());
    assert_eq!(annotations, [("note", "template")].into_iter().collect());
}

#[test]
fn it_holds_its_record_first() {
    let mut pool = pool(2, 3, 5);
    pool.metadata.finalizers.clear();
    assert_eq!(words(&next(&pool, &[], (0, 0))), "AddFinalizer");
}

#[test]
fn its_counts_add_up_and_a_second_look_writes_nothing() {
    let mut pool = pool(2, 3, 20);
    let members = members("iisccxrd");
    let plan = next(&pool, &members, (0, 0));
    let Some(Step::Publish(status)) = plan.steps.last() else {
        panic!("{plan:?}");
    };
    assert_eq!((status.idle, status.starting, status.claimed), (2, 1, 3));
    assert_eq!((status.stopping, status.failed, status.total), (2, 0, 8));
    pool.status = (**status).clone();
    assert_eq!(next(&pool, &members, (0, 0)).steps, []);
}

#[test]
fn a_pool_that_follows_demand_keeps_what_is_needed_and_says_so() {
    let mut pool = pool(1, 10, 20);
    pool.spec.autoscale = Some(Box::default());
    let up = Due {
        autoscale: autoscale::Due {
            up: true,
            quiet: false,
        },
        ..Due::default()
    };
    let plan = plan_pool(View {
        demand: waiting(4),
        due: up,
        ..view(&pool, &members("i"))
    });
    assert_eq!(words(&plan), "+4");
    assert!(matches!(plan.steps.last(), Some(Step::Tell(note)) if note.reason == "ScaledUp"));
    pool.status = published(&plan);
    let kept = pool.status.autoscale.as_deref().map(|kept| kept.min_idle);
    assert_eq!(kept, Some(5));
    // The claims were served: as many again are kept for the next ones.
    let served = plan_pool(View {
        due: up,
        ..view(&pool, &members("cccci"))
    });
    assert_eq!(words(&served), "+4");
    pool.status = published(&served);
    let quiet = autoscale::Due {
        up: true,
        quiet: true,
    };
    // Nobody claims: those above what is needed go when it has been quiet for long enough.
    let idle = members("iiiii");
    let begins = plan_pool(view(&pool, &idle));
    assert_eq!(words(&begins), "");
    pool.status = published(&begins);
    let lowered = plan_pool(View {
        due: Due {
            autoscale: quiet,
            ..Due::default()
        },
        ..view(&pool, &idle)
    });
    assert_eq!(words(&lowered), "-0 -1");
    assert!(lowered.why.contains("what is needed"), "{}", lowered.why);
}

#[test]
fn members_that_keep_failing_are_replaced_later_each_time() {
    let mut pool = pool(2, 3, 5);
    let mut failed = members("ff");
    for member in &mut failed {
        member.ended = Some((Some(Trouble::ImageUnusable), "no such image".into()));
    }
    let mut waits = Vec::new();
    for _ in 0..12 {
        // At once the first time, else when the time is over.
        let due = Due {
            replace: true,
            ..Due::default()
        };
        let plan = plan_pool(View {
            due,
            ..view(&pool, &failed)
        });
        assert_eq!(words(&plan), "-0 -1");
        assert!(
            plan.steps
                .iter()
                .any(|step| matches!(step, Step::Tell(note) if note.reason == "MembersFail"))
        );
        pool.status = published(&plan);
        let failing = pool.status.failing.as_deref().unwrap();
        waits.push(replace_after(failing).as_secs());
        let early = plan_pool(view(&pool, &failed));
        assert_eq!(words(&early), "");
        assert!(early.why.contains("no such image"), "{}", early.why);
    }
    assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]);
    let said = |status: &PoolStatus| {
        let said = status.conditions.iter().find(|c| &*c.kind == TROUBLED);
        said.map(|c| c.reason.to_string())
    };
    assert_eq!(said(&pool.status).as_deref(), Some("PullBackOff"));
    // One of another revision may fail for what was put right since.
    let outdated: Vec<_> = failed
        .iter()
        .map(|m| Member {
            current: false,
            ..m.clone()
        })
        .collect();
    assert_eq!(words(&plan_pool(view(&pool, &outdated))), "-0 -1");
    // One that comes up ends the row; one that was there before does not.
    let mut old = members("if");
    old[0].created = Timestamp::from_micros(0);
    let still = plan_pool(view(&pool, &old));
    assert!(published(&still).failing.is_some());
    let up = plan_pool(view(&pool, &members("ii")));
    assert!(up.steps.iter().any(|s| matches!(s, Step::Publish(_))));
    assert!(published(&up).failing.is_some(), "made before");
    let mut fresh = members("ii");
    fresh[1].created = Timestamp::from_micros(5);
    let up = published(&plan_pool(view(&pool, &fresh)));
    assert_eq!((up.failing.clone(), said(&up)), (None, None));
}

#[test]
fn a_member_that_ended_after_it_had_an_owner_says_nothing_of_the_next() {
    let mut pool = pool(1, 3, 5);
    let mut given_back = members("f");
    given_back[0].dirty = true;
    let plan = plan_pool(view(&pool, &given_back));
    assert_eq!(words(&plan), "-0");
    assert_eq!(published(&plan).failing, None);
    // It goes at once, while those that nobody had wait for their time.
    pool.status = published(&plan_pool(view(&pool, &members("f"))));
    assert!(pool.status.failing.is_some());
    assert_eq!(words(&plan_pool(view(&pool, &given_back))), "-0");
    assert_eq!(words(&plan_pool(view(&pool, &members("f")))), "");
}

#[test]
fn who_admits_only_some_is_named_and_the_rest_is_not_made() {
    let mut pool = pool(5, 8, 10);
    let limit = |admitted| Limit {
        admitted,
        by: "team-quota",
        why: "the team may have 2 sandboxes",
    };
    let some = plan_pool(View {
        limit: Some(limit(2)),
        ..view(&pool, &[])
    });
    assert_eq!(words(&some), "+2");
    assert!(
        some.why.contains("team-quota admits 2 of 5"),
        "{}",
        some.why
    );
    let status = published(&some);
    let said = status.conditions.iter().find(|c| &*c.kind == ADMITTED);
    let said = said.unwrap();
    assert_eq!(said.status, ConditionStatus::False);
    assert!(said.message.starts_with("team-quota: "), "{said:?}");
    pool.status = status;
    let none = plan_pool(View {
        limit: Some(limit(0)),
        ..view(&pool, &members("ii"))
    });
    assert_eq!(words(&none), "");
    assert!(none.why.contains("admits 0 of 3"), "{}", none.why);
    let all = plan_pool(view(&pool, &members("ii")));
    assert_eq!(words(&all), "+3");
    let status = published(&all);
    let said = status.conditions.iter().find(|c| &*c.kind == ADMITTED);
    assert_eq!(said.unwrap().status, ConditionStatus::True);
}
