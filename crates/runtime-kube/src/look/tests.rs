#![expect(
    clippy::needless_pass_by_value,
    reason = "values that are written where they are used read better"
)]

use serde_json::{Value, json};

use super::*;

fn pod(status: Value, annotations: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "box", "annotations": annotations},
        "status": status,
    });
    serde_json::from_value(pod).unwrap()
}

fn container(name: &str, restarts: i32, state: Value, last: Value) -> Value {
    json!({
        "name": name, "image": "app:1", "imageID": "docker.io/library/app@sha256:00",
        "ready": true, "restartCount": restarts, "state": state, "lastState": last,
        "containerID": "containerd://abc",
    })
}

fn status(containers: Value) -> Value {
    json!({
        "phase": "Running", "podIP": "10.1.2.3", "hostIP": "10.0.0.1",
        "containerStatuses": containers,
    })
}

fn running() -> Value {
    json!({"running": {}})
}

fn terminated(code: i32, reason: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason}})
}

fn waiting(reason: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": "why"}})
}

fn see(restarts: i32, state: Value, last: Value, meant: i32) -> Seen {
    let all = json!([container("sandbox", restarts, state, last)]);
    let notes = json!({names::RESTARTS: meant.to_string()});
    seen(&pod(status(all), notes), false)
}

fn exited(code: i32) -> Seen {
    Seen::Ended(Ended {
        code,
        out_of_memory: false,
        loss: None,
    })
}

#[test]
fn a_container_that_runs_is_where_its_pod_is() {
    let Seen::Running(running) = see(0, running(), json!({}), 0) else {
        panic!("it runs");
    };
    assert_eq!(running.ip, IpAddr::from([10, 1, 2, 3]));
    assert_eq!(running.node, Some(IpAddr::from([10, 0, 0, 1])));
    assert_eq!(&*running.container_id, "containerd://abc");
}

#[test]
fn a_container_that_has_started_over_by_itself_has_ended() {
    let none = || json!({});
    assert_eq!(see(1, running(), terminated(3, "Error"), 0), exited(3));
    assert_eq!(see(0, terminated(0, "Completed"), none(), 0), exited(0));
    let again = waiting("CrashLoopBackOff");
    assert_eq!(see(0, again, terminated(1, "Error"), 0), exited(1));
    let Seen::Ended(ended) = see(1, running(), terminated(137, "OOMKilled"), 0) else {
        panic!("it has ended");
    };
    assert!(ended.out_of_memory);
}

#[test]
fn a_container_that_is_started_over_on_purpose_has_not() {
    let killed = || terminated(143, "Error");
    let nothing = Seen::Swapping(Waiting::Nothing);
    assert_eq!(see(0, running(), json!({}), 1), nothing, "not begun");
    assert_eq!(see(0, killed(), json!({}), 1), nothing, "killed");
    assert_eq!(
        see(0, waiting("ImagePullBackOff"), killed(), 1),
        Seen::Swapping(Waiting::Pull("why".into()))
    );
    assert_eq!(see(1, waiting("ContainerCreating"), killed(), 1), nothing);
    assert!(matches!(see(1, running(), killed(), 1), Seen::Running(_)));
    assert_eq!(see(2, running(), terminated(9, "Error"), 1), exited(9));
    assert_eq!(see(1, terminated(9, "Error"), killed(), 1), exited(9));
    let crash = see(1, waiting("CrashLoopBackOff"), terminated(9, "Error"), 1);
    assert_eq!(crash, exited(9));
}

#[test]
fn what_is_beside_the_sandbox_counts_for_nothing() {
    let all = json!([
        container("log", 7, terminated(1, "Error"), terminated(1, "Error")),
        container("sandbox", 0, running(), json!({})),
    ]);
    let pod = pod(status(all), json!({}));
    assert!(matches!(seen(&pod, false), Seen::Running(_)));
}

#[test]
fn what_does_not_come_says_why() {
    let pending = |more: Value| {
        let mut status = json!({"phase": "Pending"});
        for (key, value) in more.as_object().unwrap() {
            status[key] = value.clone();
        }
        seen(&pod(status, json!({})), false)
    };
    assert_eq!(pending(json!({})), Seen::Coming(Waiting::Nothing));
    let unplaced = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes",
    }]);
    let unplaced = pending(json!({"conditions": unplaced}));
    assert_eq!(unplaced, Seen::Coming(Waiting::NoRoom("0/3 nodes".into())));
    let of = |name, reason| json!([container(name, 0, waiting(reason), json!({}))]);
    for (reason, why) in [
        ("ContainerCreating", Waiting::Nothing),
        ("ErrImagePull", Waiting::Pull("why".into())),
        ("ErrImageNeverPull", Waiting::Image("why".into())),
        ("CreateContainerConfigError", Waiting::Broken("why".into())),
    ] {
        let its = pending(json!({"containerStatuses": of("sandbox", reason)}));
        assert_eq!(its, Seen::Coming(why.clone()), "{reason}");
        let agents = pending(json!({"initContainerStatuses": of("agent", reason)}));
        assert_eq!(agents, Seen::Coming(why), "{reason}");
    }
    let turned_away = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu"});
    let turned_away = seen(&pod(turned_away, json!({})), false);
    assert_eq!(turned_away, Seen::Coming(Waiting::NoRoom("no cpu".into())));
}

#[test]
fn what_was_taken_away_says_by_whom() {
    let runs = || json!([container("sandbox", 0, running(), json!({}))]);
    let lost = |loss| {
        Seen::Ended(Ended {
            code: KILLED,
            out_of_memory: false,
            loss: Some(loss),
        })
    };
    let disrupted = |reason: &str| {
        let mut status = status(runs());
        status["conditions"] =
            json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
        status
    };
    let deleted = |status: Value| {
        let mut pod = pod(status, json!({}));
        let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        seen(&pod, false)
    };
    assert_eq!(deleted(status(runs())), lost(Loss::Removed));
    assert_eq!(
        deleted(disrupted("DeletionByTaintManager")),
        lost(Loss::NodeLost)
    );
    assert_eq!(
        deleted(disrupted("EvictionByEvictionAPI")),
        lost(Loss::Evicted)
    );
    let gone = pod(status(runs()), json!({}));
    assert_eq!(seen(&gone, true), lost(Loss::Removed));
    let mut evicted = status(runs());
    evicted["phase"] = "Failed".into();
    evicted["reason"] = "Evicted".into();
    assert_eq!(seen(&pod(evicted, json!({})), false), lost(Loss::Evicted));
}

#[test]
fn an_image_is_known_by_its_digest_unless_it_is_a_layers() {
    let digest = format!("sha256:{:064x}", 1);
    let mut one = container("sandbox", 0, running(), json!({}));
    one["imageID"] = format!("docker.io/library/app@{digest}").into();
    let plain = pod(status(json!([one])), json!({}));
    assert_eq!(digests(&plain)["main"].as_str(), digest);
    let layered = pod(status(json!([one])), json!({names::LAYER: digest}));
    assert!(digests(&layered).is_empty());
    one["imageID"] = "sha256:00".into();
    assert!(digests(&pod(status(json!([one])), json!({}))).is_empty());
}

#[test]
fn an_older_call_is_known_by_what_the_pod_says() {
    let pod = pod(json!({}), json!({names::FENCE: "3.4"}));
    let fence = |generation, operation| Fence {
        uid: model::Uid::from_random(1),
        generation: model::Generation(generation),
        operation: model::OperationId(operation),
    };
    for (older, at) in [
        (true, (3, 3)),
        (true, (2, 9)),
        (false, (3, 4)),
        (false, (4, 0)),
    ] {
        assert_eq!(is_stale(&pod, fence(at.0, at.1)), older, "{at:?}");
    }
}
