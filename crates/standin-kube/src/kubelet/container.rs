//! One container of a Pod: what runs in it, and what is said of it.

use std::{
    net::{Ipv4Addr, TcpStream},
    path::Path,
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::process::{Child, Command};

use super::AGENT_PORT;

/// A container.
pub(super) struct Container {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) restarts: u64,
    /// How it ended last time.
    pub(super) last: Option<Value>,
    pub(super) ready: bool,
    /// The image it runs, as the Pod names it.
    pub(super) image: String,
    pub(super) id: String,
}

pub(super) enum State {
    Waiting {
        reason: &'static str,
    },
    Running {
        since: String,
        process: Option<Child>,
    },
    Terminated(Value),
}

/// How a container ended.
pub(super) struct Exit<'a> {
    pub(super) code: i32,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

impl Container {
    pub(super) fn new(spec: &Value) -> Self {
        Self {
            name: text(&spec["name"]),
            state: State::Waiting {
                reason: "ContainerCreating",
            },
            restarts: 0,
            last: None,
            ready: false,
            image: text(&spec["image"]),
            id: String::new(),
        }
    }

    /// Starts it. `random` makes its id.
    pub(super) fn start(&mut self, process: Option<Child>, now: &str, random: u128) {
        self.id = format!("containerd://{random:064x}");
        self.ready = process.is_none();
        self.state = State::Running {
            since: now.to_owned(),
            process,
        };
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Says that it ended.
    pub(super) fn ended(&mut self, exit: &Exit<'_>, now: &str) {
        let since = match &self.state {
            State::Running { since, .. } => since.clone(),
            State::Waiting { .. } | State::Terminated(_) => now.to_owned(),
        };
        let mut ended = json!({
            "exitCode": exit.code,
            "reason": exit.reason,
            "startedAt": since,
            "finishedAt": now,
            "containerID": self.id,
        });
        if !exit.message.is_empty() {
            ended["message"] = exit.message.into();
        }
        self.ready = false;
        self.state = State::Terminated(json!({"terminated": ended}));
    }

    /// Makes it wait for its next start.
    pub(super) fn rest(&mut self, reason: &'static str) {
        if let State::Terminated(ended) = &self.state {
            self.last = Some(ended.clone());
            self.restarts += 1;
        }
        self.ready = false;
        self.state = State::Waiting { reason };
    }

    /// The exit code of its process, if that has ended by itself.
    pub(super) fn poll(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt as _;
        let State::Running {
            process: Some(child),
            ..
        } = &mut self.state
        else {
            return None;
        };
        let status = child.try_wait().ok()??;
        let by_signal = status.signal().map(|signal| 128 + signal);
        status.code().or(by_signal)
    }

    /// Its process, as this host numbers it: the agent is the child of who made its namespace.
    pub(super) fn pid(&self) -> Option<u32> {
        let State::Running {
            process: Some(child),
            ..
        } = &self.state
        else {
            return None;
        };
        let parent = child.id()?;
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        children.ok()?.split_whitespace().next()?.parse().ok()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills its process, and waits until it has let go of its address.
    pub(super) async fn kill(&mut self) {
        let known = self.pid().is_some();
        self.signal(Signal::KILL);
        if let State::Running {
            process: Some(child),
            ..
        } = &mut self.state
        {
            if !known {
                // It may have ended by itself.
                let _ = child.start_kill();
            }
            let _ = child.wait().await;
        }
    }

    /// Whether its agent answers by now.
    pub(super) fn becomes_ready(&mut self, address: Ipv4Addr) -> bool {
        if self.ready || !self.is_running() {
            return false;
        }
        let patience = Duration::from_millis(100);
        let at = (address, AGENT_PORT).into();
        self.ready = TcpStream::connect_timeout(&at, patience).is_ok();
        self.ready
    }

    pub(super) fn status(&self) -> Value {
        let state = match &self.state {
            State::Waiting { reason } => json!({"waiting": {"reason": reason}}),
            State::Running { since, .. } => json!({"running": {"startedAt": since}}),
            State::Terminated(ended) => ended.clone(),
        };
        let started = !self.id.is_empty();
        json!({
            "name": self.name,
            "image": self.image,
            "imageID": if started { digest_of(&self.image) } else { String::new() },
            "containerID": self.id,
            "ready": self.ready,
            "started": self.is_running(),
            "restartCount": self.restarts,
            "state": state,
            "lastState": self.last.clone().unwrap_or_else(|| json!({})),
        })
    }
}

/// Whether a container's command is the agent.
pub(super) fn is_agent(spec: &Value) -> bool {
    let program = spec["command"][0].as_str().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    matches!(name, "agent" | "dormouse-agent")
}

/// Starts the agent of a container on its Pod's address, in a pid namespace of its own, so that what
/// it starts ends with it.
pub(super) fn spawn_agent(agent: &Path, spec: &Value, address: Ipv4Addr) -> std::io::Result<Child> {
    let words = |list: &Value| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.map(text).collect()
    };
    let command = words(&spec["command"]).into_iter().skip(1);
    let mut all = command.chain(words(&spec["args"]));
    let mut kept = Vec::new();
    while let Some(word) = all.next() {
        // Where to listen is decided here: the address of the Pod is one of many on this host.
        if word == "--listen" {
            all.next();
        } else if !word.starts_with("--listen=") {
            kept.push(word);
        }
    }
    let env = spec["env"].as_array().into_iter().flatten();
    let env = env.map(|pair| (text(&pair["name"]), text(&pair["value"])));
    Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--"])
        .arg(agent)
        .args(kept)
        .arg("--listen")
        .arg(format!("{address}:{AGENT_PORT}"))
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .envs(env)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// The digest by which an image would have been pulled: that it names, or one of its name.
pub(super) fn digest_of(image: &str) -> String {
    if image.contains('@') {
        return image.to_owned();
    }
    let hash = Sha256::digest(image);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let repository = match image.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => before,
        Some(_) | None => image,
    };
    format!("{repository}@sha256:{hex}")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
