//! Sandboxes whose first process is the agent.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use agent_client::{Client, Error, Event, StartOptions};
use model::Uid;
use runtime_local::{LocalRuntime, Options};
use wire::process::{ProcessConfig, StartRequest};

use super::{Host, options};

/// The agent of this build. `cargo test --workspace` builds it; a run of this crate alone builds it
/// where it is missing.
pub(crate) fn agent() -> PathBuf {
    let path = Path::new(super::INIT).with_file_name("dormouse-agent");
    if !path.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "dormouse-agent"])
            .status();
        assert!(built.unwrap().success(), "the agent does not build");
    }
    path
}

pub(crate) fn host() -> Host {
    let unique = options();
    Host::with(Options {
        first_uid: unique.first_uid,
        ranges: unique.ranges,
        ..Options::agent(agent())
    })
}

pub(crate) fn client(runtime: &LocalRuntime, uid: Uid) -> Client {
    let runtime = runtime.clone();
    Client::new(move || runtime::dial(&runtime, uid, wire::envd::PORT))
}

pub(crate) async fn sh(client: &Client, script: &str) -> Result<String, Error> {
    let request = StartRequest {
        process: Some(ProcessConfig {
            cmd: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            ..ProcessConfig::default()
        }),
        ..StartRequest::default()
    };
    let process = client.start(&request, StartOptions::default()).await?;
    let mut out = Vec::new();
    process
        .wait(|event| {
            if let Event::Stdout(bytes) | Event::Stderr(bytes) = event {
                out.extend_from_slice(&bytes);
            }
            Ok::<(), Error>(())
        })
        .await?;
    Ok(String::from_utf8(out).unwrap())
}
