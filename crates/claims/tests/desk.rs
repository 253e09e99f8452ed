//! Claims over a real store and cache, with idle members that are only records.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cache::{Cache, PoolCache, SandboxCache};
use claims::{Ask, ClaimError, Desk, Wait};
use futures_util::future::join_all;
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Epoch, Key, Metadata, Name, Namespace, Sandbox, SandboxId, SandboxPool, Spec as _, Timestamp,
    lifecycle::Phase,
    pool::PoolSpec,
    sandbox::{Owner, SandboxSpec},
};
use parking_lot::Mutex;
use plan::claim::{Delivery, Ending, claimed, released};
use store::{Store, StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;

struct World {
    store: Arc<MemoryStore>,
    sandboxes: SandboxCache,
    desk: Arc<Desk>,
    told: Arc<Mutex<u32>>,
    entropy: Arc<Entropy>,
    pool: Key,
    _pools: PoolCache,
    tasks: Tasks,
}

fn team() -> Namespace {
    Namespace::new("team").unwrap()
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

impl World {
    async fn new(members: usize, change: impl FnOnce(&mut PoolSpec)) -> Self {
        let clock = Arc::new(ManualClock::starting_at(1_000_000));
        let entropy = Arc::new(Entropy::seeded(7));
        let store = Arc::new(MemoryStore::new(
            clock as Arc<dyn Clock>,
            Arc::clone(&entropy),
        ));
        let mut spec = PoolSpec::new(Name::new("base").unwrap(), 0, 100, 100);
        change(&mut spec);
        let name = Name::new("warm").unwrap();
        let pool = SandboxPool::new(Metadata::new(Some(team()), name.clone()), spec);
        store.create_object(&pool).await.unwrap();
        let tasks = Tasks::default();
        let shared: Arc<dyn Store> = store.clone();
        let deadline = Instant::now() + Duration::from_secs(5);
        let options = || cache::Options::new(Arc::clone(&entropy));
        let sandboxes: SandboxCache = Cache::start(shared.clone(), options(), deadline, &tasks)
            .await
            .unwrap();
        let pools: PoolCache = Cache::start(shared, options(), deadline, &tasks)
            .await
            .unwrap();
        let told = Arc::new(Mutex::new(0));
        let count = Arc::clone(&told);
        let desk = Desk::start(
            sandboxes.clone(),
            pools.clone(),
            Arc::clone(&entropy),
            move |_| *count.lock() += 1,
            &tasks,
        );
        let world = Self {
            store,
            sandboxes,
            desk,
            told,
            entropy,
            pool: Key::namespaced(PoolSpec::KIND, team(), name),
            _pools: pools,
            tasks,
        };
        for n in 0..members {
            world.add(n).await;
        }
        world.settle().await;
        world
    }

    /// An idle member.
    async fn add(&self, n: usize) {
        let name = Name::new(format!("m{n:04}")).unwrap();
        let spec = SandboxSpec {
            pool: Some(self.pool.name.clone()),
            ..SandboxSpec::default()
        };
        let made = Sandbox::new(Metadata::new(Some(team()), name), spec);
        let mut made = self.store.create_object(&made).await.unwrap();
        made.status.phase = Phase::Idle;
        self.store.update_status(&made).await.unwrap();
    }

    /// Gives a member back, clean.
    async fn give_back(&self, member: &Sandbox) {
        let now: Sandbox = self.store.find(&member.key()).await.unwrap().unwrap();
        let back = released(&now, Ending::by_owner(at(2)));
        let mut back = self.store.update_spec(&back).await.unwrap();
        back.status.recycled_epoch = back.spec.epoch;
        self.store.update_status(&back).await.unwrap();
    }

    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    async fn claim(&self, tenant: &str, wait: Wait) -> Result<Sandbox, ClaimError> {
        self.claim_unless(tenant, wait, std::future::pending())
            .await
    }

    async fn claim_unless(
        &self,
        tenant: &str,
        wait: Wait,
        left: impl Future<Output = ()>,
    ) -> Result<Sandbox, ClaimError> {
        let owner = Owner {
            team: team(),
            user: Some(tenant.into()),
            key: None,
        };
        let delivery = Delivery::new(owner, SandboxId::from_random(self.entropy.u128()));
        let ask = Ask {
            store: &*self.store,
            pool: &self.pool,
            tenant,
            wait,
        };
        let make = |member: &Sandbox| claimed(member, &delivery, at(1));
        self.desk.claim(ask, make, left).await
    }
}

fn soon(seconds: u64) -> Wait {
    Wait::Until(Instant::now() + Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn every_member_is_handed_out_exactly_once_and_each_by_one_write() {
    let world = World::new(60, |_| {}).await;
    let before = world.sandboxes.version();
    let claims = (0..80).map(|n| {
        let world = &world;
        async move { world.claim(&format!("user{}", n % 7), Wait::No).await }
    });
    let outcomes = join_all(claims).await;
    let taken: Vec<_> = outcomes.iter().filter_map(|o| o.as_ref().ok()).collect();
    assert_eq!(taken.len(), 60);
    let members: BTreeSet<_> = taken.iter().map(|s| s.uid()).collect();
    assert_eq!(members.len(), 60, "no member has two owners");
    assert!(taken.iter().all(|s| s.spec.epoch == Epoch(1)));
    let empty = outcomes.into_iter().filter_map(Result::err).next().unwrap();
    assert!(
        matches!(empty, ClaimError::NoneIdle(stock) if stock.waiting == 0),
        "{empty}"
    );
    world.settle().await;
    let writes = world.sandboxes.version().to_u64() - before.to_u64();
    assert_eq!(writes, 60, "nobody fought over a member");
}

#[tokio::test(start_paused = true)]
async fn a_greedy_tenant_gets_every_other_member_while_another_waits() {
    let world = Arc::new(World::new(0, |_| {}).await);
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for n in 0..30 {
        let tenant = if n < 24 { "greedy" } else { "modest" };
        let (world, order) = (Arc::clone(&world), Arc::clone(&order));
        waiting.push(async move {
            let got = world.claim(tenant, soon(100)).await.unwrap();
            order.lock().push(tenant);
            got
        });
    }
    let all = world.tasks.clone().spawn(join_all(waiting));
    world.settle().await;
    assert_eq!(world.desk.waiting(&world.pool), 30);
    for n in 0..30 {
        world.add(n).await;
        world.settle().await;
    }
    let all = all.await.unwrap();
    assert_eq!(all.len(), 30);
    let order = order.lock();
    let early = order[..12].iter().filter(|t| **t == "modest").count();
    assert_eq!(early, 6, "{order:?}");
    assert_eq!(world.desk.waiting(&world.pool), 0);
    assert!(*world.told.lock() > 0);
}

#[tokio::test(start_paused = true)]
async fn weights_of_the_pool_are_turns() {
    let weigh = |spec: &mut PoolSpec| {
        spec.queue.weights.insert("heavy".into(), 3);
    };
    let world = Arc::new(World::new(0, weigh).await);
    let order = Arc::new(Mutex::new(Vec::new()));
    for tenant in ["light", "heavy"].into_iter().cycle().take(16) {
        let (world, order) = (Arc::clone(&world), Arc::clone(&order));
        world.tasks.clone().spawn(async move {
            world.claim(tenant, soon(100)).await.unwrap();
            order.lock().push(tenant);
        });
        tokio::task::yield_now().await;
    }
    for n in 0..8 {
        world.add(n).await;
        world.settle().await;
    }
    let heavy = order.lock().iter().filter(|t| **t == "heavy").count();
    assert_eq!(heavy, 6, "{:?}", order.lock());
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_by_the_member_that_becomes_free() {
    let world = Arc::new(World::new(1, |_| {}).await);
    let first = world.claim("a", Wait::No).await.unwrap();
    let waiting = {
        let world = Arc::clone(&world);
        world
            .tasks
            .clone()
            .spawn(async move { world.claim("b", soon(1000)).await })
    };
    world.settle().await;
    world.give_back(&first).await;
    let begun = Instant::now();
    let second = waiting.await.unwrap().unwrap();
    assert_eq!(second.uid(), first.uid());
    assert_eq!(second.spec.epoch, Epoch(2));
    assert_eq!(begun.elapsed(), Duration::ZERO, "nothing is polled for");
}

#[tokio::test(start_paused = true)]
async fn a_full_line_and_a_wait_in_vain_say_how_the_pool_stands() {
    let world = Arc::new(World::new(1, |spec| spec.queue.limit = 2).await);
    world.claim("a", Wait::No).await.unwrap();
    world.settle().await;
    let wait = |tenant: &'static str, seconds| {
        let world = Arc::clone(&world);
        world
            .tasks
            .clone()
            .spawn(async move { world.claim(tenant, soon(seconds)).await })
    };
    let (one, two) = (wait("a", 5), wait("b", 7));
    world.settle().await;
    let full = world.claim("c", soon(5)).await.unwrap_err();
    assert!(
        matches!(&full, ClaimError::Full(full) if full.limit == 2 && full.stock.claimed == 1),
        "{full}"
    );
    assert!(full.to_string().contains("2 claims wait already"), "{full}");
    let late = one.await.unwrap().unwrap_err();
    assert!(matches!(late, ClaimError::TimedOut { .. }), "{late}");
    // A place was given up, so there is room again.
    let third = wait("c", 100);
    world.settle().await;
    assert_eq!(world.desk.waiting(&world.pool), 2);
    two.await.unwrap().unwrap_err();
    world.add(9).await;
    third.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_leaves_loses_the_place_and_never_a_member() {
    let world = Arc::new(World::new(0, |_| {}).await);
    let leaves = {
        let world = Arc::clone(&world);
        let left = tokio::time::sleep(Duration::from_secs(1));
        world
            .tasks
            .clone()
            .spawn(async move { world.claim_unless("a", soon(100), left).await })
    };
    let stays = {
        let world = Arc::clone(&world);
        world
            .tasks
            .clone()
            .spawn(async move { world.claim("b", soon(100)).await })
    };
    assert!(matches!(leaves.await.unwrap(), Err(ClaimError::Left)));
    world.add(0).await;
    stays.await.unwrap().unwrap();
    // A ticket that is dropped with an offer in hand hands it on.
    world.add(1).await;
    world.settle().await;
    let ticket = world.desk.enter_now(&world.pool, "a").unwrap();
    assert!(world.desk.enter_now(&world.pool, "b").is_none());
    drop(ticket);
    assert!(world.desk.enter_now(&world.pool, "b").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_leads_to_another_member() {
    let world = World::new(8, |_| {}).await;
    // Another process takes them, and this one's cache has not heard of it.
    for n in 0..4 {
        let key = Key::namespaced(
            SandboxSpec::KIND,
            team(),
            Name::new(format!("m{n:04}")).unwrap(),
        );
        let member: Sandbox = world.store.find(&key).await.unwrap().unwrap();
        let owner = Owner {
            team: team(),
            user: None,
            key: None,
        };
        let delivery = Delivery::new(owner, SandboxId::from_random(n));
        let theirs = claimed(&member, &delivery, at(1)).unwrap();
        world.store.update_spec(&theirs).await.unwrap();
    }
    let mut mine = BTreeSet::new();
    for _ in 0..4 {
        let got = world.claim("a", Wait::No).await.unwrap();
        mine.insert(got.metadata.name.to_string());
    }
    assert_eq!(
        mine.into_iter().collect::<Vec<_>>(),
        ["m0004", "m0005", "m0006", "m0007"]
    );
    assert!(world.claim("a", Wait::No).await.is_err());
}
