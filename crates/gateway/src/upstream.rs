//! A connection to a sandbox's port: a socket, and no task of its own.
//!
//! Whoever waits for an answer drives it, in the same task that serves the client. So an answer
//! crosses no queue between tasks, and when the client leaves, the connection goes with the future
//! that held it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use rustix::net::{RecvFlags, recv};
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, ReadBuf},
    net::TcpStream,
};

/// A connection on which nothing is under way, or one exchange.
#[derive(Debug)]
pub(crate) struct Upstream(TcpStream);

impl Upstream {
    pub(crate) const fn new(stream: TcpStream) -> Self {
        Self(stream)
    }

    /// Whether the peer has closed, or speaks out of turn. Asks the kernel.
    fn is_spent(&self) -> bool {
        let mut byte = [0];
        let seen = recv(&self.0, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !matches!(seen, Err(rustix::io::Errno::AGAIN))
    }

    /// Whether another request can be sent on it. The kernel is always asked: what a sandbox said
    /// out of turn must not become the answer to somebody's next request.
    pub(crate) fn is_fresh(&self) -> bool {
        self.rests(Waker::noop()) && !self.is_spent()
    }

    /// Whether nothing was heard of it. From here on `waker` hears of its end.
    pub(crate) fn rests(&self, waker: &Waker) -> bool {
        self.0
            .poll_read_ready(&mut Context::from_waker(waker))
            .is_pending()
    }

    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(room);
        ready!(Pin::new(&mut self.0).poll_read(context, &mut room))?;
        Poll::Ready(Ok(room.filled().len()))
    }

    /// Writes several parts, in one call of the kernel.
    pub(crate) fn poll_write<const N: usize>(
        &mut self,
        context: &mut Context<'_>,
        parts: [&[u8]; N],
    ) -> Poll<io::Result<usize>> {
        let mut filled = parts.iter().filter(|part| !part.is_empty());
        if let (Some(only), None) = (filled.next(), filled.next()) {
            return Pin::new(&mut self.0).poll_write(context, only);
        }
        Pin::new(&mut self.0).poll_write_vectored(context, &parts.map(io::IoSlice::new))
    }

    pub(crate) fn into_stream(self) -> TcpStream {
        self.0
    }
}
