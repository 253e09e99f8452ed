//! Which addresses may be asked.
//!
//! Whoever may name any registry could otherwise have this host ask what only this host can reach:
//! itself, its neighbours, what tells a machine in a cloud who it is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where requests may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Anywhere: somebody who runs this host has named it.
    Anywhere,
    /// To addresses that everybody has, and to registries that are named as insecure.
    Public,
}

impl Reach {
    /// Whether an address may be spoken to.
    pub(super) fn includes(self, address: IpAddr) -> bool {
        match (self, address.to_canonical()) {
            (Self::Anywhere, _) => true,
            (Self::Public, IpAddr::V4(address)) => is_public_v4(address),
            (Self::Public, IpAddr::V6(address)) => is_public_v6(address),
        }
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocols = (a, b, c) == (192, 0, 0);
    let measuring = a == 198 && (18..20).contains(&b);
    !(a == 0
        || a >= 224
        || shared
        || protocols
        || measuring
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // What carries an address of the old kind within leads where that leads.
    let translated = (a, b) == (0x64, 0xff9b) || a == 0x2002;
    let global = a & 0xe000 == 0x2000;
    global && !translated && (a, b) != (0x2001, 0xdb8) && (a, b) != (0x2001, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_everybody_has_are_public() {
        let is_public = |text: &str| Reach::Public.includes(text.parse().unwrap());
        for public in ["1.1.1.1", "100.63.0.1", "192.0.1.1", "2606:4700::1111"] {
            assert!(is_public(public), "{public}");
        }
        for other in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.1",
            "192.168.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fd00::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_public(other), "{other}");
            assert!(Reach::Anywhere.includes(other.parse().unwrap()));
        }
    }
}
