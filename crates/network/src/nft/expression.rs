//! The steps of rules.

use std::time::Duration;

use super::Set;
use crate::netlink::Attributes;

/// Registers of four bytes. A lookup reads as many, from one on, as its key has.
pub(crate) const FIRST: u32 = 8;
pub(crate) const SECOND: u32 = 9;
const VERDICT: u32 = 0;

/// One step of a rule. A step that does not hold ends the rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expression<'a> {
    /// Loads something about the packet.
    Meta {
        key: u32,
        to: u32,
    },
    /// Loads four bytes of the header of IP.
    Network {
        offset: u32,
        to: u32,
    },
    /// Loads the port it goes to.
    Port {
        to: u32,
    },
    /// Loads something about the connection.
    Connection {
        key: u32,
        to: u32,
    },
    /// Loads something about the packet that began the connection.
    Original {
        key: u32,
        to: u32,
    },
    /// Loads what is known.
    Load {
        value: &'a [u8],
        to: u32,
    },
    /// Keeps these bits only.
    Mask {
        register: u32,
        bits: u32,
    },
    Is {
        from: u32,
        value: &'a [u8],
    },
    IsNot {
        from: u32,
        value: &'a [u8],
    },
    In {
        from: u32,
        set: &'a Set,
    },
    NotIn {
        from: u32,
        set: &'a Set,
    },
    /// Gives an element another time to live.
    Renew {
        from: u32,
        set: &'a Set,
        time: Duration,
    },
    /// Holds if the key has more connections than this.
    MoreThan {
        from: u32,
        set: &'a Set,
        count: u32,
    },
    /// Sends it to the address and the port in two registers.
    Redirect {
        address: u32,
        port: u32,
    },
    /// Sends it on as if it were the host's own.
    Masquerade,
    Accept,
    Drop,
    /// Goes on in another chain, and does not come back.
    Go(&'a str),
    /// Refuses a TCP segment so that its sender knows.
    Reset,
    /// Refuses anything else so that its sender knows.
    Prohibit,
}

/// Keys of [`Expression::Meta`].
pub(crate) mod meta {
    pub(crate) const LINK_IN: u32 = 4;
    pub(crate) const VERSION: u32 = 15;
    pub(crate) const PROTOCOL: u32 = 16;
    pub(crate) const GROUP_IN: u32 = 21;
    pub(crate) const GROUP_OUT: u32 = 22;
}

/// Keys of [`Expression::Connection`] and [`Expression::Original`].
pub(crate) mod connection {
    pub(crate) const STATE: u32 = 0;
    pub(crate) const DIRECTION: u32 = 1;
    pub(crate) const SOURCE: u32 = 19;
    pub(crate) const DESTINATION: u32 = 20;
    /// Of the states.
    pub(crate) const NEW: u32 = 8;
    /// Of the directions.
    pub(crate) const REPLY: &[u8] = &[1];
}

impl Expression<'_> {
    pub(super) fn write(&self, a: &mut Attributes<'_>) {
        match *self {
            Self::Meta { key, to } => named(a, "meta", |a| {
                a.be32(1, to);
                a.be32(2, key);
            }),
            Self::Network { offset, to } => payload(a, 1, (offset, 4), to),
            Self::Port { to } => payload(a, 2, (2, 2), to),
            Self::Connection { key, to } => named(a, "ct", |a| {
                a.be32(1, to);
                a.be32(2, key);
            }),
            Self::Original { key, to } => named(a, "ct", |a| {
                a.be32(1, to);
                a.be32(2, key);
                a.bytes(3, &[0]);
            }),
            Self::Load { value, to } => named(a, "immediate", |a| {
                a.be32(1, to);
                a.nest(2, |a| a.bytes(1, value));
            }),
            Self::Mask { register, bits } => named(a, "bitwise", |a| {
                a.be32(1, register);
                a.be32(2, register);
                a.be32(3, 4);
                a.nest(4, |a| a.bytes(1, &bits.to_ne_bytes()));
                a.nest(5, |a| a.bytes(1, &[0; 4]));
            }),
            Self::Is { from, value } => compare(a, from, 0, value),
            Self::IsNot { from, value } => compare(a, from, 1, value),
            Self::In { from, set } => lookup(a, from, set, 0),
            Self::NotIn { from, set } => lookup(a, from, set, 1),
            Self::Renew { from, set, time } => named(a, "dynset", |a| {
                a.text(1, set.name);
                a.be32(3, 1);
                a.be32(4, from);
                let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                a.bytes(6, &millis.to_be_bytes());
            }),
            Self::MoreThan { from, set, count } => named(a, "dynset", |a| {
                a.text(1, set.name);
                a.be32(3, 0);
                a.be32(4, from);
                a.nest(7, |a| {
                    named(a, "connlimit", |a| {
                        a.be32(1, count);
                        a.be32(2, 1);
                    });
                });
            }),
            Self::Redirect { address, port } => named(a, "nat", |a| {
                a.be32(1, 1);
                a.be32(2, 2);
                a.be32(3, address);
                a.be32(5, port);
            }),
            Self::Masquerade => named(a, "masq", |_| ()),
            Self::Accept => verdict(a, 1, None),
            Self::Drop => verdict(a, 0, None),
            Self::Go(chain) => verdict(a, -4, Some(chain)),
            Self::Reset => reject(a, 1, 0),
            Self::Prohibit => reject(a, 2, 3),
        }
    }
}

fn named(a: &mut Attributes<'_>, name: &str, write: impl FnOnce(&mut Attributes<'_>)) {
    a.text(1, name);
    a.nest(2, write);
}

fn payload(a: &mut Attributes<'_>, base: u32, (offset, length): (u32, u32), to: u32) {
    named(a, "payload", |a| {
        a.be32(1, to);
        a.be32(2, base);
        a.be32(3, offset);
        a.be32(4, length);
    });
}

fn compare(a: &mut Attributes<'_>, from: u32, operation: u32, value: &[u8]) {
    named(a, "cmp", |a| {
        a.be32(1, from);
        a.be32(2, operation);
        a.nest(3, |a| a.bytes(1, value));
    });
}

fn lookup(a: &mut Attributes<'_>, from: u32, set: &Set, flags: u32) {
    named(a, "lookup", |a| {
        a.text(1, set.name);
        a.be32(2, from);
        a.be32(5, flags);
    });
}

fn verdict(a: &mut Attributes<'_>, code: i32, chain: Option<&str>) {
    named(a, "immediate", |a| {
        a.be32(1, VERDICT);
        a.nest(2, |a| {
            a.nest(2, |a| {
                a.be32(1, code.cast_unsigned());
                if let Some(chain) = chain {
                    a.text(2, chain);
                }
            });
        });
    });
}

fn reject(a: &mut Attributes<'_>, kind: u32, code: u8) {
    named(a, "reject", |a| {
        a.be32(1, kind);
        a.bytes(2, &[code]);
    });
}
