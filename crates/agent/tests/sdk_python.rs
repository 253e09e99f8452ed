//! The official Python SDK drives the agent. Fails, and says so, where there is no Python.

use std::{
    io::Read as _,
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
};

#[test]
fn the_official_python_sdk_drives_the_agent() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("its address")
    };
    let mut agent = Command::new(env!("CARGO_BIN_EXE_dormouse-agent"))
        .args(["--listen", &address.to_string()])
        .spawn()
        .expect("start the agent");
    // Beside this test's own output, so that it is made once for all builds of a target directory.
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sdk-python");
    let suite = Command::new(root.join("conformance/sdk-python/run"))
        .arg(format!("http://{address}"))
        .env("SDK_VENV", venv)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let outcome = suite.and_then(std::process::Child::wait_with_output);
    agent.kill().expect("stop the agent");
    agent.wait().expect("its end");
    let output = outcome.expect("run conformance/sdk-python/run");
    let mut said = String::new();
    (&output.stdout[..])
        .read_to_string(&mut said)
        .expect("text");
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}", output.status);
    assert!(said.contains(" passed"), "{said}");
}
