//! What is said of a Pod as a whole.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};

use super::container::{Container, State};

/// The phase of a Pod, from its containers.
pub(super) fn phase(containers: &[Container], policy: &str, begun: bool) -> &'static str {
    let ended = |c: &Container| matches!(c.state, State::Terminated(_));
    if policy != "Always" && containers.iter().all(ended) {
        let fine = |c: &Container| match &c.state {
            State::Terminated(ended) => ended["terminated"]["exitCode"] == 0,
            State::Waiting { .. } | State::Running { .. } => false,
        };
        return if containers.iter().all(fine) {
            "Succeeded"
        } else {
            "Failed"
        };
    }
    // Once a container ran, it is running, whatever waits to be started again.
    let ran = |c: &Container| !c.id.is_empty();
    if begun && containers.iter().all(ran) {
        "Running"
    } else {
        "Pending"
    }
}

/// The status of a Pod.
pub(super) fn of(
    phase: &str,
    init: &[Value],
    containers: &[Container],
    address: Ipv4Addr,
    node: IpAddr,
    started: &str,
    old: &Value,
) -> Value {
    let ready = phase == "Running" && containers.iter().all(|c| c.ready);
    let initialized = init
        .iter()
        .all(|status| status["state"]["terminated"]["exitCode"] == 0);
    let condition = |kind: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        let before = old["conditions"].as_array().into_iter().flatten();
        let before = before.into_iter().find(|c| c["type"] == kind);
        match before.filter(|c| c["status"] == status) {
            Some(same) => same.clone(),
            None => json!({"type": kind, "status": status, "lastTransitionTime": started}),
        }
    };
    let mut status = json!({
        "phase": phase,
        "qosClass": "BestEffort",
        "hostIP": node,
        "hostIPs": [{"ip": node}],
        "podIP": address.to_string(),
        "podIPs": [{"ip": address.to_string()}],
        "startTime": started,
        "conditions": [
            condition("PodReadyToStartContainers", true),
            condition("Initialized", initialized),
            condition("Ready", ready),
            condition("ContainersReady", ready),
            condition("PodScheduled", true),
        ],
        "containerStatuses": containers.iter().map(Container::status).collect::<Vec<_>>(),
    });
    if !init.is_empty() {
        status["initContainerStatuses"] = init.to_vec().into();
    }
    status
}
