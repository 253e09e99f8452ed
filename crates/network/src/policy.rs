//! From what an owner writes to what the kernel and the name server are told. Pure.
//!
//! What may be reached is everything public, less what is denied, and whatever is allowed: allow
//! wins over deny. Special addresses (private networks, link-local and with it the metadata of a
//! cloud) are no part of "everything", nor of an allowed block that is larger than they are: only
//! an entry that lies wholly within one of them opens it. Other sandboxes and what no router
//! passes on are never reached. The host is not dealt with here: packets to it take another way.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use model::sandbox::NetworkPolicy;
use thiserror::Error;

use crate::{
    name::{Name, Pattern},
    options::Block,
    ranges::{Addresses, Range},
};

/// Never reached, whatever a policy says: "this" network, loopback, multicast and beyond.
const NEVER: [Range; 3] = [
    Range::block(Ipv4Addr::new(0, 0, 0, 0), 8),
    Range::block(Ipv4Addr::new(127, 0, 0, 0), 8),
    Range::block(Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// Reached only if named.
const SPECIAL: [Range; 7] = [
    Range::block(Ipv4Addr::new(10, 0, 0, 0), 8),
    Range::block(Ipv4Addr::new(100, 64, 0, 0), 10),
    Range::block(Ipv4Addr::new(169, 254, 0, 0), 16),
    Range::block(Ipv4Addr::new(172, 16, 0, 0), 12),
    Range::block(Ipv4Addr::new(192, 0, 0, 0), 24),
    Range::block(Ipv4Addr::new(192, 168, 0, 0), 16),
    Range::block(Ipv4Addr::new(198, 18, 0, 0), 15),
];

/// A policy as it is put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Everything public may be reached.
    pub(crate) open: bool,
    /// What else may be reached.
    pub(crate) ranges: Addresses,
    /// Names whose addresses may be reached.
    pub(crate) domains: Vec<Pattern>,
    /// Whether only these names are answered for: nothing is open but what is named, and a
    /// question for a name would be a way out.
    pub(crate) names_only: bool,
}

/// An entry that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}[{index}]: {entry:?} {problem}")]
pub struct PolicyError {
    /// `allowOut` or `denyOut`.
    pub field: &'static str,
    /// Which entry.
    pub index: usize,
    /// What it says.
    pub entry: Box<str>,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// With the field and the entry that is no address, block or domain, or cannot be kept here.
    pub fn compile(policy: &NetworkPolicy, block: Block) -> Result<Self, PolicyError> {
        let never = never(block);
        let special = special(block);
        let public = Addresses::from_iter([Range::ALL]).without(&special);

        let mut denied = Vec::new();
        for (index, entry) in policy.deny_out.iter().enumerate() {
            match Entry::read(entry) {
                Some(Entry::Range(range)) => denied.push(range),
                // There is no way out by it anyway.
                Some(Entry::Version6) => {}
                Some(Entry::Domain(_)) => {
                    return Err(bad(
                        "denyOut",
                        index,
                        entry,
                        "is a domain: those cannot be denied",
                    ));
                }
                None => return Err(bad("denyOut", index, entry, "is not an address or a block")),
            }
        }
        let rest = match policy.internet_access {
            Some(false) => Addresses::default(),
            Some(true) | None => public.without(&denied.into_iter().collect()),
        };

        let mut allowed = rest.clone();
        let mut domains = Vec::new();
        for (index, entry) in policy.allow_out.iter().enumerate() {
            match Entry::read(entry) {
                Some(Entry::Range(range)) => {
                    let named = SPECIAL.iter().any(|special| special.contains(range));
                    let out = if named { &never } else { &special };
                    allowed = allowed.with(&Addresses::from_iter([range]).without(out));
                }
                Some(Entry::Domain(domain)) => domains.push(domain),
                Some(Entry::Version6) => {
                    let problem = "cannot be reached: sandboxes have no IPv6 here";
                    return Err(bad("allowOut", index, entry, problem));
                }
                None => {
                    let problem = "is not an address, a block or a domain";
                    return Err(bad("allowOut", index, entry, problem));
                }
            }
        }

        let open = allowed.covers(&public);
        Ok(Self {
            ranges: if open {
                allowed.without(&public)
            } else {
                allowed
            },
            names_only: rest.is_empty() && !open,
            open,
            domains,
        })
    }

    /// Whether a name is answered for.
    pub(crate) fn answers(&self, name: &Name) -> bool {
        !self.names_only || self.names(name)
    }

    /// Whether a name's addresses may be reached because of the name.
    pub(crate) fn names(&self, name: &Name) -> bool {
        self.domains.iter().any(|domain| domain.matches(name))
    }
}

/// What a name may not lead to: a name inside an owner's reach must not open the host's networks.
pub(crate) fn special(block: Block) -> Addresses {
    never(block).with(&SPECIAL.into_iter().collect())
}

fn never(block: Block) -> Addresses {
    NEVER.into_iter().chain([block.range()]).collect()
}

fn bad(field: &'static str, index: usize, entry: &str, problem: &'static str) -> PolicyError {
    PolicyError {
        field,
        index,
        entry: entry.into(),
        problem,
    }
}

/// One entry of a list.
enum Entry {
    Range(Range),
    Domain(Pattern),
    Version6,
}

impl Entry {
    fn read(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let Ok(address) = address.parse::<IpAddr>() else {
            return Pattern::read(text).map(Self::Domain);
        };
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => {
                let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
                bits.parse().ok().filter(|bits| digits && *bits <= most)?
            }
        };
        Some(match address {
            IpAddr::V4(address) => Self::Range(Range::block(address, bits)),
            IpAddr::V6(_) => Self::Version6,
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, ranges, domains) = (self.open, self.ranges.ranges().len(), self.domains.len());
        write!(f, "open: {open}, ranges: {ranges}, domains: {domains}")
    }
}

#[cfg(test)]
mod tests;
