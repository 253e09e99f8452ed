//! Stock `kubectl`, which the end-to-end tests drive: the machine's own if it is new enough, else
//! built from its Go module.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use crate::command;

/// The first version that does not ask for the OpenAPI v2 document, in protobuf, before it creates
/// anything: older ones work with `--validate=false` only.
const OLDEST: (u32, u32) = (1, 29);

/// The release that `conformance/kubectl/go.mod` names as k8s.io/kubectl v0.31.
const BUILT: &str = "v1.31.4";

/// A `PATH` on which `kubectl` is found.
pub(crate) fn path() -> anyhow::Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = version("kubectl".into()) {
        if found >= OLDEST {
            return Ok(path);
        }
        println!("kubectl {}.{} is too old for the tests", found.0, found.1);
    }
    let tools = command::target().join("tools");
    let built = tools.join("kubectl");
    if version(built.clone()).is_none() {
        build(&built)?;
    }
    let parts = std::iter::once(tools).chain(std::env::split_paths(&path));
    std::env::join_paths(parts).context("put kubectl on PATH")
}

fn version(program: PathBuf) -> Option<(u32, u32)> {
    let output = Command::new(program)
        .args(["version", "--client", "--output=json"])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let version = answer["clientVersion"]["gitVersion"].as_str()?;
    let mut parts = version.trim_start_matches('v').split('.');
    let mut number = || parts.next()?.parse().ok();
    Some((number()?, number()?))
}

fn build(target: &PathBuf) -> anyhow::Result<()> {
    println!("building kubectl from its Go module");
    // The module does not know what release it is, and `kubectl version` fails without.
    let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion={BUILT}");
    let mut go = Command::new("go");
    go.current_dir(command::root().join("conformance/kubectl"))
        .args(["build", "-ldflags", &flags, "-o"])
        .arg(target)
        .arg(".");
    command::run(&mut go).context(
        "the end-to-end tests need kubectl 1.29 or newer: install it, or Go so that it can be built",
    )?;
    if version(target.clone()).is_none() {
        bail!("the kubectl that was built does not run");
    }
    Ok(())
}
