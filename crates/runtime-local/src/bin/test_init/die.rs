//! A server that dies at a step.

use std::sync::Arc;

use model::{Generation, OperationId, Uid};
use runtime::{Fence, Runtime as _, WorkloadSpec};
use runtime_local::{LocalRuntime, Options, Step};

/// Creates sandbox 1 in a data directory, or deletes it, and is gone without a word at the step.
pub(crate) fn run(verb: &str, data_dir: &str, step: &str, first_uid: &str, class: &str) {
    let last = Step::ALL
        .into_iter()
        .find(|s| format!("{s:?}") == step)
        .unwrap();
    let mut options = Options::new(std::env::current_exe().unwrap());
    options.first_uid = first_uid.parse().unwrap();
    options.ranges = 4;
    options.on_step = Some(Arc::new(move |step| {
        if step == last {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
        }
    }));
    let runtime = LocalRuntime::open(data_dir, options).unwrap();
    let fence = Fence {
        uid: Uid::from_random(1),
        generation: Generation(1),
        operation: OperationId(2),
    };
    let spec = WorkloadSpec {
        images: [("main", "base")].into_iter().collect(),
        class: serde_json::from_str(class).unwrap(),
        ..WorkloadSpec::default()
    };
    let threads = tokio::runtime::Runtime::new().unwrap();
    threads.block_on(async {
        match verb {
            "create" => runtime.create(fence, &spec).await.map(drop).unwrap(),
            "delete" => runtime.delete(fence).await.unwrap(),
            "reset" => runtime.reset(fence, None).await.unwrap(),
            other => panic!("what is {other}?"),
        }
    });
}
