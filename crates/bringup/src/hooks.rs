//! Running hooks inside a sandbox that is armed: commands through the agent, requests to a port on the
//! sandbox's loopback.

use std::{io, time::Duration};

use ::runtime::{FailedHook, RuntimeError};
use agent_client::{Client, Io, StartOptions};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, header};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use kit::{Backoff, Entropy};
use model::hook::{ExecHook, Hook, HookMethod, HttpHook};
use tokio::time::timeout;
use wire::process::{ProcessConfig, StartRequest};

use crate::words::succeed;

/// Between two tries.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    cap: Duration::from_secs(10),
};

/// A sandbox, as its hooks reach it.
pub trait Inside: Send + Sync {
    /// Its agent, with what it demands.
    ///
    /// # Errors
    /// In words.
    fn agent(&self) -> Result<Client, String>;

    /// Connects to a port on its loopback.
    fn dial(&self, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Io>>>;
}

/// Runs hooks, one after the other. Answers those that failed and need not succeed.
///
/// # Errors
/// [`RuntimeError::HookFailed`] for one that had to succeed.
pub async fn run_hooks(
    inside: &dyn Inside,
    hooks: &[Hook],
) -> Result<Vec<FailedHook>, RuntimeError> {
    let entropy = Entropy::from_os();
    let mut failed = Vec::new();
    for hook in hooks {
        let name = hook.name.clone();
        match try_often(inside, hook, &entropy).await {
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

async fn try_often(inside: &dyn Inside, hook: &Hook, entropy: &Entropy) -> Result<(), String> {
    let limit = Duration::from_secs(hook.timeout_seconds.into());
    let mut attempt = 0;
    loop {
        attempt += 1;
        let why = match timeout(limit, try_once(inside, hook, limit)).await {
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

async fn try_once(inside: &dyn Inside, hook: &Hook, limit: Duration) -> Result<(), String> {
    match (&hook.exec, &hook.http) {
        (Some(exec), _) => execute(inside, exec, limit).await,
        (None, Some(http)) => send(inside, http).await,
        (None, None) => Ok(()),
    }
}

async fn execute(inside: &dyn Inside, exec: &ExecHook, limit: Duration) -> Result<(), String> {
    let mut agent = inside.agent()?;
    if let Some(user) = exec.user.as_deref() {
        agent = agent.as_user(user);
    }
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

/// Sends a request, and waits for the head of its answer: that says all.
async fn send(inside: &dyn Inside, hook: &HttpHook) -> Result<(), String> {
    let request = written(hook).map_err(|error| error.to_string())?;
    let port = hook.port;
    let stream = inside.dial(port).await;
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
