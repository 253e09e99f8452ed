//! What a create waits for, and what an owner who was answered finds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use e2b::ports::{ImageProblem, Images, Unsaid};
use model::{
    Epoch, Key, Namespace, SandboxPool, Spec as _,
    hook::Hook,
    lifecycle::Phase,
    pool::{PoolSpec, RecyclePolicy},
    sandbox::DesiredState,
    template::ImagePullPolicy,
};
use parking_lot::Mutex;
use runtime::{
    Runtime, WorkloadState,
    fake::{Call, CallFault, FakeRuntime, NO_IMAGE},
};
use serde_json::{Value, json};
use store::{StoreExt as _, memory::WriteFault};

use crate::support::{World, name, options, team};

/// The runtime's images, as a server hands them to the API.
#[derive(Debug)]
pub(crate) struct FakeImages {
    runtime: Arc<FakeRuntime>,
    /// Whether no registry answers.
    is_down: AtomicBool,
}

impl FakeImages {
    pub(crate) fn of(runtime: Arc<FakeRuntime>) -> Self {
        Self {
            runtime,
            is_down: AtomicBool::new(false),
        }
    }
}

#[async_trait]
impl Images for FakeImages {
    async fn pin(
        &self,
        team: &Namespace,
        image: &str,
        pull: ImagePullPolicy,
    ) -> Result<Box<str>, ImageProblem> {
        if self.is_down.load(Ordering::Relaxed) {
            return Err(ImageProblem::Later("no registry answers".into()));
        }
        let pinned = self.runtime.pin(team, image, pull).await;
        pinned.map_err(|error| ImageProblem::Wrong(error.to_string().into()))
    }
}

/// Sandboxes that have answered somebody, as a gateway knows them.
#[derive(Debug, Default)]
pub(crate) struct Answered(Mutex<Vec<Key>>);

impl Unsaid for Answered {
    fn of(&self, team: &Namespace) -> Vec<Key> {
        let of_team = |key: &&Key| key.namespace.as_ref() == Some(team);
        self.0.lock().iter().filter(of_team).cloned().collect()
    }
}

async fn warm(world: &World, change: impl FnOnce(&mut PoolSpec)) {
    world.pool("a", "warm", 1, RecyclePolicy::Recycle).await;
    let key = model::Key::namespaced(PoolSpec::KIND, team("a"), name("warm"));
    let mut pool: SandboxPool = world.store.find(&key).await.unwrap().unwrap();
    pool.spec.max_idle = 1;
    change(&mut pool.spec);
    world.store.update_spec(&pool).await.unwrap();
    // A pool whose members changed replaces them.
    tokio::time::sleep(Duration::from_secs(60)).await;
}

fn ask() -> Value {
    json!({"templateID": "warm", "timeout": 300})
}

/// The server dies where it stands; from then on all is well.
async fn died(mut world: World) -> World {
    if let Some(control) = world.control.take() {
        control.drain(Duration::ZERO).await;
    }
    let _ = world.tasks.drain(Duration::ZERO).await;
    world.store.faults().clear();
    world.runtime.clear_faults();
    world.restarted().await
}

/// Only so many more writes succeed.
fn allow(world: &World, count: u64) {
    let last = world.store.faults().writes() + count;
    world.store.faults().on_write(move |n| {
        if n <= last {
            WriteFault::None
        } else {
            WriteFault::FailBefore
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_warm_claim_waits_for_one_write_and_no_more() {
    let world = World::new().await;
    let client = world.client("a").await;
    warm(&world, |_| {}).await;
    let idle = world.records().await;
    assert_eq!((idle.len(), idle[0].status.phase), (1, Phase::Idle));
    allow(&world, 1);
    let reply = client.post("/v2/sandboxes", ask()).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let inside = &world.runtime.truth()[&idle[0].uid()];
    assert_eq!(
        inside.facts.epoch,
        Epoch(1),
        "it is armed when its owner hears"
    );
    assert_eq!(
        world.records().await[0].status.phase,
        Phase::Idle,
        "its record says so later"
    );
    // Whoever was answered finds it, though that takes until the store answers again.
    let id = reply.id();
    let path = format!("/sandboxes/{id}");
    let (found, listed, ()) = tokio::join!(client.get(&path), client.get("/v2/sandboxes"), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.store.faults().clear();
    });
    assert_eq!(
        (found.status, &found.body["state"]),
        (200, &json!("running"))
    );
    assert_eq!(listed.body[0]["sandboxID"], json!(id), "{}", listed.text);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_after_its_answer_leaves_the_sandbox_to_its_owner() {
    let world = World::new().await;
    let client = world.client("a").await;
    warm(&world, |_| {}).await;
    allow(&world, 1);
    let reply = client.post("/v2/sandboxes", ask()).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let world = died(world).await;
    world.settle().await;
    let client = world.client("a").await;
    let found = client.detail(&reply.id()).await;
    assert_eq!(found["state"], "running");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_before_its_answer_gives_the_member_back() {
    let world = World::new().await;
    let client = world.client("a").await;
    warm(&world, |_| {}).await;
    world.runtime.on_call(|call, _| match call {
        Call::Arm => CallFault::FailBefore,
        _ => CallFault::None,
    });
    allow(&world, 1);
    let asked = client.post("/v2/sandboxes", ask());
    let left = tokio::time::timeout(Duration::from_millis(50), asked).await;
    assert!(left.is_err(), "it is not ready");
    let claimed = world.records().await;
    assert!(claimed[0].spec.owner.is_some());
    let world = died(world).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let all = world.records().await;
    assert!(all.iter().all(|s| s.spec.owner.is_none()), "{all:?}");
    assert!(all.iter().any(|s| s.status.phase == Phase::Idle), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn hooks_are_run_before_the_answer_and_a_required_one_that_fails_fails_it() {
    let world = World::new().await;
    let client = world.client("a").await;
    warm(&world, |spec| {
        spec.hooks = vec![Hook::exec("seed", &["seed"])];
    })
    .await;
    let first = client.post("/v2/sandboxes", ask()).await;
    assert_eq!(first.status, 201, "{}", first.text);
    let ran = |world: &World| {
        let truth = world.runtime.truth();
        truth.values().map(|inside| inside.hooks).sum::<u64>()
    };
    assert_eq!(ran(&world), 1);
    let cold = client
        .post(
            "/v2/sandboxes",
            json!({"templateID": "warm", "timeout": 300}),
        )
        .await;
    assert_eq!((cold.status, ran(&world)), (201, 2), "a cold one too");
    client.pause(&first.id()).await;
    let woken = client
        .post(
            &format!("/v2/sandboxes/{}/connect", first.id()),
            json!({"timeout": 300}),
        )
        .await;
    assert!(woken.status < 300, "{}", woken.text);
    assert_eq!(ran(&world), 2, "not for a wake");

    world.runtime.on_call(|call, _| match call {
        Call::Hooks => CallFault::NeverReady,
        _ => CallFault::None,
    });
    let optional = client.post("/v2/sandboxes", ask()).await;
    assert_eq!(optional.status, 201, "{}", optional.text);
    let told = world.records().await.into_iter().find(|s| {
        let id = s.spec.sandbox_id.as_ref();
        id.is_some_and(|id| id.as_str() == optional.id())
    });
    let conditions = told.unwrap().status.conditions;
    let hooks = conditions.iter().find(|c| &*c.kind == "HooksSucceeded");
    assert!(hooks.unwrap().message.contains("\"seed\""), "{hooks:?}");

    let key = model::Key::namespaced(PoolSpec::KIND, team("a"), name("warm"));
    let mut pool: SandboxPool = world.store.find(&key).await.unwrap().unwrap();
    pool.spec.hooks[0].required = true;
    world.store.update_spec(&pool).await.unwrap();
    world.settle().await;
    let before = world.records().await.len();
    let failed = client.post("/v2/sandboxes", ask()).await;
    assert_eq!(failed.status, 500, "{}", failed.text);
    assert!(
        failed.text.contains("hook \\\"seed\\\" failed"),
        "{}",
        failed.text
    );
    world.runtime.clear_faults();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        world.records().await.len() <= before,
        "nothing is left of it"
    );
    assert_eq!(client.post("/v2/sandboxes", ask()).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_client_chooses_an_image_where_the_server_lets_it() {
    let mut chosen = options();
    chosen.images = vec!["a.example/team/".into(), "nowhere.example".into()];
    let world = World::with(chosen).await;
    let client = world.client("a").await;
    // Room for the one that comes back beside the one that was made in its place.
    warm(&world, |spec| spec.max_idle = 2).await;
    let idle = world.records().await[0].uid();
    let of = |image: &str| {
        let mut body = ask();
        body["metadata"] = json!({"dormouse.dev/image": image});
        body
    };
    let reply = client
        .post("/v2/sandboxes", of("a.example/team/app:1"))
        .await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let runs = |world: &World| world.runtime.truth()[&idle].facts.images.clone();
    assert_eq!(runs(&world).get("main"), Some("a.example/team/app:1"));
    let ended = client.delete(&format!("/sandboxes/{}", reply.id())).await;
    assert_eq!(ended.status, 204, "{}", ended.text);
    world.settle().await;
    let all = world.records().await;
    assert!(
        all.iter().any(|s| s.uid() == idle),
        "it goes back: {all:#?}"
    );
    assert_eq!(runs(&world).get("main"), Some("base"), "what it idles on");

    let before = world.records().await;
    for (image, word) in [
        ("b.example/app:1", "e2b.images"),
        ("a.example/teams/app:1", "e2b.images"),
        (NO_IMAGE, "does not exist"),
        ("Not An Image", "write it as"),
    ] {
        let refused = client.post("/v2/sandboxes", of(image)).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        for part in ["metadata.dormouse.dev/image", word] {
            assert!(refused.text.contains(part), "{image}: {}", refused.text);
        }
    }
    assert_eq!(world.records().await, before, "nobody was taken for them");
    let cold =
        json!({"templateID": "base", "metadata": {"dormouse.dev/image": "a.example/team/b"}});
    let cold = client.post("/v2/sandboxes", cold).await;
    assert_eq!(cold.status, 201, "{}", cold.text);
}

#[tokio::test(start_paused = true)]
async fn what_was_made_is_found_by_its_key_while_no_registry_answers() {
    let mut chosen = options();
    chosen.images = vec!["a.example".into()];
    let world = World::with(chosen).await;
    let client = world.client("a").await;
    let mut body = json!({"templateID": "base", "timeout": 300});
    body["metadata"] = json!({"dormouse.dev/image": "a.example/app:1"});
    let keyed = async |key: &str| {
        let mut request = client.request("POST", "/v2/sandboxes", Some(&body));
        let headers = request.headers_mut();
        headers.insert("idempotency-key", key.parse().unwrap());
        client.send(request).await
    };
    let made = keyed("one").await;
    assert_eq!(made.status, 201, "{}", made.text);
    world.images.is_down.store(true, Ordering::Relaxed);
    let again = keyed("one").await;
    assert_eq!((again.status, again.id()), (201, made.id()));
    let other = keyed("two").await;
    assert_eq!(other.status, 503, "{}", other.text);
    assert_eq!(world.records().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_has_answered_is_not_called_asleep() {
    let world = World::new().await;
    let [client, other] = [world.client("a").await, world.client("b").await];
    let id = client.create(json!({"autoPause": true})).await;
    client.pause(&id).await;
    let mut sandbox = world.records().await.remove(0);
    sandbox.spec.desired_state = DesiredState::Running;
    // The intent is written, and what control sees then is not.
    allow(&world, 1);
    world.store.update_spec(&sandbox).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let inside = &world.runtime.truth()[&sandbox.uid()];
    assert_eq!(inside.facts.state, WorkloadState::Running);
    let (path, pause) = (format!("/sandboxes/{id}"), format!("/sandboxes/{id}/pause"));
    assert_eq!(client.get(&path).await.body["state"], "paused");
    world.unsaid.0.lock().push(sandbox.key());
    let others = other.get("/v2/sandboxes").await;
    assert_eq!(others.body, json!([]), "nobody else waits");
    let (found, running, ()) = tokio::join!(
        client.get(&path),
        client.get("/v2/sandboxes?state=running"),
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            world.store.faults().clear();
        }
    );
    assert_eq!(found.body["state"], "running");
    assert_eq!(running.body[0]["sandboxID"], json!(id), "{}", running.text);
    assert_eq!(client.post_nothing(&pause).await.status, 204);
    let record = world.records().await.remove(0);
    assert_eq!(record.status.sleeps.woken, 1, "each wake is in the record");
}
