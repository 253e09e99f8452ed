//! One client's connection, as the rest of the gateway sees it.
//!
//! Time here is a count of seconds that the thread's ticker moves on, so that watching over a
//! connection costs nothing on the way of a request: no timer is set and none is taken back. Once
//! a second the ticker asks each connection whether it has had its time.
//!
//! # Clients that have said all they will say
//! The end of what a client sends looks the same whether it listens on or is gone. One whose request
//! is whole is taken to listen: its end is not told until it has its answer. To find out, it is sent
//! a `100 Continue` if nothing of the answer was sent yet, which who waits for an answer skips, and
//! which the kernel of one that is gone answers with a reset. Where that cannot be, the next bytes
//! of the answer find out, or the kernel's own probes, within about two minutes.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http::HeaderValue;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use crate::{activity::Held, metrics::Outcome, options::Limits, tunnel::Tunnel, worker::Worker};

/// What a client that waits for an answer skips.
const HINT: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// How often the kernel asks the peer of a client that has said all it will say, and how often in vain.
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: SocketAddr,
    /// The peer's address as a header's value.
    pub(crate) address: HeaderValue,
    pub(crate) is_tls: bool,
    stage: Cell<Stage>,
    /// Requests, or their answers, under way.
    requests: Cell<u32>,
    /// When the stage, or the time without requests, began.
    since: Cell<u32>,
    /// When the head that is being read began.
    head_since: Cell<Option<u32>>,
    /// When a byte last moved.
    moved: Cell<u32>,
    /// Since when the peer does not read.
    stalled_since: Cell<Option<u32>>,
    /// Since when the peer owes some of a request's body, where the lane waits for that.
    owed_since: Cell<Option<u32>>,
    /// Its client knows interim answers.
    knows_hints: Cell<bool>,
    /// Some of its answer was sent.
    has_spoken: Cell<bool>,
    /// The client has said all it will say, and waits for an answer or is gone.
    has_ended: Cell<bool>,
    /// To be ended with a reset instead of a goodbye.
    is_cut: Cell<bool>,
    is_doomed: Cell<bool>,
    is_draining: Cell<bool>,
    /// It has asked for something, or had its time to.
    has_arrived: Cell<bool>,
    /// Its client can be told that the time is over, and is to be told.
    takes_leave: Cell<bool>,
    is_leaving: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    tunnel: RefCell<Option<Tunnel>>,
    now: Rc<Cell<u32>>,
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Handshake,
    Http1,
    Http2,
    Tunnel,
}

impl Link {
    pub(crate) fn new(peer: SocketAddr, is_tls: bool, now: Rc<Cell<u32>>) -> Self {
        let address = HeaderValue::try_from(peer.ip().to_canonical().to_string());
        let started = now.get();
        Self {
            peer,
            // An address is always a value.
            address: address.unwrap_or_else(|_| HeaderValue::from_static("unknown")),
            is_tls,
            stage: Cell::new(Stage::Handshake),
            requests: Cell::new(0),
            since: Cell::new(started),
            head_since: Cell::new(None),
            moved: Cell::new(started),
            stalled_since: Cell::new(None),
            owed_since: Cell::new(None),
            knows_hints: Cell::new(false),
            has_spoken: Cell::new(false),
            has_ended: Cell::new(false),
            is_cut: Cell::new(false),
            is_doomed: Cell::new(false),
            is_draining: Cell::new(false),
            has_arrived: Cell::new(false),
            takes_leave: Cell::new(false),
            is_leaving: Cell::new(false),
            waker: RefCell::new(None),
            tunnel: RefCell::new(None),
            now,
        }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.set(stage);
        self.since.set(self.now.get());
        self.head_since.set(None);
    }

    /// Remembers whom to wake when something is decided about this connection.
    pub(crate) fn attend(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Ends the connection at once. Where an answer is under way, or not all of it was taken, its
    /// end must not look like the answer's.
    pub(crate) fn doom(&self) {
        if self.requests.get() > 0 || self.stalled_since.get().is_some() {
            self.cut();
        }
        self.is_doomed.set(true);
        self.wake();
    }

    pub(crate) fn is_doomed(&self) -> bool {
        self.is_doomed.get()
    }

    /// Lets what is under way finish, and nothing else begin.
    pub(crate) fn drain(&self) {
        self.is_draining.set(true);
        self.wake();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// The time of the connection is over, and its client is told so if it can be.
    pub(crate) fn leave(&self) {
        self.is_leaving.set(true);
        self.wake();
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.get()
    }

    /// Whether its client can be told.
    pub(crate) fn may_take_leave(&self, is_so: bool) {
        self.takes_leave.set(is_so);
    }

    /// Whether its client is still being told.
    pub(crate) fn takes_leave(&self) -> bool {
        self.takes_leave.get()
    }

    /// Whether nothing was begun, and nothing is about to be: who was let in a moment ago may have its
    /// first request under way.
    pub(crate) fn rests(&self) -> bool {
        self.requests.get() == 0 && !self.arrives()
    }

    /// Whether a request may be on its way that nobody else has heard of.
    pub(crate) fn arrives(&self) -> bool {
        let begins = self.head_since.get().is_some() || !self.has_arrived.get();
        self.requests.get() == 0 && begins
    }

    /// Its first request is not waited for any longer.
    pub(crate) fn hurry(&self) {
        self.has_arrived.set(true);
        self.wake();
    }

    pub(crate) fn set_tunnel(&self, tunnel: Tunnel) {
        *self.tunnel.borrow_mut() = Some(tunnel);
    }

    pub(crate) fn take_tunnel(&self) -> Option<Tunnel> {
        self.tunnel.borrow_mut().take()
    }

    /// The client is to see a reset, not an end.
    pub(crate) fn cut(&self) {
        // The other requests of an HTTP/2 connection have nothing to do with it.
        if self.stage.get() != Stage::Http2 {
            self.is_cut.set(true);
        }
    }

    /// Whether the connection has had its time.
    pub(crate) fn is_overdue(&self, limits: &Limits, is_full: bool) -> bool {
        let now = self.now.get();
        let is_over = |since: u32, limit: Duration| u64::from(now - since) > limit.as_secs();
        let is_stalled = self
            .stalled_since
            .get()
            .is_some_and(|since| is_over(since, limits.stall_timeout));
        let is_busy = self.requests.get() > 0;
        match self.stage.get() {
            Stage::Handshake => is_over(self.since.get(), limits.handshake_timeout),
            _ if is_stalled => true,
            Stage::Tunnel => is_over(self.moved.get(), limits.silence_timeout),
            Stage::Http1 | Stage::Http2 if is_busy => {
                is_over(self.moved.get(), limits.silence_timeout)
            }
            Stage::Http1 | Stage::Http2 => {
                let idle = if is_full {
                    limits.idle_timeout_when_full
                } else {
                    limits.idle_timeout
                };
                let head = self.head_since.get();
                head.is_some_and(|since| is_over(since, limits.head_timeout))
                    || is_over(self.since.get(), idle)
            }
        }
    }

    /// Whether the client owes some of a request's body.
    pub(crate) fn owes(&self, is_so: bool) {
        let since = self.owed_since.get().filter(|_| is_so);
        self.owed_since
            .set(since.or_else(|| is_so.then(|| self.now.get())));
    }

    /// Whether it has owed it for too long.
    pub(crate) fn is_body_late(&self, limits: &Limits) -> bool {
        self.owed_since
            .get()
            .is_some_and(|since| u64::from(self.now.get() - since) > limits.body_timeout.as_secs())
    }

    /// Whether who asks knows interim answers.
    pub(crate) fn knows_hints(&self, is_so: bool) {
        self.knows_hints.set(is_so);
    }

    /// Whether an answer in HTTP/1 is under way.
    fn is_asked(&self) -> bool {
        self.stage.get() == Stage::Http1 && self.requests.get() > 0
    }

    /// Whether the client has said all it will say, and may be gone.
    pub(crate) fn is_half_closed(&self) -> bool {
        self.has_ended.get()
    }

    /// Lets whoever serves the connection look again.
    pub(crate) fn nudge(&self) {
        self.wake();
    }

    /// What was read already is the start of a head.
    pub(crate) fn head_begins(&self) {
        if self.head_since.get().is_none() {
            self.head_since.set(Some(self.now.get()));
        }
    }

    fn read_some(&self) {
        self.moved.set(self.now.get());
        let begins = self.requests.get() == 0 && self.stage.get() == Stage::Http1;
        if begins {
            self.head_begins();
        }
    }
}

/// A request under way: from its head until the last byte of its answer, or of its tunnel.
#[derive(Debug)]
pub(crate) struct Open {
    worker: Rc<Worker>,
    link: Rc<Link>,
    held: Option<Held>,
    /// None if it is to be counted by somebody else.
    outcome: Option<Outcome>,
}

impl Open {
    pub(crate) fn new(worker: Rc<Worker>, link: Rc<Link>) -> Self {
        link.requests.set(link.requests.get() + 1);
        link.has_arrived.set(true);
        link.head_since.set(None);
        link.has_spoken.set(false);
        Self {
            worker,
            link,
            held: None,
            // What every request is until it is something else.
            outcome: Some(Outcome::Abandoned),
        }
    }

    /// What counts it as use of a sandbox.
    pub(crate) const fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// From here on it counts as use of a sandbox.
    pub(crate) fn hold(&mut self, held: Held) {
        self.held = Some(held);
    }

    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    /// Somebody else will open it. Until then its head is being read.
    pub(crate) fn forget(mut self) {
        self.outcome = None;
        self.link.head_begins();
    }

    /// The answer ends in its middle.
    pub(crate) fn cut(&mut self, why: Outcome) {
        self.outcome = Some(why);
        self.link.cut();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome {
            self.worker.counters.count(outcome);
        }
        self.link.owes(false);
        self.link.requests.set(self.link.requests.get() - 1);
        self.link.since.set(self.link.now.get());
    }
}

/// A stream over TCP.
pub(crate) trait OverTcp: AsyncRead + AsyncWrite + Unpin + 'static {
    fn tcp(&self) -> &TcpStream;
}

impl OverTcp for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl OverTcp for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// A client's stream, whose movements its link notes.
#[derive(Debug)]
pub(crate) struct ClientIo<S: OverTcp> {
    stream: S,
    link: Rc<Link>,
    /// What was read already, to be read again.
    early: Bytes,
    /// What is left to send of an interim answer.
    hint: &'static [u8],
    /// The library has it, which does not read while it waits for an answer.
    is_lent: bool,
}

impl<S: OverTcp> ClientIo<S> {
    pub(crate) const fn new(stream: S, link: Rc<Link>) -> Self {
        Self {
            stream,
            link,
            early: Bytes::new(),
            hint: b"",
            is_lent: false,
        }
    }

    /// The same before these bytes were read, for the library.
    pub(crate) fn after(mut self, early: Vec<u8>) -> Self {
        self.early = early.into();
        self.is_lent = true;
        self
    }

    /// The client has said all it will say, and its request is whole. It may be gone.
    ///
    /// # Errors
    /// If it is known to be.
    pub(crate) fn ends(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.link.has_ended.set(true);
        let tcp = self.stream.tcp();
        set_tcp_keepidle(tcp, PROBE_EVERY)?;
        set_tcp_keepintvl(tcp, PROBE_EVERY)?;
        set_tcp_keepcnt(tcp, PROBES)?;
        set_socket_keepalive(tcp, true)?;
        if self.link.knows_hints.get() && !self.link.has_spoken.get() {
            self.hint = HINT;
            if let Poll::Ready(told) = self.poll_hint(context) {
                told?;
            }
        }
        Ok(())
    }

    /// Sends what is left of the interim answer.
    fn poll_hint(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.hint.is_empty() {
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, self.hint))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.hint = &self.hint[count..];
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Whether a client that has said all it will say is gone.
    pub(crate) fn is_gone(&self) -> bool {
        !matches!(self.stream.tcp().take_error(), Ok(None))
    }

    /// Looks whether the client has said all it will say, where nobody reads: its request is whole.
    fn look(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.link.has_ended.get() {
            return match self.is_gone() {
                true => Err(io::ErrorKind::BrokenPipe.into()),
                false => Ok(()),
            };
        }
        let tcp = self.stream.tcp();
        // Woken by the end, or by more that it says.
        if tcp.poll_read_ready(context).is_pending() {
            return Ok(());
        }
        let mut seen = [PollFd::new(tcp, PollFlags::RDHUP)];
        poll(&mut seen, Some(&Timespec::default()))?;
        match seen[0].revents().contains(PollFlags::RDHUP) {
            true => self.ends(context),
            false => Ok(()),
        }
    }

    fn wrote<T>(&self, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let link = &self.link;
        if progress.is_ready() {
            link.moved.set(link.now.get());
            link.stalled_since.set(None);
            link.has_spoken.set(true);
        } else if link.stalled_since.get().is_none() {
            link.stalled_since.set(Some(link.now.get()));
        }
        progress
    }
}

impl<S: OverTcp> Drop for ClientIo<S> {
    fn drop(&mut self) {
        if self.link.is_cut.get() {
            // Closing now sends a reset: clients tell a sandbox that died from an answer's end.
            let _ = self.stream.tcp().set_zero_linger();
        }
    }
}

impl<S: OverTcp> AsyncRead for ClientIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let count = buffer.remaining().min(self.early.len());
            buffer.put_slice(&self.early[..count]);
            self.early.advance(count);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let progress = Pin::new(&mut self.stream).poll_read(context, buffer);
        if progress.is_ready() && buffer.filled().len() > before {
            self.link.read_some();
        }
        progress
    }
}

impl<S: OverTcp> AsyncWrite for ClientIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.hint.is_empty() {
            ready!(self.poll_hint(context))?;
        }
        let progress = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.hint.is_empty() {
            ready!(self.poll_hint(context))?;
        }
        let progress = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_waited_for = self.is_lent && self.early.is_empty() && self.link.is_asked();
        if is_waited_for {
            self.look(context)?;
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.link.is_cut.get() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
