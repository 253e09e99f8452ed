//! The port: each call runs its verb on a thread that may block, and goes on there even if its
//! caller has left. Looking at a sandbox that lives and thawing it wait for nobody and write at most
//! a few bytes that need not be durable, and a request that wakes its sandbox waits for them: they
//! are done at once, on the caller's thread.

use std::{os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use ::network::Network;
use ::runtime::{
    Arming, Booting, Captured, Facts, Family, Fence, Inside, Observed, Outfit, Publication,
    Runtime, RuntimeError, WorkloadSpec,
};
use async_trait::async_trait;
use images::{ImageConfig, InUse, Origin, Store, Sweep, Swept};
use model::{
    Digest, Namespace, StringMap, Uid, hook::Hook, sandbox::NetworkPolicy,
    template::ImagePullPolicy,
};

use tokio::sync::RwLock;

use crate::{
    base::BASE,
    boot,
    engine::Engine,
    error::{EngineError, Result},
    hook,
    look::Look,
    options::Options,
    output::OutputLine,
    usage::{DiskUsage, Usage},
};

/// How long what is done with images may take to end when they are left to another process.
const IMAGES: Duration = Duration::from_secs(5);

/// Sandboxes on this host.
#[derive(Debug, Clone)]
pub struct LocalRuntime(Arc<Engine>, Arc<Calls>);

/// Held by each call until it is done; true once the sandboxes are another's.
type Calls = RwLock<bool>;

impl LocalRuntime {
    /// Opens the engine of a data directory, and adopts the sandboxes that are there. One process
    /// at a time may have it open; the caller sees to that.
    ///
    /// # Errors
    /// If this host lacks something that every sandbox needs; the message names it.
    pub fn open(data_dir: impl AsRef<Path>, options: Options) -> Result<Self, EngineError> {
        let engine = Engine::open(data_dir.as_ref(), options)?;
        Ok(Self(Arc::new(engine), Arc::default()))
    }

    /// Leaves the sandboxes to another process: waits for the calls under way, and refuses all that
    /// come later. Sockets into sandboxes can still be had.
    pub async fn hand_over(&self) {
        self.0.tasks.stopping().cancel();
        self.0.images.stop();
        *self.1.write().await = true;
        if !self.0.images.close(IMAGES).await {
            tracing::warn!(
                "images are in use here still: none is removed before this process ends"
            );
        }
        if let Some(Err(error)) = self.0.network.as_ref().map(Network::let_go) {
            tracing::warn!(%error, "the policy table is given up only when this process ends");
        }
        // Never dropped: what it would tidy up is in use by the other.
        std::mem::forget(Arc::clone(&self.0));
    }

    /// The process on the host that is PID 1 of a sandbox, while it lives. Its namespaces are the
    /// sandbox's.
    #[must_use]
    pub fn first_process(&self, uid: Uid) -> Option<i32> {
        let slot = self.0.slot(uid)?;
        let seen = slot.seen.lock();
        Some(seen.as_ref()?.process.as_ref()?.id.pid)
    }

    /// What a sandbox uses now, read from a few small files; nothing if it does not run or is
    /// frozen.
    #[must_use]
    pub fn usage(&self, uid: Uid) -> Option<Usage> {
        self.0.usage(uid)
    }

    /// What a sandbox has written. It takes time with the number of its files.
    ///
    /// # Errors
    /// If it could not be looked for at all.
    pub async fn disk_usage(&self, uid: Uid) -> Result<Option<DiskUsage>, RuntimeError> {
        self.run(move |engine| Ok(engine.disk_usage(uid))).await
    }

    /// The last of what the start command of a sandbox has said, oldest first; nothing if it has
    /// none.
    ///
    /// # Errors
    /// If it could not be looked for at all.
    pub async fn output(&self, uid: Uid) -> Result<Vec<OutputLine>, RuntimeError> {
        self.run(move |engine| Ok(engine.output(uid))).await
    }

    /// The images of this host.
    #[must_use]
    pub fn images(&self) -> &Store {
        &self.0.images
    }

    /// What the root of a sandbox lies on, by digest where it is an image.
    #[must_use]
    pub fn origin(&self, uid: Uid) -> Option<Origin> {
        self.0.origin(uid)
    }

    /// What the image of a sandbox says about the processes in it; none if its root is no image.
    #[must_use]
    pub fn image_config(&self, uid: Uid) -> Option<ImageConfig> {
        self.0.image_config(uid)
    }

    /// What a sandbox looks like from outside now.
    ///
    /// # Errors
    /// If there is none that runs, or the kernel does not say.
    pub async fn look(&self, uid: Uid) -> Result<Look, RuntimeError> {
        self.run(move |engine| engine.look_at(uid)).await
    }

    /// What sandboxes of `base` lie on now, if this host can have them.
    #[must_use]
    pub fn base_origin(&self) -> Option<Origin> {
        self.0
            .find_image(&[("main", BASE)].into_iter().collect())
            .ok()
            .map(|image| image.origin)
    }

    /// Removes images and captured layers that nothing leads to, or says which it would remove.
    /// `used` is what records speak of; what sandboxes on disk need is added to it.
    ///
    /// # Errors
    /// If another process has the images open, a sandbox's record is damaged, or the disk fails.
    pub async fn sweep_images(&self, how: Sweep, used: InUse) -> Result<Swept, RuntimeError> {
        self.run(move |engine| Ok(engine.sweep_images(how, used)?))
            .await
    }

    async fn run<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let engine = Arc::clone(&self.0);
        let under_way = Arc::clone(&self.1).read_owned().await;
        if *under_way {
            return Err(handed_over());
        }
        let verb = move || {
            let done = verb(&engine);
            drop(under_way);
            done
        };
        match tokio::task::spawn_blocking(verb).await {
            Ok(result) => result.map_err(RuntimeError::from),
            Err(error) => Err(RuntimeError::Failed(error.to_string().into())),
        }
    }
}

#[async_trait]
impl Runtime for LocalRuntime {
    async fn inspect(&self, uid: Uid) -> Result<Observed, RuntimeError> {
        match self.0.inspect_at_once(uid) {
            Some(observed) => Ok(observed),
            None => self.run(move |engine| Ok(engine.inspect(uid))).await,
        }
    }

    async fn list(&self) -> Result<Vec<(Uid, Observed)>, RuntimeError> {
        self.run(|engine| Ok(engine.list())).await
    }

    async fn create(&self, fence: Fence, spec: &WorkloadSpec) -> Result<Facts, RuntimeError> {
        let spec = spec.clone();
        // One that is there keeps what it has.
        let pinned = match self.0.slot(fence.uid) {
            Some(_) => None,
            None => {
                let fetched = self.0.fetch_layer(&spec).await?;
                let (images, from) = (&spec.images, spec.from.as_ref());
                Some((self.0.ensure_image(images, spec.pull, from).await?, fetched))
            }
        };
        self.run(move |engine| {
            let created = engine.create(fence, &spec);
            drop(pinned);
            created
        })
        .await
    }

    async fn boot(&self, fence: Fence) -> Result<Booting, RuntimeError> {
        let engine = Arc::clone(&self.0);
        let begun = self.run(move |_| boot::begin(&engine, fence)).await?;
        let Some(under_way) = begun else {
            return Ok(Booting::Done);
        };
        if under_way.clone().wait().await?.is_none() {
            return Ok(Booting::UnderWay);
        }
        self.run(move |engine| engine.note_up(fence.uid, &under_way))
            .await?;
        Ok(Booting::Done)
    }

    async fn arm(&self, fence: Fence, arming: &Arming) -> Result<(), RuntimeError> {
        let arming = arming.clone();
        self.run(move |engine| engine.arm(fence, &arming)).await
    }

    async fn freeze(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.run(move |engine| engine.freeze(fence)).await
    }

    async fn thaw(&self, fence: Fence) -> Result<(), RuntimeError> {
        let at_once = match self.1.try_read() {
            Ok(handed_over) if !*handed_over => self.0.thaw_at_once(fence),
            Ok(_) | Err(_) => None,
        };
        match at_once {
            Some(thawed) => Ok(thawed?),
            None => self.run(move |engine| engine.thaw(fence)).await,
        }
    }

    async fn run_hooks(&self, fence: Fence, hooks: &[Hook]) -> Result<Booting, RuntimeError> {
        let (engine, hooks) = (Arc::clone(&self.0), hooks.to_vec());
        let begun = self
            .run(move |_| hook::begin(&engine, fence, hooks))
            .await?;
        let Some(under_way) = begun else {
            return Ok(Booting::Done);
        };
        let Some(failed) = under_way.0.clone().wait().await? else {
            return Ok(Booting::UnderWay);
        };
        self.run(move |engine| engine.note_hooked(fence.uid, &under_way, failed))
            .await
    }

    async fn pin(
        &self,
        _: &Namespace,
        image: &str,
        pull: ImagePullPolicy,
    ) -> Result<Box<str>, RuntimeError> {
        if image == BASE || self.0.options.images.contains_key(image) {
            return Ok(image.into());
        }
        let pinned = self.0.images.pin(image, pull).await;
        Ok(pinned.map_err(EngineError::from)?)
    }

    fn missing(&self, images: &StringMap) -> Option<Box<str>> {
        self.0.missing_image(images)
    }

    async fn swap_images(&self, fence: Fence, to: &Outfit) -> Result<Facts, RuntimeError> {
        let to = to.clone();
        let pinned = self.0.ensure_image(&to.images, to.pull, None).await?;
        self.run(move |engine| {
            let swapped = engine.swap_images(fence, &to);
            drop(pinned);
            swapped
        })
        .await
    }

    async fn set_network(
        &self,
        fence: Fence,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError> {
        let policy = policy.cloned();
        self.run(move |engine| engine.set_network(fence, policy))
            .await
    }

    async fn capture(
        &self,
        fence: Fence,
        _: Option<&Publication>,
    ) -> Result<Captured, RuntimeError> {
        self.run(move |engine| engine.capture(fence)).await
    }

    async fn publish(&self, layer: &Digest, to: &Publication) -> Result<Box<str>, RuntimeError> {
        Ok(self.0.publish(layer, to).await?)
    }

    async fn reset(&self, fence: Fence, to: Option<&Outfit>) -> Result<(), RuntimeError> {
        let to = to.cloned();
        // What it has already need not be found by its name.
        let other = to
            .as_ref()
            .filter(|to| !self.0.wears(fence.uid, &to.images));
        let pinned = match other {
            Some(to) => self.0.ensure_image(&to.images, to.pull, None).await?,
            None => None,
        };
        self.run(move |engine| {
            let done = engine.reset(fence, to.as_ref());
            drop(pinned);
            done
        })
        .await
    }

    async fn delete(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.run(move |engine| engine.delete(fence)).await
    }
}

fn handed_over() -> RuntimeError {
    RuntimeError::Failed("the sandboxes of this host were handed over to another process".into())
}

impl Inside for LocalRuntime {
    fn socket(&self, uid: Uid, family: Family) -> Result<OwnedFd, RuntimeError> {
        Ok(self.0.socket(uid, family)?)
    }
}
