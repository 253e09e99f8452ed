//! What a mesh decides, without time, network, threads or randomness of its own.
//!
//! Whoever drives it brings links, frames, the own sayings and the time, and does what
//! [`Core::outputs`] says. The transport does so over TLS; the simulator over nothing at all.
//!
//! A link has two ends that do different things, so a pair of processes has two of them:
//!
//! ```text
//!  who dialled                                          who was dialled
//!     ── Hello ──▶                                        ◀── Hello ──
//!     ── Push (own writes; empty: I am there) ──▶
//!                                                         ◀── Ack (applied up to here; my watch) ──
//!     ── Ask (I am at W, and was told up to stamp S) ──▶
//!                                                         ◀── Part … ──
//!     ── More ──▶                                         ◀── Part, the last ──
//!     ── Datagram (membership) ──▶
//! ```
//!
//! So every frame that can be large is asked for or acknowledged before the next, and nothing piles
//! up for who does not read.
//!
//! What takes long with a large table, gathering or adopting all of it, is a [`Job`]: the driver runs
//! it where it holds up nobody and brings back what became of it. Meanwhile all else goes on, and a
//! link may have gone or asked again by then.
//!
//! **Standing.** A peer is in good standing while its oldest push without acknowledgement is younger
//! than `ack_timeout`, and it lacks nothing that was not pushed to it (because its link was made
//! later, or it fell out of the ring) unless its own watch has passed that. Only those in good
//! standing are waited for. Who was late regains it only by keeping up for a while.
//!
//! | Module | What it holds |
//! |---|---|
//! | `greet` | who is let in, and who is dialled |
//! | `ground` | the table and the ear |
//! | `jobs` | what takes long |
//! | `link` | what is known of one link |
//! | `look` | what is seen from outside |
//! | `ring` | what this process has said |
//! | `speak` | pushing, acknowledging, standing, waiting |
//! | `standing` | what is remembered of who was late |
//! | `sync` | asking, and taking what is answered |
//! | `tell` | answering |
//! | `told` | whom people were told of |
//! | `targets` | whom to dial, and when |
//! | `members` | who is there |

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use model::Version;
use rand_next::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use routes::Message;

use crate::{
    frame::{self, Frame, Numbered, Push},
    options::Options,
    stats::Counts,
    why::Why,
};

mod greet;
mod ground;
mod jobs;
mod link;
mod look;
mod members;
mod ring;
mod speak;
mod standing;
mod sync;
mod targets;
mod tell;
mod told;

pub use ground::Ground;
pub use jobs::{Adopted, Adoption, All, Done, Gathered, Job};
use link::Link;
pub use link::{LinkId, Side};
use members::Members;
use ring::Ring;
pub use speak::WaitId;
use speak::Waits;
use standing::Memory;
use sync::Joining;
use targets::Targets;
use told::Told;

/// How long the other side may take to say hello.
const HELLO: Duration = Duration::from_secs(2);

/// What a driver has to do.
#[derive(Debug)]
pub enum Output {
    /// Send this over a link, after all that was sent before.
    Send(LinkId, Numbered),
    /// End a link, after what was sent. It is not heard of again.
    Close(LinkId, Why),
    /// Make a link: say [`Core::link_up`] or [`Core::unreachable`].
    Dial(SocketAddr),
    /// Somebody's wait is over. Answers whether every known peer has heard, not only those in good
    /// standing.
    Heard(WaitId, bool),
    /// Run this where it holds up nobody, and say [`Core::done`].
    Run(Job),
    /// Tell people, once, that a peer is refused. The port of one who dialled means nothing.
    Complain(SocketAddr, Why),
}

/// What a mesh decides.
#[derive(Debug)]
pub struct Core {
    options: Options,
    ground: Ground,
    rng: SmallRng,
    links: BTreeMap<LinkId, Link>,
    last_link: u64,
    targets: Targets,
    members: Members,
    ring: Ring,
    waits: Waits,
    /// Processes that were late and have no link, and what is remembered of them.
    memories: BTreeMap<u64, Memory>,
    /// All that any peer vouched for up to here was taken.
    vouched: Version,
    /// A peer had forgotten what is newer than the own mark, was itself this far, and said so then.
    behind: Option<(Version, Duration)>,
    joining: Option<Joining>,
    /// All that the own table knows is being gathered, for those who have asked for it by then.
    is_gathering: bool,
    /// Whom to ask next.
    turns: Vec<LinkId>,
    next_round: Duration,
    rounds: u64,
    told: Told,
    counts: Counts,
    outputs: VecDeque<Output>,
    is_leaving: bool,
}

impl Core {
    /// A process that knows nobody yet.
    #[must_use]
    pub fn new(options: Options, ground: Ground, now: Duration) -> Self {
        let mut rng = SmallRng::seed_from_u64(ground.seed);
        let members = Members::new(ground.process, options.address, rng.random());
        Self {
            ring: Ring::new(options.max_said),
            next_round: now + options.sync_interval,
            targets: Targets::new(options.address),
            options,
            ground,
            rng,
            links: BTreeMap::new(),
            last_link: 0,
            members,
            waits: Waits::default(),
            memories: BTreeMap::new(),
            vouched: Version::ZERO,
            behind: None,
            joining: None,
            is_gathering: false,
            turns: Vec::new(),
            rounds: 0,
            told: Told::default(),
            counts: Counts::default(),
            outputs: VecDeque::new(),
            is_leaving: false,
        }
    }

    /// Where others are said to be.
    pub fn seeds(&mut self, seeds: BTreeSet<SocketAddr>, now: Duration) {
        self.targets.seeds = seeds;
        self.look_whom_to_dial(now);
    }

    /// A link was made. Whoever made it is known by its key.
    pub fn link_up(&mut self, side: Side, now: Duration) -> LinkId {
        self.last_link += 1;
        let id = LinkId(self.last_link);
        if let Side::Dialled(to) = side {
            self.targets.connected(to, id);
        }
        let same = self.links.values().filter(|link| link.same_side(side));
        let crowded = same.count() >= self.options.max_links;
        self.links.insert(id, Link::new(side, now));
        if crowded {
            self.close(id, Why::TooMany, now);
        } else if self.is_leaving {
            self.close(id, Why::Leaving, now);
        } else {
            let hello = self.hello();
            self.send(id, Frame::Hello(hello));
        }
        id
    }

    /// A link could not be made.
    pub fn unreachable(&mut self, to: SocketAddr, why: Why, now: Duration) {
        self.count_end(to, why);
        self.targets.failed(to, now, &mut self.rng);
        self.look_whom_to_dial(now);
    }

    /// Somebody who dialled was refused before there was a link.
    pub fn refused(&mut self, from: SocketAddr, why: Why) {
        self.count_end(SocketAddr::new(from.ip(), 0), why);
    }

    /// A link ended by itself, or what it brought could not be read.
    pub fn link_down(&mut self, id: LinkId, why: Why, now: Duration) {
        let Some(link) = self.links.remove(&id) else {
            return;
        };
        self.count_end(link.side.shown(), why);
        let joining = self.joining.take_if(|joining| joining.is_heard_from(id));
        let memory = link.peer.as_ref().zip(link.memory.over_another_link());
        if let Some((peer, memory)) = memory {
            self.memories.retain(|_, memory| !memory.is_old(now));
            self.memories.insert(peer.process, memory);
        }
        if let Side::Dialled(to) = link.side {
            // One that worked is made again soon; one that never did waits longer each time.
            self.targets
                .ended(to, id, link.peer.is_some(), why, now, &mut self.rng);
        }
        self.look_whom_to_dial(now);
        if joining.is_some() {
            // Before it is met again, and asked again.
            self.begin_round(now);
        }
        self.settle(now);
    }

    /// A frame came.
    pub fn receive(&mut self, id: LinkId, numbered: Numbered, now: Duration) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        if numbered.number != link.next_in {
            return self.close(id, Why::Sequence, now);
        }
        link.next_in += 1;
        link.heard_at = now;
        let (is_known, is_ours) = (link.peer.is_some(), matches!(link.side, Side::Dialled(_)));
        match (numbered.frame, is_known, is_ours) {
            (Frame::Hello(hello), false, _) => self.take_hello(id, &hello, now),
            (Frame::Push(push), true, false) => self.take_push(id, push, now),
            (Frame::Ack(ack), true, true) => self.take_ack(id, ack, now),
            (Frame::Ask(ask), true, false) => self.answer(id, ask),
            (Frame::More(more), true, false) => self.continue_answer(id, more.round),
            (Frame::Part(part), true, true) => self.take_part(id, part, now),
            (Frame::Datagram(data), true, false) => {
                if self.members.datagram(&data, now) {
                    self.look_whom_to_dial(now);
                } else {
                    self.close(id, Why::Garbage, now);
                }
            }
            (
                Frame::Hello(_)
                | Frame::Push(_)
                | Frame::Ack(_)
                | Frame::Ask(_)
                | Frame::More(_)
                | Frame::Part(_)
                | Frame::Datagram(_),
                _,
                _,
            ) => self.close(id, Why::Unexpected, now),
        }
    }

    /// This process has written these, one after the other. They are known here from now on.
    pub fn say(&mut self, messages: impl IntoIterator<Item = Message>, now: Duration) {
        for message in messages {
            self.ground.write(message.clone(), now);
            self.counts.said += 1;
            if frame::fits(&message) {
                self.ring.push(message, now);
            } else {
                self.lose(Self::version_of(&message), now);
            }
        }
        self.pump_all(now);
    }

    /// Something up to this version was written, and nobody will be told of it.
    pub fn lose(&mut self, version: Version, now: Duration) {
        self.counts.overflowed += 1;
        for link in self.links.values_mut() {
            link.missed = link.missed.max(Some(version));
        }
        self.ring.lose(version);
        self.settle(now);
    }

    /// The version a message is about. What cannot be read is about none.
    #[must_use]
    pub fn version_of(message: &Message) -> Version {
        ring::version_of(message)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) {
        let mut late = Vec::new();
        let mut idle = Vec::new();
        for (id, link) in &self.links {
            let silence = self.options.silence;
            if link.peer.is_none() && now >= link.since + HELLO
                || now >= link.heard_at + silence
                || link.asked.is_some_and(|asked| now >= asked.at + silence)
            {
                late.push(*id);
            } else if link.is_speaking() && now >= link.pushed_at + self.options.sync_interval {
                idle.push(*id);
            }
        }
        for id in late {
            self.close(id, Why::Silent, now);
        }
        self.give_up_questions(now);
        for id in idle {
            // Acknowledged like any other: so each knows how far the other has come.
            self.push(id, Vec::new(), now);
        }
        self.members.tick(now);
        self.look_whom_to_dial(now);
        if now >= self.next_round {
            self.next_round = now + self.options.sync_interval;
            self.meet_again(now);
            self.begin_round(now);
        }
        self.settle(now);
    }

    /// When [`Core::tick`] has something to do next.
    #[must_use]
    pub fn next_wake(&self) -> Duration {
        let links = self.links.values().flat_map(|link| {
            let silent = link.heard_at + self.options.silence;
            let hello = link.peer.is_none().then_some(link.since + HELLO);
            let keep = link.pushed_at + self.options.sync_interval;
            let keep = link.is_speaking().then_some(keep);
            [Some(silent), hello, keep, self.late_at(link)]
        });
        let rest = [self.members.next_wake(), self.targets.next_wake()];
        let all = links.chain(rest).flatten();
        all.fold(self.next_round, Duration::min)
    }

    /// What is to be done, in this order.
    pub fn outputs(&mut self) -> impl Iterator<Item = Output> {
        std::mem::take(&mut self.outputs).into_iter()
    }

    /// Says that this process leaves, and ends all links.
    pub fn leave(&mut self, now: Duration) {
        self.is_leaving = true;
        self.members.leave(now);
        self.send_datagrams();
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            self.close(id, Why::Leaving, now);
        }
    }

    fn push(&mut self, id: LinkId, messages: Vec<Message>, now: Duration) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let first = link.cursor;
        link.cursor += messages.len() as u64;
        link.pushed_at = now;
        link.memory.pushed(now);
        self.counts.sent += messages.len() as u64;
        self.send(id, Frame::Push(Push { first, messages }));
    }

    fn send(&mut self, id: LinkId, frame: Frame) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let number = link.next_out;
        link.next_out += 1;
        let numbered = Numbered { number, frame };
        self.outputs.push_back(Output::Send(id, numbered));
    }

    fn close(&mut self, id: LinkId, why: Why, now: Duration) {
        if self.links.contains_key(&id) {
            self.outputs.push_back(Output::Close(id, why));
            self.link_down(id, why, now);
        }
    }

    fn count_end(&mut self, who: SocketAddr, why: Why) {
        *self.counts.ended.entry(why).or_default() += 1;
        if why.is_fault() && self.told.is_news(who, why) {
            self.outputs.push_back(Output::Complain(who, why));
        }
    }
}
