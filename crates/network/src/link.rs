//! Links, addresses and routes: the cable between the host and one sandbox.
//!
//! ```text
//!   host                                  sandbox
//!   dm6457abcd 100.87.0.1/32  ═══════════ eth0 100.87.171.205/32
//!   route 100.87.171.205 ─▶ dm6457abcd    route 100.87.0.1 ─▶ eth0, default via 100.87.0.1
//! ```
//!
//! Name and number of the host's end follow from the sandbox's address, so making it is also what
//! claims the address among all engines of a host. Its group is the engine's: by it the policy
//! knows whose packets are whose, and leftovers are found. The cable is gone with the sandbox's
//! namespace; nothing has to be taken away.

use std::net::Ipv4Addr;

use crate::{
    error::{NetworkError, Result},
    netlink::{self, Attributes, Batch, CREATE, DUMP, EXCLUSIVE, Socket},
};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;

const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
const LINK_INFO: u16 = 18;
const LINK_NAMESPACE_PID: u16 = 19;
const LINK_AF_SPEC: u16 = 26;
const LINK_GROUP: u16 = 27;
const LINK_EXT_MASK: u16 = 29;
const LINK_TX_QUEUES: u16 = 31;
const LINK_RX_QUEUES: u16 = 32;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const INET6_ADDR_GEN_MODE: u16 = 8;
const UP: u32 = 1;
const SKIP_STATISTICS: u32 = 8;

const ADDRESS_ADDRESS: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_LINK: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const MAIN_TABLE: u8 = 254;
const BY_BOOT: u8 = 3;
const SCOPE_GLOBAL: u8 = 0;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;

/// The number of `eth0` in a namespace of its own; loopback is the first.
const INSIDE: u32 = 2;

/// One cable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cable {
    pub(crate) address: Ipv4Addr,
    pub(crate) gateway: Ipv4Addr,
    pub(crate) group: u32,
    pub(crate) mtu: u32,
    /// Whether this kernel has IPv6 to be turned off.
    pub(crate) version_6: bool,
}

/// The number of the host's end. Far above those that the kernel gives out by itself.
pub(crate) fn index_of(address: Ipv4Addr) -> u32 {
    0x4000_0000 | (address.to_bits() & 0x3fff_ffff)
}

impl Cable {
    /// Makes both ends, the far one in the namespace of a process. False if the address is taken.
    pub(crate) fn make(&self, host: &Socket, pid: i32) -> Result<bool> {
        let mut batch = Batch::default();
        let index = index_of(self.address);
        let flags = CREATE | EXCLUSIVE;
        let info = link_info(index, 0);
        batch.message("connect the sandbox", (NEW_LINK, flags), &info, |a| {
            a.text(LINK_NAME, &format!("dm{:08x}", self.address.to_bits()));
            a.number(LINK_GROUP, self.group);
            self.shared(a, 2);
            a.nest(LINK_INFO, |a| {
                a.text(INFO_KIND, "veth");
                a.nest(INFO_DATA, |a| {
                    a.nest_after(VETH_PEER, &link_info(INSIDE, 0), |a| {
                        a.text(LINK_NAME, "eth0");
                        a.number(LINK_NAMESPACE_PID, pid.cast_unsigned());
                        self.shared(a, 6);
                    });
                });
            });
        });
        match host.send(&batch) {
            Ok(()) => {}
            Err(NetworkError::System { source, .. }) if is_taken(&source) => return Ok(false),
            Err(error) => return Err(error),
        }
        let mut batch = Batch::default();
        self.bring_up(&mut batch, index);
        address(&mut batch, index, self.gateway);
        route(&mut batch, index, Some(self.address), None);
        host.send(&batch)?;
        Ok(true)
    }

    /// What both ends have alike. A fixed hardware address is one that no daemon of the host
    /// replaces; one queue is what one sandbox needs.
    fn shared(&self, a: &mut Attributes<'_>, first: u8) {
        let [b, c, d, e] = self.address.octets();
        a.bytes(LINK_ADDRESS, &[first, 0, b, c, d, e]);
        a.number(LINK_MTU, self.mtu);
        a.number(LINK_TX_QUEUES, 1);
        a.number(LINK_RX_QUEUES, 1);
    }

    /// Before it is up it is told not to make up an IPv6 address, by which the host could be
    /// reached.
    fn bring_up(&self, batch: &mut Batch, index: u32) {
        if self.version_6 {
            let info = link_info(index, 0);
            batch.message("turn IPv6 off", (NEW_LINK, 0), &info, |a| {
                a.nest(LINK_AF_SPEC, |a| {
                    a.nest(AF_INET6.into(), |a| a.bytes(INET6_ADDR_GEN_MODE, &[1]));
                });
            });
        }
        let info = link_info(index, UP);
        batch.message("bring the link up", (NEW_LINK, 0), &info, |_| ());
    }

    /// Gives the far end its address and routes, through a socket inside.
    pub(crate) fn set_up_inside(&self, inside: &Socket) -> Result<()> {
        let mut batch = Batch::default();
        self.bring_up(&mut batch, INSIDE);
        address(&mut batch, INSIDE, self.address);
        route(&mut batch, INSIDE, Some(self.gateway), None);
        route(&mut batch, INSIDE, None, Some(self.gateway));
        inside.send(&batch)
    }
}

/// Asks for a pair in the namespace of a process that cannot be.
pub(crate) fn try_kind(batch: &mut Batch, flags: u16) {
    batch.message(
        "make a pair of links",
        (NEW_LINK, flags),
        &link_info(0, 0),
        |a| {
            a.text(LINK_NAME, "dormouse-probe");
            a.number(LINK_NAMESPACE_PID, i32::MAX.cast_unsigned());
            a.nest(LINK_INFO, |a| a.text(INFO_KIND, "veth"));
        },
    );
}

fn is_taken(error: &std::io::Error) -> bool {
    let code = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        code,
        Some(rustix::io::Errno::EXIST | rustix::io::Errno::BUSY)
    )
}

fn link_info(index: u32, up: u32) -> [u8; 16] {
    let mut info = [0; 16];
    info[4..8].copy_from_slice(&index.to_ne_bytes());
    info[8..12].copy_from_slice(&up.to_ne_bytes());
    info[12..16].copy_from_slice(&up.to_ne_bytes());
    info
}

fn address(batch: &mut Batch, index: u32, address: Ipv4Addr) {
    let mut header = [AF_INET, 32, 0, SCOPE_GLOBAL, 0, 0, 0, 0];
    header[4..].copy_from_slice(&index.to_ne_bytes());
    let kind = (NEW_ADDRESS, CREATE | EXCLUSIVE);
    batch.message("give the link its address", kind, &header, |a| {
        a.bytes(ADDRESS_LOCAL, &address.octets());
        a.bytes(ADDRESS_ADDRESS, &address.octets());
    });
}

/// A route to one address, or to all others by way of one.
fn route(batch: &mut Batch, index: u32, to: Option<Ipv4Addr>, via: Option<Ipv4Addr>) {
    let scope = if via.is_some() {
        SCOPE_GLOBAL
    } else {
        SCOPE_LINK
    };
    let bits = if to.is_some() { 32 } else { 0 };
    let mut header = [0; 12];
    header[..8].copy_from_slice(&[AF_INET, bits, 0, 0, MAIN_TABLE, BY_BOOT, scope, UNICAST]);
    let kind = (NEW_ROUTE, CREATE | EXCLUSIVE);
    batch.message("add the route", kind, &header, |a| {
        if let Some(to) = to {
            a.bytes(ROUTE_DESTINATION, &to.octets());
        }
        if let Some(via) = via {
            a.bytes(ROUTE_GATEWAY, &via.octets());
        }
        a.number(ROUTE_LINK, index);
    });
}

/// The numbers of all links of a group.
pub(crate) fn list(host: &Socket, group: u32) -> Result<Vec<u32>> {
    let mut batch = Batch::default();
    let kind = (GET_LINK, DUMP);
    batch.message("list the links", kind, &link_info(0, 0), |a| {
        a.number(LINK_EXT_MASK, SKIP_STATISTICS);
    });
    let mut found = Vec::new();
    host.exchange(&batch, |kind, body| {
        let (Some(index), Some(attributes)) = (body.get(4..8), body.get(16..)) else {
            return;
        };
        let of_group = netlink::attribute(attributes, LINK_GROUP) == Some(&group.to_ne_bytes());
        if kind == NEW_LINK && of_group {
            found.push(u32::from_ne_bytes([index[0], index[1], index[2], index[3]]));
        }
    })?;
    Ok(found)
}

/// Removes links. One that is gone by itself in the meantime is what was wanted.
pub(crate) fn remove(host: &Socket, indices: &[u32]) -> Result<()> {
    for index in indices {
        let mut batch = Batch::default();
        let kind = (DELETE_LINK, 0);
        batch.message("remove a link", kind, &link_info(*index, 0), |_| ());
        match host.send(&batch) {
            Err(NetworkError::System { source, .. })
                if source.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {}
            other => other?,
        }
    }
    Ok(())
}
