//! One that knows nothing, and peers that answer it badly.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mesh::{
    Book, Options, Role, Why,
    core::{Core, Ground, LinkId, Output, Side},
    frame::{Answer, FORMAT, Frame, Hello, MAGIC, Numbered, Part},
};
use model::{Name, Namespace, Version};
use routes::{Deletion, Message, Table};

fn said() -> Message {
    Message::Delete(Deletion {
        namespace: Namespace::new("team").unwrap(),
        name: Name::new("box").unwrap(),
        version: Version::from_u64(5),
    })
}

/// Somebody it has dialled, by hand.
struct Keeper {
    link: LinkId,
    said: u64,
}

struct Joiner {
    core: Core,
    now: Duration,
    asked: Vec<(LinkId, u64)>,
    closed: Vec<(LinkId, Why)>,
}

impl Joiner {
    fn new() -> Self {
        let table = Arc::new(Table::default());
        let ground = Ground {
            process: 1,
            book: Some(table as Arc<dyn Book>),
            ear: None,
            seed: 1,
        };
        let now = Duration::from_secs(1);
        let options = Options::new(
            "one",
            Role::Gateway,
            SocketAddr::from(([10, 0, 0, 1], 7000)),
        );
        Self {
            core: Core::new(options, ground, now),
            now,
            asked: Vec::new(),
            closed: Vec::new(),
        }
    }

    fn look(&mut self) {
        let outputs: Vec<Output> = self.core.outputs().collect();
        for output in outputs {
            if let Output::Send(to, Numbered { frame, .. }) = &output
                && let Frame::Ask(ask) = frame
            {
                assert!(ask.full, "it knows nothing");
                self.asked.push((*to, ask.round));
            }
            if let Output::Close(id, why) = output {
                self.closed.push((id, why));
            }
        }
    }

    fn keeper(&mut self, process: u64) -> Keeper {
        let at = SocketAddr::from(([10, 0, 1, u8::try_from(process).unwrap()], 7000));
        let link = self.core.link_up(Side::Dialled(at), self.now);
        let mut keeper = Keeper { link, said: 0 };
        let hello = Hello {
            magic: MAGIC.to_owned(),
            format: FORMAT,
            cluster: "one".to_owned(),
            process,
            role: Role::Gateway,
            address: at,
            listens: false,
            keeps: true,
            watched: Version::from_u64(9),
        };
        self.hear(&mut keeper, Frame::Hello(hello));
        keeper
    }

    fn hear(&mut self, from: &mut Keeper, frame: Frame) {
        let number = from.said;
        from.said += 1;
        let numbered = Numbered { number, frame };
        self.core.receive(from.link, numbered, self.now);
        self.look();
    }

    fn answer(&mut self, by: &mut Keeper, answer: Answer, messages: usize, last: bool) {
        let round = self.asked.iter().rev().find(|(to, _)| *to == by.link);
        let part = Part {
            round: round.unwrap().1,
            answer,
            messages: (0..messages).map(|_| said()).collect(),
            last,
            stamp: 1,
            watched: Version::from_u64(9),
        };
        self.hear(by, Frame::Part(part));
    }

    fn is_asked_last(&self, who: &Keeper) -> bool {
        self.asked.last().is_some_and(|(to, _)| *to == who.link)
    }

    /// Time passes; the others are there.
    fn pass(&mut self, time: Duration, others: &mut [&mut Keeper]) {
        self.now += time;
        for other in others {
            let ack = mesh::frame::Ack {
                next: 0,
                watched: Version::from_u64(9),
            };
            self.hear(other, Frame::Ack(ack));
        }
        self.core.tick(self.now);
        self.look();
    }
}

#[test]
fn one_that_answers_something_else_than_everything_is_not_the_only_one_asked() {
    let mut joiner = Joiner::new();
    let mut broken = joiner.keeper(2);
    let mut sound = joiner.keeper(3);
    let mut turns = 0;
    while !joiner.is_asked_last(&sound) {
        turns += 1;
        assert!(turns < 100, "nobody else is asked");
        joiner.answer(&mut broken, Answer::Changes, 1, true);
        joiner.pass(Duration::from_secs(1), &mut [&mut broken, &mut sound]);
    }
}

#[test]
fn an_answer_that_goes_on_with_nothing_ends_its_link_and_the_next_is_asked() {
    let mut joiner = Joiner::new();
    let mut broken = joiner.keeper(2);
    let sound = joiner.keeper(3);
    joiner.answer(&mut broken, Answer::Everything, 0, false);
    assert_eq!(joiner.closed, [(broken.link, Why::Unexpected)]);
    assert!(joiner.is_asked_last(&sound));
}

#[test]
fn an_answer_that_trickles_is_given_up_in_the_end() {
    let mut joiner = Joiner::new();
    let mut broken = joiner.keeper(2);
    let mut sound = joiner.keeper(3);
    let mut turns = 0;
    while !joiner.is_asked_last(&sound) {
        turns += 1;
        assert!(turns < 5000, "nobody else is asked");
        joiner.answer(&mut broken, Answer::Everything, 1, false);
        joiner.pass(Duration::from_secs(3), &mut [&mut broken, &mut sound]);
    }
    assert_eq!(joiner.closed, []);
}
