//! `dormouse run` where a server runs: the sandbox is one of its.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    sandboxes::{json, start, until},
    server::{Server, run},
};

fn sandboxes(server: &Server) -> usize {
    server.run("sandbox ls -q").ok().lines().count()
}

/// Starts a command that says when it is up and then stays.
fn stays(server: &Server) -> std::process::Child {
    let mut child = server
        .program(&["run", "sh", "-c", "echo up; sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    assert_eq!(sandboxes(server), 1, "it is one of the server's");
    child
}

#[test]
fn a_command_runs_in_a_sandbox_of_the_server_that_is_gone_afterwards() {
    let server = start();
    let script = "echo out $NAME; id -un; exit 3";
    let words = ["run", "--env", "NAME=world", "--", "sh", "-c", script];
    let ran = run(&mut server.program(&words), "");
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(3), "out world\nuser\n"),
        "{ran:?}"
    );
    let words = [
        "run",
        "-i",
        "--user",
        "root",
        "sh",
        "-c",
        "tr a-z A-Z; id -un",
    ];
    assert_eq!(
        run(&mut server.program(&words), "hello\n").ok(),
        "HELLO\nroot\n"
    );
    assert_eq!(sandboxes(&server), 0);
    let made = server.run("audit --json --action sandbox.create").ok();
    assert_eq!(made.lines().count(), 2);

    // In this very process, if that is wanted.
    let words = ["run", "--local", "echo", "local"];
    assert_eq!(run(&mut server.program(&words), "").ok(), "local\n");
    let made = server.run("audit --json --action sandbox.create").ok();
    assert_eq!(made.lines().count(), 2, "the server knows nothing of it");

    let missing = run(&mut server.program(&["run", "no-such-command"]), "");
    missing.failed_saying(&["no-such-command"]);
    let template = run(
        &mut server.program(&["run", "--template", "none", "true"]),
        "",
    );
    template.failed_saying(&["none", "not found"]);
    assert_eq!(sandboxes(&server), 0);
    server.stop();
}

#[test]
fn a_run_that_is_told_to_stop_ends_its_sandbox() {
    let server = start();
    let mut child = stays(&server);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(sandboxes(&server), 0);
    server.stop();
}

#[test]
fn the_sandbox_of_a_run_that_was_killed_ends_by_itself() {
    let server = start();
    let mut child = stays(&server);
    let ends = || {
        let listed = json(&server.run("sandbox ls --json").ok());
        listed[0]["endAt"].as_str().unwrap().to_owned()
    };
    let at_first = ends();
    until("it is kept as long as its client is there", || {
        (ends() > at_first).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    until("a killed run leaves nothing behind for long", || {
        (sandboxes(&server) == 0).then_some(())
    });
    server.stop();
}

#[test]
fn without_a_server_a_run_makes_its_own_sandbox() {
    let server = start();
    let home = server.stop();
    let mut command = crate::server::dormouse(home.path());
    command.env("DORMOUSE_DATA_DIR", home.path().join("data"));
    // The kubeconfig is still there, and nobody answers.
    assert_eq!(
        run(command.args(["run", "echo", "alone"]), "").ok(),
        "alone\n"
    );
}
