use model::{
    Epoch, Metadata, Name, Namespace, SandboxId, Uid,
    sandbox::{Lease, Owner, SandboxSpec},
};

use super::*;
use crate::claim::{Delivery, claimed, released};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn owner() -> Owner {
    Owner {
        team: Namespace::new("team").unwrap(),
        user: Some("ada".into()),
        key: None,
    }
}

fn sandbox() -> Sandbox {
    let mut meta = Metadata::new(Some(owner().team), Name::new("m").unwrap());
    meta.uid = Some(Uid::from_random(1));
    let spec = SandboxSpec {
        owner: Some(owner()),
        sandbox_id: Some(SandboxId::new("i1").unwrap()),
        epoch: Epoch(1),
        claimed_at: Some(at(0)),
        ..SandboxSpec::default()
    };
    let mut sandbox = Sandbox::new(meta, spec);
    sandbox.status.phase = Phase::Running;
    sandbox.status.armed_epoch = Epoch(1);
    sandbox.status.started_at = Some(at(1));
    sandbox.status.images.insert("main", "base@sha256:1");
    sandbox
}

fn ended(sandbox: &Sandbox) -> Stopped {
    let record = finished(sandbox, None, None, at(999)).unwrap();
    assert_eq!(record.phase, Phase::Stopped);
    record.ended.unwrap()
}

#[test]
fn how_it_ended_is_told_from_the_record_alone() {
    let mut killed = sandbox();
    killed.metadata.deletion_timestamp = Some(at(50));
    killed.spec.timeouts.end_at = Some(at(100));
    killed.spec.timeouts.idle_seconds = Some(10);
    assert_eq!(ended(&killed).reason, StopReason::Completed);
    assert_eq!(ended(&killed).cause, None);
    assert_eq!(ended(&killed).at, at(50));

    let mut idle = killed.clone();
    idle.spec.timeouts.idle_action = IdleAction::Kill;
    assert_eq!(ended(&idle).cause, Some(StopCause::IdleTimeout));
    assert_eq!(ended(&idle).reason, StopReason::Released);

    let mut timed_out = killed.clone();
    timed_out.metadata.deletion_timestamp = Some(at(100));
    assert_eq!(ended(&timed_out).cause, Some(StopCause::Timeout));

    let mut slow = killed.clone();
    slow.status.armed_epoch = Epoch(0);
    slow.spec.lease = Some(Box::new(Lease {
        until: at(40),
        holder: None,
    }));
    assert_eq!(ended(&slow).cause, Some(StopCause::StartupTimeout));
    slow.spec.lease = None;
    assert_eq!(ended(&slow).reason, StopReason::Canceled, "it never ran");

    let mut crashed = killed;
    crashed.status.stopped = Some(Box::new(Stopped {
        reason: StopReason::Failed,
        at: at(20),
        exit_code: Some(137),
        cause: Some(StopCause::Exited),
        message: "its first process ended".into(),
    }));
    assert_eq!(ended(&crashed).exit_code, Some(137));
}

#[test]
fn a_member_that_was_given_back_is_its_last_owners_record_until_it_is_clean() {
    let mut member = sandbox();
    member.spec.owner = None;
    member.spec.sandbox_id = None;
    member.spec.pool = Some(Name::new("pool").unwrap());
    member.status.phase = Phase::Idle;
    member.status.recycled_epoch = Epoch(1);
    assert_eq!(finished(&member, None, None, at(1)), None, "nobody had it");
    let delivery = Delivery {
        metadata: [("job", "7")].into_iter().collect(),
        ..Delivery::new(owner(), SandboxId::new("i2").unwrap())
    };
    let mut taken = claimed(&member, &delivery, at(5)).unwrap();
    taken.status.armed_epoch = Epoch(2);
    let mut back = released(&taken, Ending::by(StopCause::IdleTimeout, at(9)));
    let record = finished(&back, None, Some(at(10)), at(11)).unwrap();
    assert_eq!(record.sandbox_id.as_str(), "i2");
    assert_eq!(record.owner, owner());
    assert_eq!(record.metadata.get("job"), Some("7"));
    assert_eq!(record.claimed_at, Some(at(5)));
    assert_eq!(record.recycled_at, Some(at(10)));
    assert_eq!(record.images.get("main"), Some("base@sha256:1"));
    let how = record.ended.unwrap();
    assert_eq!((how.reason, how.at), (StopReason::Released, at(9)));
    back.status.recycled_epoch = Epoch(2);
    assert_eq!(finished(&back, None, None, at(12)), None, "it is kept once");
    let again = claimed(
        &back,
        &Delivery::new(owner(), SandboxId::new("i3").unwrap()),
        at(20),
    );
    assert_eq!(again.unwrap().spec.given_back, None);
}

#[test]
fn names_of_records_are_from_the_newest_to_the_oldest() {
    let record = finished(&sandbox(), None, None, at(1)).unwrap();
    let names: Vec<_> = [3, 2, 1].map(|s| record.name(at(s)).unwrap()).into();
    assert!(names.is_sorted(), "{names:?}");
    assert_eq!(RecordSpec::ended_at(&names[0]), Some(at(3)));
    assert!(RecordSpec::first_name(at(2)).as_str() < names[1].as_str());
    assert!(names[0].as_str() < RecordSpec::first_name(at(2)).as_str());
}
