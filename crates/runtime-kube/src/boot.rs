//! A template's commands and hooks, by way of the agent. What was done is noted on the Pod, for the
//! container that it was done in.

use std::{io, net::IpAddr, sync::Arc};

use ::runtime::{Booting, Delivered, Fence, Hooked, RuntimeError};
use agent_client::{Client, Io, forward};
use bringup::Inside;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use model::{Epoch, Uid, hook::Hook};
use tokio::net::TcpStream;
use wire::{Secret, envd::PORT};

use crate::{
    agent,
    inspect::Standing,
    look::{self, HookNote, Running},
    names,
    options::Keys,
    pod,
    runtime::Engine,
};

impl Engine {
    pub(crate) async fn boot(&self, fence: Fence) -> Result<Booting, RuntimeError> {
        let uid = fence.uid;
        let (flight, pod) = {
            let _turn = self.known.enter(fence).await?;
            let (pod, running, standing) = self.awake(uid).await?;
            let id = &running.container_id;
            let Some(boot) = look::boot(&pod).filter(|_| !look::is_booted(&pod, id)) else {
                return Ok(Booting::Done);
            };
            let agent = agent::client(&*self.keys, uid, &pod, running.ip)?;
            let within = self.options.boot_timeout;
            let begin = || async move {
                if standing.epoch == Epoch::default() {
                    agent::prepare(&agent, fence, &boot).await?;
                }
                bringup::boot(&agent, &boot, within).await
            };
            let nobodys = Epoch::default();
            let flight = self.boots.join(&self.tasks, uid, id, nobodys, begin);
            (flight, pod)
        };
        let container_id = flight.container_id.clone();
        if flight.wait().await?.is_none() {
            return Ok(Booting::UnderWay);
        }
        let note = [(names::BOOTED, Some(container_id.into()))];
        self.annotate(&pod, &note).await?;
        Ok(Booting::Done)
    }

    pub(crate) async fn run_hooks(
        &self,
        fence: Fence,
        hooks: &[Hook],
    ) -> Result<Booting, RuntimeError> {
        let uid = fence.uid;
        let (flight, pod, epoch) = {
            let _turn = self.known.enter(fence).await?;
            let (pod, running, standing) = self.awake(uid).await?;
            let (id, epoch) = (&running.container_id, standing.epoch);
            if epoch == Epoch::default() {
                return Err(RuntimeError::WrongState {
                    uid,
                    state: "nobody's",
                    needs: "arm it",
                });
            }
            if look::hooked(&pod, id).is_some_and(|hooked| hooked.epoch == epoch) {
                return Ok(Booting::Done);
            }
            let ports = Ports {
                keys: Arc::clone(&self.keys),
                of: Delivered { uid, epoch },
                pod: Arc::clone(&pod),
                at: running.ip,
            };
            let hooks = hooks.to_vec();
            let begin = || async move { bringup::run_hooks(&ports, &hooks).await };
            let flight = self.hooks.join(&self.tasks, uid, id, epoch, begin);
            (flight, pod, epoch)
        };
        let container_id = flight.container_id.clone();
        let Some(failed) = flight.wait().await? else {
            return Ok(Booting::UnderWay);
        };
        let note = pod::json(&HookNote {
            container_id,
            hooked: Hooked { epoch, failed },
        })?;
        self.annotate(&pod, &[(names::HOOKED, Some(note))]).await?;
        Ok(Booting::Done)
    }

    /// A workload whose processes run.
    pub(crate) async fn awake(
        &self,
        uid: Uid,
    ) -> Result<(Arc<Pod>, Running, Standing), RuntimeError> {
        let (pod, running) = self.running(uid)?;
        let standing = self.standing(uid, &pod, &running).await?;
        match standing.is_frozen {
            false => Ok((pod, running, standing)),
            true => Err(RuntimeError::WrongState {
                uid,
                state: "frozen",
                needs: "thaw it",
            }),
        }
    }
}

/// A sandbox, as its hooks reach it.
struct Ports {
    keys: Arc<dyn Keys>,
    of: Delivered,
    pod: Arc<Pod>,
    at: IpAddr,
}

impl Inside for Ports {
    fn agent(&self) -> Result<Client, String> {
        let agent = agent::client(&*self.keys, self.of.uid, &self.pod, self.at);
        agent.map_err(|error| error.to_string())
    }

    fn dial(&self, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Io>>> {
        let key = self.keys.door_key(self.of.uid, self.of.epoch);
        let (key, at) = (Secret::from(key.reveal()), self.at);
        Box::pin(async move {
            let stream = TcpStream::connect((at, PORT)).await?;
            stream.set_nodelay(true)?;
            let stream = forward(stream, port, &key).await;
            let stream = stream.map_err(io::Error::other)?;
            Ok(Box::new(stream) as Box<dyn Io>)
        })
    }
}
