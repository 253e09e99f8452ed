use model::{
    Digest, Epoch, Generation, Metadata, Namespace, SandboxId, StringMap, Uid,
    sandbox::{Address, DesiredState, PausePolicy, SandboxSpec, Via},
    snapshot::SnapshotSpec,
    workload::Facts,
};

use super::*;

const T0: Timestamp = Timestamp::from_micros(1_000_000);

fn metadata(name: &str) -> Metadata {
    let namespace = Some(Namespace::new("team").unwrap());
    let mut meta = Metadata::new(namespace, Name::new(name).unwrap());
    meta.uid = Some(Uid::from_random(1));
    meta.generation = Generation(1);
    meta
}

fn snapshot(phase: SnapshotPhase) -> SandboxSnapshot {
    let spec = SnapshotSpec::of(Name::new("box").unwrap());
    let mut snapshot = SandboxSnapshot::new(metadata("snap"), spec);
    snapshot.status.phase = phase;
    snapshot
}

fn sandbox(phase: Phase) -> Sandbox {
    let mut sandbox = Sandbox::new(metadata("box"), SandboxSpec::default());
    let finalizer = model::sandbox::SANDBOX_FINALIZER;
    sandbox.metadata.finalizers.push(finalizer.into());
    sandbox.status.phase = phase;
    sandbox.status.observed_generation = Generation(1);
    sandbox.status.started_at = Some(T0);
    sandbox
}

fn layer(n: u8) -> Digest {
    Digest::new(format!("sha256:{n:064x}")).unwrap()
}

fn seen(state: WorkloadState) -> Observed {
    Observed::Present(Facts {
        state,
        epoch: Epoch(0),
        booted: true,
        container_id: "c1".into(),
        images: StringMap::new(),
        digests: std::collections::BTreeMap::new(),
        hooked: None,
        network: None,
        layer: None,
        address: Address {
            via: Via::NetworkNamespace,
            ip: None,
        },
        oom_kills: 0,
        loss: None,
    })
}

fn view<'a>(
    snapshot: &'a SandboxSnapshot,
    sandbox: Option<&'a Sandbox>,
    observed: &'a Observed,
) -> View<'a> {
    static PLAIN: Recipe = Recipe {
        template: None,
        images: StringMap::new(),
        image_pull_policy: None,
        resources: None,
    };
    View {
        snapshot,
        sandbox,
        observed,
        recipe: &PLAIN,
        can: Abilities::ALL,
        expired: false,
        now: T0,
    }
}

fn word(plan: &Plan<Step>) -> String {
    assert!(!plan.why.is_empty(), "{plan:?}");
    match plan.steps.first() {
        None => "rest".into(),
        Some(Step::Publish(status)) => format!("→{:?}", status.phase),
        Some(step) => format!("{step:?}"),
    }
}

fn next(snapshot: &SandboxSnapshot, sandbox: Option<&Sandbox>, observed: &Observed) -> String {
    word(&plan_snapshot(view(snapshot, sandbox, observed)))
}

#[test]
fn it_records_freezes_and_captures_once_its_sandbox_runs_or_sleeps() {
    let sights = [
        Observed::Absent,
        Observed::Partial,
        seen(WorkloadState::Running),
        seen(WorkloadState::Frozen),
        seen(WorkloadState::Exited { code: 0 }),
    ];
    let (new, begun) = (
        snapshot(SnapshotPhase::Pending),
        snapshot(SnapshotPhase::Capturing),
    );
    for phase in Phase::ALL {
        let expected: [[&str; 5]; 2] = match phase {
            Phase::Running | Phase::Paused => [
                [
                    "→Pending",
                    "→Pending",
                    "→Capturing",
                    "→Capturing",
                    "→Failed",
                ],
                ["→Capturing", "→Capturing", "Freeze", "Capture", "→Failed"],
            ],
            Phase::Stopping | Phase::Stopped | Phase::Failed => [["→Failed"; 5]; 2],
            _ => [["→Pending"; 5], ["→Capturing"; 5]],
        };
        for (snapshot, expected) in [&new, &begun].into_iter().zip(expected) {
            let sandbox = sandbox(phase);
            let got = sights
                .each_ref()
                .map(|seen| next(snapshot, Some(&sandbox), seen));
            assert_eq!(got, expected, "{phase} {:?}", snapshot.status.phase);
        }
    }
}

#[test]
fn a_sandbox_that_sleeps_on_a_layer_is_captured_already() {
    let mut sandbox = sandbox(Phase::Paused);
    sandbox.status.snapshot = Some(layer(1));
    sandbox.status.snapshot_size = 4096;
    for phase in [SnapshotPhase::Pending, SnapshotPhase::Capturing] {
        for observed in [Observed::Absent, seen(WorkloadState::Frozen)] {
            let snapshot = snapshot(phase);
            let plan = plan_snapshot(view(&snapshot, Some(&sandbox), &observed));
            let Some(Step::Publish(status)) = plan.steps.first() else {
                panic!("{plan:?}");
            };
            assert_eq!(status.phase, SnapshotPhase::Ready);
            assert_eq!(status.containers[0].digest, layer(1));
            assert_eq!(status.containers[0].size, 4096);
            assert_eq!(status.image, None);
        }
    }
}

#[test]
fn a_sandbox_that_sleeps_on_a_published_layer_says_where_it_is() {
    let mut sandbox = sandbox(Phase::Paused);
    sandbox.status.snapshot = Some(layer(1));
    sandbox.status.snapshot_image = Some("r.example/kept@sha256:1".into());
    sandbox.spec.pause_policy = Some(Box::new(PausePolicy {
        resume_image_pull_secret_name: Name::new("pull").ok(),
        ..PausePolicy::default()
    }));
    let mut snapshot = snapshot(SnapshotPhase::Pending);
    let status = |snapshot: &SandboxSnapshot| {
        let plan = plan_snapshot(view(snapshot, Some(&sandbox), &Observed::Absent));
        match plan.steps.into_iter().next() {
            Some(Step::Publish(status)) => *status,
            other => panic!("{other:?}"),
        }
    };
    let its = status(&snapshot);
    assert_eq!(its.image.as_deref(), Some("r.example/kept@sha256:1"));
    assert_eq!(its.image_pull_secret_name, Name::new("pull").ok());
    // It is pushed to a registry of its own first.
    snapshot.spec.registry = Some("s.example".into());
    let own = status(&snapshot);
    assert_eq!(own.image, None);
    assert_eq!(own.image_pull_secret_name, Name::new("pull").ok());
}

#[test]
fn what_is_decided_stays_decided() {
    let sandbox = sandbox(Phase::Running);
    let running = seen(WorkloadState::Running);
    for phase in [SnapshotPhase::Ready, SnapshotPhase::Failed] {
        assert_eq!(next(&snapshot(phase), Some(&sandbox), &running), "rest");
    }
    let mut deleting = snapshot(SnapshotPhase::Capturing);
    deleting.metadata.deletion_timestamp = Some(T0);
    assert_eq!(next(&deleting, Some(&sandbox), &running), "rest");
}

#[test]
fn a_sandbox_that_is_not_there_or_is_going_fails_it() {
    let running = seen(WorkloadState::Running);
    let mut deleting = sandbox(Phase::Running);
    deleting.metadata.deletion_timestamp = Some(T0);
    for phase in [SnapshotPhase::Pending, SnapshotPhase::Capturing] {
        assert_eq!(next(&snapshot(phase), None, &running), "→Failed");
        assert_eq!(next(&snapshot(phase), Some(&deleting), &running), "→Failed");
    }
}

#[test]
fn a_failure_is_counted_and_the_last_one_ends_it() {
    let mut snapshot = snapshot(SnapshotPhase::Capturing);
    for attempt in 1..=MAX_ATTEMPTS {
        assert_eq!(snapshot.status.phase, SnapshotPhase::Capturing);
        snapshot.status = after_failure(&snapshot, "disk full", false, T0);
        assert_eq!(snapshot.status.attempts, attempt);
        assert_eq!(&*snapshot.status.reason, "disk full");
    }
    assert_eq!(snapshot.status.phase, SnapshotPhase::Failed);
    let hopeless = self::snapshot(SnapshotPhase::Capturing);
    assert_eq!(
        after_failure(&hopeless, "no", true, T0).phase,
        SnapshotPhase::Failed
    );
}

/// One sandbox and its snapshot, each performed by its own plan.
struct World {
    snapshot: SandboxSnapshot,
    sandbox: Sandbox,
    workload: Observed,
    can: Abilities,
    /// Steps until whoever performs them dies.
    life: usize,
}

impl World {
    fn dies(&mut self) -> bool {
        self.life = self.life.saturating_sub(1);
        self.life == 0
    }

    fn workload_becomes(&mut self, to: WorkloadState) {
        if let Observed::Present(facts) = &mut self.workload {
            facts.state = to;
        }
    }

    /// A turn of the snapshot in its sandbox's lane, until it rests or whoever does it dies.
    fn turn(&mut self) {
        for _ in 0..10 {
            let mut plan = plan_snapshot(View {
                can: self.can,
                ..view(&self.snapshot, Some(&self.sandbox), &self.workload)
            });
            let Some(step) = plan.steps.pop() else {
                return;
            };
            match step {
                Step::Publish(status) => self.snapshot.status = *status,
                Step::Freeze => self.workload_becomes(WorkloadState::Frozen),
                Step::Capture => {
                    if !self.can.freeze {
                        self.workload_becomes(WorkloadState::Frozen);
                    }
                    assert_eq!(self.workload, seen(WorkloadState::Frozen));
                    if self.dies() {
                        return;
                    }
                    let captured = Captured {
                        digest: layer(2),
                        size: 1,
                        parent: None,
                        published: None,
                    };
                    let view = view(&self.snapshot, Some(&self.sandbox), &self.workload);
                    self.snapshot.status = captured_as(view, &captured);
                }
                Step::DeleteRecord => panic!("nothing expires here"),
            }
            if self.dies() {
                return;
            }
        }
        panic!("it never rests: {:?}", self.snapshot.status);
    }

    /// The sandbox's own plan, until it rests.
    fn live(&mut self) {
        for _ in 0..10 {
            let mut plan = crate::sandbox::plan_sandbox(crate::sandbox::View {
                sandbox: &self.sandbox,
                observed: &self.workload,
                due: crate::sandbox::Due::default(),
                base: crate::sandbox::Base::Images,
                recycle: model::pool::RecyclePolicy::Destroy,
                undrained: false,
                hooks: false,
                can: self.can,
                now: T0,
            });
            match plan.steps.pop() {
                None => return,
                Some(crate::sandbox::Step::Thaw) => self.workload_becomes(WorkloadState::Running),
                Some(crate::sandbox::Step::Freeze) => self.workload_becomes(WorkloadState::Frozen),
                Some(crate::sandbox::Step::Publish(status, _)) => self.sandbox.status = *status,
                Some(step) => panic!("{step:?}"),
            }
        }
        panic!("it never rests");
    }
}

#[test]
fn it_converges_after_a_crash_at_each_step_and_leaves_its_sandbox_as_it_was() {
    for (desired, state, freeze) in [
        (DesiredState::Running, WorkloadState::Running, true),
        (DesiredState::Paused, WorkloadState::Frozen, true),
        (DesiredState::Running, WorkloadState::Running, false),
    ] {
        for life in 1..8 {
            let mut sandbox = sandbox(Phase::Running);
            sandbox.spec.desired_state = desired;
            let mut world = World {
                snapshot: snapshot(SnapshotPhase::Pending),
                sandbox,
                workload: seen(WorkloadState::Running),
                can: Abilities {
                    freeze,
                    ..Abilities::ALL
                },
                life,
            };
            world.turn();
            world.live();
            world.life = usize::MAX;
            world.turn();
            world.live();
            assert_eq!(
                world.snapshot.status.phase,
                SnapshotPhase::Ready,
                "died at {life}"
            );
            assert_eq!(world.workload, seen(state), "died at {life}");
            world.turn();
        }
    }
}

fn id(n: u128) -> SandboxId {
    SandboxId::from_random(n)
}

#[test]
fn it_says_once_what_it_waits_for() {
    let sandbox = sandbox(Phase::Starting);
    let mut snapshot = snapshot(SnapshotPhase::Pending);
    let plan = plan_snapshot(view(&snapshot, Some(&sandbox), &Observed::Absent));
    let Some(Step::Publish(status)) = plan.steps.into_iter().next() else {
        panic!("nothing is said");
    };
    assert_eq!(&*status.reason, "waits until its sandbox runs or sleeps");
    snapshot.status = *status;
    assert_eq!(next(&snapshot, Some(&sandbox), &Observed::Absent), "rest");
}

#[test]
fn it_never_captures_another_delivery_than_it_was_asked_for() {
    let seen = [
        Observed::Absent,
        seen(WorkloadState::Running),
        seen(WorkloadState::Frozen),
    ];
    for phase in [Phase::Running, Phase::Paused, Phase::Idle, Phase::Starting] {
        let mut other = sandbox(phase);
        other.spec.sandbox_id = Some(id(2));
        other.spec.pool = Some(Name::new("pool").unwrap());
        let mut sleeping = other.clone();
        sleeping.status.snapshot = Some(layer(1));
        for begun in [SnapshotPhase::Pending, SnapshotPhase::Capturing] {
            let mut asked = snapshot(begun);
            asked.spec.sandbox_id = Some(id(1));
            let mut bound = snapshot(begun);
            bound.status.source = Some(Source {
                uid: other.uid(),
                epoch: Epoch(7),
                sandbox_id: Some(id(2)),
            });
            let unnamed = snapshot(begun);
            for snapshot in [asked, bound, unnamed] {
                for (sandbox, seen) in [&other, &sleeping].into_iter().zip(seen.each_ref()) {
                    let plan = plan_snapshot(view(&snapshot, Some(sandbox), seen));
                    let Some(Step::Publish(status)) = plan.steps.first() else {
                        panic!("{plan:?}");
                    };
                    assert_eq!(status.phase, SnapshotPhase::Failed);
                    assert!(!status.reason.is_empty());
                    assert!(status.containers.is_empty());
                }
            }
        }
    }
}

#[test]
fn a_workload_that_is_not_the_owners_is_not_captured() {
    let mut sandbox = sandbox(Phase::Running);
    sandbox.spec.epoch = Epoch(2);
    let begun = snapshot(SnapshotPhase::Capturing);
    for state in [WorkloadState::Running, WorkloadState::Frozen] {
        assert_eq!(next(&begun, Some(&sandbox), &seen(state)), "→Capturing");
    }
}

#[test]
fn one_whose_time_is_over_goes_in_whichever_state_it_is() {
    let sandbox = sandbox(Phase::Running);
    for phase in [
        SnapshotPhase::Pending,
        SnapshotPhase::Capturing,
        SnapshotPhase::Ready,
        SnapshotPhase::Failed,
    ] {
        let snapshot = snapshot(phase);
        let over = View {
            expired: true,
            ..view(&snapshot, Some(&sandbox), &Observed::Absent)
        };
        assert_eq!(word(&plan_snapshot(over)), "DeleteRecord");
    }
}
