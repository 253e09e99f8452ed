//! What must be true of every plan, every publication and every rest.

use super::{
    super::*,
    world::{IDLE_IMAGE, World},
};

impl World {
    pub(super) fn check_plan(&self, plan: &Plan<Step>) {
        assert!(!plan.why.is_empty() && plan.steps.len() < 2, "{plan:?}");
        let (spec, status, due) = (&self.record.spec, &self.record.status, self.due());
        let deleting = self.record.metadata.is_deleting();
        for step in &plan.steps {
            match step {
                Step::Thaw => assert_eq!(status.snapshot, None, "thawed after its capture"),
                Step::IfUnused(step) => {
                    let closes = model::lifecycle::is_closing(&self.record);
                    assert!(due.idle && closes, "ended while it was open: {step:?}");
                }
                Step::Publish(next, _) if next.phase == Phase::Paused => assert!(
                    !self.undrained || !matches!(status.phase, Phase::Running | Phase::Pausing),
                    "asleep before what is inside could end: {}",
                    plan.why
                ),
                Step::Reset => assert!(was_released(&self.record), "reset under its owner"),
                Step::DeleteRecord(_) | Step::Intend(Intent::Release(_)) => assert!(
                    was_released(&self.record) || due.end || due.idle || self.slept_for_long(),
                    "taken from its owner: {}",
                    plan.why
                ),
                Step::DeleteWorkload if spec.owner.is_some() && !deleting => assert!(
                    self.workload == Observed::Partial
                        || status.snapshot.is_some()
                        || matches!(
                            status.phase,
                            Phase::Stopped | Phase::Failed | Phase::Starting
                        ),
                    "its work is lost: {}",
                    plan.why
                ),
                _ => {}
            }
        }
    }

    /// Whether it sleeps, should sleep, and has slept for as long as its owner has it kept.
    fn slept_for_long(&self) -> bool {
        let (spec, status) = (&self.record.spec, &self.record.status);
        let asleep = status.phase == Phase::Paused && spec.desired_state == DesiredState::Paused;
        let slept = status
            .paused_at
            .map(|at| (self.now.as_micros() - at.as_micros()) / 1_000_000);
        let kept = spec.timeouts.paused_retention_seconds.map(i64::from);
        asleep && kept.is_some() && slept >= kept
    }

    pub(super) fn check_publication(&self, next: &SandboxStatus) {
        let last = &self.record.status;
        let (from, to) = (last.phase, next.phase);
        assert!(from.may_become(to), "{from} may not become {to}");
        let id = |s: &SandboxStatus| s.last_operation.as_ref().map(|op| op.id);
        assert!(id(next) >= id(last), "operation ids went back");
        let facts = match &self.workload {
            Observed::Present(facts) => Some(facts),
            Observed::Absent | Observed::Coming | Observed::Partial => None,
        };
        let spec = &self.record.spec;
        if from != to {
            match to {
                Phase::Running => {
                    let epoch = facts.map(|f| f.epoch);
                    assert_eq!(epoch, Some(spec.epoch), "not armed");
                    let runs = |(c, image): (&str, &str)| facts.is_some_and(|f| f.runs(c, image));
                    assert!(spec.wanted_images().iter().all(runs), "not its images");
                    let first = last.armed_epoch != spec.epoch;
                    let hooked = facts.and_then(|f| f.hooked.as_ref()).map(|h| h.epoch);
                    let ran = hooked == Some(spec.epoch);
                    assert!(!self.hooks || !first || ran, "its hooks were not run");
                    let others = self.inside.0.iter().any(|e| *e != spec.epoch);
                    assert!(!others, "of an earlier owner: {:?}", self.inside.0);
                    assert_eq!(
                        self.inside.1, self.acknowledged,
                        "an acknowledged write is lost"
                    );
                    assert_eq!(next.snapshot, None, "the layer is behind from here on");
                }
                Phase::Idle => {
                    assert_eq!(self.inside.0, [], "not clean");
                    let image = facts.and_then(|f| f.images.get("main"));
                    assert_eq!(image, Some(IDLE_IMAGE), "the last owner's image");
                }
                Phase::Stopped => assert_eq!(last.snapshot, None, "its layer is forgotten"),
                Phase::Failed => assert_eq!(self.workload, Observed::Absent, "hides a workload"),
                _ => {}
            }
        }
    }

    pub(super) fn check_rest(&self) {
        if self.gone {
            return;
        }
        let (spec, status) = (&self.record.spec, &self.record.status);
        let state = match &self.workload {
            Observed::Present(facts) => Some(facts.state),
            Observed::Absent => None,
            Observed::Coming | Observed::Partial => panic!("remains are left"),
        };
        let awake = spec.desired_state == DesiredState::Running;
        let fits = match status.phase {
            Phase::Running => awake && state == Some(WorkloadState::Running),
            Phase::Idle => spec.owner.is_none() && state == Some(WorkloadState::Running),
            Phase::Paused if status.snapshot.is_some() => !awake && state.is_none(),
            Phase::Paused => {
                let frozen = state == Some(WorkloadState::Frozen);
                !awake && frozen && rung(self.view()) == SnapshotType::Freeze
            }
            Phase::Stopped | Phase::Failed => state.is_none(),
            _ => false,
        };
        assert!(
            fits,
            "rests as {} with {state:?}, wanted: {awake}",
            status.phase
        );
        let given_up = self
            .record
            .status
            .last_operation
            .as_ref()
            .is_some_and(|op| {
                op.kind == OperationKind::Network && op.state == OperationState::Failed
            });
        if let (Phase::Running | Phase::Idle, Observed::Present(facts), false) =
            (status.phase, &self.workload, given_up)
        {
            assert_eq!(facts.network, spec.network, "rests with another network");
        }
        let operation = status.last_operation.as_ref();
        let in_flight = operation.is_some_and(|op| op.state == OperationState::InFlight);
        assert!(!in_flight, "an operation never ends: {operation:?}");
        let seen = status.observed_generation;
        assert_eq!(
            seen, self.record.metadata.generation,
            "its intent was not seen"
        );
    }
}
