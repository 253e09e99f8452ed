use std::{sync::Arc, time::Duration};

use auth::{
    Ledger,
    members::TeamQuota,
    quota::{Account, Holder, Quota, Size},
};
use cache::SandboxCache;
use kit::Entropy;
use model::{
    Epoch, Metadata, Name, Object, Sandbox, SandboxId, SandboxPool, SandboxTemplate,
    lifecycle::Phase,
    pool::PoolSpec,
    sandbox::{DesiredState, Resources, SandboxSpec},
    team::Quotas,
};
use plugins::{Creation, Plugin as _, Purpose};
use store::{StoreExt as _, memory::MemoryStore};

use crate::world::{World, team, within};

const SIZE: Size = Size {
    cpu_millis: 1000,
    memory_mib: 512,
};

fn sandboxes(most: u32) -> Quotas {
    Quotas {
        sandboxes: Some(most),
        ..Quotas::default()
    }
}

fn draft(account: &Account, id: &SandboxId) -> Sandbox {
    let owner = model::sandbox::Owner {
        team: account.team.clone(),
        user: None,
        key: account.key.clone(),
    };
    let name = Name::new(id.as_str()).unwrap();
    let spec = SandboxSpec {
        owner: Some(owner),
        sandbox_id: Some(id.clone()),
        epoch: Epoch(1),
        ..SandboxSpec::default()
    };
    Object::new(Metadata::new(Some(account.team.clone()), name), spec)
}

struct Desk {
    world: World,
    cache: SandboxCache,
    ledger: Arc<Ledger>,
}

impl Desk {
    async fn new() -> Self {
        let world = World::new().await;
        let cache = world.sandboxes().await;
        let templates = world.templates().await;
        let ledger = Arc::new(Ledger::new(cache.clone(), templates, SIZE));
        Self {
            world,
            cache,
            ledger,
        }
    }

    async fn account(&self, of: &str, all: Quotas, own: Quotas) -> Account {
        self.world.put_team(of, all).await;
        self.world.caller(of, own).await.account()
    }

    fn id(&self) -> SandboxId {
        SandboxId::from_random(self.world.entropy.u128())
    }

    async fn create(&self, account: &Account) -> Result<Sandbox, auth::QuotaExceeded> {
        let id = self.id();
        let draft = draft(account, &id);
        let reservation = self.ledger.reserve(account, &id, &draft.spec)?;
        let made = self.world.memory.create_object(&draft).await.unwrap();
        reservation.written(made.version());
        Ok(made)
    }

    async fn plugin(&self) -> TeamQuota {
        let pools = self.world.pools().await;
        TeamQuota::new(self.world.keys.clone(), Arc::clone(&self.ledger), pools)
    }

    async fn caught_up(&self) {
        let version = self.world.memory.version();
        let cache = &self.cache;
        cache.wait_for_version(version, within(60)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_no_quota_is_never_refused() {
    let desk = Desk::new().await;
    let none = Quotas::default();
    let account = desk.account("blue", none, none).await;
    for _ in 0..50 {
        desk.create(&account).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_one_is_given_and_one_more_is_not_however_far_the_cache_lags() {
    let desk = Desk::new().await;
    let account = desk.account("blue", sandboxes(3), Quotas::default()).await;
    for _ in 0..3 {
        desk.create(&account).await.unwrap();
    }
    let refused = desk.create(&account).await.unwrap_err();
    let what = (refused.holder, refused.which, refused.limit, refused.used);
    assert_eq!(what, (Holder::Team, Quota::Sandboxes, 3, 3));
    desk.caught_up().await;
    assert_eq!(desk.create(&account).await.unwrap_err(), refused);
    assert_eq!(desk.ledger.used(&account).team.sandboxes, 3);
    // Another team has its own.
    let other = desk.account("red", sandboxes(1), Quotas::default()).await;
    desk.create(&other).await.unwrap();
}

/// A pool of a team with members that wait in it.
async fn fill(desk: &Desk, of: &str, pool: &str, members: u32) {
    let meta = |name: &str| Metadata::new(Some(team(of)), Name::new(name).unwrap());
    let spec = PoolSpec::new(Name::new("base").unwrap(), 0, 9, 9);
    let store = &desk.world.memory;
    let record: SandboxPool = Object::new(meta(pool), spec);
    store.create_object(&record).await.unwrap();
    for n in 0..members {
        let spec = SandboxSpec {
            pool: Some(Name::new(pool).unwrap()),
            ..SandboxSpec::default()
        };
        let member: Sandbox = Object::new(meta(&format!("{pool}-{n}")), spec);
        store.create_object(&member).await.unwrap();
    }
    desk.caught_up().await;
    // The cache of pools has a task of its own.
    tokio::time::sleep(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn no_more_members_wait_in_the_pools_of_a_team_than_it_may_still_have() {
    let desk = Desk::new().await;
    let account = desk.account("blue", sandboxes(8), Quotas::default()).await;
    desk.create(&account).await.unwrap();
    desk.create(&account).await.unwrap();
    let plugin = desk.plugin().await;
    let (blue, pool) = (team("blue"), Name::new("a").unwrap());
    let spec = SandboxSpec::default();
    let members = |count| Creation {
        purpose: Purpose::Member { pool: &pool },
        team: &blue,
        spec: &spec,
        count,
        ids: &[],
    };
    let all = plugin.before_create(&members(6)).await;
    assert_eq!(all.admitted, 6, "those that wait count for nobody");
    let some = plugin.before_create(&members(8)).await;
    assert_eq!(some.admitted, 6);
    assert!(some.why.contains("may have 8 sandboxes"), "{}", some.why);
    assert!(some.retry_after > Duration::ZERO);
    fill(&desk, "blue", "a", 3).await;
    fill(&desk, "blue", "b", 1).await;
    assert_eq!(plugin.before_create(&members(8)).await.admitted, 2);
    // They are not taken from what its requests may have.
    for _ in 0..6 {
        desk.create(&account).await.unwrap();
    }
    assert_eq!(plugin.before_create(&members(1)).await.admitted, 0);
    let red = team("red");
    let other = Creation {
        team: &red,
        ..members(50)
    };
    assert_eq!(plugin.before_create(&other).await.admitted, 50);
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_what_is_left_and_keeps_others_from_having_it_too() {
    let desk = Desk::new().await;
    let account = desk.account("blue", sandboxes(6), Quotas::default()).await;
    let plugin = desk.plugin().await;
    let (blue, name) = (team("blue"), Name::new("a").unwrap());
    let ids: Vec<_> = (0..8).map(|_| desk.id()).collect();
    let spec = SandboxSpec::default();
    let wanted = Creation {
        purpose: Purpose::Claim {
            claim: &name,
            pool: &name,
        },
        team: &blue,
        spec: &spec,
        count: 8,
        ids: &ids,
    };
    let mut admission = plugin.before_create(&wanted).await;
    assert_eq!((admission.admitted, admission.holds.len()), (6, 6));
    desk.create(&account).await.unwrap_err();
    // One becomes a record, one is given back.
    let first = draft(&account, &ids[0]);
    let made = desk.world.memory.create_object(&first).await.unwrap();
    let version = made.version();
    admission.holds.remove(0).written(version);
    drop(admission.holds.pop());
    desk.create(&account).await.unwrap();
    desk.create(&account).await.unwrap_err();
    desk.caught_up().await;
    desk.create(&account).await.unwrap_err();
    drop(admission);
    for _ in 0..4 {
        desk.create(&account).await.unwrap();
    }
    desk.create(&account).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_is_applied_counts_for_its_team_from_before_it_is_written() {
    let desk = Desk::new().await;
    let account = desk.account("blue", sandboxes(1), Quotas::default()).await;
    let plugin = desk.plugin().await;
    let (blue, id) = (team("blue"), desk.id());
    let sandbox = draft(&account, &id);
    let wanted = Creation {
        purpose: Purpose::Applied,
        team: &blue,
        spec: &sandbox.spec,
        count: 1,
        ids: std::slice::from_ref(&id),
    };
    let mut admission = plugin.before_create(&wanted).await;
    assert_eq!((admission.admitted, admission.holds.len()), (1, 1));
    desk.create(&account).await.unwrap_err();
    let made = desk.world.memory.create_object(&sandbox).await.unwrap();
    admission.holds.remove(0).written(made.version());
    let other = [desk.id()];
    let another = Creation {
        ids: &other,
        ..wanted
    };
    let refused = plugin.before_create(&another).await;
    assert_eq!((refused.admitted, refused.holds.len()), (0, 0));
    assert!(
        refused.why.contains("may have 1 sandbox"),
        "{}",
        refused.why
    );
    // One that the E2B API makes was reserved with its key.
    let request = Creation {
        purpose: Purpose::Request,
        ..another
    };
    assert_eq!(plugin.before_create(&request).await.admitted, 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_has_a_quota_within_that_of_its_team() {
    let desk = Desk::new().await;
    let first = desk.account("blue", sandboxes(3), sandboxes(2)).await;
    let second = desk.world.caller("blue", Quotas::default()).await.account();
    desk.create(&first).await.unwrap();
    desk.create(&first).await.unwrap();
    let refused = desk.create(&first).await.unwrap_err();
    assert_eq!((refused.holder, refused.used), (Holder::Key, 2));
    desk.create(&second).await.unwrap();
    let refused = desk.create(&second).await.unwrap_err();
    assert_eq!((refused.holder, refused.used), (Holder::Team, 3));
    desk.caught_up().await;
    let used = desk.ledger.used(&first);
    assert_eq!((used.team.sandboxes, used.key.sandboxes), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn processors_and_memory_are_counted_with_the_template_and_while_awake() {
    let desk = Desk::new().await;
    let memory = |mib| {
        Some(Resources {
            cpu_millis: None,
            memory_mib: Some(mib),
            disk_mib: None,
        })
    };
    let mut template: SandboxTemplate = Object::new(
        Metadata::new(None, Name::new("large").unwrap()),
        serde_json::from_value(serde_json::json!({"image": "a"})).unwrap(),
    );
    template.spec.resources = memory(2048);
    desk.world.memory.create_object(&template).await.unwrap();
    desk.caught_up().await;
    tokio::time::sleep(Duration::from_millis(10)).await;

    let quotas = Quotas {
        memory_mib: Some(4096),
        cpu_millis: Some(10_000),
        ..Quotas::default()
    };
    let account = desk.account("blue", quotas, Quotas::default()).await;
    let reserve = |spec: &dyn Fn(&mut SandboxSpec)| {
        let id = desk.id();
        let mut draft = draft(&account, &id);
        spec(&mut draft.spec);
        let taken = desk.ledger.reserve(&account, &id, &draft.spec);
        taken.map(|reservation| (reservation, draft))
    };
    let large = |spec: &mut SandboxSpec| spec.template = Some(Name::new("large").unwrap());
    let (reservation, draft) = reserve(&large).unwrap();
    let mut asleep = desk.world.memory.create_object(&draft).await.unwrap();
    reservation.written(asleep.version());
    // 2048 are left: one that says so itself, or one large, or four of the usual size.
    let own = |spec: &mut SandboxSpec| spec.resources = memory(2049);
    let refused = reserve(&own).unwrap_err();
    let what = (refused.which, refused.limit, refused.used, refused.asked);
    assert_eq!(what, (Quota::MemoryMiB, 4096, 2048, 2049));
    let held: Vec<_> = (0..4).map(|_| reserve(&|_| {}).unwrap()).collect();
    assert!(reserve(&|_| {}).is_err());
    drop(held);

    asleep.spec.desired_state = DesiredState::Paused;
    let mut asleep = desk.world.memory.update_spec(&asleep).await.unwrap();
    desk.caught_up().await;
    assert!(reserve(&own).is_err(), "it is still awake");
    asleep.status.phase = Phase::Paused;
    let asleep = desk.world.memory.update_status(&asleep).await.unwrap();
    desk.caught_up().await;
    let (whole, _) = reserve(&|spec| spec.resources = memory(4096)).unwrap();
    // To wake it again is to have it again.
    let id = asleep.spec.sandbox_id.clone().unwrap();
    let wake = || desk.ledger.reserve(&account, &id, &asleep.spec);
    assert!(wake().is_err());
    drop(whole);
    let both = (wake().unwrap(), wake().unwrap());
    let fits = reserve(&large);
    assert!(fits.is_ok(), "two that wake one sandbox take it once");
    assert!(reserve(&|_| {}).is_err());
    drop((both, fits));
}

#[tokio::test(start_paused = true)]
async fn waking_is_no_new_sandbox_even_where_the_quota_was_lowered() {
    let desk = Desk::new().await;
    let account = desk.account("blue", sandboxes(3), Quotas::default()).await;
    let mut last = None;
    for _ in 0..3 {
        last = Some(desk.create(&account).await.unwrap());
    }
    let mut last = last.unwrap();
    last.status.phase = Phase::Paused;
    let mut last = desk.world.memory.update_status(&last).await.unwrap();
    last.spec.desired_state = DesiredState::Paused;
    let last = desk.world.memory.update_spec(&last).await.unwrap();
    desk.caught_up().await;
    let account = Account {
        team_quotas: sandboxes(1),
        ..account
    };
    let id = last.spec.sandbox_id.clone().unwrap();
    assert!(desk.ledger.reserve(&account, &id, &last.spec).is_ok());
    assert!(desk.create(&account).await.is_err());
}

/// Creates until it was refused often enough, with waits, failures and deletions in between.
/// Returns how many of its sandboxes are left.
async fn creator(desk: Arc<Desk>, account: Account, seed: u64, limit: usize) -> usize {
    let dice = Entropy::seeded(seed);
    let mut own: Vec<Sandbox> = Vec::new();
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_micros(dice.below(50) as u64)).await;
        let id = desk.id();
        let draft = draft(&account, &id);
        match desk.ledger.reserve(&account, &id, &draft.spec) {
            Err(_) => {}
            // A write that fails, or a request that is given up.
            Ok(reservation) if dice.chance(0.2) => {
                tokio::task::yield_now().await;
                drop(reservation);
            }
            Ok(reservation) => {
                tokio::time::sleep(Duration::from_micros(dice.below(30) as u64)).await;
                let made = desk.world.memory.create_object(&draft).await.unwrap();
                if dice.chance(0.5) {
                    // The cache may see it before this is said.
                    tokio::task::yield_now().await;
                }
                reservation.written(made.version());
                own.push(made);
            }
        }
        let there = count(&desk.world.memory);
        assert!(there <= limit, "{there} of {limit}");
        if !own.is_empty() && dice.chance(0.3) {
            let gone = own.swap_remove(dice.below(own.len()));
            desk.world.memory.delete_object(&gone).await.unwrap();
        }
    }
    own.len()
}

fn count(memory: &MemoryStore) -> usize {
    let all = memory.truth();
    all.iter().filter(|r| r.kind.0 == "Sandbox").count()
}

async fn many_creators(seed: u64) {
    const LIMIT: usize = 7;
    let desk = Arc::new(Desk::new().await);
    let account = desk
        .account("blue", sandboxes(LIMIT as u32), Quotas::default())
        .await;
    let creators: Vec<_> = (0..24)
        .map(|n| {
            let task = creator(Arc::clone(&desk), account.clone(), seed * 1000 + n, LIMIT);
            desk.world.tasks.spawn(task)
        })
        .collect();
    let mut left = 0;
    for task in creators {
        left += task.await.unwrap();
    }
    assert_eq!(count(&desk.world.memory), left);
    // Never stuck below: what is free can be had, to the last one.
    desk.caught_up().await;
    for n in left..LIMIT {
        assert!(desk.create(&account).await.is_ok(), "{n} of {LIMIT}");
    }
    assert!(desk.create(&account).await.is_err());
    assert_eq!(count(&desk.world.memory), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn many_creators_get_exactly_the_quota() {
    for seed in 0..20 {
        many_creators(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_creators_on_many_threads_get_exactly_the_quota() {
    for seed in 0..5 {
        many_creators(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_of_creators_gets_the_quota_in_one_go() {
    const LIMIT: u32 = 100;
    let desk = Arc::new(Desk::new().await);
    let account = desk
        .account("blue", sandboxes(LIMIT), sandboxes(LIMIT))
        .await;
    let tasks: Vec<_> = (0..400)
        .map(|_| {
            let (desk, account) = (Arc::clone(&desk), account.clone());
            let tasks = desk.world.tasks.clone();
            tasks.spawn(async move { desk.create(&account).await.is_ok() })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        made += u32::from(task.await.unwrap());
    }
    // Nobody gave anything back, so nobody was refused while there was room.
    assert_eq!(made, LIMIT);
}

#[tokio::test(start_paused = true)]
async fn of_those_that_several_processes_made_the_oldest_are_within_the_quota() {
    let desk = Desk::new().await;
    let account = desk.account("blue", sandboxes(2), Quotas::default()).await;
    let plugin = desk.plugin().await;
    let mut made = Vec::new();
    for _ in 0..4 {
        // Each process has promised for itself.
        let sandbox = draft(&account, &desk.id());
        made.push(desk.world.memory.create_object(&sandbox).await.unwrap());
    }
    desk.caught_up().await;
    made.sort_by_key(|s| (s.metadata.creation_timestamp, s.uid()));
    let look = async |sandbox: &Sandbox| {
        let id = sandbox.spec.sandbox_id.clone().unwrap();
        let wanted = Creation {
            purpose: Purpose::Promised,
            team: &team("blue"),
            spec: &sandbox.spec,
            count: 1,
            ids: &[id],
        };
        plugin.before_create(&wanted).await.admitted
    };
    for (at, sandbox) in made.iter().enumerate() {
        assert_eq!(look(sandbox).await, u32::from(at < 2), "{at}");
    }
    // What has begun is not turned out by what comes later and looks older.
    for last in &mut made[2..] {
        last.status.phase = Phase::Running;
        *last = desk.world.memory.update_status(last).await.unwrap();
    }
    desk.caught_up().await;
    assert_eq!(look(&made[0]).await, 0);
}

#[tokio::test(start_paused = true)]
async fn of_two_that_are_to_wake_where_one_may_the_second_waits_until_the_first_has_ended() {
    let desk = Desk::new().await;
    let one = Quotas {
        running_sandboxes: Some(1),
        ..Quotas::default()
    };
    let account = desk.account("blue", one, Quotas::default()).await;
    let plugin = desk.plugin().await;
    let mut asleep = Vec::new();
    for _ in 0..2 {
        let mut made = draft(&account, &desk.id());
        made.status.phase = Phase::Paused;
        // Traffic wants both awake.
        asleep.push(desk.world.memory.create_object(&made).await.unwrap());
    }
    desk.caught_up().await;
    let wake = async |sandbox: &Sandbox| {
        let id = sandbox.spec.sandbox_id.clone().unwrap();
        let wanted = Creation {
            purpose: Purpose::Woken,
            team: &team("blue"),
            spec: &sandbox.spec,
            count: 1,
            ids: &[id],
        };
        plugin.before_create(&wanted).await
    };
    let mut first = wake(&asleep[0]).await;
    assert_eq!(first.admitted, 1);
    assert_eq!(wake(&asleep[1]).await.admitted, 0, "it is promised");
    let mut awake = asleep[0].clone();
    awake.status.phase = Phase::Running;
    let awake = desk.world.memory.update_status(&awake).await.unwrap();
    first.holds.remove(0).written(awake.version());
    desk.caught_up().await;
    assert_eq!(wake(&asleep[1]).await.admitted, 0, "it is taken");
    assert_eq!(wake(&awake).await.admitted, 1, "it has its own");
    let mut ended = awake;
    ended.status.phase = Phase::Stopped;
    desk.world.memory.update_status(&ended).await.unwrap();
    desk.caught_up().await;
    assert_eq!(wake(&asleep[1]).await.admitted, 1);
}
