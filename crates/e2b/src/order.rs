//! What a request for a sandbox asks for, checked, before anything is written.

use std::{sync::Arc, time::Duration};

use auth::Caller;
use model::{
    Epoch, Metadata, Name, Sandbox, SandboxId, SandboxPool, StringMap, Timestamp,
    pool::{PoolSpec, WhenEmpty},
    sandbox::{
        IdleAction, Lease, NetworkPolicy, OnTimeout, Owner, PausePolicy, SANDBOX_FINALIZER,
        SandboxSpec, SnapshotType, Timeouts,
    },
    validate::{Problems, Rules as _},
};
use plan::{
    claim::{Delivery, claimed, delivered_hooks, delivered_images},
    snapshot::MAIN_CONTAINER,
};

use crate::{
    egress,
    extension::{self, Extensions, Idle},
    idempotency::{self, Token},
    names::Meant,
    ports::ImageProblem,
    refusal::Refusal,
    rung,
    service::E2b,
    snapshots::Start,
    wire::NewSandbox,
};

/// How much longer a lease is than the request that took it waits.
const AFTERMATH: Duration = Duration::from_secs(5);

/// Which version of a route was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edition {
    First,
    Second,
}

impl Edition {
    /// Seconds that a sandbox has whose request names no timeout.
    pub(crate) const fn default_timeout(self) -> u32 {
        match self {
            Self::First => 15,
            Self::Second => 300,
        }
    }
}

/// A sandbox as it was ordered.
#[derive(Debug)]
pub(crate) struct Order {
    meant: Meant,
    owner: Owner,
    env: StringMap,
    metadata: StringMap,
    network: Option<Box<NetworkPolicy>>,
    pause_policy: Option<Box<PausePolicy>>,
    timeouts: Timeouts,
    wake_on_traffic: bool,
    secure: bool,
    /// How long it has; none for ever.
    pub(crate) lasts: Option<Duration>,
    /// How long it may take to be ready, a wait in line included.
    pub(crate) startup: Duration,
    /// Pools a member of which would do.
    pub(crate) pools: Vec<Arc<SandboxPool>>,
    /// The image it runs instead of its template's.
    pub(crate) image: Option<Box<str>>,
    pub(crate) token: Option<Token>,
}

impl Order {
    /// Reads a request.
    pub(crate) fn read(
        api: &E2b,
        caller: &Caller,
        request: NewSandbox,
        edition: Edition,
        token: Option<Token>,
    ) -> Result<Self, Refusal> {
        refuse_unbuilt(&request, edition)?;
        let default = api.options.default_template.as_str();
        let asked = request.template_id.as_deref().unwrap_or(default);
        let meant = api.meant(&caller.team, asked)?;
        let metadata: StringMap = request.metadata.into_iter().flatten().collect();
        let extensions = Extensions::read(&metadata, api.options.filesystem_pause)?;
        let pools = match &meant.pool {
            Some(pool) => vec![Arc::clone(pool)],
            None if meant.start.is_some() => Vec::new(),
            None => api.pools_of(&caller.team, &meant.template),
        };
        let pool_default = meant.pool.as_ref().map(|p| p.spec.default_timeouts);
        let seconds = match request.timeout {
            Some(asked) => timeout(api, caller, asked, 1)?,
            None => pool_default
                .and_then(|t| t.seconds)
                .unwrap_or(edition.default_timeout()),
        };
        let auto_pause = request.auto_pause.unwrap_or(false);
        let auto_resume = request.auto_resume.is_some_and(|a| a.enabled);
        if auto_resume && !auto_pause {
            let why = "a sandbox that ends at its timeout cannot be woken: set autoPause too";
            return Err(Refusal::bad_field("autoResume", why));
        }
        let pause_policy = pause_policy(
            api,
            &meant,
            request.auto_pause_memory,
            auto_pause,
            auto_resume,
            extensions.descend_after,
        )?;
        let startup = extensions
            .startup
            .or_else(|| pool_default?.startup_seconds)
            .map_or(api.options.startup_timeout, |s| {
                Duration::from_secs(s.into())
            });
        let idle = extensions.idle.or_else(|| {
            let default = pool_default?;
            Some(Idle {
                seconds: default.idle_seconds?,
                action: default.idle_action,
            })
        });
        let order = Self {
            owner: caller.owner(),
            env: request.env_vars.into_iter().flatten().collect(),
            network: egress::policy(request.allow_internet_access, request.network)?,
            pause_policy,
            timeouts: Timeouts {
                end_at: None,
                seconds: (!extensions.never_timeout).then_some(seconds),
                on_timeout: if auto_pause {
                    OnTimeout::Pause
                } else {
                    OnTimeout::Kill
                },
                idle_seconds: idle.map(|i| i.seconds),
                idle_action: idle.map_or(IdleAction::default(), |i| i.action),
                paused_retention_seconds: extensions
                    .paused_retention
                    .or_else(|| pool_default?.paused_retention_seconds),
                startup_seconds: u32::try_from(startup.as_secs()).ok(),
            },
            wake_on_traffic: auto_resume,
            secure: edition == Edition::Second || request.secure == Some(true),
            lasts: (!extensions.never_timeout).then(|| Duration::from_secs(seconds.into())),
            startup,
            pools,
            image: extensions.image,
            metadata,
            meant,
            token,
        };
        let name = order.meant.template.clone();
        check(&order.made_anew(api, name, &mint(api), api.now(), None))?;
        Ok(order)
    }

    /// Sees to it that the image that was asked for is one that clients may choose, and there: nobody
    /// is taken out of a pool for one that is not. From here on it can only be that one.
    pub(crate) async fn pin_image(&mut self, api: &E2b) -> Result<(), Refusal> {
        let Some(image) = &self.image else {
            return Ok(());
        };
        let field = format!("metadata.{}", extension::IMAGE);
        if !may_choose(&api.options.images, image) {
            let why = format!(
                "{image}: this server does not let its clients choose it: ask an administrator, who \
                 can allow it by `e2b.images`"
            );
            return Err(Refusal::bad_field(&field, why));
        }
        let pool = self.meant.pool.as_ref();
        let template = self.meant.found.as_ref();
        let pull = pool
            .and_then(|pool| pool.spec.image_pull_policy)
            .or_else(|| template.map(|template| template.spec.image_pull_policy));
        let pinned = api
            .images
            .pin(&self.owner.team, image, pull.unwrap_or_default());
        match tokio::time::timeout(self.startup, pinned).await {
            Ok(Ok(exact)) => {
                self.image = Some(exact);
                Ok(())
            }
            Ok(Err(ImageProblem::Wrong(why))) => Err(Refusal::bad_field(&field, &*why)),
            Ok(Err(ImageProblem::Later(why))) => {
                Err(Refusal::unavailable(format!("{field}: {image}: {why}")))
            }
            Err(_) => Err(Refusal::start_took_too_long(self.startup)),
        }
    }

    /// A child of a sandbox, as it is now, that starts from a snapshot of it.
    pub(crate) fn forked(
        api: &E2b,
        caller: &Caller,
        source: &Sandbox,
        snapshot: &Name,
        seconds: u32,
    ) -> Self {
        let spec = &source.spec;
        let start = Start::again(source, snapshot);
        let startup = api.options.startup_timeout;
        let access = spec.access.as_deref();
        Self {
            meant: Meant {
                template: start.template(),
                found: None,
                pool: None,
                start: Some(start),
            },
            owner: caller.owner(),
            env: spec.env.clone(),
            metadata: spec.metadata.clone(),
            network: spec.network.clone(),
            pause_policy: spec.pause_policy.clone(),
            timeouts: Timeouts {
                end_at: None,
                seconds: Some(seconds),
                startup_seconds: u32::try_from(startup.as_secs()).ok(),
                ..spec.timeouts
            },
            wake_on_traffic: spec.wake_on_traffic,
            secure: access.is_some_and(|access| access.agent_token.is_some()),
            lasts: Some(Duration::from_secs(seconds.into())),
            startup,
            pools: Vec::new(),
            image: None,
            token: None,
        }
    }

    /// What is wanted, as a quota sees it.
    pub(crate) fn spec(&self, api: &E2b, id: &SandboxId) -> SandboxSpec {
        let name = self.meant.template.clone();
        self.made_anew(api, name, id, api.now(), None).spec
    }

    /// A new record of its own.
    pub(crate) fn made_anew(
        &self,
        api: &E2b,
        name: Name,
        id: &SandboxId,
        now: Timestamp,
        end_at: Option<Timestamp>,
    ) -> Sandbox {
        let mut meta = Metadata::new(Some(self.owner.team.clone()), name);
        // Put there now, it need not be put there by a write of its own.
        meta.finalizers = vec![SANDBOX_FINALIZER.into()];
        let mut spec = SandboxSpec {
            template: Some(self.meant.template.clone()),
            env: self.env.clone(),
            metadata: self.metadata.clone(),
            network: self.network.clone(),
            timeouts: self.timeouts(end_at),
            owner: Some(self.owner.clone()),
            sandbox_id: Some(id.clone()),
            epoch: Epoch(1),
            claimed_at: Some(now),
            lease: Some(Box::new(self.lease(api, now))),
            ..SandboxSpec::default()
        };
        if let Some(pool) = &self.meant.pool {
            spec.hooks = pool.spec.hooks.clone();
            spec.resources = pool.spec.resources;
            spec.image_pull_policy = pool.spec.image_pull_policy;
        }
        if let Some(start) = &self.meant.start {
            start.apply(&mut spec);
        }
        if let Some(image) = &self.image {
            spec.images.insert(MAIN_CONTAINER, image.clone());
        }
        let mut sandbox = Sandbox::new(meta, spec);
        self.settings(api, &mut sandbox, id);
        sandbox
    }

    /// A member of a pool as it becomes the caller's; `None` if it cannot be claimed.
    pub(crate) fn made_from(
        &self,
        api: &E2b,
        pool: &PoolSpec,
        member: &Sandbox,
        id: &SandboxId,
        now: Timestamp,
        end_at: Option<Timestamp>,
    ) -> Option<Sandbox> {
        let asked = self.image.as_deref().map(|image| (MAIN_CONTAINER, image));
        let asked = asked.into_iter().collect();
        let delivery = Delivery {
            env: self.env.clone(),
            images: delivered_images(pool, self.meant.found.as_deref(), &asked),
            hooks: delivered_hooks(pool, self.meant.found.as_deref()),
            metadata: self.metadata.clone(),
            timeouts: self.timeouts(end_at),
            network: self.network.clone(),
            lease: Some(self.lease(api, now)),
            ..Delivery::new(self.owner.clone(), id.clone())
        };
        let mut next = claimed(member, &delivery, now)?;
        self.settings(api, &mut next, id);
        Some(next)
    }

    /// What happens at its timeout.
    pub(crate) const fn on_timeout(&self) -> OnTimeout {
        self.timeouts.on_timeout
    }

    /// Its timeouts, with a deadline. One that is to have none gets one until its owner has heard of
    /// it, at which it ends.
    fn timeouts(&self, end_at: Option<Timestamp>) -> Timeouts {
        let on_timeout = match (self.lasts, end_at) {
            (None, Some(_)) => OnTimeout::Kill,
            (_, _) => self.timeouts.on_timeout,
        };
        Timeouts {
            end_at,
            on_timeout,
            ..self.timeouts
        }
    }

    /// What the server has on it until it is ready. It is a little longer than the request waits: the
    /// request itself ends what is late, and only what it cannot end any more is left to the lease.
    fn lease(&self, api: &E2b, now: Timestamp) -> Lease {
        Lease {
            until: now.plus(self.startup + AFTERMATH),
            // Who has a key finds it again, whichever process made it.
            holder: match &self.token {
                Some(_) => None,
                None => Some(api.desk.holder().into()),
            },
        }
    }

    /// Whose turn it takes in a line.
    pub(crate) fn tenant(&self) -> &str {
        let owner = &self.owner;
        let key = owner.key.as_ref().map(Name::as_str);
        owner.user.as_deref().or(key).unwrap_or_default()
    }

    /// The pool that was named, where it has requests wait in line.
    pub(crate) fn queues_at(&self) -> Option<&SandboxPool> {
        let named = self.meant.pool.as_deref();
        named.filter(|pool| pool.spec.when_empty == WhenEmpty::Queue)
    }

    fn settings(&self, api: &E2b, sandbox: &mut Sandbox, id: &SandboxId) {
        let spec = &mut sandbox.spec;
        spec.pause_policy = self.pause_policy.clone();
        spec.wake_on_traffic = self.wake_on_traffic;
        spec.access = Some(Box::new(api.seal.access(id, self.secure)));
        idempotency::forget(&mut sandbox.metadata.annotations);
        rung::forget(sandbox);
        if let Some(token) = &self.token {
            token.annotate(&mut sandbox.metadata.annotations, id);
        }
    }
}

/// Whether clients may choose an image: one that is listed, or below one that is.
pub(crate) fn may_choose(listed: &[Box<str>], image: &str) -> bool {
    listed.iter().any(|listed| {
        let rest = image.strip_prefix(&**listed);
        let ends = |rest: &str| rest.is_empty() || rest.starts_with(['/', ':', '@']);
        &**listed == "*" || rest.is_some_and(|rest| listed.ends_with('/') || ends(rest))
    })
}

/// A fresh id: `i` and twenty letters and digits.
pub(crate) fn mint(api: &E2b) -> SandboxId {
    let random = SandboxId::from_random(api.entropy.u128());
    SandboxId::new(format!("i{random}")).unwrap_or(random)
}

/// Seconds that a client asks for.
pub(crate) fn timeout(api: &E2b, caller: &Caller, asked: i64, least: u32) -> Result<u32, Refusal> {
    let most = api.options.max_timeout.as_secs();
    let own = caller.limits.max_timeout_seconds.map(u64::from);
    let most = own.map_or(most, |own| most.min(own));
    u32::try_from(asked)
        .ok()
        .filter(|seconds| (u64::from(least)..=most).contains(&u64::from(*seconds)))
        .ok_or_else(|| Refusal::bad_field("timeout", format!("use {least} to {most} seconds")))
}

/// Checks a record by the rules of the model, in the words of this protocol.
pub(crate) fn check(sandbox: &Sandbox) -> Result<(), Refusal> {
    let mut problems = Problems::default();
    SandboxSpec::check(sandbox, &mut problems);
    match problems.into_vec().into_iter().next() {
        None => Ok(()),
        Some(problem) => {
            let field = problem
                .field
                .strip_prefix("spec.")
                .unwrap_or(&problem.field);
            let field = match field.strip_prefix("env") {
                Some(rest) => format!("envVars{rest}"),
                None if field.starts_with("images") => format!("metadata.{}", extension::IMAGE),
                None => field.to_owned(),
            };
            let why = format!("{}: {}", problem.reason, problem.remedy);
            Err(Refusal::bad_field(&field, why))
        }
    }
}

fn refuse_unbuilt(request: &NewSandbox, edition: Edition) -> Result<(), Refusal> {
    // An empty object or list asks for nothing; `{"tokens": {}}` neither.
    let asks_for_tokens = request.iam.iter().flatten().any(|(_, value)| {
        let empty = value.as_object().is_some_and(serde_json::Map::is_empty);
        !empty && !value.is_null()
    });
    if asks_for_tokens {
        return Err(Refusal::unsupported_field("iam"));
    }
    if request
        .volume_mounts
        .as_ref()
        .is_some_and(|v| !v.is_empty())
    {
        return Err(Refusal::unsupported_field("volumeMounts"));
    }
    if edition == Edition::Second && request.secure == Some(false) {
        let why = "sandboxes made by this route are always secured: leave it out";
        return Err(Refusal::bad_field("secure", why));
    }
    Ok(())
}

fn pause_policy(
    api: &E2b,
    meant: &Meant,
    memory: Option<bool>,
    auto_pause: bool,
    auto_resume: bool,
    descend_after: Option<u32>,
) -> Result<Option<Box<PausePolicy>>, Refusal> {
    const FIELD: &str = "autoPauseMemory";
    let standing = meant
        .found
        .as_ref()
        .and_then(|t| t.spec.pause_policy.clone());
    let mut policy = standing.unwrap_or_default();
    match memory {
        None => {}
        Some(true) => policy.snapshot_type = SnapshotType::Freeze,
        Some(false) if !auto_pause => {
            return Err(Refusal::bad_field(FIELD, "it needs autoPause"));
        }
        Some(false) if auto_resume => {
            let why =
                "what sleeps without its memory is not woken by traffic: leave autoResume out";
            return Err(Refusal::bad_field(FIELD, why));
        }
        Some(false) if !api.options.filesystem_pause => {
            let why = "this server cannot keep files without memory";
            return Err(Refusal::filesystem_only(FIELD, why));
        }
        Some(false) => {
            policy.snapshot_type = SnapshotType::Rootfs;
            policy.descend_after = None;
        }
    }
    if descend_after.is_some() {
        policy.descend_after = descend_after;
    }
    Ok((*policy != PausePolicy::default()).then_some(policy))
}
