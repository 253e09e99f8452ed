//! A server under test, and programs that talk to it.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A command with nothing of this machine's configuration in its environment.
pub(crate) fn command(program: &str, home: &Path) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        // kubectl caches what it discovers below HOME, by address; ports come back.
        .env("HOME", home)
        .current_dir(home);
    command
}

/// The binary under test: the one that was built with the tests, unless another is named.
pub(crate) fn dormouse(home: &Path) -> Command {
    let named = std::env::var("DORMOUSE_PROGRAM");
    let program = named.as_deref().unwrap_or(env!("CARGO_BIN_EXE_dormouse"));
    command(program, home)
}

/// Whether this is the last line of what a server announces.
fn is_last(line: &str) -> bool {
    line.contains("dormouse get sandboxes")
}

/// Starts a server, and waits until it has announced itself. If it ends instead, answers what it said.
pub(crate) fn launch(
    home: &Path,
    flags: &[&str],
    more: &[(&str, &str)],
) -> Result<(Child, String), String> {
    launch_as(&mut dormouse(home), home, flags, more)
}

/// The same with a program of one's own.
pub(crate) fn launch_as(
    program: &mut Command,
    home: &Path,
    flags: &[&str],
    more: &[(&str, &str)],
) -> Result<(Child, String), String> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(home.join("log"))
        .unwrap();
    let mut child = program
        .arg("serve")
        // By environment, so that a flag of the test wins.
        .envs([
            ("DORMOUSE_DATA_DIR", "data"),
            ("DORMOUSE_LISTEN", "127.0.0.1:0"),
            ("DORMOUSE_E2B_LISTEN", "127.0.0.1:0"),
            ("DORMOUSE_RUNTIME", "none"),
        ])
        .envs(more.iter().copied())
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut announced = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.unwrap();
        announced.push_str(&line);
        announced.push('\n');
        if is_last(&line) {
            return Ok((child, announced));
        }
    }
    let _ = child.wait();
    let log = std::fs::read_to_string(home.join("log")).unwrap();
    Err(format!("{announced}\n{log}"))
}

/// A running server with a home of its own.
pub(crate) struct Server {
    pub(crate) home: TempDir,
    pub(crate) child: Child,
    /// What it said at its start.
    pub(crate) announced: String,
}

impl Server {
    /// A first start in an empty directory.
    pub(crate) fn start() -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), &[])
    }

    /// A start in a home that may have been used before.
    pub(crate) fn start_with(home: TempDir, flags: &[&str]) -> Self {
        Self::start_in(home, flags, &[])
    }

    /// The same, with more in its environment.
    pub(crate) fn start_in(home: TempDir, flags: &[&str], more: &[(&str, &str)]) -> Self {
        match launch(home.path(), flags, more) {
            Ok((child, announced)) => Self {
                home,
                child,
                announced,
            },
            Err(said) => panic!("the server did not start: {said}"),
        }
    }

    /// Where its data is.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        let text = std::fs::read_to_string(self.data().join("kubeconfig")).unwrap();
        let line = text.lines().find(|line| line.contains("server:")).unwrap();
        line.trim_matches('"')
            .rsplit_once(':')
            .unwrap()
            .1
            .parse()
            .unwrap()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end; a server that does not end fails the test.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        for _ in 0..6_000 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the server does not end: {}", self.log());
    }

    /// Stops it as an init system would, and returns its home for another start. It must end well
    /// and have had no reason to log an error.
    pub(crate) fn stop(mut self) -> TempDir {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.log());
        assert!(!self.log().contains("ERROR"), "{}", self.log());
        let home = tempfile::tempdir().unwrap();
        std::mem::replace(&mut self.home, home)
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let home = tempfile::tempdir().unwrap();
        std::mem::replace(&mut self.home, home)
    }

    /// Runs one of our commands against it.
    pub(crate) fn run(&self, words: &str) -> Ran {
        let mut command = dormouse(self.home.path());
        command.env("DORMOUSE_DATA_DIR", self.data());
        command.args(words.split_whitespace());
        run(&mut command, "")
    }

    /// The same, with something to read.
    pub(crate) fn run_with(&self, words: &str, stdin: &str) -> Ran {
        let mut command = dormouse(self.home.path());
        command.env("DORMOUSE_DATA_DIR", self.data());
        command.args(words.split_whitespace());
        run(&mut command, stdin)
    }

    /// Runs stock kubectl against it.
    pub(crate) fn kubectl(&self, words: &str) -> Ran {
        self.kubectl_with(words, "")
    }

    /// The same, with something to read.
    pub(crate) fn kubectl_with(&self, words: &str, stdin: &str) -> Ran {
        run(self.kubectl_command().args(words.split_whitespace()), stdin)
    }

    /// Stock kubectl with the kubeconfig as written.
    pub(crate) fn kubectl_command(&self) -> Command {
        let mut command = command("kubectl", self.home.path());
        command.env("KUBECONFIG", self.data().join("kubeconfig"));
        command
    }

    /// A manifest in a file of the home.
    pub(crate) fn write(&self, name: &str, text: &str) {
        File::create(self.home.path().join(name))
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failed test must not leave it behind; and one that may stop as it should takes with it what
        // it has on this host.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            for _ in 0..500 {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the server:\n{}", self.log());
        }
    }
}

/// How a command went.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// What it printed, having succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.stdout
    }

    /// What it complained of, having failed.
    #[track_caller]
    pub(crate) fn failed(self) -> String {
        assert_eq!(self.code, Some(1), "{self:#?}");
        self.stderr
    }

    /// It failed and said all of this.
    #[track_caller]
    pub(crate) fn failed_saying(self, parts: &[&str]) {
        let text = self.failed();
        for part in parts {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command, stdin: &str) -> Ran {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|e| panic!("this test needs `{program}`, which does not start: {e}"));
    // A command that does not read is no failure of ours.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output: Output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A sandbox as YAML.
pub(crate) fn sandbox(name: &str) -> String {
    format!(
        "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\nmetadata:\n  name: {name}\nspec:\n  template: base\n"
    )
}

/// One object of each kind, as YAML.
pub(crate) const FIVE: &str = "\
apiVersion: dormouse.dev/v1alpha1
kind: SandboxTemplate
metadata:
  name: base
spec:
  image: docker.io/library/debian:13
---
apiVersion: dormouse.dev/v1alpha1
kind: SandboxPool
metadata:
  name: warm
spec:
  template: base
  minIdle: 0
  maxIdle: 2
  max: 4
---
apiVersion: dormouse.dev/v1alpha1
kind: Sandbox
metadata:
  name: one
  labels:
    team: blue
spec:
  template: base
  env:
    GREETING: \"yes\"
---
apiVersion: dormouse.dev/v1alpha1
kind: SandboxClaim
metadata:
  name: mine
spec:
  pool: warm
---
apiVersion: dormouse.dev/v1alpha1
kind: SandboxSnapshot
metadata:
  name: kept
spec:
  sandbox: one
";
