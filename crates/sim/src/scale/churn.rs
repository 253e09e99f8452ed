//! What is written: sandboxes are made, sleep, wake and end at random, in one order of versions.

use std::{net::IpAddr, sync::Arc};

use kit::Entropy;
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use routes::{Address, Deletion, Gate, Message, Route, State, TokenHash};

use super::Scale;

/// Teams that sandboxes belong to.
const TEAMS: usize = 100;

/// Who writes a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// A replica of the API.
    Replica(usize),
    /// A gateway, for traffic.
    Gateway(usize),
    /// The control loop.
    Control,
}

/// The records of a store, as far as routes go.
#[derive(Debug)]
pub(super) struct Churn {
    scale: Scale,
    entropy: Entropy,
    version: u64,
    /// Each key's route, or when it went.
    pub(super) now: Vec<Result<Arc<Route>, Deletion>>,
    /// Those that are there.
    there: Vec<usize>,
    own: [u64; 2],
}

impl Churn {
    /// So many, most of them asleep.
    pub(super) fn new(scale: Scale, seed: u64) -> Self {
        let mut churn = Self {
            scale,
            entropy: Entropy::seeded(seed),
            version: 0,
            now: Vec::new(),
            there: Vec::new(),
            own: [0, 0],
        };
        for _ in 0..scale.sandboxes {
            churn.make();
        }
        churn
    }

    pub(super) fn version(&self) -> Version {
        Version::from_u64(self.version)
    }

    pub(super) fn alive(&self) -> usize {
        self.there.len()
    }

    /// How many of those who are told are on average the one who tells.
    pub(super) fn own_share(&self) -> f64 {
        self.own[0] as f64 / (self.own[1].max(1)) as f64
    }

    /// A route as it is now, for a look at how large one is.
    pub(super) fn some_route(&self) -> Option<Arc<Route>> {
        let at = self.there.first()?;
        self.now[*at].as_ref().ok().cloned()
    }

    /// The next change, and who writes it: of ten two are made, three fall asleep, three are woken
    /// and two end. Half of it control writes, who sees it done.
    pub(super) fn next(&mut self) -> (Writer, Message) {
        let message = match self.entropy.below(10) {
            0 | 1 => self.make(),
            2..5 => self.turn(State::Paused),
            5..8 => self.turn(State::Running),
            _ => self.end(),
        };
        let writer = match (self.entropy.below(2), &message) {
            (0, _) => Writer::Control,
            (_, Message::Upsert(route)) if route.state == State::Running => {
                Writer::Gateway(self.entropy.below(self.scale.gateways))
            }
            (_, _) => Writer::Replica(self.entropy.below(self.scale.replicas)),
        };
        self.own[0] += u64::from(writer != Writer::Control);
        self.own[1] += 1;
        (writer, message)
    }

    fn make(&mut self) -> Message {
        let number = self.now.len();
        self.version += 1;
        let route = Arc::new(self.route(number));
        self.now.push(Ok(Arc::clone(&route)));
        self.there.push(number);
        Message::Upsert(route)
    }

    fn turn(&mut self, state: State) -> Message {
        let Some(at) = self.there.get(self.entropy.below(self.there.len())) else {
            return self.make();
        };
        let Some(Ok(before)) = self.now.get(*at) else {
            return self.make();
        };
        self.version += 1;
        let route = Arc::new(Route {
            version: Version::from_u64(self.version),
            state,
            ..Route::clone(before)
        });
        self.now[*at] = Ok(Arc::clone(&route));
        Message::Upsert(route)
    }

    fn end(&mut self) -> Message {
        if self.there.is_empty() {
            return self.make();
        }
        let at = self.there.swap_remove(self.entropy.below(self.there.len()));
        self.version += 1;
        let (namespace, name) = key(at);
        let deletion = Deletion {
            namespace,
            name,
            version: Version::from_u64(self.version),
        };
        self.now[at] = Err(deletion.clone());
        Message::Delete(deletion)
    }

    fn route(&self, number: usize) -> Route {
        let (namespace, name) = key(number);
        let mut hash = [0; 32];
        self.entropy.fill(&mut hash);
        let ip = u32::try_from(number).unwrap_or_default().to_be_bytes();
        Route {
            version: Version::from_u64(self.version),
            epoch: Epoch(1),
            uid: Uid::from_random(self.entropy.u128()),
            id: Some(SandboxId::from_random(self.entropy.u128())),
            state: State::Paused,
            address: Some(Address::Pod(IpAddr::from([10, ip[1], ip[2], ip[3]]))),
            wake_on_traffic: true,
            is_closing: false,
            agent: Gate::Token(TokenHash(hash)),
            traffic: Gate::Open,
            owner: Some(namespace.clone()),
            mask_host: None,
            namespace,
            name,
        }
    }
}

fn key(number: usize) -> (Namespace, Name) {
    let team = format!("team-{}", number % TEAMS);
    let team = Namespace::new(team).unwrap_or_else(|e| unreachable!("{e}"));
    let name = Name::new(format!("sandbox-{number:08}")).unwrap_or_else(|e| unreachable!("{e}"));
    (team, name)
}
