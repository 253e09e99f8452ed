//! Addresses of the loopback that nobody else on this machine has, whichever processes run beside this
//! one and whatever their numbers are.

use std::net::{Ipv4Addr, TcpListener};

/// Whoever listens here has the address. Nobody is given this port by chance. The kubelet of `standin-kube`
/// claims the addresses of its Pods in the same way, by the same number: it knows nothing of gateways, nor
/// they of it.
const CLAIM: u16 = 29_983;

/// An address, and the claim to it for as long as this lives.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) ip: Ipv4Addr,
    _claim: TcpListener,
}

impl Own {
    pub(crate) fn new() -> Self {
        let entropy = kit::Entropy::from_os();
        for _ in 0..1000 {
            let [a, b, c, ..] = entropy.u64().to_le_bytes();
            // The lower half has what others call their own.
            let ip = Ipv4Addr::new(127, a | 128, b, c.clamp(1, 254));
            if let Ok(claim) = TcpListener::bind((ip, CLAIM)) {
                return Self { ip, _claim: claim };
            }
        }
        panic!("no address of the loopback is free: who listens on port {CLAIM} of all of them?");
    }
}
