//! `dormouse run`: real sandboxes. They need root; without it these tests fail and say so.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
    time::Duration,
};

use tempfile::TempDir;

/// The agent beside the program under test. `cargo test --workspace` builds it; a run of this crate
/// alone builds it where it is missing.
pub(crate) fn agent() -> &'static Path {
    static AGENT: OnceLock<PathBuf> = OnceLock::new();
    AGENT.get_or_init(|| {
        let path = Path::new(env!("CARGO_BIN_EXE_dormouse")).with_file_name("dormouse-agent");
        if !path.exists() {
            let built = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--package", "dormouse-agent"])
                .status()
                .unwrap();
            assert!(built.success(), "the agent does not build");
        }
        path
    })
}

fn run(scratch: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command
        .arg("run")
        .arg("--agent")
        .arg(agent())
        .args(arguments)
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::null());
    command
}

fn output(scratch: &TempDir, arguments: &[&str]) -> Output {
    run(scratch, arguments).output().unwrap()
}

fn left_in(scratch: &TempDir) -> usize {
    std::fs::read_dir(scratch.path()).unwrap().count()
}

#[test]
fn a_command_runs_inside_and_its_output_and_exit_code_come_back() {
    let scratch = TempDir::new().unwrap();
    let script = "echo out $NAME; echo err >&2; id -un; hostname; exit 3";
    let ran = output(&scratch, &["--env", "NAME=world", "--", "sh", "-c", script]);
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert_eq!(ran.status.code(), Some(3), "{err}");
    assert!(out.starts_with("out world\nuser\n"), "{out}");
    assert_eq!(err, "err\n");
    assert_eq!(left_in(&scratch), 0, "nothing is left of it");
}

#[test]
fn a_sandbox_sees_neither_the_hosts_files_nor_its_processes() {
    let scratch = TempDir::new().unwrap();
    let secret = scratch.path().join("secret");
    std::fs::File::create(&secret).unwrap();
    let script = format!("ls {} 2>&1; ls /proc | grep -c '^[0-9]'", secret.display());
    let ran = output(&scratch, &["--user", "root", "sh", "-c", &script]);
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(out.contains("No such file or directory"), "{out}");
    let processes: u32 = out.lines().last().unwrap().trim().parse().unwrap();
    assert!(processes < 10, "it sees {processes} processes");
}

#[test]
fn a_command_that_is_not_there_is_named() {
    let scratch = TempDir::new().unwrap();
    let ran = output(&scratch, &["no-such-command"]);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1));
    assert!(err.contains("no-such-command"), "{err}");
    assert_eq!(left_in(&scratch), 0);
}

#[test]
fn an_agent_that_is_not_there_is_named_with_the_remedy() {
    let ran = Command::new(env!("CARGO_BIN_EXE_dormouse"))
        .args(["run", "--agent", "/nowhere/agent", "true"])
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1));
    assert!(
        err.contains("/nowhere/agent") && err.contains("cargo build"),
        "{err}"
    );
}

#[test]
fn a_run_that_is_told_to_stop_removes_its_sandbox() {
    let scratch = TempDir::new().unwrap();
    let mut child = run(&scratch, &["sh", "-c", "echo up; sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = (0..600).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        child.try_wait().unwrap()
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(143));
    assert_eq!(left_in(&scratch), 0);
}

#[test]
fn what_is_piped_in_reaches_the_command_up_to_its_end() {
    let scratch = TempDir::new().unwrap();
    let mut child = run(&scratch, &["-i", "sh", "-c", "tr a-z A-Z; echo done"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let text = "hello\n".repeat(50_000);
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.lines().filter(|l| *l == "HELLO").count(), 50_000);
    assert!(out.ends_with("done\n"));
}

#[test]
fn a_command_that_does_not_read_ends_without_its_input() {
    let scratch = TempDir::new().unwrap();
    let mut child = run(&scratch, &["-i", "sh", "-c", "exit 4"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    drop(stdin);
}

/// `script` is the terminal; it is part of every Debian (`bsdutils`).
#[test]
fn a_terminal_is_passed_through_both_ways() {
    let scratch = TempDir::new().unwrap();
    let inner = "tty; stty size; read line; echo got $line; exit 5";
    let command = format!(
        "{} run --agent {} -it -- bash -c '{inner}'",
        env!("CARGO_BIN_EXE_dormouse"),
        agent().display()
    );
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`script` is needed: install bsdutils");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"typed\n").unwrap();
    let out = child.wait_with_output().unwrap();
    drop(stdin);
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(5), "{text}");
    assert!(text.contains("/dev/pts/"), "{text}");
    assert!(text.contains("24 80"), "{text}");
    assert!(text.contains("got typed"), "{text}");
}

#[test]
fn a_terminal_that_is_not_there_is_refused() {
    let scratch = TempDir::new().unwrap();
    let ran = output(&scratch, &["-it", "true"]);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{err}");
    assert!(err.contains("--tty"), "{err}");
    assert_eq!(left_in(&scratch), 0);
}

#[test]
fn a_command_that_a_signal_ended_answers_as_in_a_shell() {
    let scratch = TempDir::new().unwrap();
    for (signal, code) in [("TERM", 143), ("KILL", 137)] {
        let script = format!("kill -{signal} $$");
        let ran = output(&scratch, &["sh", "-c", &script]);
        assert_eq!(ran.status.code(), Some(code), "{signal}");
    }
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let scratch = TempDir::new().unwrap();
    let mut child = run(&scratch, &["sh", "-c", "echo up; sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(left_in(&scratch), 1, "a killed one cannot clean up");
    assert_eq!(output(&scratch, &["true"]).status.code(), Some(0));
    assert_eq!(left_in(&scratch), 0);
}
