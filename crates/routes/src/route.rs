//! A route: where one delivery of one sandbox is reached, and who may pass.
//!
//! Kept small: a gateway holds one for every sandbox there is.

use std::{fmt, net::IpAddr, str::FromStr};

pub use model::lifecycle::Traffic as State;
use model::{Epoch, Name, Namespace, Sandbox, SandboxId, Uid, Version, lifecycle, sandbox::Via};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest mask of a host, in bytes as it is written: more than any that is a host once its ports
/// are filled in.
pub const LONGEST_MASK: usize = 2048;

/// Where one delivery of one sandbox is reached.
///
/// The order of the fields is a rule: of two different accounts of one key at one version, by one
/// kind of writer, the greater wins everywhere, and a later delivery is greater.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The store's version of the record this was made from. Never [`Version::ZERO`].
    pub version: Version,
    /// Which delivery of the sandbox.
    pub epoch: Epoch,
    /// The sandbox, for its whole life.
    pub uid: Uid,
    /// With the name, the key.
    pub namespace: Namespace,
    /// With the namespace, the key.
    pub name: Name,
    /// What clients call it; an idle pool member has none.
    #[serde(default)]
    pub id: Option<SandboxId>,
    /// What it is doing.
    pub state: State,
    /// How to dial it; none while there is nothing to dial.
    #[serde(default)]
    pub address: Option<Address>,
    /// Whether traffic may wake it.
    #[serde(default)]
    pub wake_on_traffic: bool,
    /// Whether it runs and is being closed, to be ended or released if nobody turns out to use it.
    /// Its state is then [`State::Pausing`]. Who comes now waits to hear whether it goes on, whether
    /// or not traffic may wake it.
    #[serde(default)]
    pub is_closing: bool,
    /// Who may reach the agent's port.
    #[serde(default)]
    pub agent: Gate,
    /// Who may reach every other port.
    #[serde(default)]
    pub traffic: Gate,
    /// The team it was delivered to; an idle pool member has none.
    #[serde(default)]
    pub owner: Option<Namespace>,
    /// What requests to ports other than the agent's carry as their host, with `${PORT}` for the
    /// port; none if they keep their own.
    #[serde(default)]
    pub mask_host: Option<Box<str>>,
}

impl Route {
    /// Whether this route belongs to that delivery of that sandbox, and so may serve it.
    #[must_use]
    pub fn is_delivery(&self, uid: Uid, epoch: Epoch) -> bool {
        self.uid == uid && self.epoch == epoch
    }

    /// The route of a stored sandbox; none for one without a namespace, which cannot be.
    #[must_use]
    pub fn of(sandbox: &Sandbox) -> Option<Self> {
        let spec = &sandbox.spec;
        let network = spec.network.as_ref();
        let public = network.and_then(|n| n.allow_public_traffic);
        let traffic = lifecycle::traffic(sandbox);
        let is_closing = traffic == State::Running && lifecycle::is_closing(sandbox);
        let gate = if public == Some(false) {
            let access = spec.access.as_deref();
            Gate::of_hash(access.and_then(|a| a.traffic_token.as_deref()))
        } else {
            Gate::Open
        };
        let mask = network.and_then(|n| n.mask_request_host.clone());
        let (mask_host, gate) = bounded(mask, gate);
        Some(Self {
            version: sandbox.version(),
            epoch: spec.epoch,
            uid: sandbox.uid(),
            namespace: sandbox.metadata.namespace.clone()?,
            name: sandbox.metadata.name.clone(),
            id: spec.sandbox_id.clone(),
            state: if is_closing { State::Pausing } else { traffic },
            address: sandbox.status.address.as_ref().and_then(Address::of),
            wake_on_traffic: spec.wake_on_traffic,
            is_closing,
            agent: match spec.access.as_deref() {
                Some(access) if access.agent_is_open => Gate::Open,
                Some(access) => Gate::of_hash(access.agent_token.as_deref()),
                // Without a token the agent's port is nobody's.
                None => Gate::Closed,
            },
            traffic: gate,
            owner: spec.owner.as_ref().map(|owner| owner.team.clone()),
            mask_host,
        })
    }

    pub(crate) fn same_key(&self, other: &Self) -> bool {
        self.name == other.name && self.namespace == other.namespace
    }
}

/// A mask that is too long is none, and then nobody passes: what is behind those ports is meant to see
/// no other host. Without a bound one record could fill the memory and the links of every gateway.
pub(crate) fn bounded(mask: Option<Box<str>>, traffic: Gate) -> (Option<Box<str>>, Gate) {
    match mask {
        Some(mask) if mask.len() > LONGEST_MASK => (None, Gate::Closed),
        mask => (mask, traffic),
    }
}

/// The one predicate that decides whether a route stays or is deleted: only the dead go.
///
/// Everything else stays with its state, so that a sleeping sandbox can be woken and one that is
/// being made is known.
#[must_use]
pub const fn keep(state: State) -> bool {
    match state {
        State::Creating
        | State::Idle
        | State::Running
        | State::Pausing
        | State::Paused
        | State::Resuming
        | State::Unknown => true,
        State::Dead => false,
    }
}

/// How a sandbox is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Address {
    /// From within the network namespace of the route's own uid, on this machine. It carries
    /// nothing, so it cannot name another sandbox's.
    Netns,
    /// At a Pod's address; its loopback is reached through the agent's forwarder.
    Pod(IpAddr),
}

impl Address {
    /// The typed form of an observed address. One that cannot be parsed cannot be dialled: the
    /// sandbox is then known, and has no address.
    #[must_use]
    pub fn of(observed: &model::sandbox::Address) -> Option<Self> {
        match observed.via {
            Via::NetworkNamespace => Some(Self::Netns),
            Via::Pod => observed.ip.as_ref()?.parse().ok().map(Self::Pod),
        }
    }
}

/// Who may pass. What a message leaves out is closed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// Nobody.
    #[default]
    Closed,
    /// Whoever presents the token with this hash.
    Token(TokenHash),
    /// Everybody.
    Open,
}

impl Gate {
    /// For whoever presents the token of a recorded hash; one that cannot be read lets nobody in.
    fn of_hash(hash: Option<&str>) -> Self {
        hash.and_then(|text| text.parse().ok())
            .map_or(Self::Closed, Self::Token)
    }

    /// Whether somebody who presented a token with this hash, or none, may pass.
    #[must_use]
    pub fn admits(&self, presented: Option<&TokenHash>) -> bool {
        match self {
            Self::Closed => false,
            Self::Token(wanted) => presented.is_some_and(|p| p.matches(wanted)),
            Self::Open => true,
        }
    }
}

/// The SHA-256 of a token. Tokens themselves are never kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Equality in a time that does not depend on where the two differ.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .fold(0, |differ, (a, b)| differ | (a ^ b))
            == 0
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to tell two apart in a log.
        let [a, b, ..] = self.0;
        write!(f, "{a:02x}{b:02x}…")
    }
}

/// The text is not a token hash.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not a token hash: write it as 64 hexadecimal digits")]
pub struct InvalidTokenHash;

impl FromStr for TokenHash {
    type Err = InvalidTokenHash;
    fn from_str(s: &str) -> Result<Self, InvalidTokenHash> {
        if s.len() != 64 || !s.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(InvalidTokenHash);
        }
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            let pair = &s[2 * at..2 * at + 2];
            *byte = u8::from_str_radix(pair, 16).map_err(|_| InvalidTokenHash)?;
        }
        Ok(Self(hash))
    }
}

impl Serialize for TokenHash {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dead_are_deleted() {
        let states = [
            State::Creating,
            State::Idle,
            State::Running,
            State::Pausing,
            State::Paused,
            State::Resuming,
            State::Unknown,
        ];
        assert!(states.into_iter().all(keep));
        assert!(!keep(State::Dead));
    }

    #[test]
    fn a_gate_admits_only_the_hash_it_names() {
        let (right, wrong) = (TokenHash([7; 32]), TokenHash([8; 32]));
        let gate = Gate::Token(right);
        assert!(gate.admits(Some(&right)));
        assert!(!gate.admits(Some(&wrong)));
        assert!(!gate.admits(None));
        assert!(Gate::Open.admits(None));
        assert!(!Gate::default().admits(Some(&right)));
    }

    #[test]
    fn a_token_hash_round_trips_as_hexadecimal() {
        let hash = TokenHash(std::array::from_fn(|i| i as u8));
        assert_eq!(hash.to_string().parse(), Ok(hash));
        for bad in ["", "00", &"é".repeat(32), &"+f".repeat(32)] {
            assert_eq!(bad.parse::<TokenHash>(), Err(InvalidTokenHash), "{bad}");
        }
    }

    #[test]
    fn a_route_is_small() {
        assert!(size_of::<Route>() <= 240, "{}", size_of::<Route>());
    }
}
