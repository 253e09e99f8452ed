//! Sandboxes and the network: when they are connected, and what they may reach.
//!
//! A sandbox is connected while its first process mounts its root, by a link that goes with its
//! namespace. Its address is in its record before the link is made, so that the next server finds
//! it again; a sandbox that starts over has another namespace, and with it another address.

use std::{net::Ipv4Addr, path::Path};

use ::network::{Adopted, Network, NetworkError};
use ::runtime::{Fence, RuntimeError};
use model::{Uid, sandbox::NetworkPolicy};

use crate::{
    engine::Engine,
    error::{Doing as _, EngineError, Result, impossible},
    options::Options,
    record::Record,
    strays,
};

/// The network of an engine, where it is to have one.
pub(crate) fn open_network(
    instance: &str,
    data: &Path,
    options: &mut Options,
) -> Result<Option<Network>> {
    let Some(mut wanted) = options.network.clone() else {
        return Ok(None);
    };
    wanted.note = strays::note(data);
    let network = Network::open(instance, wanted)?;
    // Who only looks has no runtime to serve from, and no sandbox that asks.
    if tokio::runtime::Handle::try_current().is_ok() {
        network.serve_names().doing("serve names")?;
    }
    if options.resolv_conf.is_empty() {
        options.resolv_conf = format!("nameserver {}\n", network.gateway());
    }
    Ok(Some(network))
}

impl Engine {
    /// Changes what a sandbox may reach. What is written is in force: whoever dies in between
    /// goes back to what was, and is told so.
    pub(crate) fn set_network(&self, fence: Fence, policy: Option<NetworkPolicy>) -> Result<()> {
        self.perform(fence, |slot, there| {
            let workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            workload.alive(fence.uid)?;
            if let Some(network) = &self.network {
                network.set_policy(fence.uid, network.compile(policy.as_ref())?)?;
            }
            let mut record = workload.record;
            record.network = policy.map(Box::new);
            self.place(fence.uid).write_record(&record, true)?;
            if let Some(workload) = slot.seen.lock().as_mut() {
                workload.record = record;
            }
            Ok(())
        })
    }

    /// Refuses a policy that cannot be kept.
    pub(crate) fn check_network(&self, policy: Option<&NetworkPolicy>) -> Result<()> {
        match &self.network {
            Some(network) => Ok(network.compile(policy).map(drop)?),
            None => match policy {
                Some(policy) if !policy.allow_out.is_empty() => Err(impossible(
                    "network",
                    "sandboxes of this server are not connected to any network",
                )),
                Some(_) | None => Ok(()),
            },
        }
    }

    /// An address for a sandbox that is about to start.
    pub(crate) fn reserve_address(&self, uid: Uid) -> Result<Option<Ipv4Addr>> {
        let reserved = self.network.as_ref().map(|network| network.reserve(uid));
        Ok(reserved.transpose()?)
    }

    /// Connects a sandbox whose first process exists.
    pub(crate) fn connect(&self, uid: Uid, pid: i32, record: &Record) -> Result<Option<Ipv4Addr>> {
        let Some(network) = &self.network else {
            return Ok(None);
        };
        let policy = network.compile(record.network.as_deref())?;
        let inside = self.home.netlink_in(pid)?;
        Ok(Some(network.attach(uid, pid, inside, policy)?))
    }

    /// Takes a sandbox off the network; its link goes with its namespace.
    pub(crate) fn disconnect(&self, uid: Uid) -> Result<()> {
        match &self.network {
            Some(network) => Ok(network.detach(uid)?),
            None => Ok(()),
        }
    }

    /// Puts the policies of all sandboxes that run in force.
    pub(crate) fn adopt_connected(&self) -> Result<()> {
        let Some(network) = &self.network else {
            return Ok(());
        };
        let mut adopted = Vec::new();
        for (uid, slot) in self.all_slots() {
            let seen = slot.seen.lock();
            let Some(workload) = seen.as_ref().filter(|seen| seen.process.is_some()) else {
                continue;
            };
            if let Some(address) = workload.record.address {
                let wanted = workload.record.network.as_deref();
                let policy = network.compile(wanted).or_else(|error| {
                    tracing::warn!(%uid, %error, "a sandbox is cut off: its policy cannot be kept");
                    network.compile(Some(&NetworkPolicy {
                        internet_access: Some(false),
                        ..NetworkPolicy::default()
                    }))
                })?;
                adopted.push(Adopted {
                    uid,
                    address,
                    policy,
                });
            }
        }
        Ok(network.adopt(adopted)?)
    }
}

impl From<NetworkError> for EngineError {
    fn from(error: NetworkError) -> Self {
        match error {
            NetworkError::System { doing, source } => Self::System {
                doing: doing.into(),
                source,
            },
            NetworkError::Lacking {
                name,
                detail,
                remedy,
            } => Self::Lacking {
                name,
                detail,
                remedy,
            },
            NetworkError::Policy(bad) => {
                let field = match bad.field {
                    "denyOut" => "network.denyOut",
                    _ => "network.allowOut",
                };
                impossible(field, bad.to_string())
            }
            NetworkError::Owned => Self::InUse(error.to_string().into()),
            NetworkError::Full(_) => impossible("sandbox", error.to_string()),
            NetworkError::Unknown(uid) => RuntimeError::Absent(uid).into(),
        }
    }
}
