//! Any history of a pool whose cache lags: claims, releases, failures and new templates in any
//! order, then quiet.

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::{super::*, member, pool, view};
use crate::expect::{Expectations, Seen};

#[derive(Clone, Debug)]
enum Event {
    /// The cache shows what is.
    Sync,
    /// The pool acts; creations from the nth on fail.
    Act(usize),
    /// A member takes its next step: it gets ready, gets clean, or goes.
    Step(usize),
    Claim(usize),
    Release(usize),
    Fail(usize),
    Kill(usize),
    NewTemplate,
    Resize(u32, u32, u32),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let n = 0..12_usize;
    prop_oneof![
        8 => (0..6_usize).prop_map(Event::Act),
        6 => Just(Event::Sync),
        8 => n.clone().prop_map(Event::Step),
        3 => n.clone().prop_map(Event::Claim),
        3 => n.clone().prop_map(Event::Release),
        1 => n.clone().prop_map(Event::Fail),
        1 => n.prop_map(Event::Kill),
        1 => Just(Event::NewTemplate),
        1 => (0..4_u32, 0..3_u32, 0..4_u32).prop_map(|(a, b, c)| Event::Resize(a, b, c)),
        1 => (1..400_u64).prop_map(Event::Wait),
    ]
}

struct World {
    pool: SandboxPool,
    truth: BTreeMap<u32, Member>,
    cache: Vec<Member>,
    expected: Expectations,
    recycles: bool,
    now: Duration,
    made: u32,
    version: u64,
    /// Creations and deletions, in order.
    log: Vec<String>,
}

impl World {
    fn new(recycles: bool) -> Self {
        Self {
            pool: pool(2, 3, 5),
            truth: BTreeMap::new(),
            cache: Vec::new(),
            expected: Expectations::default(),
            recycles,
            now: Duration::ZERO,
            made: 0,
            version: 100,
            log: Vec::new(),
        }
    }

    fn change(&mut self, nth: usize, change: impl FnOnce(&mut Member)) {
        self.version += 1;
        let version = Version::new(model::Incarnation(1), self.version);
        if let Some(member) = self.truth.values_mut().nth(nth) {
            change(member);
            member.version = version;
        }
    }

    fn sync(&mut self) {
        self.cache = self.truth.values().cloned().collect();
    }

    fn plan(&mut self) -> Plan<Step> {
        let seen = self.cache.iter().map(|m| Seen {
            name: &m.key.name,
            uid: m.uid,
            deleting: m.deleting,
        });
        self.expected.observe(seen, self.now);
        plan_pool(View {
            unseen: self.expected.open(),
            due: Due {
                replace: true,
                ..Due::default()
            },
            ..view(&self.pool, &self.cache)
        })
    }

    /// Returns whether anything was made or removed.
    fn act(&mut self, fail_from: usize) -> bool {
        let plan = self.plan();
        assert!(!plan.why.is_empty());
        let mut acts = false;
        for step in plan.steps {
            match step {
                Step::Create(count) => {
                    acts = true;
                    self.create(count, fail_from);
                }
                Step::Delete(seen) => {
                    acts = true;
                    self.delete(&seen);
                }
                Step::Publish(status) => self.pool.status = *status,
                Step::Tell(_) => {}
                Step::AddFinalizer | Step::RemoveFinalizer | Step::LetGo(_) => panic!("{step:?}"),
            }
        }
        acts
    }

    fn create(&mut self, count: u32, fail_from: usize) {
        for nth in 0..count {
            self.made += 1;
            let new = member(self.made, Phase::Starting);
            self.expected
                .expect_creation(new.key.name.clone(), self.now);
            if nth as usize >= fail_from {
                self.expected.creation_failed(&new.key.name);
                continue;
            }
            self.log.push(format!("+{}", self.made));
            self.truth.insert(self.made, new);
        }
        let (max, total) = (self.pool.spec.max as usize, self.truth.len());
        assert!(total <= max, "{total} members in a pool of {max}");
    }

    /// The store deletes only what is still as it was seen.
    fn delete(&mut self, seen: &Member) {
        assert!(!seen.owned, "it removes a claimed member");
        let truth = self.truth.values_mut().find(|m| m.uid == seen.uid);
        if let Some(member) = truth.filter(|m| m.version == seen.version) {
            assert!(!member.owned);
            member.deleting = true;
            self.log.push(format!("-{}", member.key.name));
            self.expected.expect_deletion(seen.uid, self.now);
        }
    }

    fn live(&mut self, event: &Event) {
        let clean = |m: &Member| m.phase == Phase::Idle && !m.owned && !m.dirty && !m.deleting;
        match *event {
            Event::Sync => self.sync(),
            Event::Act(fail_from) => drop(self.act(fail_from)),
            Event::Step(nth) => self.step(nth),
            Event::Claim(nth) => self.change(nth, |m| {
                if clean(m) {
                    (m.owned, m.phase) = (true, Phase::Running);
                }
            }),
            Event::Release(nth) => self.change(nth, |m| {
                m.dirty |= m.owned;
                m.owned = false;
            }),
            Event::Fail(nth) => self.change(nth, |m| m.phase = Phase::Stopped),
            Event::Kill(nth) => self.change(nth, |m| m.deleting = true),
            Event::NewTemplate => {
                self.truth.values_mut().for_each(|m| m.current = false);
                self.cache.iter_mut().for_each(|m| m.current = false);
            }
            Event::Resize(min, more, room) => {
                let spec = &mut self.pool.spec;
                (spec.min_idle, spec.max_idle) = (min, min + more);
                spec.max = min + more + room;
            }
            // A cache lags by less than the expectations' patience.
            Event::Wait(seconds) => {
                self.sync();
                self.plan();
                self.now += Duration::from_secs(seconds);
            }
        }
    }

    /// What the member's own plan does.
    fn step(&mut self, nth: usize) {
        let Some((&key, member)) = self.truth.iter().nth(nth) else {
            return;
        };
        if member.deleting {
            self.truth.remove(&key);
            return;
        }
        let recycles = self.recycles;
        self.change(nth, |m| match m.phase {
            Phase::Stopped => {}
            _ if m.dirty && recycles => (m.dirty, m.phase) = (false, Phase::Idle),
            _ if m.dirty => m.deleting = true,
            Phase::Starting => m.phase = Phase::Idle,
            _ => {}
        });
    }

    /// Everything takes its course until the pool does nothing more. The bound proves it does.
    fn settle(&mut self) {
        // Whatever was never seen stops counting.
        self.now += crate::expect::PATIENCE;
        for _ in 0..200 {
            for nth in (0..self.truth.len()).rev() {
                self.step(nth);
            }
            let settled = self
                .truth
                .values()
                .all(|m| !m.deleting && !m.dirty && m.phase != Phase::Starting);
            self.sync();
            let idle = self.idle();
            let acted = self.act(usize::MAX);
            self.check_budget(idle);
            if settled && !acted {
                return;
            }
        }
        panic!("it never settles: {:?}", self.log);
    }

    fn idle(&self) -> usize {
        let idle = |m: &&Member| m.phase == Phase::Idle && !m.owned && !m.deleting && !m.dirty;
        self.truth.values().filter(idle).count()
    }

    /// One turn takes no more ready members away than the budget, or than are too many.
    fn check_budget(&self, before: usize) {
        let spec = &self.pool.spec;
        let taken = before.saturating_sub(self.idle());
        let budget = (self.truth.len() * 20 / 100).max(1);
        let surplus = before.saturating_sub(spec.max_idle as usize);
        let over = self.truth.len().saturating_sub(spec.max as usize);
        let most = budget.max(surplus).max(over);
        assert!(taken <= most, "{taken} of {before} ready members at once");
    }

    fn check_settled(&self) {
        let spec = &self.pool.spec;
        let owned = self.truth.values().filter(|m| m.owned).count();
        let idle = self.idle();
        let room = (spec.max as usize).saturating_sub(owned);
        let min = (spec.min_idle as usize).min(room);
        assert!(
            idle >= min,
            "{idle} idle of {min}, {owned} claimed: {}",
            self.pool.status.why
        );
        assert!(idle <= (spec.max_idle as usize).min(room), "{idle} idle");
        let outdated = self.truth.values().filter(|m| !m.owned && !m.current);
        assert_eq!(outdated.count(), 0, "a rollout ends");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_history_settles_between_its_bounds(
        recycles in any::<bool>(),
        events in prop::collection::vec(event(), 0..80),
    ) {
        let mut world = World::new(recycles);
        for event in &events {
            world.live(event);
        }
        world.settle();
        world.check_settled();
    }

    /// Whatever was going on, once the pool is left alone it never makes what it then removes,
    /// nor removes what it then makes again: each direction happens at most once.
    #[test]
    fn it_never_swings(recycles in any::<bool>(), events in prop::collection::vec(event(), 0..60)) {
        let mut world = World::new(recycles);
        for event in events.iter().filter(|e| !matches!(e, Event::NewTemplate | Event::Fail(_))) {
            world.live(event);
        }
        let before = world.log.len();
        world.settle();
        let made = world.log[before..].iter().any(|w| w.starts_with('+'));
        let removed = world.log[before..].iter().any(|w| w.starts_with('-'));
        prop_assert!(!(made && removed), "{:?}", &world.log[before..]);
    }

    /// Creations that fail half-way are made up for as soon as they are seen, not after the
    /// expectations' patience.
    #[test]
    fn a_creation_that_failed_half_way_does_not_stall(fail_from in 0..3_usize) {
        let mut world = World::new(false);
        world.act(fail_from);
        world.sync();
        world.act(usize::MAX);
        prop_assert_eq!(world.truth.len(), 2);
    }
}

#[test]
fn a_lagging_cache_makes_nothing_twice_and_removes_nothing_twice() {
    let mut world = World::new(false);
    for _ in 0..5 {
        world.act(usize::MAX);
    }
    assert_eq!(world.truth.len(), 2, "none of them was seen yet");
    world.settle();
    world.live(&Event::Resize(0, 1, 4));
    for _ in 0..5 {
        world.act(usize::MAX);
    }
    let going = world.truth.values().filter(|m| m.deleting).count();
    assert_eq!(going, 1, "the cache still shows it");
}

#[test]
fn a_claim_that_comes_in_between_wins() {
    let mut world = World::new(false);
    world.settle();
    world.live(&Event::Resize(0, 0, 4));
    world.live(&Event::Claim(0));
    world.act(usize::MAX);
    let left: Vec<_> = world
        .truth
        .values()
        .map(|m| (m.owned, m.deleting))
        .collect();
    assert_eq!(left, [(true, false), (false, true)]);
}
