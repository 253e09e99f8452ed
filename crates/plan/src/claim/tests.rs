use model::{
    Epoch, Generation, Metadata, Namespace, StringMap, Uid, claim::ClaimSpec, lifecycle::Phase,
    sandbox::SandboxSpec,
};

use super::*;

const T0: Timestamp = Timestamp::from_micros(1_000_000);

fn metadata(name: &str) -> Metadata {
    let namespace = Some(Namespace::new("team").unwrap());
    let mut meta = Metadata::new(namespace, Name::new(name).unwrap());
    meta.uid = Some(Uid::from_random(1));
    meta.generation = Generation(1);
    meta
}

fn claim(count: u32) -> SandboxClaim {
    let spec = ClaimSpec {
        count,
        ..ClaimSpec::new(Name::new("pool").unwrap())
    };
    SandboxClaim::new(metadata("claim"), spec)
}

fn names(count: u32) -> Vec<Name> {
    let name = |n| Name::new(format!("m{n}")).unwrap();
    (0..count).map(name).collect()
}

fn next(claim: &SandboxClaim, taken: u32, timed_out: bool, expired: bool) -> Plan<Step> {
    let taken = names(taken);
    plan_claim(View {
        claim,
        taken: &taken,
        supply: Supply::Coming,
        admitted: u32::MAX,
        limit: None,
        timed_out,
        expired,
        now: T0,
    })
}

fn words(plan: &Plan<Step>) -> String {
    assert!(!plan.why.is_empty(), "{plan:?}");
    let word = |step: &Step| match step {
        Step::Take(n) => format!("take {n}"),
        Step::GiveBack(names) => format!("give back {names:?}"),
        Step::Publish(status) => format!("{:?} {}", status.phase, status.reason),
        Step::DeleteRecord => "DeleteRecord".into(),
    };
    let words: Vec<_> = plan.steps.iter().map(word).collect();
    if words.is_empty() {
        "rest".into()
    } else {
        words.join(", ")
    }
}

#[test]
fn it_takes_what_is_missing_until_it_has_all_or_its_time_is_over() {
    for (count, taken, timed_out, expected) in [
        (2, 0, false, "Claiming Waiting, take 2"),
        (2, 1, false, "Claiming Waiting, take 1"),
        (2, 2, false, "Completed Bound"),
        (2, 3, false, "give back [m0]"),
        (2, 3, true, "give back [m0]"),
        (2, 0, true, "Completed TimedOut"),
        (2, 1, true, "Completed TimedOut"),
        (2, 2, true, "Completed Bound"),
        (0, 0, false, "Completed Bound"),
    ] {
        let plan = next(&claim(count), taken, timed_out, false);
        assert_eq!(words(&plan), expected, "{taken} of {count}, {timed_out}");
    }
}

#[test]
fn it_takes_no_more_than_is_admitted_and_says_who_admits_no_more() {
    fn view<'a>(claim: &'a SandboxClaim, taken: &'a [Name]) -> View<'a> {
        View {
            claim,
            taken,
            supply: Supply::Coming,
            admitted: 4,
            limit: Some(Limit {
                admitted: 4,
                by: "team-quota",
                why: "the team may have 6 sandboxes",
            }),
            timed_out: false,
            expired: false,
            now: T0,
        }
    }
    let mut claim = claim(8);
    let taken = names(2);
    let plan = plan_claim(view(&claim, &taken));
    assert_eq!(words(&plan), "Claiming Limited, take 4");
    assert_eq!(plan.why, "team-quota admits 6 of 8");
    let Some(Step::Publish(status)) = plan.steps.first() else {
        panic!("{plan:?}");
    };
    let said = status.conditions.first().unwrap();
    assert_eq!(&*said.message, "team-quota: the team may have 6 sandboxes");
    claim.status = (**status).clone();
    let none = plan_claim(View {
        admitted: 0,
        ..view(&claim, &taken)
    });
    assert_eq!(words(&none), "rest");
    // The rest is admitted later.
    let all = plan_claim(View {
        admitted: 6,
        limit: None,
        ..view(&claim, &taken)
    });
    assert_eq!(words(&all), "Claiming Waiting, take 6");
}

#[test]
fn it_says_what_it_waits_for() {
    for (supply, reason) in [
        (Supply::Coming, "Waiting"),
        (Supply::AtMax, "NoCapacity"),
        (Supply::NoPool, "NoSuchPool"),
    ] {
        let plan = plan_claim(View {
            claim: &claim(1),
            taken: &[],
            supply,
            admitted: 1,
            limit: None,
            timed_out: false,
            expired: false,
            now: T0,
        });
        assert_eq!(words(&plan), format!("Claiming {reason}, take 1"));
    }
}

#[test]
fn what_it_has_recorded_is_never_given_back() {
    let mut claim = claim(2);
    claim.status.bound = names(2);
    claim.status.bound.swap_remove(0);
    let plan = next(&claim, 4, false, false);
    assert_eq!(words(&plan), "give back [m0, m2]");
}

#[test]
fn a_complete_one_rests_until_its_time_to_be_kept_is_over() {
    let mut claim = claim(1);
    claim.status.phase = ClaimPhase::Completed;
    assert_eq!(words(&next(&claim, 0, true, false)), "rest");
    assert_eq!(words(&next(&claim, 1, true, true)), "DeleteRecord");
    claim.metadata.deletion_timestamp = Some(T0);
    assert_eq!(words(&next(&claim, 1, true, true)), "rest");
}

#[test]
fn a_waiting_one_writes_only_what_changed() {
    let mut claim = claim(2);
    let plan = next(&claim, 1, false, false);
    let Some(Step::Publish(status)) = plan.steps.first() else {
        panic!("{plan:?}");
    };
    assert_eq!(status.bound, names(1));
    claim.status = (**status).clone();
    assert_eq!(words(&next(&claim, 1, false, false)), "take 1");
}

#[test]
fn it_converges_after_a_crash_at_each_step_with_what_it_asked_for() {
    // What it has taken is on the members, whatever its own record says.
    for life in 0..12 {
        let (mut claim, mut taken, mut steps) = (claim(3), 0, 0);
        // Members come one at a time; at step `life` whoever performs dies and begins anew.
        for _ in 0..12 {
            for step in next(&claim, taken, false, false).steps {
                steps += 1;
                match step {
                    Step::Take(missing) => taken += missing.min(1),
                    Step::Publish(_) if steps == life => break,
                    Step::Publish(status) => claim.status = *status,
                    Step::DeleteRecord | Step::GiveBack(_) => panic!("{step:?}"),
                }
                if steps == life {
                    break;
                }
            }
        }
        assert_eq!(taken, 3, "died at {life}");
        assert_eq!(claim.status.phase, ClaimPhase::Completed, "died at {life}");
        assert_eq!(claim.status.bound, names(3), "died at {life}");
    }
}

fn member() -> Sandbox {
    let mut spec = SandboxSpec {
        pool: Some(Name::new("pool").unwrap()),
        ..SandboxSpec::default()
    };
    spec.idle_images.insert("main", "idle:1");
    let mut member = Sandbox::new(metadata("m"), spec);
    member.status.phase = Phase::Idle;
    member
}

fn pair(key: &str, value: &str) -> StringMap {
    [(key, value)].into_iter().collect()
}

fn delivery(images: StringMap) -> Delivery {
    let owner = Owner {
        team: Namespace::new("team").unwrap(),
        user: Some("ada".into()),
        key: None,
    };
    Delivery {
        env: pair("TOKEN", "secret"),
        images,
        metadata: pair("job", "42"),
        timeouts: Timeouts {
            idle_seconds: Some(60),
            ..Timeouts::default()
        },
        claim: Some((Name::new("claim").unwrap(), model::Uid::from_random(9))),
        ..Delivery::new(owner, SandboxId::from_random(7))
    }
}

#[test]
fn a_claim_is_one_write_with_everything() {
    let member = member();
    let taken = claimed(&member, &delivery(StringMap::new()), T0).expect("it waits");
    let spec = &taken.spec;
    assert_eq!((spec.epoch, spec.claimed_at), (Epoch(1), Some(T0)));
    assert_eq!(spec.env.get("TOKEN"), Some("secret"));
    assert_eq!(spec.timeouts.idle_seconds, Some(60));
    assert!(spec.owner.is_some() && spec.sandbox_id.is_some());
    let annotations = &taken.metadata.annotations;
    assert_eq!(annotations.get(CLAIM_ANNOTATION), Some("claim"));
    assert_eq!(
        taken.status, member.status,
        "what is observed is not the claim's to write"
    );
}

#[test]
fn only_a_clean_idle_member_is_claimed() {
    let delivery = delivery(StringMap::new());
    for phase in Phase::ALL {
        let mut member = member();
        member.status.phase = phase;
        let taken = claimed(&member, &delivery, T0);
        assert_eq!(taken.is_some(), phase == Phase::Idle, "{phase}");
    }
    let taken = claimed(&member(), &delivery, T0).expect("it waits");
    assert_eq!(claimed(&taken, &delivery, T0), None, "never to two");
    // Given back before its own plan took notice: still `Idle`, and not clean.
    let given_back = released(&taken, Ending::by_owner(T0));
    assert_eq!(claimed(&given_back, &delivery, T0), None);
    let mut clean = given_back;
    clean.status.recycled_epoch = Epoch(1);
    let again = claimed(&clean, &delivery, T0).expect("it is clean");
    assert_eq!(again.spec.epoch, Epoch(2));
}

#[test]
fn a_release_leaves_nothing_of_the_owner_in_the_record() {
    let member = member();
    let mut taken = claimed(&member, &delivery(StringMap::new()), T0).expect("it waits");
    taken.spec.desired_state = DesiredState::Paused;
    taken.spec.wake_on_traffic = true;
    let mut back = released(&taken, Ending::by_owner(T0));
    assert_eq!(back.spec.epoch, Epoch(1), "deliveries only count up");
    back.spec.epoch = Epoch(0);
    let past = back.spec.given_back.take().expect("its history is kept");
    assert_eq!(past.ended.reason, model::sandbox::StopReason::Canceled);
    assert_eq!(back, member);
}

#[test]
fn a_member_has_its_owners_images_and_then_those_it_idles_on() {
    let other = delivery(pair("main", "theirs:2"));
    let taken = claimed(&member(), &other, T0).expect("it waits");
    assert_eq!(taken.spec.wanted_images().get("main"), Some("theirs:2"));
    let back = released(&taken, Ending::by_owner(T0));
    assert_eq!(back.spec.wanted_images().get("main"), Some("idle:1"));
    assert!(back.spec.images.is_empty());
}

#[test]
fn a_member_made_before_members_said_what_they_idle_on_finds_back_too() {
    let mut old = member();
    old.spec.images = std::mem::take(&mut old.spec.idle_images);
    let other = delivery(pair("main", "theirs:2"));
    let taken = claimed(&old, &other, T0).expect("it waits");
    let back = released(&taken, Ending::by_owner(T0));
    assert_eq!(back.spec.wanted_images().get("main"), Some("idle:1"));
}
