//! A runtime in memory for tests and simulations.
//!
//! It keeps the promises of the port and nothing more: like a real one it forgets the fence of a
//! workload that is gone, goes on with a call whose caller has died, and can be told to be slow,
//! to fail before or after a call took effect, to let the effect happen long after the failure
//! was reported, and to lose a workload.

mod workload;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use kit::Tasks;
use model::{
    Digest, Epoch, Namespace, StringMap, Uid, sandbox::NetworkPolicy, template::ImagePullPolicy,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use workload::FakeWorkload;

use crate::{
    Abilities, Arming, BootFailure, Booting, Captured, Facts, FailedHook, Fence, Hooked, Keeps,
    Observed, Outfit, Publication, Runtime, RuntimeError, WorkloadSpec, WorkloadState,
};

/// The registry of a runtime that keeps layers in one.
const OWN_REGISTRY: &str = "fake.example/layers";
/// How long a call of [`Runtime::boot`] waits for what is slow.
const MOMENT: Duration = Duration::from_secs(1);

/// Which call of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Runtime::inspect`]
    Inspect,
    /// [`Runtime::list`]
    List,
    /// [`Runtime::create`]
    Create,
    /// [`Runtime::boot`]
    Boot,
    /// [`Runtime::arm`]
    Arm,
    /// [`Runtime::run_hooks`]
    Hooks,
    /// [`Runtime::freeze`]
    Freeze,
    /// [`Runtime::thaw`]
    Thaw,
    /// [`Runtime::swap_images`]
    Swap,
    /// [`Runtime::pin`]
    Pin,
    /// [`Runtime::set_network`]
    Network,
    /// [`Runtime::capture`]
    Capture,
    /// [`Runtime::publish`]
    Publish,
    /// [`Runtime::reset`]
    Reset,
    /// [`Runtime::delete`]
    Delete,
}

/// What to do to one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallFault {
    /// Nothing.
    #[default]
    None,
    /// Take this long.
    Slow(Duration),
    /// Fail it without effect.
    FailBefore,
    /// Let it take effect, then fail it.
    FailAfter,
    /// Fail it at once; it takes effect this much later all the same.
    EffectLater(Duration),
    /// Leave it half-done: what is there can only be removed.
    HalfWay,
    /// Its commands never bring it up, its hooks never succeed. Of any other call: fail it without
    /// effect.
    NeverReady,
}

type Hook = Box<dyn FnMut(Call, Option<Uid>) -> CallFault + Send>;

/// The runtime.
pub struct FakeRuntime {
    inner: Arc<Inner>,
    registry: FakeRegistry,
    abilities: Abilities,
    /// Owns what goes on after a caller has left.
    tasks: Tasks,
}

/// A registry in memory, which several runtimes may share: by their images, which deliveries left
/// traces in published layers.
#[derive(Clone, Debug, Default)]
pub struct FakeRegistry(Arc<Mutex<Layers>>);

type Layers = BTreeMap<Box<str>, (Digest, Vec<Epoch>)>;

impl FakeRegistry {
    fn traces_in(&self, digest: &Digest) -> Option<Vec<Epoch>> {
        let layers = self.0.lock();
        let found = layers.values().find(|(layer, _)| layer == digest);
        found.map(|(_, traces)| traces.clone())
    }
}

#[derive(Default)]
struct Inner {
    world: Mutex<World>,
    hook: Mutex<Option<Hook>>,
}

#[derive(Default)]
struct World {
    workloads: BTreeMap<Uid, FakeWorkload>,
    /// Captured layers: which deliveries left traces in them.
    layers: BTreeMap<Digest, Vec<Epoch>>,
    containers: u64,
}

impl std::fmt::Debug for FakeRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let world = self.inner.world.lock();
        f.debug_struct("FakeRuntime")
            .field("workloads", &world.workloads)
            .finish_non_exhaustive()
    }
}

/// What a checker may know of a workload.
#[derive(Clone, Debug)]
pub struct Inside {
    /// What it does and is armed for.
    pub facts: Facts,
    /// Whether it is half-made or half-removed.
    pub partial: bool,
    /// Deliveries whose traces are inside.
    pub traces: Vec<Epoch>,
    /// How often it was thawed.
    pub thaws: u64,
    /// How often its commands have brought it up.
    pub boots: u64,
    /// How often hooks were run in it.
    pub hooks: u64,
}

impl FakeRuntime {
    /// A runtime with nothing in it; `tasks` owns what goes on after a caller has left.
    #[must_use]
    pub fn new(tasks: Tasks) -> Self {
        Self {
            inner: Arc::default(),
            registry: FakeRegistry::default(),
            abilities: Abilities::ALL,
            tasks,
        }
    }

    /// That can do no more than this.
    #[must_use]
    pub fn able(mut self, abilities: Abilities) -> Self {
        self.abilities = abilities;
        self
    }

    /// With a registry that others may share.
    #[must_use]
    pub fn with_registry(mut self, registry: FakeRegistry) -> Self {
        self.registry = registry;
        self
    }

    /// Asks `decide` what to do to each call.
    pub fn on_call(&self, decide: impl FnMut(Call, Option<Uid>) -> CallFault + Send + 'static) {
        *self.inner.hook.lock() = Some(Box::new(decide));
    }

    /// Stops misbehaving.
    pub fn clear_faults(&self) {
        *self.inner.hook.lock() = None;
    }

    /// Loses a workload, as a crash of the host would. Returns whether there was one.
    pub fn lose(&self, uid: Uid) -> bool {
        self.inner.world.lock().workloads.remove(&uid).is_some()
    }

    /// Ends the first process of a workload.
    pub fn exit(&self, uid: Uid, code: i32) {
        if let Some(workload) = self.inner.world.lock().workloads.get_mut(&uid) {
            workload.facts.state = WorkloadState::Exited { code };
        }
    }

    /// Restarts the host: every process is gone, every file is there.
    pub fn restart_host(&self) {
        for workload in self.inner.world.lock().workloads.values_mut() {
            if !matches!(workload.facts.state, WorkloadState::Exited { .. }) {
                workload.facts.state = WorkloadState::Cut;
            }
        }
    }

    /// Everything there is, whatever the faults: for checkers.
    #[must_use]
    pub fn truth(&self) -> BTreeMap<Uid, Inside> {
        let world = self.inner.world.lock();
        let inside = |w: &FakeWorkload| Inside {
            facts: w.facts.clone(),
            partial: w.partial,
            traces: w.traces.clone(),
            thaws: w.thaws,
            boots: w.started,
            hooks: w.hooks,
        };
        world
            .workloads
            .iter()
            .map(|(uid, w)| (*uid, inside(w)))
            .collect()
    }

    /// The deliveries whose traces are in a captured layer, if it is there.
    #[must_use]
    pub fn traces_in(&self, digest: &Digest) -> Option<Vec<Epoch>> {
        let here = self.inner.world.lock().layers.get(digest).cloned();
        here.or_else(|| self.registry.traces_in(digest))
    }

    /// What a workload is now, whatever the faults; nothing if it is not whole.
    #[must_use]
    pub fn facts(&self, uid: Uid) -> Option<Facts> {
        let world = self.inner.world.lock();
        let whole = world.workloads.get(&uid).filter(|w| !w.partial)?;
        Some(whole.facts.clone())
    }

    /// Whether a captured layer is there.
    #[must_use]
    pub fn has_layer(&self, digest: &Digest) -> bool {
        self.traces_in(digest).is_some()
    }

    fn fault(&self, call: Call, uid: Option<Uid>) -> CallFault {
        self.inner
            .hook
            .lock()
            .as_mut()
            .map_or(CallFault::None, |decide| decide(call, uid))
    }

    /// A call that only looks has no effect to happen half-way or late.
    async fn look(&self, call: Call, uid: Option<Uid>) -> Result<(), RuntimeError> {
        match self.fault(call, uid) {
            CallFault::None => Ok(()),
            CallFault::Slow(by) => {
                tokio::time::sleep(by).await;
                Ok(())
            }
            CallFault::FailBefore
            | CallFault::FailAfter
            | CallFault::EffectLater(_)
            | CallFault::HalfWay
            | CallFault::NeverReady => Err(RuntimeError::Failed(
                format!("injected failure of {call:?}").into(),
            )),
        }
    }

    /// Runs one call under its fault. The effect belongs to the runtime, not to the caller: it
    /// happens even if the caller stops waiting.
    async fn perform<T: Send + 'static>(
        &self,
        call: Call,
        fence: Fence,
        effect: impl FnOnce(&mut World) -> Result<T, RuntimeError> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let fault = self.fault(call, Some(fence.uid));
        self.perform_under(fault, call, fence, effect).await
    }

    async fn perform_under<T: Send + 'static>(
        &self,
        fault: CallFault,
        call: Call,
        fence: Fence,
        effect: impl FnOnce(&mut World) -> Result<T, RuntimeError> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let inner = Arc::clone(&self.inner);
        let run = move || {
            let mut world = inner.world.lock();
            world.admit(fence)?;
            effect(&mut world)
        };
        let failed = || RuntimeError::Failed(format!("injected failure of {call:?}").into());
        match fault {
            CallFault::None => run(),
            CallFault::FailBefore | CallFault::NeverReady => Err(failed()),
            CallFault::FailAfter => run().and_then(|_| Err(failed())),
            CallFault::Slow(by) => {
                let slow = self.tasks.spawn(async move {
                    tokio::time::sleep(by).await;
                    run()
                });
                slow.await.unwrap_or_else(|_| Err(failed()))
            }
            CallFault::EffectLater(by) => {
                self.tasks.spawn(async move {
                    tokio::time::sleep(by).await;
                    // Nobody is left to tell.
                    let _ = run();
                });
                Err(failed())
            }
            CallFault::HalfWay => {
                let mut world = self.inner.world.lock();
                world.admit(fence)?;
                world.break_half_way(call, fence);
                Err(failed())
            }
        }
    }
}

impl World {
    fn admit(&mut self, fence: Fence) -> Result<(), RuntimeError> {
        let Some(workload) = self.workloads.get_mut(&fence.uid) else {
            return Ok(());
        };
        if fence.rank() < workload.fence {
            return Err(RuntimeError::Stale(fence));
        }
        workload.fence = fence.rank();
        Ok(())
    }

    fn find(&mut self, uid: Uid) -> Result<&mut FakeWorkload, RuntimeError> {
        let workload = self
            .workloads
            .get_mut(&uid)
            .ok_or(RuntimeError::Absent(uid))?;
        if workload.partial {
            return Err(RuntimeError::WrongState {
                uid,
                state: "half-made",
                needs: "delete it",
            });
        }
        match workload.facts.state {
            WorkloadState::Running | WorkloadState::Frozen => Ok(workload),
            WorkloadState::Cut => Err(RuntimeError::WrongState {
                uid,
                state: "cut off",
                needs: "capture or delete it",
            }),
            WorkloadState::Exited { .. } => Err(RuntimeError::WrongState {
                uid,
                state: "exited",
                needs: "delete it",
            }),
        }
    }

    fn find_awake(&mut self, uid: Uid) -> Result<&mut FakeWorkload, RuntimeError> {
        let workload = self.find(uid)?;
        if workload.facts.state == WorkloadState::Frozen {
            return Err(RuntimeError::WrongState {
                uid,
                state: "frozen",
                needs: "thaw it",
            });
        }
        Ok(workload)
    }

    /// Only making and removing have a half-way; the other calls happen or do not.
    fn break_half_way(&mut self, call: Call, fence: Fence) {
        match call {
            Call::Create => {
                let spec = WorkloadSpec::default();
                self.workloads
                    .entry(fence.uid)
                    .or_insert_with(|| FakeWorkload {
                        partial: true,
                        ..FakeWorkload::new(fence, &spec, 0, Vec::new())
                    });
            }
            Call::Delete => {
                if let Some(workload) = self.workloads.get_mut(&fence.uid) {
                    workload.partial = true;
                }
            }
            Call::Inspect
            | Call::List
            | Call::Boot
            | Call::Arm
            | Call::Hooks
            | Call::Freeze
            | Call::Thaw
            | Call::Swap
            | Call::Pin
            | Call::Network
            | Call::Capture
            | Call::Publish
            | Call::Reset => {}
        }
    }
}

/// No registry has this image.
pub const NO_IMAGE: &str = "nowhere.example/missing:1";

fn is_there(images: &StringMap) -> Result<(), RuntimeError> {
    match images.iter().find(|(_, image)| *image == NO_IMAGE) {
        None => Ok(()),
        Some((_, image)) => Err(RuntimeError::Impossible {
            field: "images",
            reason: format!("{image} does not exist").into(),
        }),
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn inspect(&self, uid: Uid) -> Result<Observed, RuntimeError> {
        self.look(Call::Inspect, Some(uid)).await?;
        let world = self.inner.world.lock();
        Ok(world
            .workloads
            .get(&uid)
            .map_or(Observed::Absent, FakeWorkload::observed))
    }

    async fn list(&self) -> Result<Vec<(Uid, Observed)>, RuntimeError> {
        self.look(Call::List, None).await?;
        let world = self.inner.world.lock();
        Ok(world
            .workloads
            .iter()
            .map(|(uid, workload)| (*uid, workload.observed()))
            .collect())
    }

    async fn create(&self, fence: Fence, spec: &WorkloadSpec) -> Result<Facts, RuntimeError> {
        let (spec, registry) = (spec.clone(), self.registry.clone());
        self.perform(Call::Create, fence, move |world| {
            if world.workloads.contains_key(&fence.uid) {
                return world.find(fence.uid).map(|workload| workload.facts.clone());
            }
            is_there(&spec.images)?;
            if let (Some(layer), Some(from)) = (&spec.from, &spec.published)
                && let Some((digest, traces)) = registry.0.lock().get(&from.image)
                && digest == layer
            {
                world.layers.insert(layer.clone(), traces.clone());
            }
            let traces =
                match &spec.from {
                    None => Vec::new(),
                    Some(layer) => world.layers.get(layer).cloned().ok_or_else(|| {
                        RuntimeError::Impossible {
                            field: "snapshot",
                            reason: format!("layer {layer} does not exist").into(),
                        }
                    })?,
                };
            world.containers += 1;
            let workload = FakeWorkload::new(fence, &spec, world.containers, traces);
            let facts = workload.facts.clone();
            world.workloads.insert(fence.uid, workload);
            Ok(facts)
        })
        .await
    }

    async fn boot(&self, fence: Fence) -> Result<Booting, RuntimeError> {
        let up = move |world: &mut World| {
            let workload = world.find_awake(fence.uid)?;
            workload.come_up();
            Ok(Booting::Done)
        };
        let slow = match self.fault(Call::Boot, Some(fence.uid)) {
            CallFault::Slow(by) => by,
            CallFault::NeverReady => {
                return Err(RuntimeError::NotReady {
                    failure: BootFailure::Deadline,
                    detail: "injected".into(),
                });
            }
            fault => return self.perform_under(fault, Call::Boot, fence, up).await,
        };
        let up_at = {
            let mut world = self.inner.world.lock();
            world.admit(fence)?;
            let workload = world.find_awake(fence.uid)?;
            *workload.up_at.get_or_insert_with(|| Instant::now() + slow)
        };
        tokio::time::sleep_until(up_at.min(Instant::now() + MOMENT)).await;
        if Instant::now() < up_at {
            return Ok(Booting::UnderWay);
        }
        let mut world = self.inner.world.lock();
        world.admit(fence)?;
        up(&mut world)
    }

    async fn arm(&self, fence: Fence, arming: &Arming) -> Result<(), RuntimeError> {
        let epoch = arming.epoch;
        self.perform(Call::Arm, fence, move |world| {
            let workload = world.find_awake(fence.uid)?;
            workload.facts.epoch = epoch;
            workload.writes += 1;
            if !workload.traces.contains(&epoch) {
                workload.traces.push(epoch);
            }
            Ok(())
        })
        .await
    }

    async fn run_hooks(
        &self,
        fence: Fence,
        hooks: &[model::hook::Hook],
    ) -> Result<Booting, RuntimeError> {
        let fault = self.fault(Call::Hooks, Some(fence.uid));
        let fails = fault == CallFault::NeverReady;
        if let Some(hook) = hooks.iter().find(|hook| hook.required && fails) {
            return Err(RuntimeError::HookFailed {
                hook: hook.name.clone(),
                detail: "it never answers".into(),
            });
        }
        let fault = if fails { CallFault::None } else { fault };
        let failed = hooks.iter().filter(|_| fails).map(|hook| FailedHook {
            name: hook.name.clone(),
            why: "it never answers".into(),
        });
        let failed = failed.collect();
        self.perform_under(fault, Call::Hooks, fence, move |world| {
            let workload = world.find_awake(fence.uid)?;
            let epoch = workload.facts.epoch;
            if workload
                .facts
                .hooked
                .as_ref()
                .is_none_or(|it| it.epoch != epoch)
            {
                workload.hooks += 1;
                workload.facts.hooked = Some(Hooked { epoch, failed });
            }
            Ok(Booting::Done)
        })
        .await
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    async fn freeze(&self, fence: Fence) -> Result<(), RuntimeError> {
        let can = self.abilities.freeze;
        self.perform(Call::Freeze, fence, move |world| {
            let workload = world.find(fence.uid)?;
            if !can {
                return Err(RuntimeError::Impossible {
                    field: "pausePolicy.snapshotType",
                    reason: "this runtime cannot freeze".into(),
                });
            }
            workload.facts.state = WorkloadState::Frozen;
            Ok(())
        })
        .await
    }

    async fn thaw(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.perform(Call::Thaw, fence, move |world| {
            let workload = world.find(fence.uid)?;
            if workload.facts.state == WorkloadState::Frozen {
                workload.thaws += 1;
            }
            workload.facts.state = WorkloadState::Running;
            Ok(())
        })
        .await
    }

    async fn swap_images(&self, fence: Fence, to: &Outfit) -> Result<Facts, RuntimeError> {
        let to = to.clone();
        self.perform(Call::Swap, fence, move |world| {
            is_there(&to.images)?;
            world.containers += 1;
            let container = world.containers;
            let workload = world.find(fence.uid)?;
            workload.wear(to, container);
            workload.go_down();
            Ok(workload.facts.clone())
        })
        .await
    }

    async fn set_network(
        &self,
        fence: Fence,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError> {
        let policy = policy.cloned().map(Box::new);
        self.perform(Call::Network, fence, move |world| {
            world.find(fence.uid)?.facts.network = policy;
            Ok(())
        })
        .await
    }

    async fn capture(
        &self,
        fence: Fence,
        to: Option<&Publication>,
    ) -> Result<Captured, RuntimeError> {
        let (abilities, registry) = (self.abilities, self.registry.clone());
        let to = to.map(|to| to.registry.clone());
        self.perform(Call::Capture, fence, move |world| {
            let workload = match world.workloads.get_mut(&fence.uid) {
                Some(cut) if cut.facts.state == WorkloadState::Cut && !cut.partial => cut,
                Some(_) | None => world.find(fence.uid)?,
            };
            if workload.facts.state == WorkloadState::Running && abilities.freeze {
                let (uid, state) = (fence.uid, "running");
                return Err(RuntimeError::WrongState {
                    uid,
                    state,
                    needs: "freeze it",
                });
            }
            let to = match (abilities.keeps, to) {
                (Keeps::Here, _) => None,
                (Keeps::InRegistry | Keeps::Nowhere, Some(to)) => Some(to),
                (Keeps::InRegistry, None) => Some(OWN_REGISTRY.into()),
                (Keeps::Nowhere, None) => {
                    return Err(RuntimeError::Impossible {
                        field: "snapshotRegistry",
                        reason: "this runtime keeps no layers: name a registry".into(),
                    });
                }
            };
            if workload.facts.state == WorkloadState::Running {
                workload.facts.state = WorkloadState::Frozen;
            }
            let content = fence.uid.to_u128() ^ u128::from(workload.writes);
            let digest = Digest::new(format!("sha256:{:032x}{content:032x}", 0))
                .map_err(|e| RuntimeError::Failed(e.to_string().into()))?;
            let mut captured = Captured {
                digest: digest.clone(),
                size: workload.writes * 4096,
                parent: workload.facts.layer.clone(),
                published: None,
            };
            let traces = workload.traces.clone();
            match to {
                None => {
                    world.layers.insert(digest, traces);
                }
                Some(to) => {
                    let image: Box<str> = format!("{to}@{digest}").into();
                    captured.published = Some(image.clone());
                    registry.0.lock().insert(image, (digest, traces));
                }
            }
            Ok(captured)
        })
        .await
    }

    async fn publish(&self, layer: &Digest, to: &Publication) -> Result<Box<str>, RuntimeError> {
        self.look(Call::Publish, None).await?;
        let traces = self.inner.world.lock().layers.get(layer).cloned();
        let traces = traces.ok_or_else(|| RuntimeError::Impossible {
            field: "snapshot",
            reason: format!("layer {layer} does not exist").into(),
        })?;
        let image: Box<str> = format!("{}@{layer}", to.registry).into();
        let published = (layer.clone(), traces);
        self.registry.0.lock().insert(image.clone(), published);
        Ok(image)
    }

    async fn pin(
        &self,
        _: &Namespace,
        image: &str,
        _: ImagePullPolicy,
    ) -> Result<Box<str>, RuntimeError> {
        self.look(Call::Pin, None).await?;
        is_there(&[("main", image)].into_iter().collect())?;
        Ok(image.into())
    }

    async fn reset(&self, fence: Fence, to: Option<&Outfit>) -> Result<(), RuntimeError> {
        let to = to.cloned();
        self.perform(Call::Reset, fence, move |world| {
            world.containers += 1;
            let container = world.containers;
            let workload = world.find(fence.uid)?;
            if let Some(to) = to {
                workload.wear(to, container);
            }
            workload.facts.state = WorkloadState::Running;
            workload.facts.epoch = Epoch::default();
            workload.traces.clear();
            workload.facts.layer = None;
            workload.go_down();
            Ok(())
        })
        .await
    }

    async fn delete(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.perform(Call::Delete, fence, move |world| {
            world.workloads.remove(&fence.uid);
            Ok(())
        })
        .await
    }
}
