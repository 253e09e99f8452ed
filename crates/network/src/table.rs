//! The rules of one engine: one table, whose chains never change while the engine runs. What a
//! sandbox may do is only ever elements of its sets, so changing it is one small transaction and
//! costs the same with one sandbox as with thousands.
//!
//! ```text
//!            from a sandbox                               to a sandbox
//!   for the host ─▶ input:   names only         from the host ─▶ output:  answers only
//!   beyond       ─▶ forward: chain `out`        from beyond   ─▶ forward: chain `back`
//! ```
//!
//! Every packet is looked up, in both directions: no connection is let through because it was
//! once. So a connection that a new policy forbids is cut at its next packet, with a reset or an
//! ICMP message for the sandbox, and one that is still allowed does not notice the change. What
//! comes back is judged by where the connection went at first, and only as an answer: nothing
//! ever begins outside.
//!
//! Addresses that a name led to run out with time; each packet to them renews it, so that a
//! connection outlives the answer that it began with.

use std::{net::Ipv4Addr, time::Duration};

use crate::{
    nft::{
        Element,
        Expression::{
            Accept, Connection, Drop, Go, In, Is, IsNot, Load, Mask, Masquerade, Meta, MoreThan,
            Network, NotIn, Original, Port, Prohibit, Redirect, Renew, Reset,
        },
        FIRST, Hook, SECOND, Set, Transaction, connection, meta,
    },
    policy::Policy,
    ranges::{Addresses, Range},
};

/// Which link may send from which address.
pub(crate) const SOURCES: Set = Set {
    name: "sources",
    flags: 0,
    types: &[Set::LINK, Set::ADDRESS],
    size: None,
};
/// Sandboxes that may reach everything public.
pub(crate) const OPEN: Set = Set {
    name: "open",
    flags: 0,
    types: &[Set::ADDRESS],
    size: None,
};
/// What is not public.
const SPECIAL: Set = Set {
    name: "special",
    flags: Set::RANGES,
    types: &[Set::ADDRESS],
    size: None,
};
/// Which sandbox may reach what else.
pub(crate) const RANGES: Set = Set {
    name: "ranges",
    flags: Set::RANGES | Set::CONCATENATED,
    types: &[Set::ADDRESS, Set::ADDRESS],
    size: None,
};
/// Which sandbox may reach what, because a name led there.
pub(crate) const ANSWERS: Set = Set {
    name: "answers",
    flags: Set::TIMED | Set::DYNAMIC,
    types: &[Set::ADDRESS, Set::ADDRESS],
    size: Some(1 << 20),
};
/// How many connections each sandbox has.
const CONNECTIONS: Set = Set {
    name: "connections",
    flags: Set::DYNAMIC,
    types: &[Set::ADDRESS],
    size: Some(1 << 20),
};

/// How long an address stays open after the last packet to it.
pub(crate) const RENEWAL: Duration = Duration::from_secs(3600);

const VERSION_4: &[u8] = &[2];
const TCP: &[u8] = &[6];
const UDP: &[u8] = &[17];
const SOURCE_AT: u32 = 12;
const DESTINATION_AT: u32 = 16;

/// What the rules are made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    pub(crate) group: u32,
    pub(crate) gateway: Ipv4Addr,
    /// Where the name server listens.
    pub(crate) port: u16,
    pub(crate) connections: u32,
    pub(crate) note: &'a str,
}

/// Makes the table anew, in place of one that is there. In one transaction with the elements of
/// all sandboxes nothing opens and nothing is dropped in between.
pub(crate) fn make(t: &mut Transaction<'_>, rules: &Rules<'_>, special: &Addresses) {
    t.destroy_table();
    t.table(rules.note);
    for set in [&SOURCES, &OPEN, &SPECIAL, &RANGES, &ANSWERS, &CONNECTIONS] {
        t.set(set);
    }
    t.add_elements(&SPECIAL, &intervals(special));

    let hook = |kind, number, priority| {
        Some(Hook {
            kind,
            number,
            priority,
        })
    };
    t.chain("out", None);
    t.chain("back", None);
    t.chain("host", None);
    t.chain("prerouting", hook("nat", 0, -100));
    t.chain("input", hook("filter", 1, 0));
    t.chain("forward", hook("filter", 2, 0));
    t.chain("output", hook("filter", 3, 0));
    t.chain("postrouting", hook("nat", 4, 100));

    let group = &rules.group.to_ne_bytes();
    let from_sandbox = [load_meta(meta::GROUP_IN), is(group)];
    let to_sandbox = [load_meta(meta::GROUP_OUT), is(group)];
    let jump = |condition: [_; 2], chain| [condition[0], condition[1], Go(chain)];
    t.rule("forward", &jump(from_sandbox, "out"));
    t.rule("forward", &jump(to_sandbox, "back"));
    t.rule("input", &jump(from_sandbox, "host"));

    out(t, rules);
    back(t);
    host(t, rules);
    // The host's own answers go in, and what it says about packets that it refused.
    let [link, of_group] = to_sandbox;
    let state = Connection {
        key: connection::STATE,
        to: FIRST,
    };
    let new = Mask {
        register: FIRST,
        bits: connection::NEW,
    };
    t.rule(
        "output",
        &[link, of_group, state, new, is_not(&[0; 4]), Drop],
    );
    let [link, of_group] = from_sandbox;
    let out = load_meta(meta::GROUP_OUT);
    t.rule(
        "postrouting",
        &[link, of_group, out, is_not(group), Masquerade],
    );
}

/// What a sandbox sends beyond the host.
fn out(t: &mut Transaction<'_>, rules: &Rules<'_>) {
    known_source(t, "out");
    let source = network(SOURCE_AT, FIRST);
    let destination = network(DESTINATION_AT, SECOND);
    let state = Connection {
        key: connection::STATE,
        to: SECOND,
    };
    let new = Mask {
        register: SECOND,
        bits: connection::NEW,
    };
    // The host's table of connections is everybody's: one sandbox may not fill it.
    let nonzero = IsNot {
        from: SECOND,
        value: &[0; 4],
    };
    let too_many = MoreThan {
        from: FIRST,
        set: &CONNECTIONS,
        count: rules.connections,
    };
    t.rule("out", &[state, new, nonzero, source, too_many, Drop]);
    let public = NotIn {
        from: SECOND,
        set: &SPECIAL,
    };
    t.rule("out", &[source, is_in(&OPEN), destination, public, Accept]);
    let renew = Renew {
        from: FIRST,
        set: &ANSWERS,
        time: RENEWAL,
    };
    t.rule(
        "out",
        &[source, destination, is_in(&ANSWERS), renew, Accept],
    );
    t.rule("out", &[source, destination, is_in(&RANGES), Accept]);
    refuse(t, "out");
}

/// What comes from beyond the host for a sandbox.
fn back(t: &mut Transaction<'_>) {
    only_version_4(t, "back");
    let direction = Connection {
        key: connection::DIRECTION,
        to: FIRST,
    };
    let reply = is(connection::REPLY);
    let sandbox = Original {
        key: connection::SOURCE,
        to: FIRST,
    };
    let other = Original {
        key: connection::DESTINATION,
        to: SECOND,
    };
    let public = NotIn {
        from: SECOND,
        set: &SPECIAL,
    };
    let open = is_in(&OPEN);
    t.rule(
        "back",
        &[direction, reply, sandbox, open, other, public, Accept],
    );
    for set in [&ANSWERS, &RANGES] {
        t.rule(
            "back",
            &[direction, reply, sandbox, other, is_in(set), Accept],
        );
    }
    t.rule("back", &[Drop]);
}

/// What a sandbox sends to the host: questions for names, and nothing else.
fn host(t: &mut Transaction<'_>, rules: &Rules<'_>) {
    known_source(t, "host");
    let gateway = &rules.gateway.octets();
    let (to, protocol) = (network(DESTINATION_AT, FIRST), load_meta(meta::PROTOCOL));
    let group = rules.group.to_ne_bytes();
    let (link, of_group) = (load_meta(meta::GROUP_IN), is(&group));
    let (load_version, is_version_4) = (load_meta(meta::VERSION), is(VERSION_4));
    let port = rules.port.to_be_bytes();
    let names = 53_u16.to_be_bytes();
    let load_port = Port { to: FIRST };
    for kind in [UDP, TCP] {
        let (is_gateway, is_kind) = (is(gateway), is(kind));
        let at_port = [
            to,
            is_gateway,
            protocol,
            is_kind,
            load_port,
            is(&port),
            Accept,
        ];
        t.rule("host", &at_port);
        // The port of names may be somebody else's on this host, so the server has another.
        let new_address = Load {
            value: gateway,
            to: FIRST,
        };
        let new_port = Load {
            value: &port,
            to: SECOND,
        };
        let redirect = Redirect {
            address: FIRST,
            port: SECOND,
        };
        let condition = [
            link,
            of_group,
            load_version,
            is_version_4,
            to,
            is_gateway,
            protocol,
            is_kind,
        ];
        let action = [load_port, is(&names), new_address, new_port, redirect];
        t.rule("prerouting", &[&condition[..], &action[..]].concat());
    }
    refuse(t, "host");
}

fn only_version_4(t: &mut Transaction<'_>, chain: &str) {
    t.rule(chain, &[load_meta(meta::VERSION), is_not(VERSION_4), Drop]);
}

/// A sandbox that sends from an address that is not its own is not answered.
fn known_source(t: &mut Transaction<'_>, chain: &str) {
    only_version_4(t, chain);
    let unknown = NotIn {
        from: FIRST,
        set: &SOURCES,
    };
    let source = network(SOURCE_AT, SECOND);
    t.rule(chain, &[load_meta(meta::LINK_IN), source, unknown, Drop]);
}

fn refuse(t: &mut Transaction<'_>, chain: &str) {
    t.rule(chain, &[load_meta(meta::PROTOCOL), is(TCP), Reset]);
    t.rule(chain, &[Prohibit]);
}

const fn load_meta(key: u32) -> crate::nft::Expression<'static> {
    Meta { key, to: FIRST }
}

const fn network(offset: u32, to: u32) -> crate::nft::Expression<'static> {
    Network { offset, to }
}

const fn is(value: &[u8]) -> crate::nft::Expression<'_> {
    Is { from: FIRST, value }
}

const fn is_not(value: &[u8]) -> crate::nft::Expression<'_> {
    IsNot { from: FIRST, value }
}

const fn is_in(set: &Set) -> crate::nft::Expression<'_> {
    In { from: FIRST, set }
}

/// Ranges as a set with one value in a key has them: where each begins and where it has ended.
fn intervals(addresses: &Addresses) -> Vec<Element> {
    let at = |bits: u32, ends| Element {
        key: bits.to_be_bytes().to_vec(),
        ends,
        ..Element::default()
    };
    let both = |range: &Range| {
        let after = range.last.checked_add(1).map(|after| at(after, true));
        [Some(at(range.first, false)), after]
    };
    addresses.ranges().iter().flat_map(both).flatten().collect()
}

/// The elements that make a sandbox known.
pub(crate) fn source(address: Ipv4Addr) -> Element {
    let index = crate::link::index_of(address).to_ne_bytes();
    Element {
        key: [index, address.octets()].concat(),
        ..Element::default()
    }
}

/// The element that opens everything public to it.
pub(crate) fn open(address: Ipv4Addr) -> Element {
    Element {
        key: address.octets().to_vec(),
        ..Element::default()
    }
}

/// The elements that open ranges to it.
pub(crate) fn ranges(address: Ipv4Addr, policy: &Policy) -> Vec<Element> {
    let pair = |other: u32| [address.octets(), other.to_be_bytes()].concat();
    let element = |range: &Range| Element {
        key: pair(range.first),
        key_end: Some(pair(range.last)),
        ..Element::default()
    };
    policy.ranges.ranges().iter().map(element).collect()
}

/// The element that opens the address that a name led to.
pub(crate) fn answer(address: Ipv4Addr, to: Ipv4Addr, name: &str, time: Duration) -> Element {
    Element {
        key: [address.octets(), to.octets()].concat(),
        timeout: Some(time),
        note: name.as_bytes().to_vec(),
        ..Element::default()
    }
}

/// The element that counts its connections.
pub(crate) fn forget_connections(t: &mut Transaction<'_>, address: Ipv4Addr) {
    t.remove_elements(&CONNECTIONS, &[open(address)]);
}

/// Whose an answer is, and where it leads.
pub(crate) fn read_answer(element: &Element) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let key: &[u8; 8] = element.key.first_chunk()?;
    let [a, b, c, d, e, f, g, h] = *key;
    Some((Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h)))
}
