//! Running hooks inside a sandbox that is armed.
//!
//! ```text
//! one hook after the other: try ──failed──▶ wait ──▶ try again … ──▶ noted beside the record
//! ```
//!
//! Commands go through the agent inside, requests to a port on the sandbox's loopback. Like a boot,
//! this belongs to a task of the engine's and goes on between calls; a call waits for it a moment at
//! a time. What was noted speaks of one container and one delivery, so whatever starts over has its
//! hooks run again, and a server that dies on the way leaves them to be run again by the next one.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use ::runtime::{Booting, FailedHook, Fence, Hooked, RuntimeError};
use agent_client::{Client, StartOptions};
use http::{Method, Request, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use kit::{Backoff, Entropy};
use model::{
    Epoch, Uid,
    hook::{ExecHook, Hook, HookMethod, HttpHook},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::timeout};
use wire::{
    Secret,
    process::{ProcessConfig, StartRequest},
};

use crate::{
    arm,
    boot::succeed,
    engine::Engine,
    error::{Doing as _, Result},
    record::{self, Place},
    socket::dial,
};

/// How long one call waits.
const MOMENT: Duration = Duration::from_secs(1);
/// Between two tries.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    cap: Duration::from_secs(10),
};

type Outcome = Option<Result<Hooked, RuntimeError>>;

/// Hooks under way, or over.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    container_id: Box<str>,
    epoch: Epoch,
    outcome: watch::Receiver<Outcome>,
}

impl UnderWay {
    /// Waits a moment for the end; none if it is not over then.
    pub(crate) async fn wait(mut self) -> Result<Option<Hooked>, RuntimeError> {
        let waited = timeout(MOMENT, self.outcome.wait_for(Option::is_some)).await;
        match waited {
            Err(_) => Ok(None),
            Ok(Ok(outcome)) => outcome.clone().transpose(),
            Ok(Err(_)) => Err(RuntimeError::Failed("the hooks have ended unseen".into())),
        }
    }

    fn stands(&self) -> bool {
        self.outcome.borrow().is_some() || self.outcome.has_changed().is_ok()
    }
}

/// The hooks of one engine that are under way, by sandbox.
#[derive(Debug, Default)]
pub(crate) struct Hooks(Mutex<std::collections::BTreeMap<Uid, UnderWay>>);

impl Hooks {
    /// Forgets what is no longer there.
    pub(crate) fn forget(&self, uid: Uid) {
        self.0.lock().remove(&uid);
    }
}

/// What is kept of hooks that were run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    container_id: Box<str>,
    hooked: Hooked,
}

/// Begins to run hooks, or finds those under way; none if they were run.
pub(crate) fn begin(
    engine: &Arc<Engine>,
    fence: Fence,
    hooks: Vec<Hook>,
) -> Result<Option<UnderWay>> {
    engine.perform(fence, |_, there| {
        let uid = fence.uid;
        let workload = there.ok_or(RuntimeError::Absent(uid))?;
        workload.alive(uid)?;
        let wrong = |state, needs| RuntimeError::WrongState { uid, state, needs };
        if workload.frozen {
            return Err(wrong("frozen", "thaw it").into());
        }
        let epoch = workload.ledger.epoch;
        if epoch == Epoch::default() {
            return Err(wrong("nobody's", "arm it").into());
        }
        if workload.hooked.as_ref().is_some_and(|it| it.epoch == epoch) {
            return Ok(None);
        }
        let container_id = workload.record.container_id;
        let there = engine.hooks.0.lock().get(&uid).cloned();
        if let Some(there) = there
            && there.container_id == container_id
            && there.epoch == epoch
            && there.stands()
        {
            return Ok(Some(there));
        }
        let token = arm::kept(&engine.place(uid)).and_then(|kept| kept.settings.access_token);
        let inside = Inside {
            engine: Arc::downgrade(engine),
            uid,
            token: token.filter(|token| !token.is_empty()),
        };
        let (tell, outcome) = watch::channel(None);
        let under_way = UnderWay {
            container_id,
            epoch,
            outcome,
        };
        engine.hooks.0.lock().insert(uid, under_way.clone());
        let stop = engine.tasks.stopping().clone();
        engine.tasks.spawn(async move {
            let outcome = tokio::select! {
                outcome = inside.run(&hooks) => outcome,
                () = stop.cancelled() => return,
                // The sandbox is gone, or has started over.
                () = tell.closed() => return,
            };
            let outcome = outcome.map(|failed| Hooked { epoch, failed });
            // Nobody need be listening.
            tell.send_replace(Some(outcome));
        });
        Ok(Some(under_way))
    })
}

impl Engine {
    /// Notes that hooks were run to their end.
    pub(crate) fn note_hooked(&self, uid: Uid, of: &UnderWay, hooked: Hooked) -> Result<Booting> {
        let Some(slot) = self.slot(uid) else {
            return Ok(Booting::Done);
        };
        let mut seen = slot.seen.lock();
        let Some(workload) = seen
            .as_mut()
            .filter(|there| there.record.container_id == of.container_id)
        else {
            return Ok(Booting::Done);
        };
        let note = Note {
            container_id: of.container_id.clone(),
            hooked,
        };
        let write = || {
            let text = serde_json::to_vec(&note)?;
            record::replace(&path(&self.place(uid)), &text, 0o600)
        };
        write().doing("note that the sandbox's hooks were run")?;
        workload.hooked = Some(note.hooked);
        Ok(Booting::Done)
    }
}

/// Where it is noted which hooks were run.
pub(crate) fn path(place: &Place) -> PathBuf {
    place.directory().join("hooked.json")
}

/// What was noted of a container.
pub(crate) fn noted(place: &Place, container_id: &str) -> Option<Hooked> {
    let note: Note = serde_json::from_slice(&std::fs::read(path(place)).ok()?).ok()?;
    (*note.container_id == *container_id).then_some(note.hooked)
}

/// A sandbox, as its hooks reach it.
struct Inside {
    engine: Weak<Engine>,
    uid: Uid,
    token: Option<Secret>,
}

impl Inside {
    /// Those that failed and need not succeed.
    async fn run(&self, hooks: &[Hook]) -> Result<Vec<FailedHook>, RuntimeError> {
        let entropy = Entropy::from_os();
        let mut failed = Vec::new();
        for hook in hooks {
            let name = hook.name.clone();
            match self.try_often(hook, &entropy).await {
                Ok(()) => {}
                Err(why) if hook.required => {
                    return Err(RuntimeError::HookFailed {
                        hook: name,
                        detail: why.into(),
                    });
                }
                Err(why) => failed.push(FailedHook {
                    name,
                    why: why.into(),
                }),
            }
        }
        Ok(failed)
    }

    async fn try_often(&self, hook: &Hook, entropy: &Entropy) -> Result<(), String> {
        let limit = Duration::from_secs(hook.timeout_seconds.into());
        let mut attempt = 0;
        loop {
            attempt += 1;
            let why = match timeout(limit, self.try_once(hook, limit)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => why,
                Err(_) => format!("no answer within {} s", limit.as_secs()),
            };
            if attempt > hook.retries {
                return Err(match attempt {
                    1 => why,
                    _ => format!("{why} (the last of {attempt} tries)"),
                });
            }
            tokio::time::sleep(BACKOFF.delay(attempt, entropy)).await;
        }
    }

    async fn try_once(&self, hook: &Hook, limit: Duration) -> Result<(), String> {
        match (&hook.exec, &hook.http) {
            (Some(exec), _) => self.execute(exec, limit).await,
            (None, Some(http)) => self.request(http).await,
            (None, None) => Ok(()),
        }
    }

    async fn execute(&self, exec: &ExecHook, limit: Duration) -> Result<(), String> {
        let agent = self.agent(exec.user.as_deref())?;
        let (program, arguments) = exec.command.split_first().ok_or("it names no program")?;
        let request = StartRequest {
            process: Some(ProcessConfig {
                cmd: program.to_string(),
                args: arguments.iter().map(|word| word.to_string()).collect(),
                envs: exec
                    .env
                    .iter()
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
                cwd: exec.workdir.as_deref().map(str::to_owned),
            }),
            stdin: Some(false),
            ..StartRequest::default()
        };
        let options = StartOptions {
            timeout: Some(limit),
            ..StartOptions::default()
        };
        let running = agent.start(&request, options).await;
        let running = running.map_err(|error| error.to_string())?;
        succeed(running).await
    }

    fn agent(&self, user: Option<&str>) -> Result<Client, String> {
        let (engine, uid) = (self.engine.clone(), self.uid);
        let mut client = Client::new(move || {
            let port = engine.upgrade().and_then(|it| it.options.agent_port);
            let dial = port.map(|port| dial(&engine, uid, port));
            async move { dial.ok_or(io::ErrorKind::NotConnected)?.await }
        });
        if let Some(token) = &self.token {
            let shown = client.with_token(token);
            client = shown.map_err(|error| error.to_string())?;
        }
        Ok(match user {
            Some(user) => client.as_user(user),
            None => client,
        })
    }

    /// Sends a request, and waits for the head of its answer: that says all.
    async fn request(&self, hook: &HttpHook) -> Result<(), String> {
        let request = written(hook).map_err(|error| error.to_string())?;
        let stream = dial(&self.engine, self.uid, hook.port).await;
        let port = hook.port;
        let stream = stream.map_err(|error| format!("connect to port {port}: {error}"))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
                .await
                .map_err(|error| error.to_string())?;
        let driven = async {
            // How it ends is heard by who waits for the answer.
            let _ = connection.await;
            std::future::pending::<()>().await;
        };
        let answer = tokio::select! {
            biased;
            answer = sender.send_request(request) => answer,
            () = driven => return Err("the connection has ended".into()),
        };
        match answer {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("port {port} answered {}", answer.status())),
            Err(error) => Err(format!("port {port}: {error}")),
        }
    }
}

fn written(hook: &HttpHook) -> http::Result<Request<Full<Bytes>>> {
    let method = match hook.method {
        HookMethod::Get => Method::GET,
        HookMethod::Post => Method::POST,
        HookMethod::Put => Method::PUT,
    };
    let mut request = Request::builder().method(method).uri(&*hook.path);
    let named = |name: &str| {
        hook.headers
            .iter()
            .any(|(n, _)| n.eq_ignore_ascii_case(name))
    };
    if !named("host") {
        request = request.header(header::HOST, format!("localhost:{}", hook.port));
    }
    for (name, value) in hook.headers.iter() {
        request = request.header(name, value);
    }
    let body = hook.body.as_deref().unwrap_or_default();
    request.body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_its_hook_says() {
        let hook = HttpHook {
            port: 8080,
            path: "/ready?now=1".into(),
            method: HookMethod::Post,
            headers: [("X-Key", "secret")].into_iter().collect(),
            body: Some("{}".into()),
        };
        let request = written(&hook).unwrap();
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/ready?now=1");
        assert_eq!(request.headers()["host"], "localhost:8080");
        assert_eq!(request.headers()["x-key"], "secret");
        let named = HttpHook {
            headers: [("Host", "app.example")].into_iter().collect(),
            ..hook
        };
        let hosts = written(&named).unwrap();
        let hosts: Vec<_> = hosts.headers().get_all("host").iter().collect();
        assert_eq!(hosts, ["app.example"]);
    }
}
