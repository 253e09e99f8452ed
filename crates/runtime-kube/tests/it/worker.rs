//! A worker over the stand-in: it stops the agent of a Pod, and says that it captured something.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::Digest;
use parking_lot::Mutex;
use runtime::node::Report;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use standin_kube::{Ending, Standin};

use crate::daemon::{agent_of, is_stopped};

/// Has workers of a cluster do so. What was captured of one Pod is the same every time.
pub(crate) fn employ(standin: &Arc<Standin>) {
    let weak = Arc::downgrade(standin);
    let captured: Mutex<BTreeMap<String, Digest>> = Mutex::default();
    standin.kubelet().unwrap().on_run(move |pod| {
        let words = words_of(pod)?;
        let said = |name: &str| {
            let found = words.iter().find_map(|word| word.strip_prefix(name));
            found.map(ToOwned::to_owned)
        };
        let (pod_uid, standin) = (said("--pod-uid=")?, weak.upgrade()?);
        // The kubelet notes a process a moment after it was started.
        let agent = (0..200).find_map(|_| {
            let found = agent_of(&standin, &pod_uid);
            if found.is_none() {
                std::thread::sleep(Duration::from_millis(10));
            }
            found
        })?;
        let signal = match words.iter().any(|word| word == "--thaw") {
            true => Signal::CONT,
            false => Signal::STOP,
        };
        kill_process(agent, signal).unwrap();
        while is_stopped(agent) != (signal == Signal::STOP) {
            std::thread::yield_now();
        }
        let report = match said("--registry=") {
            None => Report::Thawed,
            Some(registry) => {
                let mut all = captured.lock();
                let number = all.len() + 1;
                let layer = all
                    .entry(pod_uid)
                    .or_insert_with(|| Digest::new(format!("sha256:{number:064x}")).unwrap());
                Report::Captured {
                    layer: layer.clone(),
                    size: 4096,
                    parent: None,
                    image: format!("{registry}/sandbox@{layer}").into(),
                }
            }
        };
        Some(Ending {
            code: 0,
            message: serde_json::to_string(&report).unwrap(),
            after: Duration::from_millis(50),
        })
    });
}

/// The words of a worker's command; none for any other container.
fn words_of(pod: &Value) -> Option<Vec<String>> {
    let container = &pod["spec"]["containers"][0];
    (container["name"] == "commit").then_some(())?;
    let lists = [&container["command"], &container["args"]];
    let words = lists.into_iter().filter_map(Value::as_array).flatten();
    Some(
        words
            .filter_map(|word| Some(word.as_str()?.to_owned()))
            .collect(),
    )
}
