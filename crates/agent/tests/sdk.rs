//! The official SDKs drive the agent. Each fails, and says so, where what it needs is not there.

mod handed;

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
};

/// Runs a program of `conformance/`, which installs its SDK once: beside this test's own output, so
/// for all builds of a target directory.
fn drive(suite: &str, installed: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    let mut command = handed::shell(env!("CARGO_BIN_EXE_dormouse-agent"));
    let mut agent = handed::spawn(&mut command, listener);
    let program = root.join("conformance").join(suite).join("run");
    let outcome = Command::new(&program)
        .arg(format!("http://{address}"))
        .env(
            installed,
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(suite),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output);
    agent.kill().expect("stop the agent");
    agent.wait().expect("its end");
    let output = outcome.unwrap_or_else(|why| panic!("run {}: {why}", program.display()));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{}\n{said}", output.status);
    assert!(said.contains(" passed"), "{said}");
}

#[test]
fn the_official_python_sdk_drives_the_agent() {
    drive("sdk-python", "SDK_VENV");
}

#[test]
fn the_official_javascript_sdk_drives_the_agent() {
    drive("sdk-js", "SDK_MODULES");
}
