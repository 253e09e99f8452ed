//! What can be chosen about the network of an engine.

use std::{
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
};

use crate::ranges::Range;

/// Choices that hold for every sandbox of one engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where sandboxes get their addresses. Engines of one host can share it.
    pub block: Block,
    /// Who answers for names; empty means whom the host asks.
    pub upstreams: Vec<SocketAddr>,
    /// How much one sandbox, and all of them, may ask for names.
    pub names: NameLimits,
    /// How many connections one sandbox may have open.
    pub connections: u32,
    /// What the table says of itself: to people, and to [`crate::left`]. Nothing if it is too long.
    pub note: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block: Block {
                first: Ipv4Addr::new(100, 87, 0, 0),
                bits: 16,
            },
            upstreams: Vec::new(),
            names: NameLimits::default(),
            connections: 8192,
            note: String::new(),
        }
    }
}

/// Bounds of the name server.
#[derive(Clone, Copy, Debug)]
pub struct NameLimits {
    /// Questions of one sandbox that wait for an answer.
    pub waiting: usize,
    /// Questions of all sandboxes that wait for an answer.
    pub waiting_in_all: usize,
    /// Questions of one sandbox in a second, after a burst of as many.
    pub rate: u32,
    /// Connections of one sandbox.
    pub connections: usize,
    /// Addresses of one sandbox that are open because a name led to them.
    pub addresses: usize,
}

impl Default for NameLimits {
    fn default() -> Self {
        Self {
            waiting: 64,
            waiting_in_all: 1024,
            rate: 200,
            connections: 4,
            addresses: 4096,
        }
    }
}

/// A block of addresses: `100.87.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    first: Ipv4Addr,
    bits: u8,
}

/// Text that is not a block sandboxes can live in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a block for sandboxes: write it as 100.87.0.0/16, with 8 to 28 leading bits")]
pub struct BadBlock(Box<str>);

impl Block {
    pub(crate) const fn range(self) -> Range {
        Range::block(self.first, self.bits)
    }

    /// The address that is every sandbox's way out and name server.
    #[must_use]
    pub const fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.range().first + 1)
    }

    /// How many sandboxes can have an address.
    pub(crate) const fn size(self) -> u32 {
        let range = self.range();
        // Neither the gateway nor the two at the ends, which some take for the whole block.
        range.last - range.first - 2
    }

    pub(crate) const fn address(self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.range().first + 2 + number % self.size())
    }
}

impl FromStr for Block {
    type Err = BadBlock;

    fn from_str(text: &str) -> Result<Self, BadBlock> {
        let read = || {
            let (address, bits) = text.split_once('/')?;
            let (address, bits): (Ipv4Addr, u8) = (address.parse().ok()?, bits.parse().ok()?);
            if !(8..=28).contains(&bits) || Range::block(address, bits).first != address.to_bits() {
                return None;
            }
            Some(Self {
                first: address,
                bits,
            })
        };
        read().ok_or_else(|| BadBlock(text.into()))
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_an_address_that_is_neither_gateway_nor_end() {
        let block: Block = "10.9.8.0/28".parse().unwrap();
        let all: std::collections::BTreeSet<_> =
            (0..block.size()).map(|n| block.address(n)).collect();
        assert_eq!(all.len(), 13);
        assert!(!all.contains(&block.gateway()));
        assert_eq!(*all.first().unwrap(), Ipv4Addr::new(10, 9, 8, 2));
        assert_eq!(*all.last().unwrap(), Ipv4Addr::new(10, 9, 8, 14));
        assert_eq!(block.to_string(), "10.9.8.0/28");
    }

    #[test]
    fn text_that_is_no_block_is_refused() {
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.1/8",
            "10.0.0.0/7",
            "10.0.0.0/29",
            "::/16",
            "10.0.0.0/x",
        ] {
            assert!(bad.parse::<Block>().is_err(), "{bad}");
        }
    }
}
