//! The short way: plain HTTP/1.1 requests to sandboxes that run, from bytes to bytes.
//!
//! ```text
//!  client ─read─▶ head ─▶ decide ─▶ head for the sandbox ─write─▶ sandbox
//!     ▲                     │                                        │
//!     │                     └─ anything else: the library, unread    │
//!     └──write── head for the client, body ◀─────────read────────────┘
//! ```
//!
//! Nearly all traffic is this, and all it needs is one read and one write on each side. A head is
//! parsed where it was read, its rules are those of every other request, and the new head is
//! written into a buffer that is used again. Reads go into memory that all connections of a thread
//! share: a connection owns bytes only while they wait for something.
//!
//! What is not plain (see [`codec::Request`]), not for a sandbox that runs, or refused at the gate is
//! handed to the library before a byte of it is used up, together with the connection. So the rules
//! of HTTP/1 that are easy to get wrong are followed by code that everybody uses.

mod turn;

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use http::Method;
use tokio::io::{AsyncRead as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf};

use crate::{
    answer::Refusal,
    codec::{self, Begun, Length},
    decide::{Asking, Decision, Found, decide},
    forward, handle,
    headers::{self, Onward, Sender},
    link::{ClientIo, Link, Open, OverTcp},
    metrics::{Outcome, Waited},
    names::Fields,
    pool::Key,
    upstream::Upstream,
    worker::Worker,
};

use turn::{Turn, TurnError};

/// How HTTP/2 begins where nobody agreed on it before.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";

/// Whose a connection is, after this.
#[derive(Debug)]
pub(crate) enum Next<S: OverTcp> {
    /// Nobody's: it has ended.
    Over,
    /// To be taken leave of.
    Leave(ClientIo<S>),
    /// The library's, for HTTP/1.
    Http1(ClientIo<S>),
    /// The library's, for HTTP/2.
    Http2(ClientIo<S>),
}

/// Serves plain requests until something else comes, or the end.
pub(crate) async fn run<S: OverTcp>(
    worker: Rc<Worker>,
    link: Rc<Link>,
    client: ClientIo<S>,
) -> Next<S> {
    let mut lane = Lane {
        worker,
        link,
        client,
        early: Vec::new(),
        looked: 0,
        head: Vec::new(),
    };
    loop {
        let ask = match poll_fn(|context| lane.poll_begin(context)).await {
            First::Ask(ask) => ask,
            First::Library => {
                let is_http2 = lane.early.starts_with(PREFACE);
                let client = lane.client.after(lane.early);
                return if is_http2 {
                    Next::Http2(client)
                } else {
                    Next::Http1(client)
                };
            }
            First::Over => {
                // Who has said all it will say may listen to the goodbye of TLS.
                if lane.link.is_half_closed() {
                    let _ = lane.client.shutdown().await;
                }
                return Next::Over;
            }
        };
        match lane.serve(ask).await {
            After::Stay if !lane.link.is_draining() => lane.rest(),
            After::Stay | After::Leave => {
                return match lane.client.shutdown().await {
                    Ok(()) => Next::Leave(lane.client),
                    Err(_) => Next::Over,
                };
            }
            After::Over => return Next::Over,
        }
    }
}

/// A client's connection.
#[derive(Debug)]
struct Lane<S: OverTcp> {
    worker: Rc<Worker>,
    link: Rc<Link>,
    client: ClientIo<S>,
    /// What was read and not used.
    early: Vec<u8>,
    /// How much of that was found to be a part of a head.
    looked: usize,
    /// The head for the sandbox.
    head: Vec<u8>,
}

/// A plain request for a sandbox that runs, whose head for it is written.
#[derive(Debug)]
struct Ask {
    found: Found,
    open: Open,
    /// How much of the body is to be read.
    left: u64,
    is_last: bool,
    to_head: bool,
    /// It can be sent again: nothing but the head is needed, and that does no harm.
    can_repeat: bool,
}

enum First {
    Ask(Ask),
    Library,
    Over,
}

/// What some bytes are.
enum Look {
    Part,
    Ask(Ask, usize),
    Library,
}

/// How a connection goes on.
enum After {
    Stay,
    Leave,
    Over,
}

impl<S: OverTcp> Lane<S> {
    fn poll_begin(&mut self, context: &mut Context<'_>) -> Poll<First> {
        if !self.early.is_empty() {
            self.link.head_begins();
            if self.early.len() > self.looked
                && let Some(first) = self.first()
            {
                return Poll::Ready(first);
            }
        }
        let worker = self.worker.clone();
        loop {
            let mut scratch = worker.scratch();
            let count = match ready!(poll_read(&mut self.client, context, &mut scratch)) {
                Ok(count @ 1..) => count,
                Ok(0) | Err(_) => return Poll::Ready(First::Over),
            };
            let read = &scratch[..count];
            if self.early.is_empty() {
                let read = codec::skip_empty_lines(read);
                // Mostly a whole head lies here, and nothing else.
                match self.look(read) {
                    Look::Ask(mut ask, end) => {
                        self.begin_body(&mut ask, &read[end..]);
                        return Poll::Ready(First::Ask(ask));
                    }
                    Look::Library => {
                        self.early.extend_from_slice(read);
                        return Poll::Ready(First::Library);
                    }
                    Look::Part => {
                        self.early.extend_from_slice(read);
                        self.looked = read.len();
                    }
                }
            } else {
                self.early.extend_from_slice(read);
                if let Some(first) = self.first() {
                    return Poll::Ready(first);
                }
            }
        }
    }

    /// Looks at bytes that were kept, if a head may end in those that are new. They are kept again
    /// if they are not enough.
    fn first(&mut self) -> Option<First> {
        let mut bytes = std::mem::take(&mut self.early);
        let mut looked = std::mem::take(&mut self.looked);
        let empty = bytes.len() - codec::skip_empty_lines(&bytes).len();
        if empty > 0 {
            bytes.drain(..empty);
            looked = 0;
        }
        let is_worth_it = looked == 0
            || codec::may_end(&bytes, looked)
            || bytes.len() >= self.worker.shared.options.limits.head_bytes;
        let look = match is_worth_it {
            true => self.look(&bytes),
            false => Look::Part,
        };
        match look {
            Look::Ask(mut ask, end) => {
                self.begin_body(&mut ask, &bytes[end..]);
                Some(First::Ask(ask))
            }
            Look::Part => {
                self.looked = bytes.len();
                self.early = bytes;
                None
            }
            Look::Library => {
                self.early = bytes;
                Some(First::Library)
            }
        }
    }

    /// What came with the head: the body's start goes with it, anything after that is kept.
    fn begin_body(&mut self, ask: &mut Ask, rest: &[u8]) {
        let count = usize::try_from(ask.left).unwrap_or(usize::MAX);
        let (body, next) = rest.split_at(count.min(rest.len()));
        ask.left -= body.len() as u64;
        self.head.extend_from_slice(body);
        self.early.extend_from_slice(next);
    }

    fn look(&mut self, bytes: &[u8]) -> Look {
        let worker = self.worker.clone();
        let limits = &worker.shared.options.limits;
        let mut room = codec::room();
        let head = match codec::Request::read(bytes, &mut room) {
            Begun::Plain(head) => head,
            Begun::Part if bytes.len() < limits.head_bytes => {
                return Look::Part;
            }
            Begun::Other if PREFACE.starts_with(bytes) && bytes.len() < PREFACE.len() => {
                return Look::Part;
            }
            Begun::Part | Begun::Other => return Look::Library,
        };
        if head.end > limits.head_bytes {
            return Look::Library;
        }
        let fields = Fields::Lines(head.fields);
        let asking = Asking {
            method: &head.method,
            authority: None,
            path: head.path(),
            query: head.query(),
            fields,
            // What it has its head says, here.
            has_body: false,
            is_bare: false,
            is_socket: false,
        };
        if head.length.is_some_and(|length| limits.refuse(length)) {
            return Look::Library;
        }
        let Decision::Forward(found) = decide(&self.worker.shared, &asking) else {
            return Look::Library;
        };
        let mut open = Open::new(self.worker.clone(), self.link.clone());
        let (route, options) = (&found.route, &self.worker.shared.options);
        let activity = &self.worker.shared.activity;
        let routes = &self.worker.shared.ports.routes;
        let held = activity.let_in(routes, route, limits.open_per_sandbox, found.is_use);
        let Ok(held) = held else {
            open.forget();
            return Look::Library;
        };
        open.hold(held);
        let sender = Sender {
            address: &self.link.address,
            is_tls: self.link.is_tls,
            trusts_forwarded: options.trusts_forwarded,
        };
        let onward = Onward {
            method: &head.method,
            target: head.target,
            prefix: found.prefix,
            host: fields.host(),
            fields,
            length: head.length.map_or(Length::None, Length::Exact),
            upgrade: None,
            socket_key: None,
        };
        self.head = self.worker.take_head();
        if onward
            .write(&mut self.head, route, found.port, &sender)
            .is_err()
        {
            open.forget();
            return Look::Library;
        }
        let left = head.length.unwrap_or(0);
        self.link.knows_hints(true);
        let ask = Ask {
            left,
            open,
            is_last: head.is_last,
            to_head: head.method == Method::HEAD,
            can_repeat: left == 0 && headers::is_idempotent(&head.method),
            found,
        };
        Look::Ask(ask, head.end)
    }

    /// Sends a request on and its answer back.
    ///
    /// A kept connection may turn out to have ended. What was not sent goes out again on another
    /// one; what was sent does only if that does no harm. Whatever the pool does, a new connection
    /// is tried once.
    async fn serve(&mut self, mut ask: Ask) -> After {
        let worker = self.worker.clone();
        let key = Key::of(&ask.found.route, ask.found.port);
        let mut started = worker.monotonic();
        let mut is_pool_asked = true;
        loop {
            let kept = if is_pool_asked {
                worker.pool.take(key)
            } else {
                None
            };
            let is_kept = kept.is_some();
            let upstream = match kept {
                Some(upstream) => {
                    worker.counters.reused();
                    upstream
                }
                None => match self.connect_awake(&ask).await {
                    Ok(Some(upstream)) => {
                        let now = worker.monotonic();
                        let took = now.saturating_sub(started);
                        worker.counters.waited(Waited::Connect, took);
                        started = now;
                        upstream
                    }
                    Ok(None) => return After::Over,
                    Err(refusal) => return self.refuse(ask, refusal).await,
                },
            };
            let mut turn = Turn::new(self, &ask, upstream, started);
            let (open, found) = (&ask.open, &ask.found);
            let to = (&*found.route, found.may_wake);
            let begun = poll_fn(|context| turn.poll_begun(context));
            let ended = match handle::answer_of(&worker, open, to, begun).await {
                Ok(Some(ended)) => ended,
                Ok(None) => poll_fn(|context| turn.poll(context)).await,
                Err(refusal) => return self.refuse(ask, refusal).await,
            };
            let (left, rested) = turn.into_rested();
            match ended {
                Ok(is_last) => {
                    ask.open.ended(Outcome::Forwarded);
                    if let (Some(upstream), Some(id)) = (rested, &ask.found.route.id) {
                        worker.keep(key, id, upstream);
                    }
                    return if is_last || left > 0 {
                        After::Leave
                    } else {
                        After::Stay
                    };
                }
                Err(TurnError::NotSent) if is_kept => {}
                Err(TurnError::Lost) if is_kept && ask.can_repeat => is_pool_asked = false,
                Err(error @ (TurnError::NotSent | TurnError::Lost | TurnError::Nonsense)) => {
                    tracing::debug!(%error, "a sandbox gave no answer");
                    return self.refuse(ask, Refusal::NoAnswer).await;
                }
                Err(TurnError::Late) => return self.refuse(ask, Refusal::BodyLate).await,
                Err(TurnError::LateAfterAll) => {
                    ask.open.cut(Outcome::BodyLate);
                    return After::Over;
                }
                Err(TurnError::CutShort) => {
                    ask.open.cut(Outcome::CutShort);
                    return After::Over;
                }
                Err(TurnError::Client) => return After::Over,
            }
        }
    }

    /// The same as [`Self::connect`], to a sandbox that is woken if it falls asleep meanwhile.
    async fn connect_awake(&mut self, ask: &Ask) -> Result<Option<Upstream>, Refusal> {
        let worker = self.worker.clone();
        let to = (&*ask.found.route, ask.found.may_wake);
        let connecting = self.connect(ask);
        let connected = handle::answer_of(&worker, &ask.open, to, connecting).await;
        connected.and_then(|connected| connected)
    }

    /// A new connection; none if the client leaves meanwhile.
    async fn connect(&mut self, ask: &Ask) -> Result<Option<Upstream>, Refusal> {
        let worker = self.worker.clone();
        let connecting = forward::connect(&worker, &ask.found.route, ask.found.port);
        let mut connecting = Box::pin(connecting);
        poll_fn(|context| {
            if let Poll::Ready(connected) = connecting.as_mut().poll(context) {
                return Poll::Ready(connected.map(Some));
            }
            if ask.left == 0 && self.is_client_gone(context) {
                return Poll::Ready(Ok(None));
            }
            Poll::Pending
        })
        .await
    }

    /// Whether the client has left. What it says meanwhile is kept for later.
    fn is_client_gone(&mut self, context: &mut Context<'_>) -> bool {
        if self.link.is_half_closed() {
            return self.client.is_gone();
        }
        let worker = self.worker.clone();
        // More than this of a next request is not taken in.
        while self.early.len() < worker.shared.options.limits.head_bytes {
            let mut scratch = worker.scratch();
            match poll_read(&mut self.client, context, &mut scratch[..8 << 10]) {
                Poll::Ready(Ok(count @ 1..)) => self.early.extend_from_slice(&scratch[..count]),
                Poll::Ready(Ok(0)) => return self.client.ends(context).is_err(),
                // An end without the goodbye that TLS has.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return self.client.ends(context).is_err();
                }
                Poll::Ready(Err(_)) => return true,
                Poll::Pending => return false,
            }
        }
        false
    }

    async fn refuse(&mut self, mut ask: Ask, refusal: Refusal) -> After {
        let answer = handle::refusal_of(&self.worker, &mut ask.open, &ask.found, refusal);
        let is_last = ask.is_last || ask.left > 0 || self.is_leaving();
        let mut bytes = Vec::new();
        headers::write_own(&mut bytes, &answer, is_last, ask.to_head);
        // Who has the answer finds it counted.
        drop(ask);
        let written = async {
            self.client.write_all(&bytes).await?;
            self.client.flush().await
        };
        match written.await {
            Ok(()) if is_last => After::Leave,
            Ok(()) => After::Stay,
            Err(_) => After::Over,
        }
    }

    /// Whether nothing follows this answer here.
    fn is_leaving(&self) -> bool {
        self.link.is_draining() || self.worker.shared.says_goodbye()
    }

    /// Gives back memory that waits for nothing.
    fn rest(&mut self) {
        self.worker.put_head(std::mem::take(&mut self.head));
        if self.early.is_empty() && self.early.capacity() > 0 {
            self.early = Vec::new();
        }
    }
}

fn poll_read<S: OverTcp>(
    client: &mut ClientIo<S>,
    context: &mut Context<'_>,
    room: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut room = ReadBuf::new(room);
    ready!(Pin::new(client).poll_read(context, &mut room))?;
    Poll::Ready(Ok(room.filled().len()))
}

fn poll_write<S: OverTcp>(
    client: &mut ClientIo<S>,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    Pin::new(client).poll_write(context, bytes)
}

fn poll_flush<S: OverTcp>(
    client: &mut ClientIo<S>,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    Pin::new(client).poll_flush(context)
}
