//! What clients ask for. Each client decides on what its own, possibly old, cache shows it, and
//! writes with the version it saw, as the API does.

use std::{sync::Arc, time::Duration};

use cache::{SandboxCache, SandboxIndex};
use kit::{Clock, Entropy};
use model::{
    Metadata, Name, Namespace, Sandbox, SandboxClaim, SandboxId, SandboxPool, SandboxSnapshot,
    SandboxTemplate, StringMap, Timestamp,
    autoscale::Autoscale,
    claim::ClaimSpec,
    hook::Hook,
    lifecycle::{Request, Standing, Verdict, admit},
    pool::{PoolSpec, RecyclePolicy},
    sandbox::{
        DesiredState, IdleAction, NetworkPolicy, OnTimeout, Owner, PausePolicy, SandboxSpec,
        SnapshotType, Timeouts,
    },
    snapshot::SnapshotSpec,
    template::{ImagePullPolicy, TemplateSpec},
};
use plan::claim::{Delivery, Ending, claimed, released};
use store::{Query, Store, StoreError, StoreExt as _};

use crate::checker::Checker;

/// What a client can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Make a sandbox outside any pool.
    Create,
    /// Claim a member of a pool.
    Claim,
    /// Claim declaratively.
    ClaimDeclared,
    /// Put one to sleep.
    Pause,
    /// Wake one.
    Resume,
    /// Move a deadline.
    Renew,
    /// Change what one may reach.
    Rewire,
    /// Give one back.
    Release,
    /// End one.
    Kill,
    /// Take a snapshot.
    Snapshot,
    /// Take one, and make sandboxes that start from it without waiting for it.
    Fork,
    /// Make a sandbox that starts from a snapshot there is.
    CreateFrom,
    /// Delete a snapshot.
    Forget,
    /// Change a pool's size.
    Resize,
    /// Change the template.
    Retemplate,
    /// Delete a pool, or make it again.
    TogglePool,
}

impl Act {
    /// Drawn so that sandboxes live long enough for something to happen to them.
    #[must_use]
    pub fn draw(entropy: &Entropy) -> Self {
        const WHEEL: [Act; 33] = [
            Act::Create,
            Act::Create,
            Act::Create,
            Act::Claim,
            Act::Claim,
            Act::Claim,
            Act::Claim,
            Act::Claim,
            Act::ClaimDeclared,
            Act::Pause,
            Act::Pause,
            Act::Pause,
            Act::Pause,
            Act::Resume,
            Act::Resume,
            Act::Resume,
            Act::Resume,
            Act::Renew,
            Act::Renew,
            Act::Rewire,
            Act::Release,
            Act::Release,
            Act::Release,
            Act::Kill,
            Act::Kill,
            Act::Snapshot,
            Act::Snapshot,
            Act::Fork,
            Act::CreateFrom,
            Act::CreateFrom,
            Act::Forget,
            Act::Resize,
            Act::TogglePool,
        ];
        match entropy.below(60) {
            0 => Self::Retemplate,
            n => WHEEL[n % WHEEL.len()],
        }
    }
}

/// Everything a client needs.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where it writes.
    pub store: Arc<dyn Store>,
    /// What it sees.
    pub sandboxes: SandboxCache,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Its choices.
    pub entropy: Arc<Entropy>,
    /// Hears what it was told.
    pub checker: Arc<Checker>,
}

/// The one tenant. Tenancy is not what is simulated here.
#[must_use]
pub fn team() -> Namespace {
    Namespace::new("team").unwrap_or_else(|e| unreachable!("{e}"))
}

fn name(text: impl AsRef<str>) -> Name {
    Name::new(text).unwrap_or_else(|e| unreachable!("{e}"))
}

/// The names of the pools.
pub const POOLS: [&str; 2] = ["fresh", "reused"];

impl Client {
    /// Makes the template and the pools.
    pub async fn set_up(&self) {
        let _ = self.store.create_object(&template(0)).await;
        for pool in POOLS {
            let _ = self.store.create_object(&self.pool(pool)).await;
        }
    }

    /// Does one thing. Refusals and failures are part of life.
    pub async fn act(&self, act: Act, number: usize) {
        let done = match act {
            Act::Create => self
                .store
                .create_object(&self.sandbox(number))
                .await
                .map(drop),
            Act::Claim => {
                self.claim(number).await;
                Ok(())
            }
            Act::ClaimDeclared => self
                .store
                .create_object(&self.declared(number))
                .await
                .map(drop),
            Act::Pause => {
                self.ask(Request::Pause, |s| {
                    s.spec.desired_state = DesiredState::Paused;
                })
                .await
            }
            Act::Resume => {
                let end = self.some_deadline();
                self.ask(Request::Resume, move |s| {
                    s.spec.desired_state = DesiredState::Running;
                    s.spec.timeouts.end_at = end;
                })
                .await
            }
            Act::Renew => {
                let end = self.some_deadline();
                self.ask(Request::Renew, move |s| s.spec.timeouts.end_at = end)
                    .await
            }
            Act::Rewire => {
                let internet = self.entropy.below(2) == 0;
                let policy = NetworkPolicy {
                    internet_access: Some(internet),
                    ..NetworkPolicy::default()
                };
                self.ask(Request::Renew, move |s| {
                    s.spec.network = Some(Box::new(policy));
                })
                .await
            }
            Act::Release => {
                self.ask(Request::Release { expected: None }, |s| {
                    *s = released(s, Ending::by_owner(self.now()));
                })
                .await
            }
            Act::Kill => self.kill().await,
            Act::Snapshot => self.snapshot(number).await.map(drop),
            Act::Fork => self.fork(number).await,
            Act::CreateFrom => self.create_from(number).await,
            Act::Forget => match self.some_snapshot().await {
                Ok(Some(snapshot)) => self.store.delete_object(&snapshot).await.map(drop),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
            Act::Resize => self.resize().await,
            Act::Retemplate => self.retemplate(number).await,
            Act::TogglePool => self.toggle_pool().await,
        };
        if let Err(error) = done {
            tracing::trace!(?act, %error, "refused");
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall_micros())
    }

    fn some_deadline(&self) -> Option<Timestamp> {
        match self.entropy.below(3) {
            0 => None,
            _ => Some(
                self.now()
                    .plus(Duration::from_millis(self.entropy.below(400_000) as u64)),
            ),
        }
    }

    fn some_timeouts(&self) -> Timeouts {
        let on_timeout = [OnTimeout::Kill, OnTimeout::Pause][self.entropy.below(2)];
        let idle = self
            .entropy
            .chance(0.3)
            .then(|| 3 + self.entropy.below(60) as u32);
        let idle_action =
            [IdleAction::Pause, IdleAction::Kill, IdleAction::Release][self.entropy.below(3)];
        Timeouts {
            end_at: self.some_deadline(),
            on_timeout,
            idle_seconds: idle,
            idle_action,
            seconds: None,
            paused_retention_seconds: None,
            startup_seconds: None,
        }
    }

    fn some_owned(&self) -> Option<Arc<Sandbox>> {
        let all = self.sandboxes.find_by(SandboxIndex::Owner, team().as_str());
        let at = self.entropy.below(all.len());
        all.into_iter().nth(at)
    }

    fn sandbox(&self, number: usize) -> Sandbox {
        let snapshot_type = [SnapshotType::Freeze, SnapshotType::Rootfs][self.entropy.below(2)];
        let descend = self
            .entropy
            .chance(0.3)
            .then(|| self.entropy.below(60) as u32);
        let policy = PausePolicy {
            snapshot_type,
            descend_after: descend,
            wake_from_filesystem: self.entropy.chance(0.7),
            ..PausePolicy::default()
        };
        let spec = SandboxSpec {
            template: Some(name("base")),
            pause_policy: self.entropy.chance(0.7).then(|| Box::new(policy)),
            timeouts: self.some_timeouts(),
            owner: Some(Owner {
                team: team(),
                user: None,
                key: None,
            }),
            sandbox_id: Some(SandboxId::from_random(self.entropy.u128())),
            epoch: model::Epoch(1),
            claimed_at: Some(self.now()),
            wake_on_traffic: self.entropy.chance(0.8),
            ..SandboxSpec::default()
        };
        // A small set of names, so that namesakes come after one another.
        let name = name(format!("box-{}", number % 12));
        Sandbox::new(Metadata::new(Some(team()), name), spec)
    }

    fn pool(&self, which: &str) -> SandboxPool {
        let min_idle = 1 + self.entropy.below(3) as u32;
        let max_idle = min_idle + self.entropy.below(3) as u32;
        let recycle_policy = if which == "reused" {
            RecyclePolicy::Recycle
        } else {
            RecyclePolicy::Destroy
        };
        let max = max_idle + self.entropy.below(6) as u32;
        let follows = Autoscale {
            up_cooldown_seconds: 1,
            down_cooldown_seconds: 20,
            ..Autoscale::default()
        };
        let spec = PoolSpec {
            recycle_policy,
            autoscale: self.entropy.chance(0.5).then(|| Box::new(follows)),
            ..PoolSpec::new(name("base"), min_idle, max_idle, max)
        };
        SandboxPool::new(Metadata::new(Some(team()), name(which)), spec)
    }

    async fn claim(&self, number: usize) {
        let pool = name(POOLS[self.entropy.below(POOLS.len())]);
        let candidates = self
            .sandboxes
            .find_by(SandboxIndex::Claimable, (&team(), &pool));
        let start = self.entropy.below(candidates.len());
        for member in candidates
            .iter()
            .cycle()
            .skip(start)
            .take(candidates.len().min(3))
        {
            let owner = Owner {
                team: team(),
                user: Some(format!("client-{number}").into()),
                key: None,
            };
            let delivery = Delivery {
                timeouts: self.some_timeouts(),
                images: self.some_images(),
                ..Delivery::new(owner, SandboxId::from_random(self.entropy.u128()))
            };
            let Some(next) = claimed(member, &delivery, self.now()) else {
                continue;
            };
            if let Ok(mine) = self.store.update_spec(&next).await {
                self.checker.claim_acknowledged(&mine, number);
                return;
            }
        }
    }

    /// Mostly what the members idle on.
    fn some_images(&self) -> StringMap {
        let other = self.entropy.chance(0.25).then_some(("main", "theirs:2"));
        other.into_iter().collect()
    }

    fn declared(&self, number: usize) -> SandboxClaim {
        let spec = ClaimSpec {
            images: self.some_images(),
            pool: name(POOLS[self.entropy.below(POOLS.len())]),
            count: 1 + self.entropy.below(3) as u32,
            timeouts: self.entropy.chance(0.5).then(|| self.some_timeouts()),
            timeout_seconds: 5 + self.entropy.below(60) as u32,
            keep_seconds: self
                .entropy
                .chance(0.5)
                .then(|| self.entropy.below(60) as u32),
            ..ClaimSpec::new(name("unnamed"))
        };
        SandboxClaim::new(
            Metadata::new(Some(team()), name(format!("claim-{number}"))),
            spec,
        )
    }

    /// Asks something of a sandbox by the rules of admission.
    async fn ask(
        &self,
        request: Request,
        change: impl FnOnce(&mut Sandbox),
    ) -> Result<(), StoreError> {
        let Some(sandbox) = self.some_owned() else {
            return Ok(());
        };
        match admit(request, Standing::of(&sandbox, false)) {
            Verdict::Do | Verdict::Deferred(_) => {
                let mut next = Sandbox::clone(&sandbox);
                change(&mut next);
                self.store.update_spec(&next).await.map(drop)
            }
            Verdict::Already | Verdict::Denied(_) => Ok(()),
        }
    }

    async fn kill(&self) -> Result<(), StoreError> {
        match self.some_owned() {
            Some(sandbox) => self.store.delete_object(&*sandbox).await.map(drop),
            None => Ok(()),
        }
    }

    async fn snapshot(&self, number: usize) -> Result<Option<SandboxSnapshot>, StoreError> {
        let Some(sandbox) = self.some_owned() else {
            return Ok(None);
        };
        let expires = self.entropy.chance(0.2);
        let spec = SnapshotSpec {
            sandbox_id: sandbox.spec.sandbox_id.clone(),
            expire_after_seconds: expires.then(|| 1 + self.entropy.below(120) as u32),
            ..SnapshotSpec::of(sandbox.metadata.name.clone())
        };
        let meta = Metadata::new(Some(team()), name(format!("snap-{number}")));
        let wanted = SandboxSnapshot::new(meta, spec);
        self.store.create_object(&wanted).await.map(Some)
    }

    async fn fork(&self, number: usize) -> Result<(), StoreError> {
        let Some(snapshot) = self.snapshot(number).await? else {
            return Ok(());
        };
        for child in 0..2 {
            let child = self.child(number + child, &snapshot);
            self.store.create_object(&child).await?;
        }
        Ok(())
    }

    async fn create_from(&self, number: usize) -> Result<(), StoreError> {
        let Some(snapshot) = self.some_snapshot().await? else {
            return Ok(());
        };
        let child = self.child(number, &snapshot);
        self.store.create_object(&child).await.map(drop)
    }

    fn child(&self, number: usize, snapshot: &SandboxSnapshot) -> Sandbox {
        let mut child = self.sandbox(number);
        child.spec.template = None;
        child.spec.snapshot = Some(snapshot.metadata.name.clone());
        child
    }

    async fn some_snapshot(&self) -> Result<Option<SandboxSnapshot>, StoreError> {
        let query = Query::kind(<SnapshotSpec as model::Spec>::KIND);
        let (all, _) = self.store.list_objects::<SnapshotSpec>(&query).await?;
        let at = self.entropy.below(all.len());
        Ok(all.into_iter().nth(at))
    }

    async fn some_pool(&self) -> Result<Option<SandboxPool>, StoreError> {
        let query = Query::kind(<PoolSpec as model::Spec>::KIND);
        let (pools, _) = self.store.list_objects::<PoolSpec>(&query).await?;
        let at = self.entropy.below(pools.len());
        Ok(pools.into_iter().nth(at))
    }

    async fn resize(&self) -> Result<(), StoreError> {
        let Some(mut pool) = self.some_pool().await? else {
            return Ok(());
        };
        let fresh = self.pool(pool.metadata.name.as_str());
        pool.spec.min_idle = fresh.spec.min_idle;
        pool.spec.max_idle = fresh.spec.max_idle;
        pool.spec.max = fresh.spec.max;
        self.store.update_spec(&pool).await.map(drop)
    }

    async fn toggle_pool(&self) -> Result<(), StoreError> {
        let which = POOLS[self.entropy.below(POOLS.len())];
        match self.some_pool().await? {
            Some(pool) if self.entropy.chance(0.3) => {
                self.store.delete_object(&pool).await.map(drop)
            }
            Some(_) | None => self.store.create_object(&self.pool(which)).await.map(drop),
        }
    }

    async fn retemplate(&self, number: usize) -> Result<(), StoreError> {
        let key = template(0).key();
        let Some(mut now) = self.store.find::<TemplateSpec>(&key).await? else {
            return Ok(());
        };
        now.spec = template(number).spec;
        self.store.update_spec(&now).await.map(drop)
    }
}

fn template(number: usize) -> SandboxTemplate {
    let spec = TemplateSpec {
        image: "base".into(),
        image_pull_policy: ImagePullPolicy::IfNotPresent,
        // Every other revision has commands that must bring its sandboxes up, and every third hooks.
        start_command: vec!["/bin/serve".into(); number % 2],
        ready_command: vec!["/bin/true".into(); number % 2],
        hooks: vec![Hook::exec("seed", &["/bin/seed"]); number % 3 / 2],
        env: [("REVISION", number.to_string())].into_iter().collect(),
        ..TemplateSpec::default()
    };
    SandboxTemplate::new(Metadata::new(None, name("base")), spec)
}
