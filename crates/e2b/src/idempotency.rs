//! Creating once, however often it is asked.
//!
//! A client that was cut off repeats its request with the same `Idempotency-Key`. The key is kept
//! with the sandbox's own record, as a hash, and goes with it, so it is known as long as the
//! sandbox is there and however often the server restarts. A record made for a key has a name made
//! from the key, so that of two servers only one can make it; a claimed pool member has its own
//! name, and there it is this process that lets one request of a key run at a time.

use std::{collections::BTreeMap, sync::Arc};

use http::HeaderMap;
use model::{Name, Namespace, Sandbox, SandboxId, StringMap};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;

use crate::refusal::Refusal;

const HEADER: &str = "idempotency-key";
/// Annotation with the hash of the key, the hash of the request, and the delivery it was for: one
/// that outlived its delivery says nothing.
const ANNOTATION: &str = "dormouse.dev/idempotency";
const MAX_KEY: usize = 255;

/// A key, and what it was given with, as hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    key: Box<str>,
    request: Box<str>,
}

impl Token {
    /// The key of a request, if it has one.
    pub(crate) fn read(
        headers: &HeaderMap,
        route: &str,
        body: &Value,
    ) -> Result<Option<Self>, Refusal> {
        let mut all = headers.get_all(HEADER).iter();
        let Some(first) = all.next() else {
            return Ok(None);
        };
        let bad = || {
            Refusal::bad_field(
                "Idempotency-Key",
                format!("use 1 to {MAX_KEY} of a-z, 0-9 and '-', once"),
            )
        };
        let key = first.to_str().map_err(|_| bad())?;
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if all.next().is_some() || !(1..=MAX_KEY).contains(&key.len()) || !key.bytes().all(plain) {
            return Err(bad());
        }
        Ok(Some(Self {
            key: hash(&[key]),
            request: hash(&[route, &body.to_string()]),
        }))
    }

    /// The hash of the key.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Whether a sandbox was made by the same request.
    pub(crate) fn made(&self, sandbox: &Sandbox) -> bool {
        parts(sandbox).is_some_and(|(key, request)| key == &*self.key && request == &*self.request)
    }

    /// Remembers this in the record of a new delivery.
    pub(crate) fn annotate(&self, annotations: &mut StringMap, id: &SandboxId) {
        annotations.insert(ANNOTATION, format!("{}.{}.{id}", self.key, self.request));
    }

    /// The name of a record made for the key.
    pub(crate) fn record_name(&self, team: &Namespace) -> Option<Name> {
        let hash = hash(&[team.as_str(), &self.key]);
        Name::new(format!("once-{}", &hash[..40])).ok()
    }
}

/// Takes what a former delivery left.
pub(crate) fn forget(annotations: &mut StringMap) {
    annotations.remove(ANNOTATION);
}

/// The hash of the key that a sandbox was made for.
pub(crate) fn key_of(sandbox: &Sandbox) -> Option<&str> {
    parts(sandbox).map(|(key, _)| key)
}

fn parts(sandbox: &Sandbox) -> Option<(&str, &str)> {
    let text = sandbox.metadata.annotations.get(ANNOTATION)?;
    let (key, rest) = text.split_once('.')?;
    let (request, id) = rest.split_once('.')?;
    let delivery = sandbox.spec.sandbox_id.as_ref()?;
    (id == delivery.as_str()).then_some((key, request))
}

fn hash(parts: &[&str]) -> Box<str> {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    let bytes = sha.finalize();
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

type Turns = BTreeMap<(Namespace, Box<str>), Arc<tokio::sync::Mutex<()>>>;

/// Lets one request of a key run at a time.
#[derive(Debug, Default)]
pub(crate) struct Queues(Mutex<Turns>);

impl Queues {
    /// Waits for the turn of a key.
    pub(crate) async fn turn(&self, team: &Namespace, token: &Token) -> OwnedMutexGuard<()> {
        let queue = {
            let mut queues = self.0.lock();
            // Whoever waits or runs holds one too.
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
            Arc::clone(queues.entry((team.clone(), token.key.clone())).or_default())
        };
        queue.lock_owned().await
    }
}
