//! The agent in a Pod.

use std::{fmt::Write as _, net::IpAddr, time::Duration};

use ::runtime::{Arming, Fence, RuntimeError};
use agent_client::{Client, Error};
use k8s_openapi::api::core::v1::Pod;
use kit::Entropy;
use model::{Epoch, Uid, workload::Boot};
use sha2::{Digest as _, Sha256};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use wire::{
    Secret,
    connect::Code,
    envd::{Delivery, InitRequest, PORT},
};

use crate::{look, options::Keys};

/// How long an agent may take to answer. One that is frozen never does.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two tries to reach an agent that does not listen yet.
const PAUSE: Duration = Duration::from_millis(20);

/// The start of a Pod: its name, and the hash of the key that follows from it, as its agent is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) key_hash: String,
}

impl Start {
    /// One that no other Pod has: what was armed with the key of an older one is not this.
    pub(crate) fn fresh(keys: &dyn Keys, uid: Uid) -> Self {
        let name = format!("{:032x}", Entropy::from_os().u128());
        let mut key_hash = String::new();
        for byte in Sha256::digest(keys.init_key(uid, Some(&name)).reveal()) {
            // Writing to a string does not fail.
            let _ = write!(key_hash, "{byte:02x}");
        }
        Self { name, key_hash }
    }
}

/// The agent in a Pod of a workload, as the control plane.
pub(crate) fn client(
    keys: &dyn Keys,
    uid: Uid,
    pod: &Pod,
    at: IpAddr,
) -> Result<Client, RuntimeError> {
    let client = Client::new(move || async move {
        let stream = TcpStream::connect((at, PORT)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    let key = Secret::from(keys.init_key(uid, look::start(pod)).reveal());
    client.with_key(&key).map_err(|error| failed(&error))
}

/// Why an agent was not asked.
#[derive(Debug)]
pub(crate) enum Silence {
    /// It does not answer: it may be frozen, or on its way.
    Silent(RuntimeError),
    /// What answers is not this workload's agent.
    Other(RuntimeError),
}

impl From<Silence> for RuntimeError {
    fn from(silence: Silence) -> Self {
        match silence {
            Silence::Silent(error) | Silence::Other(error) => error,
        }
    }
}

/// Which delivery an agent is armed for.
pub(crate) async fn delivery(agent: &Client) -> Result<Delivery, Silence> {
    match timeout(PATIENCE, agent.delivery()).await {
        Ok(Ok(delivery)) => Ok(delivery),
        Ok(Err(error @ (Error::Unreachable(_) | Error::EndedEarly(_)))) => {
            Err(Silence::Silent(failed(&error)))
        }
        Ok(Err(error)) => Err(Silence::Other(failed(&error))),
        Err(_) => Err(Silence::Silent(silent())),
    }
}

/// Waits until an agent that was just started answers.
pub(crate) async fn answers(agent: &Client, until: Instant) -> Result<Delivery, RuntimeError> {
    loop {
        match delivery(agent).await {
            Ok(delivery) => return Ok(delivery),
            Err(silence) if Instant::now() >= until => return Err(silence.into()),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Has an agent keep the settings of a delivery.
pub(crate) async fn arm(
    agent: &Client,
    keys: &dyn Keys,
    fence: Fence,
    arming: &Arming,
) -> Result<(), RuntimeError> {
    let door_key = keys.door_key(fence.uid, arming.epoch);
    let token = arming.token.as_ref().map(|token| token.reveal());
    let settings = InitRequest {
        env_vars: Some(pairs(&arming.env)),
        access_token: Some(token.unwrap_or_default().into()),
        default_user: arming.user.as_deref().map(str::to_owned),
        default_workdir: arming.workdir.as_deref().map(str::to_owned),
        door_key: Some(door_key.reveal().into()),
        ..of(fence, arming.epoch)
    };
    tell(agent, fence, &settings).await
}

/// Has an agent that is nobody's yet know how a template's commands are run.
pub(crate) async fn prepare(agent: &Client, fence: Fence, boot: &Boot) -> Result<(), RuntimeError> {
    let settings = InitRequest {
        env_vars: Some(pairs(&boot.env)),
        default_user: boot.user.as_deref().map(str::to_owned),
        default_workdir: boot.workdir.as_deref().map(str::to_owned),
        ..of(fence, Epoch::default())
    };
    tell(agent, fence, &settings).await
}

fn of(fence: Fence, epoch: Epoch) -> InitRequest {
    InitRequest {
        delivery: Some(Delivery {
            generation: fence.generation.0,
            operation: fence.operation.0,
            epoch: epoch.0,
        }),
        ..InitRequest::default()
    }
}

fn pairs(map: &model::StringMap) -> std::collections::BTreeMap<String, String> {
    let all = map.iter();
    all.map(|(name, value)| (name.into(), value.into()))
        .collect()
}

async fn tell(agent: &Client, fence: Fence, settings: &InitRequest) -> Result<(), RuntimeError> {
    match timeout(PATIENCE, agent.init(settings)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(match error.code() {
            Some(Code::Aborted) => RuntimeError::Stale(fence),
            Some(Code::InvalidArgument) => RuntimeError::Impossible {
                field: "env",
                reason: error.to_string().into(),
            },
            _ => failed(&error),
        }),
        Err(_) => Err(silent()),
    }
}

fn silent() -> RuntimeError {
    RuntimeError::Failed("the agent inside does not answer".into())
}

pub(crate) fn failed(error: &Error) -> RuntimeError {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
    RuntimeError::Failed(format!("the agent inside: {error}{cause}").into())
}
