//! The real program: how it starts, listens, reaps and ends.

use std::{
    fs::Permissions,
    io::Read as _,
    net::TcpListener,
    os::{
        fd::{AsRawFd as _, IntoRawFd as _},
        unix::{fs::PermissionsExt as _, process::CommandExt as _},
    },
    process::Command,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use wire::{
    connect::Codec,
    process::{EventResponse, ProcessConfig, StartRequest},
};

use crate::{
    client::{Program, Served, at, eventually},
    handed,
};

pub(crate) async fn start(args: &[&str]) -> (Program, Served) {
    start_at("127.0.0.1:0", args).await
}

/// At an address of one's own: that of who connects is another, as it is for all who are outside.
pub(crate) async fn start_apart(args: &[&str]) -> (Program, Served) {
    start_at("127.0.0.9:0", args).await
}

/// As a user.
pub(crate) async fn start_as(user: u32, args: &[&str]) -> (Program, Served) {
    // Where the tests are built need not be everybody's to read.
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("agent");
    std::fs::copy(env!("CARGO_BIN_EXE_dormouse-agent"), &own).unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = handed::shell(&own);
    command.uid(user);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Program::serve(&mut command, listener, args).await
}

async fn start_at(address: &str, args: &[&str]) -> (Program, Served) {
    let mut command = handed::shell(env!("CARGO_BIN_EXE_dormouse-agent"));
    let listener = TcpListener::bind(address).unwrap();
    Program::serve(&mut command, listener, args).await
}

async fn run(agent: &Served, script: &str) -> String {
    run_as(agent, script, None).await
}

pub(crate) async fn run_as(agent: &Served, script: &str, user: Option<(&str, &str)>) -> String {
    let message = StartRequest {
        process: Some(ProcessConfig {
            cmd: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            ..ProcessConfig::default()
        }),
        ..StartRequest::default()
    };
    let mut stream = agent
        .stream(
            Codec::Json,
            "/process.Process/Start",
            &message,
            user.as_slice(),
        )
        .await;
    let mut out = String::new();
    while let Ok(message) = stream.next::<EventResponse>().await {
        if let Some(data) = message.event.unwrap().data {
            out.push_str(std::str::from_utf8(&data.stdout.unwrap_or_default()).unwrap());
        }
    }
    out
}

#[tokio::test]
async fn orphans_come_to_the_first_process_and_are_reaped() {
    let (program, agent) = start(&["--pid1"]).await;
    // It lets go of its output, so that the end of its starter does not wait for it.
    let script = "(sh -c 'echo $$; exec sleep 100 >/dev/null 2>&1' &) | head -1";
    let orphan = run(&agent, script).await;
    let orphan = orphan.trim().to_owned();
    let stat = format!("/proc/{orphan}/stat");
    let parent = std::fs::read_to_string(&stat).unwrap();
    let parent = parent
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .to_owned();
    assert_eq!(parent, program.0.id().to_string());
    let orphan = Pid::from_raw(orphan.parse().unwrap()).unwrap();
    kill_process(orphan, Signal::KILL).unwrap();
    eventually("the orphan is reaped", || {
        !std::path::Path::new(&stat).exists()
    })
    .await;
    assert_eq!(run(&agent, "echo still here").await, "still here\n");
}

#[tokio::test]
async fn the_first_process_passes_signals_on_and_ends_after_its_children() {
    let (mut program, agent) = start(&["--pid1"]).await;
    let dir = tempfile::tempdir().unwrap();
    let (ready, mark) = (dir.path().join("ready"), dir.path().join("mark"));
    let script = format!(
        "trap 'echo usr1 >> {m}' USR1; trap 'echo term >> {m}; exit' TERM; echo > {r}; while :; do sleep 0.05; done",
        m = mark.display(),
        r = ready.display()
    );
    let message = StartRequest {
        process: Some(ProcessConfig {
            cmd: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script],
            ..ProcessConfig::default()
        }),
        ..StartRequest::default()
    };
    let stream = agent
        .stream(Codec::Json, "/process.Process/Start", &message, &[])
        .await;
    eventually("the traps are set", || ready.exists()).await;
    let pid = Pid::from_child(&program.0);
    kill_process(pid, Signal::USR1).unwrap();
    eventually("the signal arrived", || mark.exists()).await;
    kill_process(pid, Signal::TERM).unwrap();
    eventually("the agent has ended", || {
        program.0.try_wait().unwrap().is_some()
    })
    .await;
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "usr1\nterm\n");
    assert!(program.0.wait().unwrap().success());
    drop(stream);
}

#[tokio::test]
async fn a_socket_is_inherited() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A copy that survives exec, under whatever number it gets.
    let inherited = rustix::io::dup(&listener).unwrap();
    let number = inherited.as_raw_fd().to_string();
    let mut program = Program::start(&["--listen-fd", &number]);
    let _kept_open = inherited.into_raw_fd();
    drop(listener);
    let agent = at(address);
    assert_eq!(agent.get("/health", &[]).await.status, 204);
    let inherited =
        format!("ls -l /proc/self/fd | grep -c 'socket:' ; ls /proc/self/fd/{number} 2>/dev/null");
    assert_eq!(
        run(&agent, &inherited).await,
        "0\n",
        "its programs do not see it"
    );
    program.0.kill().unwrap();

    for (args, named) in [
        (
            ["--listen-fd", "97"],
            "descriptor 97 is not a listening socket",
        ),
        (["--listen", "192.0.2.1:1"], "listen at 192.0.2.1:1"),
        (["--wat", "x"], "unknown argument \"--wat\""),
    ] {
        let mut program = Program::start(&args);
        assert!(!program.0.wait().unwrap().success());
        let mut said = String::new();
        program
            .0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(said.contains(named), "{said}");
    }
}

#[tokio::test]
async fn version_and_help_are_printed() {
    let print = |arg: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_dormouse-agent"))
            .arg(arg)
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(print("--version").contains("protocol 1"));
    assert!(print("--help").contains("--pid1"));
    tokio::time::sleep(Duration::ZERO).await;
}
