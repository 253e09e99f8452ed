//! The trimmed view of sandboxes for gateways: what they route by, and nothing else.

use std::net::IpAddr;

use model::{
    Epoch, KindName, Name, Namespace, SandboxId, Spec as _, Uid, Version,
    lifecycle::{self, Traffic},
    sandbox::{Address, Sandbox, SandboxSpec, Via},
};
use store::{Record, StoreError};

use crate::{Cache, Identified, Indexes, Names, Term, View};

/// A cache of what gateways route by.
pub type RoutingCache = Cache<Routing>;

/// The view.
#[derive(Debug)]
pub enum Routing {}

/// What a gateway needs to know of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routable {
    /// Its namespace.
    pub namespace: Option<Namespace>,
    /// Its name.
    pub name: Name,
    /// What its owner calls it; an idle pool member has none.
    pub id: Option<SandboxId>,
    /// Its identity for life.
    pub uid: Uid,
    /// Which delivery.
    pub epoch: Epoch,
    /// What may be done with a request for it.
    pub traffic: Traffic,
    /// How to dial it.
    pub dial: Option<Dial>,
    /// Whether a request wakes it.
    pub wake_on_traffic: bool,
    /// The team it belongs to.
    pub owner: Option<Namespace>,
    /// The version all this was read at.
    pub version: Version,
}

/// How to dial a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dial {
    /// Inside its network namespace on this machine.
    Netns,
    /// At its Pod's address.
    Pod(IpAddr),
}

impl Dial {
    /// The typed form of an observed address. One that cannot be parsed cannot be dialled: the
    /// sandbox is then known, and has no address.
    #[must_use]
    pub fn of(address: &Address) -> Option<Self> {
        match address.via {
            Via::NetworkNamespace => Some(Self::Netns),
            Via::Pod => address.ip.as_ref()?.parse().ok().map(Self::Pod),
        }
    }
}

impl View for Routing {
    type Value = Routable;
    type Index = RoutingIndex;
    const KIND: KindName = SandboxSpec::KIND;

    fn project(record: &Record, names: &mut Names) -> Result<Routable, StoreError> {
        let sandbox: Sandbox = record.decode()?;
        let traffic = lifecycle::traffic(&sandbox);
        let dial = sandbox.status.address.as_ref().and_then(Dial::of);
        let mut namespace = sandbox.metadata.namespace;
        let mut owner = sandbox.spec.owner.map(|owner| owner.team);
        for shared in [&mut namespace, &mut owner].into_iter().flatten() {
            names.share_namespace(shared);
        }
        Ok(Routable {
            namespace,
            name: sandbox.metadata.name,
            id: sandbox.spec.sandbox_id,
            uid: record.uid(),
            epoch: sandbox.spec.epoch,
            traffic,
            dial,
            wake_on_traffic: sandbox.spec.wake_on_traffic,
            owner,
            version: record.version(),
        })
    }
}

impl Identified for Routable {
    fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn uid(&self) -> Uid {
        self.uid
    }

    fn version(&self) -> Version {
        self.version
    }
}

/// By what gateways find a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingIndex {
    /// The sandbox id, exact.
    Id,
}

impl Indexes<Routable> for RoutingIndex {
    const ALL: &'static [Self] = &[Self::Id];

    fn terms<'v>(self, value: &'v Routable, emit: &mut dyn FnMut(Term<'v>)) {
        match self {
            Self::Id => {
                let id = value.id.as_ref().map(|id| id.as_str().into());
                id.into_iter().for_each(emit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_parsed_cannot_be_dialled() {
        let pod = |ip: Option<&str>| Address {
            via: Via::Pod,
            ip: ip.map(Into::into),
        };
        assert_eq!(Dial::of(&pod(None)), None);
        assert_eq!(Dial::of(&pod(Some("ten.0.0.7"))), None);
        let ip = [10, 0, 0, 7].into();
        assert_eq!(Dial::of(&pod(Some("10.0.0.7"))), Some(Dial::Pod(ip)));
    }
}
