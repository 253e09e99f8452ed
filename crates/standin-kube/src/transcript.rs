//! A fixed conversation with an API server, and what is compared of two recordings of it.
//!
//! The script ([`script`]) is run against any cluster. What no two clusters say alike is replaced by
//! symbols: uids and versions by the order in which they come up, so that a version that should not
//! have changed is seen to have changed; times and tokens by a word. A recording holds all that was
//! answered. [`differences`] looks at what clients go by: codes, reasons, details, metadata, and the
//! parts of objects that the script's own writes decide.

mod compare;
mod script;
mod step;
mod symbols;

use std::{path::Path, time::Duration};

use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use thiserror::Error;

pub use compare::differences;
use step::Until;

/// Why there is no recording.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The kubeconfig cannot be used.
    #[error("read the kubeconfig")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    /// The server does not answer.
    #[error("{0}")]
    Send(String, #[source] kube::Error),
    /// The script is wrong.
    #[error("build the request {0}")]
    Request(String, #[source] http::Error),
    /// Something that was waited for did not come.
    #[error("{0}: it did not happen in time")]
    Late(String),
}

/// How long a step that waits is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// Records the conversation with the cluster of a kubeconfig.
///
/// # Errors
/// If it cannot be had.
pub async fn record_from(kubeconfig: &Path) -> Result<Value, RecordError> {
    let file = Kubeconfig::read_from(kubeconfig).map_err(RecordError::Kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(RecordError::Kubeconfig)?;
    let connect = |e| RecordError::Send("connect".to_owned(), e);
    record(&Client::try_from(config).map_err(connect)?).await
}

/// Records the conversation.
///
/// # Errors
/// If the server does not answer.
pub async fn record(client: &Client) -> Result<Value, RecordError> {
    let mut symbols = symbols::Symbols::default();
    let mut kept = serde_json::Map::new();
    let mut steps = Vec::new();
    let (_, version) = send(client, &Method::GET, "/version", "", "").await?;
    let version: Value = serde_json::from_str(&version).unwrap_or_default();
    for step in script::script() {
        let path = fill(step.path, &kept);
        let body = match &step.body {
            Value::Null => String::new(),
            body => fill(&body.to_string(), &kept),
        };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let (status, text) = loop {
            let (status, text) = send(client, &step.method, &path, step.media, &body).await?;
            let there = match &step.until {
                None => true,
                Some(Until::Status(wanted)) => status == *wanted,
                Some(Until::Is(pointer, wanted)) => {
                    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
                    answer.pointer(pointer).is_some_and(|found| found == wanted)
                }
            };
            match there {
                false => {
                    if tokio::time::Instant::now() > deadline {
                        return Err(RecordError::Late(step.does.to_owned()));
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                true => break (status, text),
            }
        };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let parsed: Vec<Value> = if step.path.contains("watch=true") {
            lines
                .map(|line| serde_json::from_str(line).unwrap_or_default())
                .collect()
        } else {
            vec![serde_json::from_str(&text).unwrap_or_default()]
        };
        if let (Some(name), Some(answer)) = (step.keep, parsed.first()) {
            kept.insert(name.to_owned(), answer.clone());
        }
        let answers: Vec<Value> = parsed.into_iter().map(|v| symbols.replace(v)).collect();
        steps.push(json!({
            "does": step.does,
            "method": step.method.as_str(),
            "path": step.path,
            "media": step.media,
            "body": step.body,
            "status": status,
            "answers": answers,
        }));
    }
    Ok(json!({"version": version["gitVersion"], "steps": steps}))
}

async fn send(
    client: &Client,
    method: &Method,
    path: &str,
    media: &str,
    body: &str,
) -> Result<(u16, String), RecordError> {
    let what = || format!("{method} {path}");
    let mut request = Request::builder().method(method).uri(path);
    if !media.is_empty() {
        request = request.header(header::CONTENT_TYPE, media);
    }
    let request = request
        .header(header::ACCEPT, "application/json")
        .body(Body::from(body.as_bytes().to_vec()))
        .map_err(|e| RecordError::Request(what(), e))?;
    let response = client
        .send(request)
        .await
        .map_err(|e| RecordError::Send(what(), e))?;
    let status = response.status().as_u16();
    let bytes = response
        .into_body()
        .collect()
        .await
        .map_err(|e| RecordError::Send(what(), e))?
        .to_bytes();
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}

/// Replaces `${name/pointer}` by what an earlier answer had there.
fn fill(text: &str, kept: &serde_json::Map<String, Value>) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) = after.split_once('}').unwrap_or((after, ""));
        let (name, pointer) = name.split_once('/').unwrap_or((name, ""));
        let found = kept
            .get(name)
            .and_then(|answer| answer.pointer(&format!("/{pointer}")))
            .and_then(Value::as_str);
        filled.push_str(before);
        filled.push_str(found.unwrap_or_default());
        rest = behind;
    }
    filled.push_str(rest);
    filled
}
