//! Where the frames of a WebSocket begin and end, in what its client is sent.
//!
//! Nothing else of them matters here: who wants to say something of its own to the client can do so
//! between two of them only.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A goodbye with the status 1001: the server goes away.
pub(crate) const GOING_AWAY: [u8; 4] = [0x88, 0x02, 0x03, 0xe9];

/// The most bytes before what a frame brings.
const LONGEST_HEAD: usize = 14;

/// How far the last frame has come.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// What is there of its head.
    head: [u8; LONGEST_HEAD],
    length: usize,
    /// How much it still brings.
    rest: u64,
}

impl Frames {
    /// Whether one has ended, and none has begun.
    pub(crate) const fn is_between(&self) -> bool {
        self.length == 0 && self.rest == 0
    }

    /// The client is sent this.
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let some = usize::try_from(self.rest).map_or(bytes.len(), |n| n.min(bytes.len()));
                self.rest -= some as u64;
                bytes = &bytes[some..];
                continue;
            }
            self.head[self.length] = bytes[0];
            self.length += 1;
            bytes = &bytes[1..];
            if let Some(rest) = self.announced() {
                (self.length, self.rest) = (0, rest);
            }
        }
    }

    /// How much a frame brings, once its head is whole.
    fn announced(&self) -> Option<u64> {
        let second = *self.head[..self.length].get(1)?;
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        let (size, bytes) = match second & 0x7f {
            126 => (2, 2),
            127 => (8, 8),
            short => {
                return (self.length == 2 + mask).then_some(u64::from(short));
            }
        };
        if self.length < 2 + bytes + mask {
            return None;
        }
        let of_length = self.head[2..2 + size].iter();
        Some(of_length.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}

/// A client, and where the frames are that it was sent.
#[derive(Debug)]
pub(crate) struct Framed<'a, S> {
    pub(crate) client: &'a mut S,
    pub(crate) frames: &'a mut Frames,
}

impl<S: AsyncRead + Unpin> AsyncRead for Framed<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.client).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Framed<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut *self.client).poll_write(context, bytes))?;
        self.frames.pass(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.client).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.client).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_any_length_end_where_they_say_however_they_are_cut() {
        let mut stream = Vec::new();
        let mut ends = vec![0];
        for (head, brings) in [
            (&[0x81, 0][..], 0),
            (&[0x82, 5], 5),
            (&[0x82, 0x85, 1, 2, 3, 4], 5),
            (&[0x82, 126, 1, 0], 256),
            (&[0x82, 0xfe, 0, 1, 9, 9, 9, 9], 1),
            (&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], 65_536),
            (&[0x88, 2], 2),
        ] {
            stream.extend_from_slice(head);
            stream.resize(stream.len() + brings, 0xff);
            ends.push(stream.len());
        }
        for piece in [1, 2, 3, 7, 1000, stream.len()] {
            let mut frames = Frames::default();
            let mut passed = 0;
            for bytes in stream.chunks(piece) {
                frames.pass(bytes);
                passed += bytes.len();
                assert_eq!(frames.is_between(), ends.contains(&passed), "{passed}");
            }
        }
    }
}
