//! What goes over a link, and its form in bytes.
//!
//! ```text
//!   length  u32, of all that follows
//!   kind    u8
//!   number  u64, the place of the frame in its direction of its link: 0, 1, 2, …
//!   body    JSON; a datagram of the membership protocol as it is
//! ```
//!
//! The head, and that a hello has `magic` and `format`, are the same in every format: who speaks another
//! one is told apart from who speaks nothing of the kind, whatever else its hello has.
//!
//! Nothing here trusts the other side: a length is checked before anything is kept, and what cannot
//! be read is an error of a named kind.

use std::net::SocketAddr;

use bytes::{BufMut as _, Bytes, BytesMut};
use model::Version;
use routes::Message;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::why::Why;

/// The longest frame, in bytes, without its length.
pub const LONGEST: usize = 1 << 20;
/// What a hello begins with.
pub const MAGIC: &str = "dormouse-mesh";
/// The format of frames. Those who speak another do not speak to each other.
pub const FORMAT: u32 = 1;
/// Bytes of the length.
pub const LENGTH: usize = 4;
/// Bytes of kind and number.
const HEAD: usize = 9;
/// What the messages of one frame may take, beside all that is around them.
const ROOM: usize = LONGEST - 1024;
/// What a message takes at most, without the texts in it.
const BARE: usize = 1024;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// It moves bytes, by a table.
    Gateway,
    /// It answers clients of the API.
    Api,
    /// It makes things so.
    Control,
    /// What this build does not know.
    #[serde(other)]
    Other,
}

/// What both sides say first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: String,
    /// [`FORMAT`].
    pub format: u32,
    /// Which installation.
    pub cluster: String,
    /// A number that no other process has.
    pub process: u64,
    /// What it does.
    pub role: Role,
    /// Where others reach it.
    pub address: SocketAddr,
    /// Whether it wants to be told of changes.
    pub listens: bool,
    /// Whether it has a table, and so can be asked what it knows.
    pub keeps: bool,
    /// How far its own watch has come.
    pub watched: Version,
}

/// What a hello has in every format.
#[derive(Deserialize)]
struct Opening {
    magic: String,
    format: u32,
}

/// Changes that the sender has written itself. None at all says that it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// The number of the first among all that the sender ever said.
    pub first: u64,
    /// One after the other.
    pub messages: Vec<Message>,
}

/// Whether a message fits into a frame at all.
pub(crate) fn fits(message: &Message) -> bool {
    weight(message) <= ROOM
}

/// How many of these messages, from the first on, fit into one frame.
pub(crate) fn fitting<'m>(messages: impl Iterator<Item = &'m Message>) -> usize {
    let mut left = ROOM;
    let whole = messages.take_while(|message| {
        let rest = left.checked_sub(weight(message));
        left = rest.unwrap_or_default();
        rest.is_some()
    });
    whole.count()
}

/// At least as many bytes as a message takes. To write it only to measure it would cost twice.
fn weight(message: &Message) -> usize {
    match message {
        Message::Upsert(route) => {
            let id = route.id.as_ref().map_or(0, |id| id.as_str().len());
            let owner = route.owner.as_ref().map_or(0, |o| o.as_str().len());
            // Names are plain; of other text a byte may take six.
            let mask = route.mask_host.as_ref().map_or(0, |mask| mask.len() * 6);
            let key = route.namespace.as_str().len() + route.name.as_str().len();
            BARE + key + id + owner + mask
        }
        Message::Delete(deletion) => {
            BARE + deletion.namespace.as_str().len() + deletion.name.as_str().len()
        }
        Message::Unreadable(_) => BARE,
    }
}

/// All pushes so far were applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The number of the next one.
    pub next: u64,
    /// How far the own watch of who acknowledges has come.
    pub watched: Version,
}

/// What is asked of who has a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Numbers the questions of a link.
    pub round: u64,
    /// What is newer than this.
    pub after: Version,
    /// The stamp of the last answer on this link.
    #[serde(default)]
    pub told: Option<u64>,
    /// Everything, whatever is known already.
    #[serde(default)]
    pub full: bool,
}

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// All that is newer than what was asked for.
    Changes,
    /// All there is, as of `watched`.
    Everything,
    /// It has forgotten too much to tell what is newer, and could tell everything.
    Forgotten,
    /// It knows too little itself.
    Unsynced,
}

/// A part of an answer. A few come at once; each further one when one is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Of the question.
    pub round: u64,
    /// What the answer is.
    pub answer: Answer,
    /// The next of it.
    pub messages: Vec<Message>,
    /// Whether this is the last part.
    pub last: bool,
    /// Names the moment, to be told from there on.
    pub stamp: u64,
    /// How far the watch of who answers had come at that moment.
    pub watched: Version,
}

/// The next part, please.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct More {
    /// Of the question.
    pub round: u64,
}

/// What goes over a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First, both ways.
    Hello(Hello),
    /// From who dialled.
    Push(Push),
    /// From who was dialled.
    Ack(Ack),
    /// From who dialled.
    Ask(Ask),
    /// From who was dialled.
    Part(Part),
    /// From who dialled.
    More(More),
    /// Of the membership protocol, from who dialled.
    Datagram(Bytes),
}

/// A frame with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Its place in its direction of its link.
    pub number: u64,
    /// What it is.
    pub frame: Frame,
}

/// The frame is longer than anybody would read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} bytes is too long to be sent")]
pub struct TooLong(pub usize);

impl Numbered {
    /// Its bytes, length and all.
    ///
    /// # Errors
    /// If nobody would read it.
    pub fn encode(&self) -> Result<Bytes, TooLong> {
        let mut bytes = BytesMut::with_capacity(256);
        bytes.put_u32(0);
        bytes.put_u8(self.kind());
        bytes.put_u64(self.number);
        let mut body = (&mut bytes).writer();
        let written = match &self.frame {
            Frame::Hello(hello) => serde_json::to_writer(&mut body, hello),
            Frame::Push(push) => serde_json::to_writer(&mut body, push),
            Frame::Ack(ack) => serde_json::to_writer(&mut body, ack),
            Frame::Ask(ask) => serde_json::to_writer(&mut body, ask),
            Frame::Part(part) => serde_json::to_writer(&mut body, part),
            Frame::More(more) => serde_json::to_writer(&mut body, more),
            Frame::Datagram(data) => {
                bytes.put_slice(data);
                Ok(())
            }
        };
        let length = bytes.len() - LENGTH;
        // Only a message that could not be read is not written, and none of those is passed on.
        if written.is_err() || length > LONGEST {
            return Err(TooLong(length));
        }
        let Ok(short) = u32::try_from(length) else {
            return Err(TooLong(length));
        };
        bytes[..LENGTH].copy_from_slice(&short.to_be_bytes());
        Ok(bytes.freeze())
    }

    fn kind(&self) -> u8 {
        match self.frame {
            Frame::Hello(_) => 1,
            Frame::Push(_) => 2,
            Frame::Ack(_) => 3,
            Frame::Ask(_) => 4,
            Frame::Part(_) => 5,
            Frame::More(_) => 6,
            Frame::Datagram(_) => 7,
        }
    }

    /// Reads what follows the length.
    ///
    /// # Errors
    /// If it is nothing of the kind.
    pub fn decode(bytes: &[u8]) -> Result<Self, Why> {
        let Some((head, body)) = bytes.split_at_checked(HEAD) else {
            return Err(Why::Garbage);
        };
        let [kind, number @ ..] = head else {
            return Err(Why::Garbage);
        };
        let number = u64::from_be_bytes(number.try_into().map_err(|_| Why::Garbage)?);
        let frame = match kind {
            1 => Frame::Hello(read_hello(body)?),
            2 => Frame::Push(read(body)?),
            3 => Frame::Ack(read(body)?),
            4 => Frame::Ask(read(body)?),
            5 => Frame::Part(read(body)?),
            6 => Frame::More(read(body)?),
            7 => Frame::Datagram(Bytes::copy_from_slice(body)),
            _ => return Err(Why::Garbage),
        };
        Ok(Self { number, frame })
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Why> {
    serde_json::from_slice(body).map_err(|_| Why::Garbage)
}

/// Before anything else of it is read: another format may have other fields.
fn read_hello(body: &[u8]) -> Result<Hello, Why> {
    let opening: Opening = read(body)?;
    if opening.magic != MAGIC {
        return Err(Why::Protocol);
    }
    if opening.format != FORMAT {
        return Err(Why::Format);
    }
    read(body)
}

#[cfg(test)]
mod tests {
    use model::{Name, Namespace};
    use proptest::prelude::*;
    use routes::Deletion;

    use super::*;

    fn frames() -> Vec<Frame> {
        let gone = Message::Delete(Deletion {
            namespace: Namespace::new("team").unwrap(),
            name: Name::new("box").unwrap(),
            version: Version::from_u64(7),
        });
        let version = Version::from_u64(5);
        vec![
            Frame::Hello(Hello {
                magic: MAGIC.into(),
                format: FORMAT,
                cluster: "one".into(),
                process: u64::MAX,
                role: Role::Api,
                address: SocketAddr::from(([10, 0, 0, 1], 7000)),
                listens: true,
                keeps: false,
                watched: version,
            }),
            Frame::Push(Push {
                first: 3,
                messages: vec![gone.clone()],
            }),
            Frame::Ack(Ack {
                next: 4,
                watched: version,
            }),
            Frame::Ask(Ask {
                round: 1,
                after: version,
                told: Some(9),
                full: true,
            }),
            Frame::Part(Part {
                round: 1,
                answer: Answer::Everything,
                messages: vec![gone],
                last: true,
                stamp: 9,
                watched: version,
            }),
            Frame::More(More { round: 1 }),
            Frame::Datagram(Bytes::from_static(b"anything")),
        ]
    }

    #[test]
    fn every_frame_is_read_as_it_was_written() {
        for (number, frame) in (0..).zip(frames()) {
            let written = Numbered { number, frame };
            let bytes = written.encode().unwrap();
            let (length, rest) = bytes.split_at(LENGTH);
            assert_eq!(length, u32::try_from(rest.len()).unwrap().to_be_bytes());
            assert_eq!(Numbered::decode(rest), Ok(written));
        }
    }

    fn greeted(body: &str) -> Result<Numbered, Why> {
        Numbered::decode(&[&[1, 0, 0, 0, 0, 0, 0, 0, 0], body.as_bytes()].concat())
    }

    #[test]
    fn what_a_newer_build_adds_is_ignored() {
        let body = r#"{"magic":"dormouse-mesh","format":1,"cluster":"c","process":1,"role":"oracle",
            "address":"10.0.0.1:1","listens":true,"keeps":true,"watched":"5","colour":"blue"}"#;
        let Frame::Hello(hello) = greeted(body).unwrap().frame else {
            panic!("a hello")
        };
        assert_eq!((hello.role, hello.process), (Role::Other, 1));
    }

    #[test]
    fn a_hello_of_another_format_is_told_from_garbage_whatever_it_has() {
        for (body, why) in [
            (r#"{"magic":"dormouse-mesh","format":2}"#, Why::Format),
            (
                r#"{"format":2,"magic":"dormouse-mesh","cluster":7,"watched":"soon"}"#,
                Why::Format,
            ),
            (r#"{"magic":"gossip","format":1}"#, Why::Protocol),
            (r#"{"magic":"dormouse-mesh","format":1}"#, Why::Garbage),
            (r#"{"magic":"dormouse-mesh"}"#, Why::Garbage),
        ] {
            assert_eq!(greeted(body), Err(why), "{body}");
        }
    }

    fn masked(mask: String) -> Message {
        Message::from(routes::Route {
            version: Version::from_u64(u64::MAX),
            epoch: model::Epoch(u32::MAX),
            uid: model::Uid::from_random(u128::MAX),
            namespace: Namespace::new("n".repeat(63)).unwrap(),
            name: Name::new("n".repeat(63)).unwrap(),
            id: Some(model::SandboxId::new("s".repeat(32)).unwrap()),
            state: routes::State::Resuming,
            address: Some(routes::Address::Pod([0xffff_u16; 8].into())),
            wake_on_traffic: false,
            is_closing: false,
            agent: routes::Gate::Token(routes::TokenHash([0xff; 32])),
            traffic: routes::Gate::Token(routes::TokenHash([0xff; 32])),
            owner: Some(Namespace::new("n".repeat(63)).unwrap()),
            mask_host: Some(mask.into()),
        })
    }

    #[test]
    fn a_message_takes_no_more_than_its_weight() {
        for mask in ["", "localhost", "\u{1}\"\\", "é"] {
            let message = masked(mask.repeat(300));
            let bytes = serde_json::to_vec(&message).unwrap();
            assert!(bytes.len() < weight(&message), "{}", bytes.len());
        }
    }

    #[test]
    fn as_many_messages_as_fit_into_a_frame_are_sent_in_one() {
        let large = masked("\u{1}".repeat(10_000));
        let many = vec![large; 512];
        let count = fitting(many.iter());
        assert!((1..512).contains(&count), "{count}");
        let push = Push {
            first: u64::MAX,
            messages: many[..count].to_vec(),
        };
        let number = u64::MAX;
        let frame = Frame::Push(push);
        assert!(Numbered { number, frame }.encode().is_ok());
        let huge = masked("a".repeat(LONGEST));
        assert!(!fits(&huge));
        assert_eq!(fitting([&huge].into_iter()), 0);
    }

    #[test]
    fn what_nobody_would_read_is_not_sent() {
        let frame = Frame::Datagram(vec![0; LONGEST].into());
        let numbered = Numbered { number: 0, frame };
        assert!(numbered.encode().is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Numbered::decode(&bytes);
        }

        #[test]
        fn a_frame_that_was_spoilt_is_read_or_refused(
            which in 0..7usize, at in any::<proptest::sample::Index>(), with in any::<u8>(),
        ) {
            let frame = frames().swap_remove(which);
            let mut bytes = Numbered { number: 0, frame }.encode().unwrap().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = with;
            let _ = Numbered::decode(&bytes[LENGTH..]);
        }
    }
}
