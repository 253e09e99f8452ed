//! Starting from a snapshot, waiting for it, and failing without it.

use model::{
    Metadata, Name, Namespace, SandboxSnapshot, Uid,
    snapshot::{CapturedContainer, Recipe, SnapshotPhase, SnapshotSpec},
};

use super::{super::*, world::record};

const T0: Timestamp = Timestamp::from_micros(1_000_000);

fn layer() -> Digest {
    Digest::new(format!("sha256:{:064x}", 9)).unwrap()
}

fn snapshot(phase: SnapshotPhase) -> SandboxSnapshot {
    let name = Name::new("snap").unwrap();
    let mut meta = Metadata::new(Some(Namespace::new("team").unwrap()), name);
    meta.uid = Some(Uid::from_random(2));
    let mut snapshot = SandboxSnapshot::new(meta, SnapshotSpec::of(Name::new("source").unwrap()));
    snapshot.status.phase = phase;
    if phase == SnapshotPhase::Ready {
        snapshot.status.recipe = Some(Box::new(Recipe {
            template: Some(Name::new("base").unwrap()),
            ..Recipe::default()
        }));
        snapshot.status.containers = vec![CapturedContainer {
            name: "main".into(),
            digest: layer(),
            size: 1,
            parent: None,
        }];
    }
    snapshot
}

fn child() -> Sandbox {
    let mut sandbox = record(false);
    sandbox.spec.images = model::StringMap::new();
    sandbox.spec.snapshot = Some(Name::new("snap").unwrap());
    sandbox.metadata.finalizers.push(SANDBOX_FINALIZER.into());
    sandbox
}

fn plan(sandbox: &Sandbox, base: Base<'_>, observed: &Observed) -> Plan<Step> {
    plan_sandbox(View {
        sandbox,
        observed,
        due: Due::default(),
        base,
        recycle: RecyclePolicy::Destroy,
        undrained: false,
        hooks: false,
        can: model::workload::Abilities::ALL,
        now: T0,
    })
}

fn published(plan: Plan<Step>) -> SandboxStatus {
    match plan.steps.into_iter().next() {
        Some(Step::Publish(status, _)) => *status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn its_first_start_goes_on_from_the_snapshots_layer_even_if_the_snapshot_goes() {
    let mut sandbox = child();
    let mut ready = snapshot(SnapshotPhase::Ready);
    ready.status.image = Some("r.example/kept@sha256:1".into());
    ready.status.image_pull_secret_name = Name::new("pull").ok();
    sandbox.status = published(plan(&sandbox, Base::Snapshot(&ready), &Observed::Absent));
    assert_eq!(sandbox.status.phase, Phase::Starting);
    assert_eq!(sandbox.status.layers().collect::<Vec<_>>(), [&layer()]);
    let origin = sandbox.status.origin.as_deref().unwrap();
    assert_eq!(origin.uid, ready.uid());
    assert_eq!(origin.image, ready.status.image);
    assert_eq!(origin.image_pull_secret_name, Name::new("pull").ok());
    assert_eq!(origin.recipe.template, Some(Name::new("base").unwrap()));
    let name = Name::new("snap").unwrap();
    let next = plan(&sandbox, Base::Missing(&name), &Observed::Absent);
    assert_eq!(next.steps, [Step::Create(Some(layer()))]);
    sandbox.status.started_at = Some(T0);
    assert_eq!(sandbox.status.layers().count(), 0, "it has its own files");
}

#[test]
fn it_waits_for_a_snapshot_that_is_not_ready_and_says_so_once() {
    for phase in [SnapshotPhase::Pending, SnapshotPhase::Capturing] {
        let mut sandbox = child();
        let snapshot = snapshot(phase);
        let status = published(plan(&sandbox, Base::Snapshot(&snapshot), &Observed::Absent));
        assert_eq!(status.phase, Phase::Pending);
        let ready = status.conditions.iter().find(|c| &*c.kind == "Ready");
        assert_eq!(&*ready.unwrap().message, "waits for snapshot snap");
        sandbox.status = status;
        let again = plan(&sandbox, Base::Snapshot(&snapshot), &Observed::Absent);
        assert_eq!(again.steps, []);
    }
}

#[test]
fn without_its_snapshot_it_fails_with_the_reason() {
    let name = Name::new("snap").unwrap();
    let mut failed = snapshot(SnapshotPhase::Failed);
    failed.status.reason = "its sandbox has ended".into();
    let mut going = snapshot(SnapshotPhase::Ready);
    going.metadata.deletion_timestamp = Some(T0);
    let mut old = snapshot(SnapshotPhase::Ready);
    old.status.recipe = None;
    for (base, reason) in [
        (Base::Missing(&name), "snapshot snap does not exist"),
        (
            Base::Snapshot(&failed),
            "snapshot snap failed: its sandbox has ended",
        ),
        (Base::Snapshot(&going), "snapshot snap is being deleted"),
        (
            Base::Snapshot(&old),
            "snapshot snap does not say what it was taken of: take another",
        ),
    ] {
        let status = published(plan(&child(), base, &Observed::Absent));
        assert_eq!(status.phase, Phase::Failed);
        let operation = status.last_operation.unwrap();
        assert_eq!(operation.state, OperationState::Failed);
        assert_eq!(operation.error.as_deref(), Some(reason));
    }
}

#[test]
fn a_missing_snapshot_is_no_matter_to_one_that_ends() {
    let name = Name::new("snap").unwrap();
    let mut sandbox = child();
    sandbox.metadata.deletion_timestamp = Some(T0);
    let plan = plan(&sandbox, Base::Missing(&name), &Observed::Absent);
    assert_eq!(plan.steps, [Step::RemoveFinalizer]);
}
