//! Jobs: one Pod at a time until one succeeds, or too many have failed.

use model::Key;
use serde_json::{Value, json};

use crate::{
    kinds::{JOBS, PODS},
    rules,
    world::World,
};

/// Does for a Job what is to be done next.
pub(crate) async fn tend(world: &World, key: &Key) {
    let Some(job) = world.get(&JOBS, key).await else {
        return;
    };
    let finished = job["status"]["conditions"].as_array().is_some_and(|all| {
        let over = |c: &Value| c["type"] == "Complete" || c["type"] == "Failed";
        all.iter().any(over)
    });
    let deleting = job["metadata"]["deletionTimestamp"].is_string();
    if finished || deleting || job["spec"]["suspend"] == true {
        return;
    }
    let pods = world.list(&PODS, key.namespace.as_ref()).await;
    let uid = &job["metadata"]["uid"];
    let owned = |pod: &&Value| {
        let owners = pod["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|all| all.iter().any(|owner| owner["uid"] == *uid))
    };
    let (mut active, mut succeeded, mut failed) = (0u64, 0u64, 0u64);
    for pod in pods.iter().filter(owned) {
        match pod["status"]["phase"].as_str() {
            Some("Succeeded") => succeeded += 1,
            Some("Failed") => failed += 1,
            Some(_) | None => active += 1,
        }
    }
    let limit = job["spec"]["backoffLimit"].as_u64().unwrap_or(6);
    let now = world.now();
    let started = match &job["status"]["startTime"] {
        Value::String(at) => at.clone(),
        _ => now.clone(),
    };
    let condition = |kind: &str, reason: &str| {
        json!({
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": "",
            "lastProbeTime": now,
            "lastTransitionTime": now,
        })
    };
    let mut status = json!({"startTime": started});
    for (name, count) in [
        ("active", active),
        ("succeeded", succeeded),
        ("failed", failed),
    ] {
        // By a merge patch, null is none.
        status[name] = if count > 0 { count.into() } else { Value::Null };
    }
    if succeeded > 0 {
        status["completionTime"] = now.as_str().into();
        status["conditions"] = json!([
            condition("SuccessCriteriaMet", "CompletionsReached"),
            condition("Complete", "CompletionsReached"),
        ]);
    } else if failed > limit {
        status["conditions"] = json!([
            condition("FailureTarget", "BackoffLimitExceeded"),
            condition("Failed", "BackoffLimitExceeded"),
        ]);
    } else if active == 0 {
        let namespace = key.namespace.as_ref().map(AsRef::as_ref);
        let (code, _) = world
            .create(&PODS, namespace, &rules::template_of(&job))
            .await;
        if code.is_success() {
            status["active"] = 1.into();
        }
    }
    world
        .patch(&JOBS, key, true, &json!({"status": status}))
        .await;
}
