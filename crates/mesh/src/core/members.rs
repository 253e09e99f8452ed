//! Who is there: SWIM, by `foca`, without time, network or randomness of its own.
//!
//! Its datagrams travel as frames. It finds processes that nobody was told the address of, and
//! says who is gone. Nobody is refused or waited for by its word alone: links decide that.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use bytes::Bytes;
use foca::{Config, Foca, Identity, Notification, PostcardCodec, Runtime, State, Timer};
use rand_next::{SeedableRng as _, rngs::SmallRng};
use serde::{Deserialize, Serialize};

/// The longest datagram. It travels in a stream, so it need not fit into a packet.
const LONGEST: usize = 16 << 10;
/// What the timings are made for.
const USUAL: u32 = 32;
/// How long one who is gone is remembered as such.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A member. A process that starts anew is another one, so an old one never comes back; one that was
/// taken for gone and is not has the next `turn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Who {
    pub(super) process: u64,
    pub(super) address: SocketAddr,
    pub(super) turn: u32,
}

impl Identity for Who {
    type Addr = u64;

    fn renew(&self) -> Option<Self> {
        Some(Self {
            turn: self.turn.wrapping_add(1),
            ..*self
        })
    }

    fn addr(&self) -> u64 {
        self.process
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.turn > adversary.turn
    }
}

pub(super) struct Members {
    foca: Foca<Who, PostcardCodec, SmallRng, foca::NoCustomBroadcast>,
    pending: Pending,
}

/// What foca wants done.
#[derive(Default)]
struct Pending {
    now: Duration,
    timers: BTreeMap<(Duration, u64), Timer<Who>>,
    last: u64,
    datagrams: Vec<(Who, Bytes)>,
}

impl Runtime<Who> for &mut Pending {
    fn notify(&mut self, _: Notification<'_, Who>) {}

    fn send_to(&mut self, to: Who, data: &[u8]) {
        self.datagrams.push((to, Bytes::copy_from_slice(data)));
    }

    fn submit_after(&mut self, event: Timer<Who>, after: Duration) {
        self.last += 1;
        self.timers.insert((self.now + after, self.last), event);
    }
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Members({})", self.foca.num_members())
    }
}

impl Members {
    pub(super) fn new(process: u64, address: SocketAddr, seed: u64) -> Self {
        let me = Who {
            process,
            address,
            turn: 0,
        };
        let mut config = Config::new_lan(NonZeroU32::new(USUAL).unwrap_or(NonZeroU32::MIN));
        config.max_packet_size = NonZeroUsize::new(LONGEST).unwrap_or(NonZeroUsize::MIN);
        config.remove_down_after = Some(REMEMBERED);
        Self {
            foca: Foca::new(me, config, SmallRng::seed_from_u64(seed), PostcardCodec),
            pending: Pending::default(),
        }
    }

    /// A link to or from this process was made: it is there.
    pub(super) fn met(&mut self, process: u64, address: SocketAddr, now: Duration) {
        let known = self.foca.iter_members().any(|m| m.id().process == process);
        if known {
            return;
        }
        self.pending.now = now;
        let who = Who {
            process,
            address,
            turn: 0,
        };
        // What it cannot do now it does at the next probe.
        let _ = self.foca.announce(who, &mut self.pending);
    }

    /// Answers whether it could be read.
    pub(super) fn datagram(&mut self, data: &[u8], now: Duration) -> bool {
        self.pending.now = now;
        match self.foca.handle_data(data, &mut self.pending) {
            Ok(()) => true,
            Err(error) => !matches!(
                error,
                foca::Error::DataTooBig | foca::Error::Decode(_) | foca::Error::MalformedPacket
            ),
        }
    }

    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.pending.timers.keys().next().map(|(at, _)| *at)
    }

    pub(super) fn tick(&mut self, now: Duration) {
        self.pending.now = now;
        while let Some(first) = self.pending.timers.first_entry() {
            if first.key().0 > now {
                return;
            }
            let timer = first.remove();
            // A timer that means nothing any more is dropped by foca.
            let _ = self.foca.handle_timer(timer, &mut self.pending);
        }
    }

    pub(super) fn leave(&mut self, now: Duration) {
        self.pending.now = now;
        let _ = self.foca.leave_cluster(&mut self.pending);
    }

    /// What is to be sent.
    pub(super) fn datagrams(&mut self) -> Vec<(Who, Bytes)> {
        std::mem::take(&mut self.pending.datagrams)
    }

    /// Those that are there, or suspected not to be.
    pub(super) fn active(&self) -> impl Iterator<Item = &Who> {
        self.foca.iter_members().map(foca::Member::id)
    }

    /// How many are alive, suspected, and gone.
    pub(super) fn count(&self) -> (usize, usize, usize) {
        let mut counts = (0, 0, 0);
        for member in self.foca.iter_membership_state() {
            match member.state() {
                State::Alive => counts.0 += 1,
                State::Suspect => counts.1 += 1,
                State::Down => counts.2 += 1,
            }
        }
        counts
    }
}
