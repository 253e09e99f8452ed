//! The processes around one another: who is where, who was told of whom, and what parts them.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use kit::{Clock, Entropy};
use mesh::{Options, Role};

use crate::{
    checker::Checker,
    network::Network,
    process::{Memory, Needs, Process},
};

/// Gateways of a world.
pub const GATEWAYS: usize = 3;
/// Replicas of the API.
pub const REPLICAS: usize = 2;
/// How long an acknowledgement is waited for.
pub const ACK_TIMEOUT: Duration = Duration::from_millis(100);
/// Less often than by default, because a thousand worlds have to fit into minutes.
const SYNC_INTERVAL: Duration = Duration::from_secs(3);
/// How long a link may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// Where all of them listen.
const PORT: u16 = 7000;

/// The processes around one another.
#[derive(Debug)]
pub struct Surroundings {
    /// Between them.
    pub network: Arc<Network>,
    entropy: Entropy,
    checker: Arc<Checker>,
    /// Where everybody is said to be.
    seeds: BTreeSet<SocketAddr>,
    /// Whether everybody is told of everybody at the start; else all are told of one.
    pub all_known: bool,
    /// Whether nobody is told of anybody: each hears by its own watch only.
    pub is_silent: bool,
}

/// Where a process is reached.
#[must_use]
pub fn address(role: Role, number: usize) -> SocketAddr {
    let net = match role {
        Role::Gateway => 1,
        Role::Api => 2,
        Role::Control | Role::Other => 3,
    };
    let host = u8::try_from(number + 1).unwrap_or(u8::MAX);
    SocketAddr::from((Ipv4Addr::new(10, 0, net, host), PORT))
}

fn everybody() -> Vec<SocketAddr> {
    let gateways = (0..GATEWAYS).map(|number| address(Role::Gateway, number));
    let replicas = (0..REPLICAS).map(|number| address(Role::Api, number));
    let control = [address(Role::Control, 0)];
    gateways.chain(replicas).chain(control).collect()
}

impl Surroundings {
    /// Nobody is there yet.
    #[must_use]
    pub fn new(seed: u64, clock: Arc<dyn Clock>, checker: Arc<Checker>) -> Arc<Self> {
        let entropy = Entropy::seeded(seed ^ 0x6d65_7368);
        let is_silent = seed % 7 == 6;
        let all_known = entropy.chance(0.7) && !is_silent;
        let mut seeds: BTreeSet<_> = everybody().into_iter().collect();
        if is_silent {
            seeds.clear();
        } else if !all_known {
            seeds.retain(|seed| *seed == address(Role::Gateway, 0));
        }
        let network = Network::new(clock, Entropy::seeded(entropy.u64()));
        Arc::new(Self {
            network,
            entropy,
            checker,
            seeds,
            all_known,
            is_silent,
        })
    }

    /// Starts a process.
    #[must_use]
    pub fn start(&self, role: Role, number: usize, memory: Memory) -> Arc<Process> {
        let needs = Needs {
            options: Options {
                ack_timeout: ACK_TIMEOUT,
                sync_interval: SYNC_INTERVAL,
                silence: SILENCE,
                ..Options::new("sim", role, address(role, number))
            },
            memory,
            seeds: self.seeds.clone(),
            checker: Some(Arc::clone(&self.checker)),
        };
        Process::start(needs, &self.network, &self.entropy)
    }

    /// Parts one of them from all others.
    pub fn isolate(&self, one: SocketAddr) {
        for other in everybody().into_iter().filter(|other| *other != one) {
            self.network.block(one, other);
            self.network.block(other, one);
        }
    }

    /// Parts one of them from some of the others: both ways, or one.
    pub fn part(&self) {
        let all = everybody();
        let one = all[self.entropy.below(all.len())];
        let way = self.entropy.below(4);
        for other in all {
            if other == one || self.entropy.chance(0.3) {
                continue;
            }
            if way != 0 {
                self.network.block(one, other);
            }
            if way != 1 {
                self.network.block(other, one);
            }
        }
    }
}
