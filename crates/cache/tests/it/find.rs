use std::sync::Arc;

use cache::{RoutingCache, RoutingIndex, SandboxIndex, Term};
use model::{
    Name, Namespace, SandboxId,
    lifecycle::{Phase, Traffic},
    sandbox::{Address, Sandbox, Via},
};
use routes::Route;
use store::StoreExt as _;

use crate::world::{World, at, key, sandbox, sandbox_in, settle};

fn names(found: &[Arc<Sandbox>]) -> Vec<String> {
    found.iter().map(|s| s.key().to_string()).collect()
}

fn member(namespace: &str, name: &str, pool: &str) -> Sandbox {
    let mut sandbox = sandbox_in(namespace, name);
    sandbox.spec.owner = None;
    sandbox.spec.epoch = model::Epoch(0);
    sandbox.spec.pool = Some(Name::new(pool).unwrap());
    sandbox.status.phase = Phase::Idle;
    sandbox
}

#[tokio::test(start_paused = true)]
async fn indexes_follow_their_objects() {
    let world = World::new();
    let mut one = sandbox("one");
    one.spec.sandbox_id = Some(SandboxId::new("i1").unwrap());
    one.spec.template = Some(Name::new("python").unwrap());
    world.put(one).await;
    let cache = world.sandboxes().await;
    settle().await;
    assert_eq!(
        cache.find_one_by(SandboxIndex::Id, "i1").unwrap().key(),
        at("one")
    );
    assert_eq!(cache.find_by(SandboxIndex::Template, "python").len(), 1);
    assert_eq!(cache.find_by(SandboxIndex::Owner, "default").len(), 1);
    assert_eq!(
        cache
            .find_by(SandboxIndex::Phase, Phase::Pending.as_str())
            .len(),
        1
    );

    // A new delivery has a new id, and the old one finds nothing.
    let mut again = (*cache.find(&at("one")).unwrap()).clone();
    again.spec.sandbox_id = Some(SandboxId::new("i2").unwrap());
    world.memory.update_spec(&again).await.unwrap();
    world.set_phase("one", Phase::Starting).await;
    world.caught_up(&cache).await;
    assert!(cache.find_one_by(SandboxIndex::Id, "i1").is_none());
    assert_eq!(
        cache.find_one_by(SandboxIndex::Id, "i2").unwrap().key(),
        at("one")
    );
    assert_eq!(cache.count_by(SandboxIndex::Phase, "Pending"), 0);
    assert_eq!(cache.count_by(SandboxIndex::Phase, "Starting"), 1);

    world.delete("one").await;
    world.caught_up(&cache).await;
    assert!(cache.find_by(SandboxIndex::Id, "i2").is_empty());
    assert!(cache.find_by(SandboxIndex::Owner, "default").is_empty());
}

#[tokio::test(start_paused = true)]
async fn answers_come_in_the_order_of_namespace_and_name() {
    let world = World::new();
    for (namespace, name) in [("b", "1"), ("a", "2"), ("b", "0"), ("a", "10")] {
        world.put(sandbox_in(namespace, name)).await;
    }
    let cache = world.sandboxes().await;
    let expected = ["Sandbox a/10", "Sandbox a/2", "Sandbox b/0", "Sandbox b/1"];
    assert_eq!(
        names(&cache.find_by(SandboxIndex::Phase, "Pending")),
        expected
    );
    assert_eq!(names(&cache.find_all()), expected);
}

#[tokio::test(start_paused = true)]
async fn two_teams_pools_of_one_name_are_two_pools() {
    let world = World::new();
    world.put(member("ours", "a", "web")).await;
    world.put(member("theirs", "a", "web")).await;
    let cache = world.sandboxes().await;
    let (ours, web) = (Namespace::new("ours").unwrap(), Name::new("web").unwrap());
    let found = cache.find_by(SandboxIndex::Pool, (&ours, &web));
    assert_eq!(names(&found), ["Sandbox ours/a"]);
    assert!(cache.find_by(SandboxIndex::Pool, "web").is_empty());
    let none = Namespace::new("nobody").unwrap();
    assert!(
        cache
            .find_by(SandboxIndex::Pool, Term::within(Some(&none), "web"))
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn only_idle_members_without_an_owner_can_be_claimed() {
    let world = World::new();
    let member = world.put(member("default", "a", "web")).await;
    let cache = world.sandboxes().await;
    settle().await;
    let (namespace, web) = (
        member.metadata.namespace.clone().unwrap(),
        Name::new("web").unwrap(),
    );
    let count = |index| cache.count_by(index, (&namespace, &web));
    assert_eq!(count(SandboxIndex::Claimable), 1);
    let mut claimed = member;
    claimed.spec.owner = sandbox("x").spec.owner;
    world.memory.update_spec(&claimed).await.unwrap();
    world.caught_up(&cache).await;
    assert_eq!(count(SandboxIndex::Claimable), 0);
    assert_eq!(count(SandboxIndex::Pool), 1);
}

#[tokio::test(start_paused = true)]
async fn the_routing_view_keeps_what_is_routed_by() {
    let world = World::new();
    let mut one = sandbox_in("team", "one");
    one.spec.sandbox_id = Some(SandboxId::new("i1").unwrap());
    one.spec.wake_on_traffic = true;
    one.status.phase = Phase::Running;
    one.status.armed_epoch = one.spec.epoch;
    one.status.address = Some(Address {
        via: Via::Pod,
        ip: Some("10.1.2.3".into()),
    });
    let one = world.put(one).await;
    let cache: RoutingCache = world.start(world.options()).await;
    let found = cache.find_one_by(RoutingIndex::Id, "i1").unwrap();
    let expected = Route::of(&one).unwrap();
    assert_eq!(expected.state, Traffic::Running);
    assert_eq!(
        expected.address,
        Some(routes::Address::Pod([10, 1, 2, 3].into()))
    );
    assert_eq!(*found, expected);
    assert_eq!(cache.find(&key("team", "one")), Some(found));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_at_a_key_of_another_kind() {
    let world = World::new();
    world.create("a").await;
    let cache = world.sandboxes().await;
    let mut other = at("a");
    other.kind = model::KindName("SandboxPool");
    assert!(cache.find(&at("a")).is_some());
    assert!(cache.find(&other).is_none());
}
