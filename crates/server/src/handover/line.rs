//! What two servers say to each other: JSON, one message a line, with the file descriptors that go with
//! it.

use std::{
    collections::VecDeque,
    fs,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::TcpListener,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    time::Duration,
};

use model::{Epoch, Uid};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::{
    io::Interest,
    net::UnixStream,
    time::{Instant, sleep},
};

/// The longest message.
const LONGEST: usize = 1 << 20;
/// How long a process may take to end once it has hung up.
const ENDING: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(10);
/// The most file descriptors with one message; the kernel takes a few more.
pub(super) const MOST_SOCKETS: usize = 64;

/// What a new server says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "say")]
pub(super) enum FromNew {
    /// It wants to take over.
    TakeOver { format: u32, version: String },
    /// It would start: the other one may let go.
    Ready,
    /// It serves.
    Serving,
}

/// What the server that runs says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "say")]
pub(super) enum FromOld {
    /// So many listeners come with this, for a setting.
    Sockets { key: String, count: usize },
    /// Those were all.
    Offered,
    /// It goes on itself.
    Refused { why: String },
    /// The data directory is free.
    Released,
    /// What is new of who is in use. The others are as they were said to be, and what was not said is
    /// not known before there is no more.
    Use { used: Vec<Used>, more: bool },
}

/// A delivery that is or was in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Used {
    pub(super) uid: Uid,
    pub(super) epoch: Epoch,
    pub(super) open: u32,
    /// How long ago one was last opened or closed, in microseconds.
    pub(super) ago: u64,
}

/// Why nothing was heard.
#[derive(Debug, Error)]
pub(super) enum NotHeard {
    /// Nor will anything be.
    #[error("the line to the other server is broken")]
    Broken(#[from] io::Error),
    /// What comes next may be understood.
    #[error("the other server said what is not understood")]
    NotUnderstood(#[from] serde_json::Error),
    /// What comes next may be shorter.
    #[error("the other server said more than {LONGEST} bytes at once")]
    TooLong,
}

/// One side of the conversation.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    /// The process at the other end, if it has a number here: the kernel says 0 of one that is in a PID
    /// namespace which is not this one nor below it.
    peer: Option<OwnedFd>,
    /// Its number.
    pid: Option<Pid>,
    read: Vec<u8>,
    /// What was read belongs to a message that is too long.
    is_too_long: bool,
    received: VecDeque<OwnedFd>,
}

impl Line {
    pub(super) fn new(stream: UnixStream) -> Self {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let pid = pid.and_then(Pid::from_raw);
        Self {
            peer: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            pid,
            stream,
            read: Vec::new(),
            is_too_long: false,
            received: VecDeque::new(),
        }
    }

    /// Says something.
    pub(super) async fn say(&self, what: &impl Serialize) -> io::Result<()> {
        self.say_with(what, &[]).await
    }

    /// Says something, with listeners.
    pub(super) async fn say_with(
        &self,
        what: &impl Serialize,
        listeners: &[TcpListener],
    ) -> io::Result<()> {
        let mut text = serde_json::to_vec(what)?;
        text.push(b'\n');
        let mut sockets: Vec<BorrowedFd<'_>> = listeners.iter().map(|one| one.as_fd()).collect();
        let mut sent = 0;
        while sent < text.len() {
            let write = || send(&self.stream, &text[sent..], &sockets);
            sent += self.stream.async_io(Interest::WRITABLE, write).await?;
            // They went with the first byte.
            sockets.clear();
        }
        Ok(())
    }

    /// Hears something; `None` if the other one is gone.
    ///
    /// # Errors
    /// If the line is broken, or a message is no such thing. The next one may be.
    pub(super) async fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, NotHeard> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.read[looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(looked + end + 1);
                let text = std::mem::replace(&mut self.read, rest);
                if std::mem::take(&mut self.is_too_long) {
                    return Err(NotHeard::TooLong);
                }
                return Ok(Some(serde_json::from_slice(&text)?));
            }
            looked = self.read.len();
            if looked > LONGEST {
                self.read.clear();
                (looked, self.is_too_long) = (0, true);
            }
            let (read, received) = (&mut self.read, &mut self.received);
            let stream = &self.stream;
            let more = || receive(stream, read, received);
            if stream.async_io(Interest::READABLE, more).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// What keeps the process at the other end from doing what this one does: sandboxes are seen, reached
    /// and limited from where their server runs. One that cannot be seen from here could not even be ended.
    pub(super) fn foreign(&self) -> Option<&'static str> {
        let Some(pid) = self.peer.as_ref().and(self.pid) else {
            return Some("PID");
        };
        let namespace = |process: &str, kind: &str| {
            let file = fs::metadata(format!("/proc/{process}/ns/{kind}")).ok()?;
            Some((file.dev(), file.ino()))
        };
        let its = pid.as_raw_nonzero().to_string();
        // What may not be looked at may be another.
        let differs = |kind| {
            let (own, other) = (namespace("self", kind), namespace(&its, kind));
            own.is_none() || own != other
        };
        let kinds = [("pid", "PID"), ("net", "network"), ("mnt", "mount")];
        let found = kinds.into_iter().find(|(kind, _)| differs(kind));
        found.map(|(_, name)| name)
    }

    /// Ends the process at the other end, whatever it does.
    pub(super) fn end_peer(&self) {
        let ended = self
            .peer
            .as_ref()
            .map(|peer| pidfd_send_signal(peer, Signal::KILL));
        if let Some(Err(error)) = ended {
            tracing::warn!(%error, "the other server could not be ended");
        }
    }

    /// Waits until the process at the other end, which has hung up or was ended, has ended with all that it held, or
    /// had a while to.
    pub(super) async fn peer_gone(self) {
        let Some(peer) = self.peer else {
            return;
        };
        // One that lives on has not taken anything, or it is found out by its lock.
        let deadline = Instant::now() + ENDING;
        while !has_ended(&peer) && Instant::now() < deadline {
            sleep(LOOK).await;
        }
    }

    /// The listeners that came with what was heard.
    pub(super) fn take_sockets(&mut self, count: usize) -> io::Result<Vec<TcpListener>> {
        if count > self.received.len() {
            return Err(io::Error::other("fewer listeners came than were said"));
        }
        let taken = self.received.drain(..count);
        Ok(taken.map(TcpListener::from).collect())
    }
}

/// Whether a process has ended. All that it had open is closed by then.
fn has_ended(process: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(process, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn send(stream: &UnixStream, text: &[u8], sockets: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(text)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    Ok(sent?)
}

fn receive(
    stream: &UnixStream,
    read: &mut Vec<u8>,
    received: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut room = [0; 16 << 10];
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut room)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sockets) = message {
            received.extend(sockets);
        }
    }
    read.extend_from_slice(&room[..got.bytes]);
    Ok(got.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_understood_or_too_long_is_passed_over() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut line, other) = (Line::new(here), Line::new(there));
        let says = async {
            for size in [1, 2 * LONGEST] {
                other.say(&"x".repeat(size)).await.unwrap();
                other.say(&FromNew::Ready).await.unwrap();
            }
            drop(other);
        };
        let hears = async {
            let mut heard = Vec::new();
            loop {
                heard.push(match line.hear().await {
                    Ok(Some(FromNew::Ready)) => "ready",
                    Ok(Some(_)) => "something else",
                    Ok(None) => break,
                    Err(NotHeard::NotUnderstood(_)) => "not understood",
                    Err(NotHeard::TooLong) => "too long",
                    Err(NotHeard::Broken(error)) => panic!("{error}"),
                });
            }
            heard
        };
        let ((), heard) = tokio::join!(says, hears);
        assert_eq!(heard, ["not understood", "ready", "too long", "ready"]);
    }
}
