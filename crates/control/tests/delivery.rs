//! From a member of a pool to a sandbox that its owner may hear of, and back, over a fake runtime.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

use std::{sync::Arc, time::Duration};

use control::{Builder, Control};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Digest, Epoch, Key, Metadata, Name, Namespace, Sandbox, SandboxClaim, SandboxId, SandboxPool,
    SandboxTemplate, Spec as _, StringMap,
    claim::{ClaimPhase, ClaimSpec},
    hook::Hook,
    lifecycle::Phase,
    pool::{PoolSpec, RecyclePolicy},
    sandbox::{Owner, SandboxSpec},
    template::TemplateSpec,
};
use plan::claim::{Ending, released};
use runtime::fake::{Call, CallFault, FakeRuntime, Inside, NO_IMAGE};
use store::{Query, StoreExt as _, memory::MemoryStore};
use tokio::time::Instant;

const FULL: &str = "full:1";
const LIGHT: &str = "light:1";

struct World {
    store: Arc<MemoryStore>,
    runtime: Arc<FakeRuntime>,
    _control: Control,
    _tasks: Tasks,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn team() -> Namespace {
    Namespace::new("team").unwrap()
}

fn images(main: &str) -> StringMap {
    [("main", main)].into_iter().collect()
}

impl World {
    /// A pool of one that idles on a light image, of a template with commands and a hook.
    async fn start() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::starting_at(1_000_000_000));
        let entropy = Arc::new(Entropy::seeded(1));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Arc::clone(&entropy)));
        let tasks = Tasks::default();
        let runtime = Arc::new(FakeRuntime::new(tasks.child()));
        let template = TemplateSpec {
            image: FULL.into(),
            start_command: vec!["/bin/serve".into()],
            hooks: vec![Hook::exec("seed", &["/bin/seed"])],
            ..TemplateSpec::default()
        };
        let template = SandboxTemplate::new(Metadata::new(None, name("full")), template);
        store.create_object(&template).await.unwrap();
        let pool = PoolSpec {
            idle_images: images(LIGHT),
            recycle_policy: RecyclePolicy::Recycle,
            ..PoolSpec::new(name("full"), 1, 1, 1)
        };
        let pool = SandboxPool::new(Metadata::new(Some(team()), name("pool")), pool);
        store.create_object(&pool).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let control = Builder::new(store.clone(), runtime.clone(), clock, entropy)
            .start(&tasks, deadline)
            .await
            .unwrap();
        let world = Self {
            store,
            runtime,
            _control: control,
            _tasks: tasks,
        };
        world.settle().await;
        world
    }

    async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(20)).await;
    }

    async fn member(&self) -> Sandbox {
        let query = Query::kind(SandboxSpec::KIND);
        let (mut all, _) = self.store.list_objects(&query).await.unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn inside(&self, member: &Sandbox) -> Inside {
        self.runtime.truth()[&member.uid()].clone()
    }

    /// A claim by this name for one member, and what becomes of it.
    async fn claim(&self, called: &str, images: StringMap) -> SandboxClaim {
        let spec = ClaimSpec {
            images,
            ..ClaimSpec::new(name("pool"))
        };
        let claim = SandboxClaim::new(Metadata::new(Some(team()), name(called)), spec);
        self.store.create_object(&claim).await.unwrap();
        self.settle().await;
        let key = Key::namespaced(ClaimSpec::KIND, team(), name(called));
        self.store.find(&key).await.unwrap().unwrap()
    }

    async fn release(&self) {
        let member = self.member().await;
        let back = released(&member, Ending::by_owner(model::Timestamp::from_micros(1)));
        self.store.update_spec(&back).await.unwrap();
        self.settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_idles_on_a_light_image_and_runs_its_templates_for_its_owner() {
    let world = World::start().await;
    let idle = world.member().await;
    assert_eq!(idle.status.phase, Phase::Idle);
    let inside = world.inside(&idle);
    assert_eq!(inside.facts.images, images(LIGHT));
    assert_eq!(
        (inside.boots, inside.hooks),
        (0, 0),
        "the light image need not have the template's commands"
    );
    for delivery in 1..3 {
        let claim = world.claim(&format!("c{delivery}"), StringMap::new()).await;
        assert_eq!(&*claim.status.reason, "Bound");
        let member = world.member().await;
        assert_eq!(member.status.phase, Phase::Running);
        let inside = world.inside(&member);
        assert_eq!(inside.facts.images, images(FULL));
        assert_eq!((inside.boots, inside.hooks), (delivery, delivery));
        world.release().await;
        let back = world.member().await;
        assert_eq!((back.uid(), back.status.phase), (idle.uid(), Phase::Idle));
        assert_eq!(world.inside(&back).facts.images, images(LIGHT));
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_runs_already_is_not_started_anew_and_hooks_run_all_the_same() {
    let world = World::start().await;
    let digest = Digest::new(format!("sha256:{:064x}", 7)).unwrap();
    let key = Key::namespaced(PoolSpec::KIND, team(), name("pool"));
    let mut pool: SandboxPool = world.store.find(&key).await.unwrap().unwrap();
    pool.spec.idle_images = images(&format!("light@{digest}"));
    world.store.update_spec(&pool).await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let idle = world.member().await;
    let before = world.inside(&idle);
    assert_eq!(before.facts.digests.get("main"), Some(&digest));
    let asked = images(&format!("another.example/name@{digest}"));
    world.claim("same", asked).await;
    let after = world.inside(&idle);
    assert_eq!(after.facts.container_id, before.facts.container_id);
    assert_eq!(after.hooks, 1);
    assert_eq!(world.member().await.status.phase, Phase::Running);
}

#[tokio::test(start_paused = true)]
async fn a_claim_for_an_image_that_is_not_there_says_so_and_takes_nobody() {
    let world = World::start().await;
    let idle = world.member().await;
    let claim = world.claim("hopeless", images(NO_IMAGE)).await;
    assert_eq!(claim.status.phase, ClaimPhase::Completed);
    for part in ["spec.images.main", NO_IMAGE] {
        assert!(
            claim.status.reason.contains(part),
            "{}",
            claim.status.reason
        );
    }
    assert!(claim.status.bound.is_empty());
    assert_eq!(world.member().await.spec, idle.spec, "nobody was taken");
    let next = world.claim("next", StringMap::new()).await;
    assert_eq!(&*next.status.reason, "Bound", "the pool goes on serving");
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_never_was_ready_is_forgotten_with_its_lease_and_replaced() {
    let world = World::start().await;
    let key = Key::namespaced(PoolSpec::KIND, team(), name("pool"));
    let mut pool: SandboxPool = world.store.find(&key).await.unwrap().unwrap();
    pool.spec.hooks = vec![Hook {
        required: true,
        ..Hook::exec("seed", &["/bin/other"])
    }];
    world.store.update_spec(&pool).await.unwrap();
    world.settle().await;
    let idle = world.member().await;
    world.runtime.on_call(|call, _| match call {
        Call::Hooks => CallFault::NeverReady,
        _ => CallFault::None,
    });
    world.claim("unlucky", StringMap::new()).await;
    let failed = world.member().await;
    assert_eq!(
        (failed.uid(), failed.status.phase),
        (idle.uid(), Phase::Stopped)
    );
    let why = &failed.status.stopped.as_ref().unwrap().message;
    assert!(why.contains("hook \"seed\" failed"), "{why}");
    assert!(world.runtime.truth().is_empty(), "nothing of it runs");
    world.runtime.clear_faults();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let next = world.member().await;
    assert_ne!(next.uid(), idle.uid());
    assert_eq!(next.status.phase, Phase::Idle, "the pool is filled again");
}

/// Beyond the number of workers.
const MANY: usize = 40;

#[tokio::test(start_paused = true)]
async fn claims_that_wait_for_a_registry_keep_nobody_else_waiting() {
    let world = World::start().await;
    world.runtime.on_call(|call, _| match call {
        Call::Pin => CallFault::Slow(Duration::from_secs(110)),
        _ => CallFault::None,
    });
    for number in 0..MANY {
        let spec = ClaimSpec {
            images: images("slow.example/name"),
            timeout_seconds: 600,
            ..ClaimSpec::new(name("pool"))
        };
        let meta = Metadata::new(Some(team()), name(&format!("slow{number}")));
        let claim = SandboxClaim::new(meta, spec);
        world.store.create_object(&claim).await.unwrap();
    }
    let other = world.claim("other", StringMap::new()).await;
    assert_eq!(&*other.status.reason, "Bound");
    world.release().await;
    tokio::time::sleep(Duration::from_secs(110)).await;
    let member = world.member().await;
    assert_eq!(
        member.spec.images.get("main"),
        Some("slow.example/name"),
        "who waited for the registry is served"
    );
}

/// A sandbox of its own, made from the template unless it names an image.
async fn own(world: &World, called: &str, image: Option<&str>) -> Sandbox {
    let spec = SandboxSpec {
        template: image.is_none().then(|| name("full")),
        images: image.map(images).unwrap_or_default(),
        owner: Some(Owner {
            team: team(),
            user: None,
            key: None,
        }),
        sandbox_id: Some(SandboxId::new(called).unwrap()),
        epoch: Epoch(1),
        ..SandboxSpec::default()
    };
    let sandbox = Sandbox::new(Metadata::new(Some(team()), name(called)), spec);
    world.store.create_object(&sandbox).await.unwrap()
}

async fn now(world: &World, sandbox: &Sandbox) -> Sandbox {
    world.store.find(&sandbox.key()).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn sandboxes_whose_commands_take_long_keep_nobody_else_waiting() {
    for slow in [Call::Hooks, Call::Boot] {
        let world = World::start().await;
        let long = Duration::from_millis(60_500);
        world.runtime.on_call(move |call, _| match call {
            call if call == slow => CallFault::Slow(long),
            _ => CallFault::None,
        });
        let mut waiting = Vec::new();
        for number in 0..MANY {
            waiting.push(own(&world, &format!("slow{number}"), None).await);
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let quick = own(&world, "quick", Some("base")).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(now(&world, &quick).await.status.phase, Phase::Running);
        for sandbox in &waiting {
            let phase = now(&world, sandbox).await.status.phase;
            assert_eq!(phase, Phase::Starting, "{slow:?}");
        }
        // Their end is heard of at once, not at the next look.
        tokio::time::sleep(Duration::from_millis(54_900)).await;
        for sandbox in &waiting {
            let phase = now(&world, sandbox).await.status.phase;
            assert_eq!(phase, Phase::Running, "{slow:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_template_goes_before_its_hooks_were_run_is_not_handed_out() {
    let world = World::start().await;
    world.runtime.on_call(|call, _| match call {
        Call::Boot => CallFault::Slow(Duration::from_secs(5)),
        _ => CallFault::None,
    });
    let sandbox = own(&world, "late", None).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let key = Key {
        kind: TemplateSpec::KIND,
        namespace: None,
        name: name("full"),
    };
    let template: SandboxTemplate = world.store.find(&key).await.unwrap().unwrap();
    world.store.delete_object(&template).await.unwrap();
    world.settle().await;
    let failed = now(&world, &sandbox).await;
    assert_eq!(failed.status.phase, Phase::Failed);
    let why = failed.status.last_operation.unwrap().error.unwrap();
    assert!(why.contains("template full does not exist"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_emptied_takes_no_hook_from_a_delivery_that_has_begun() {
    let world = World::start().await;
    world.runtime.on_call(|call, _| match call {
        Call::Boot => CallFault::Slow(Duration::from_secs(30)),
        _ => CallFault::None,
    });
    world.claim("begun", StringMap::new()).await;
    let key = Key {
        kind: TemplateSpec::KIND,
        namespace: None,
        name: name("full"),
    };
    let mut template: SandboxTemplate = world.store.find(&key).await.unwrap().unwrap();
    template.spec.hooks = Vec::new();
    world.store.update_spec(&template).await.unwrap();
    world.settle().await;
    let member = world.member().await;
    assert_eq!(member.status.phase, Phase::Running);
    assert_eq!(world.inside(&member).hooks, 1);
}
