//! A world of one sandbox: its record, its workload, and a clock. It performs plans, well or
//! badly, and checks at each step what must always be true.

use std::{collections::BTreeMap, time::Duration};

use model::{
    Epoch, Generation, Metadata, Name, Namespace, OperationId, SandboxId, StringMap, Uid,
    lifecycle::{Request, Standing, Traffic, Verdict, admit, is_closing, traffic},
    sandbox::{Address, NetworkPolicy, Owner, Timeouts, Via},
    workload::{Captured, Hooked},
};

use super::super::*;
use crate::{
    claim::{Delivery, Ending, claimed, released},
    failure::after_failure,
    idle::{Activity, Idle},
    timers::timers,
};

pub(super) const IDLE_IMAGE: &str = "idle:1";

/// How one step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// It fails without effect; `true` if trying again is hopeless.
    Before(bool),
    /// It takes effect and fails all the same.
    After,
    /// It fails now and takes effect when nobody expects it any more.
    Later,
    /// Making and removing stop in the middle.
    HalfWay,
    /// Whoever performs it dies before, or after.
    DieBefore,
    DieAfter,
    /// The runtime cannot even be asked.
    Blind,
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) record: Sandbox,
    pub(super) workload: Observed,
    /// Deliveries that left traces in the workload, and how much was written in it.
    pub(super) inside: (Vec<Epoch>, u32),
    layers: BTreeMap<Digest, (Vec<Epoch>, u32)>,
    /// What its owner was told is written.
    pub(super) acknowledged: u32,
    pub(super) recycle: RecyclePolicy,
    pub(super) hooks: bool,
    pub(super) can: Abilities,
    /// A snapshot froze it, and nobody let what is inside end since.
    pub(super) undrained: bool,
    /// Those of each claim.
    pub(super) timeouts: Timeouts,
    pub(super) now: Timestamp,
    pub(super) gone: bool,
    /// The newest call there was, and the newest that reached the runtime.
    fence: (Generation, OperationId),
    admitted: (Generation, OperationId),
    late: Vec<(Step, (Generation, OperationId))>,
    /// Every step taken, for reading a failure.
    pub(super) log: Vec<String>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let spec = &self.record.spec;
        let (pool, policy, recycle) = (&spec.pool, &spec.pause_policy, self.recycle);
        let (timeouts, can) = (self.timeouts, self.can);
        write!(f, "{pool:?} {recycle:?} {policy:?} {timeouts:?} {can:?}")
    }
}

impl Drop for World {
    /// A failed run is told as a story.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log.join("\n"));
        }
    }
}

pub(super) fn owner() -> Owner {
    Owner {
        team: Namespace::new("team").unwrap(),
        user: None,
        key: None,
    }
}

pub(super) fn facts(state: WorkloadState, epoch: Epoch, images: &StringMap) -> Facts {
    Facts {
        state,
        epoch,
        booted: true,
        container_id: "c1".into(),
        images: images.clone(),
        digests: BTreeMap::new(),
        hooked: None,
        layer: None,
        network: None,
        address: Address {
            via: Via::NetworkNamespace,
            ip: None,
        },
        oom_kills: 0,
        loss: None,
    }
}

/// A new record: of its owner, or of a pool.
pub(super) fn record(pooled: bool) -> Sandbox {
    let name = Name::new("box").unwrap();
    let mut meta = Metadata::new(Some(Namespace::new("team").unwrap()), name);
    meta.uid = Some(Uid::from_random(1));
    meta.generation = Generation(1);
    let mut spec = SandboxSpec::default();
    if pooled {
        spec.idle_images.insert("main", IDLE_IMAGE);
        spec.pool = Some(Name::new("pool").unwrap());
    } else {
        spec.images.insert("main", IDLE_IMAGE);
        spec.owner = Some(owner());
        spec.epoch = Epoch(1);
    }
    Sandbox::new(meta, spec)
}

impl World {
    pub(super) fn new(record: Sandbox) -> Self {
        Self {
            record,
            workload: Observed::Absent,
            inside: (Vec::new(), 0),
            layers: BTreeMap::new(),
            acknowledged: 0,
            recycle: RecyclePolicy::Recycle,
            hooks: false,
            can: Abilities::ALL,
            undrained: false,
            timeouts: Timeouts::default(),
            now: Timestamp::from_micros(1_000_000),
            gone: false,
            fence: (Generation(0), OperationId(0)),
            admitted: (Generation(0), OperationId(0)),
            late: Vec::new(),
            log: Vec::new(),
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            sandbox: &self.record,
            observed: &self.workload,
            due: self.due(),
            base: Base::Images,
            recycle: self.recycle,
            undrained: self.undrained,
            hooks: self.hooks,
            can: self.can,
            now: self.now,
        }
    }

    pub(super) fn due(&self) -> Due {
        let timers = timers(&self.record, Activity::RECORD_ONLY);
        let over = |at: Option<Timestamp>| at.is_some_and(|at| at <= self.now);
        Due {
            end: over(timers.end),
            idle: matches!(timers.idle, Idle::Timer { at, .. } if at <= self.now),
            descend: over(timers.descend.map(|t| t.0)),
            retention: over(timers.retention.map(|t| t.0)),
            retry: over(timers.retry.map(|t| t.0)),
            ..Due::default()
        }
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(Duration::from_secs(seconds));
    }

    /// Somebody asks something; admission decides. Returns whether the intent holds now.
    pub(super) fn ask(&mut self, request: Request, images: &StringMap) -> bool {
        if self.gone {
            return false;
        }
        let verdict = admit(request, Standing::of(&self.record, self.due().end));
        self.log.push(format!("{request:?}: {verdict:?}"));
        match verdict {
            Verdict::Denied(_) => return false,
            Verdict::Already => return true,
            Verdict::Do | Verdict::Deferred(_) => {}
        }
        let later = self.now.plus(Duration::from_secs(300));
        let mut next = self.record.clone();
        let spec = &mut next.spec;
        match request {
            Request::Claim => {
                let delivery = Delivery {
                    images: images.clone(),
                    timeouts: self.timeouts,
                    ..Delivery::new(owner(), SandboxId::from_random(7))
                };
                match claimed(&self.record, &delivery, self.now) {
                    Some(member) => next = member,
                    None => return false,
                }
                self.acknowledged = 0;
            }
            Request::Pause => spec.desired_state = DesiredState::Paused,
            Request::Resume => {
                spec.desired_state = DesiredState::Running;
                spec.timeouts.end_at = spec.timeouts.end_at.map(|_| later);
            }
            Request::Renew => spec.timeouts.end_at = Some(later),
            Request::Release { .. } => next = released(&next, Ending::by_owner(self.now)),
            Request::Kill => next.metadata.deletion_timestamp = Some(self.now),
        }
        self.intend(next);
        // What nobody holds goes at once.
        self.gone = request == Request::Kill && self.record.metadata.finalizers.is_empty();
        true
    }

    fn intend(&mut self, next: Sandbox) {
        if next.spec != self.record.spec {
            self.record = next;
            self.record.metadata.generation.0 += 1;
        } else {
            self.record = next;
        }
    }

    /// The owner writes something, where requests are forwarded.
    pub(super) fn write(&mut self) {
        let runs =
            matches!(&self.workload, Observed::Present(f) if f.state == WorkloadState::Running);
        let is_open = traffic(&self.record) == Traffic::Running && !is_closing(&self.record);
        if !self.gone && runs && is_open {
            self.inside.1 += 1;
            self.acknowledged = self.inside.1;
        }
    }

    /// The host restarts: processes are gone, files are there, and what its runtime was told last
    /// need not be.
    pub(super) fn restart_host(&mut self) {
        self.late.clear();
        if let Observed::Present(facts) = &mut self.workload
            && !matches!(facts.state, WorkloadState::Exited { .. })
        {
            facts.state = WorkloadState::Cut;
            facts.epoch = Epoch(0);
        }
    }

    /// Its owner changes what it may reach.
    pub(super) fn rewire(&mut self, internet: bool) {
        if self.gone || self.record.spec.owner.is_none() {
            return;
        }
        let mut next = self.record.clone();
        next.spec.network = Some(Box::new(NetworkPolicy {
            internet_access: Some(internet),
            ..NetworkPolicy::default()
        }));
        self.intend(next);
    }

    pub(super) fn exit(&mut self, code: i32) {
        if let Observed::Present(facts) = &mut self.workload {
            facts.state = WorkloadState::Exited { code };
        }
    }

    /// A snapshot froze it and died.
    pub(super) fn freeze(&mut self) {
        if let Observed::Present(facts) = &mut self.workload
            && facts.state == WorkloadState::Running
            && self.record.status.phase == Phase::Running
        {
            facts.state = WorkloadState::Frozen;
            self.undrained = true;
        }
    }

    /// What was late takes effect, unless the runtime has seen something newer.
    pub(super) fn land(&mut self) {
        for (step, fence) in std::mem::take(&mut self.late) {
            if !self.gone && fence >= self.admitted {
                self.log.push(format!("{} lands", super::word(&step)));
                let ends = matches!(step, Step::DeleteWorkload | Step::Reset);
                let runs = self.record.status.phase == Phase::Running;
                assert!(!ends || !runs, "a late call undoes a newer decision");
                self.admitted = fence;
                let _ = self.effect(&step);
            }
        }
    }

    /// Plans and performs. Returns whether there was anything to do.
    pub(super) fn tick(&mut self, fault: Fault) -> bool {
        if self.gone {
            return false;
        }
        self.wait(1);
        if fault == Fault::Blind {
            let status = unknown(self.view(), "the runtime does not answer");
            self.publish(status);
            return true;
        }
        let plan = plan_sandbox(self.view());
        self.check_plan(&plan);
        let acts = !plan.steps.is_empty();
        for step in plan.steps {
            self.log.push(format!("{} ({fault:?})", super::word(&step)));
            if !self.perform(&step, fault) {
                break;
            }
        }
        acts
    }

    fn perform(&mut self, step: &Step, fault: Fault) -> bool {
        if fault == Fault::DieBefore {
            return false;
        }
        match step {
            Step::AddFinalizer => self
                .record
                .metadata
                .finalizers
                .push(SANDBOX_FINALIZER.into()),
            Step::RemoveFinalizer => {
                assert_eq!(self.workload, Observed::Absent, "nothing may be left");
                self.gone = true;
            }
            Step::Publish(status, _) => self.publish((**status).clone()),
            Step::Intend(intent) => {
                let mut next = self.record.clone();
                match intent {
                    Intent::Pause | Intent::StayPaused => {
                        next.spec.desired_state = DesiredState::Paused;
                    }
                    Intent::Resume => next.spec.desired_state = DesiredState::Running,
                    Intent::Release(cause) => next = released(&next, Ending::by(*cause, self.now)),
                }
                self.intend(next);
            }
            Step::DeleteRecord(_) => {
                self.record.metadata.deletion_timestamp = Some(self.now);
            }
            // Nobody is inside here; the simulator has those who are.
            Step::IfUnused(step) => return self.perform(step, fault),
            Step::Create(_)
            | Step::Boot
            | Step::Arm
            | Step::RunHooks
            | Step::SwapImages
            | Step::SetNetwork
            | Step::Freeze
            | Step::Thaw
            | Step::Capture
            | Step::Reset
            | Step::DeleteWorkload => return self.call(step, fault),
        }
        fault == Fault::None
    }

    fn is_frozen(&self) -> bool {
        matches!(&self.workload, Observed::Present(f) if f.state == WorkloadState::Frozen)
    }

    /// A call of the runtime.
    fn call(&mut self, step: &Step, fault: Fault) -> bool {
        let operation = self.record.status.last_operation.as_ref();
        let fence = (
            self.record.metadata.generation,
            operation.map(|op| op.id).unwrap_or_default(),
        );
        assert!(fence >= self.fence, "a call behind its fence: {fence:?}");
        self.fence = fence;
        // What is inside has its time before the call.
        let stops = *step == Step::Freeze || (*step == Step::Capture && !self.is_frozen());
        self.undrained &= !stops;
        let outcome = match fault {
            Fault::Before(_) => Err("before"),
            Fault::Later => {
                self.late.push((step.clone(), fence));
                Err("later")
            }
            Fault::HalfWay => {
                let breaks = match step {
                    Step::Create(_) => true,
                    Step::DeleteWorkload => self.workload != Observed::Absent,
                    _ => false,
                };
                if breaks {
                    self.workload = Observed::Partial;
                    self.admitted = fence;
                }
                Err("half-way")
            }
            Fault::None | Fault::After | Fault::DieAfter | Fault::DieBefore | Fault::Blind => {
                self.admitted = fence;
                self.effect(step)
            }
        };
        let outcome = outcome.and_then(|layer| match fault {
            Fault::After => Err("after"),
            _ => Ok(layer),
        });
        match (outcome, fault) {
            (_, Fault::DieAfter) => false,
            (Ok(None), _) => true,
            // The layer is durable: say so in the same turn.
            (Ok(Some(layer)), _) => {
                let captured = Captured {
                    digest: layer,
                    size: 1,
                    parent: None,
                    published: None,
                };
                let Step::Publish(status, _) = asleep(self.view(), Some(&captured)).steps.remove(0)
                else {
                    panic!("falling asleep is published");
                };
                self.publish(*status);
                true
            }
            (Err(error), _) => {
                let hopeless = fault == Fault::Before(true);
                let status = after_failure(&self.record, step, error, hopeless, self.now);
                self.publish(status);
                false
            }
        }
    }

    fn effect(&mut self, step: &Step) -> Result<Option<Digest>, &'static str> {
        if let Step::Create(from) = step {
            if self.workload == Observed::Absent {
                self.inside = match from {
                    Some(layer) => self.layers[layer].clone(),
                    None => (Vec::new(), 0),
                };
                let images = self.record.spec.wanted_images();
                let mut new = facts(WorkloadState::Running, Epoch(0), images);
                new.layer = from.clone();
                new.booted = false;
                new.network = self.record.spec.network.clone();
                self.workload = Observed::Present(new);
            }
            return Ok(None);
        }
        if *step == Step::DeleteWorkload {
            self.workload = Observed::Absent;
            return Ok(None);
        }
        let Observed::Present(facts) = &mut self.workload else {
            return Err("absent");
        };
        match (step, facts.state) {
            (_, WorkloadState::Exited { .. }) => return Err("exited"),
            (Step::Freeze, _) if !self.can.freeze => panic!("it cannot be frozen"),
            (Step::Capture, state) if state != WorkloadState::Running || !self.can.freeze => {
                if state == WorkloadState::Running {
                    facts.state = WorkloadState::Frozen;
                }
                let layer = format!("sha256:{:064x}", self.layers.len() + 1);
                let layer = Digest::new(layer).unwrap();
                self.layers.insert(layer.clone(), self.inside.clone());
                return Ok(Some(layer));
            }
            (_, WorkloadState::Cut) => return Err("cut off"),
            (Step::Boot, WorkloadState::Running) => facts.booted = true,
            (Step::Arm, WorkloadState::Running) => {
                assert!(facts.booted, "armed before its commands brought it up");
                facts.epoch = self.record.spec.epoch;
                self.inside.0.push(facts.epoch);
            }
            (Step::RunHooks, WorkloadState::Running) => {
                assert_eq!(
                    facts.epoch, self.record.spec.epoch,
                    "hooks of another delivery"
                );
                let epoch = facts.epoch;
                facts.hooked = Some(Hooked {
                    epoch,
                    failed: Vec::new(),
                });
            }
            (Step::SwapImages, _) => {
                facts.images = self.record.spec.wanted_images().clone();
                facts.booted = false;
                facts.hooked = None;
            }
            (Step::SetNetwork, _) => facts.network = self.record.spec.network.clone(),
            (Step::Freeze, _) => facts.state = WorkloadState::Frozen,
            (Step::Thaw, _) => facts.state = WorkloadState::Running,
            (Step::Reset, _) => {
                facts.state = WorkloadState::Running;
                facts.epoch = Epoch(0);
                facts.images = self.record.spec.wanted_images().clone();
                facts.booted = false;
                facts.hooked = None;
                self.inside = (Vec::new(), 0);
            }
            (_, _) => return Err("wrong state"),
        }
        Ok(None)
    }

    fn publish(&mut self, next: SandboxStatus) {
        let (from, to) = (self.record.status.phase, next.phase);
        self.log.push(format!("  {from} → {to}"));
        self.check_publication(&next);
        self.record.status = next;
    }

    /// Lets it go on without faults until it rests. The bound proves that it does.
    pub(super) fn settle(&mut self) {
        for _ in 0..25 {
            if !self.tick(Fault::None) {
                return self.check_rest();
            }
        }
        panic!("it never rests: {:#?}", self.record.status);
    }
}
