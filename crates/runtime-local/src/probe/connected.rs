//! What the network of sandboxes needs.

use super::{Lack, Seen};

const MEANING: &str = "sandboxes cannot be connected";

pub(super) fn links() -> Seen {
    let remedy = "Load the module: modprobe veth";
    network::probe::links().map_err(|seen| Lack::missing(seen, MEANING, remedy))
}

pub(super) fn rules() -> Seen {
    let remedy = "Use Linux 6.12 or newer with nftables, connection tracking and NAT: modprobe nf_tables nft_ct nft_nat nft_masq nft_reject_inet";
    network::probe::rules().map_err(|seen| Lack::missing(seen, MEANING, remedy))
}

pub(super) fn forwarding() -> Seen {
    let remedy = "Turn it on: sysctl -w net.ipv4.ip_forward=1";
    network::probe::forwarding().map_err(|seen| Lack::missing(seen, MEANING, remedy))
}
