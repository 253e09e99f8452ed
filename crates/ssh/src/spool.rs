//! A client's bytes, from its channel to whoever takes them.
//!
//! The library lets a client send on as soon as its bytes have come in, not when they were taken,
//! and one loop moves the bytes of all channels both ways. If that loop waited for a program that
//! does not read, and the program waited for its own output to be taken by the same loop, neither
//! would ever go on. So:
//!
//! - while what waits is little, everything is taken in;
//! - when it is much, nothing is, and the client is held up by its own connection,
//! - unless output of the same connection is held up too: then more is taken in, up to a bound;
//! - at the bound the channel is given up, with a word why.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::Stream;
use russh::{ChannelMsg, ChannelReadHalf, Sig};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// From here on a client waits.
const MUCH: usize = 1 << 20;
/// From here on a channel is given up.
const TOO_MUCH: usize = 32 << 20;

/// What moves on one connection.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Sends that are under way.
    held_up: AtomicUsize,
    changed: Notify,
    /// Cancelled when the connection is over.
    pub(crate) over: CancellationToken,
}

impl Flow {
    /// Waits for something to be sent to the client.
    pub(crate) async fn sending<T>(&self, send: impl Future<Output = T>) -> T {
        let _held_up = HeldUp::new(self);
        send.await
    }
}

struct HeldUp<'a>(&'a Flow);

impl<'a> HeldUp<'a> {
    fn new(flow: &'a Flow) -> Self {
        flow.held_up.fetch_add(1, Ordering::AcqRel);
        flow.changed.notify_waiters();
        Self(flow)
    }
}

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        self.0.held_up.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a client does besides sending bytes.
#[derive(Debug)]
pub(crate) enum Sign {
    /// Its terminal has another size.
    Size { columns: u32, rows: u32 },
    /// A signal for the program.
    Signal(Sig),
}

/// Why a channel gives nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The client closed it, or is gone.
    ByClient,
    /// Too much was sent that nobody takes.
    TooMuch,
}

/// The client's end of a channel, to be run as long as the channel is of use.
pub(crate) struct Pump {
    channel: ChannelReadHalf,
    flow: Arc<Flow>,
    waiting: Arc<Waiting>,
    bytes: Option<mpsc::UnboundedSender<Bytes>>,
    signs: mpsc::UnboundedSender<Sign>,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    taken: Notify,
}

/// The bytes of a client, up to the end of what it sends.
#[derive(Debug)]
pub(crate) struct Bucket {
    bytes: mpsc::UnboundedReceiver<Bytes>,
    waiting: Arc<Waiting>,
}

impl Stream for Bucket {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = self.bytes.poll_recv(context);
        if let Poll::Ready(Some(bytes)) = &next {
            self.waiting.bytes.fetch_sub(bytes.len(), Ordering::AcqRel);
            self.waiting.taken.notify_one();
        }
        next
    }
}

/// Takes a channel's input apart: bytes, and signs.
pub(crate) fn spool(
    channel: ChannelReadHalf,
    flow: Arc<Flow>,
) -> (Pump, Bucket, mpsc::UnboundedReceiver<Sign>) {
    let (sender, bytes) = mpsc::unbounded_channel();
    let (signs, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::<Waiting>::default();
    let pump = Pump {
        channel,
        flow,
        waiting: waiting.clone(),
        bytes: Some(sender),
        signs,
    };
    (pump, Bucket { bytes, waiting }, receiver)
}

impl Pump {
    /// Moves what comes, until nothing does.
    pub(crate) async fn run(mut self) -> Closed {
        loop {
            if let Err(closed) = self.room().await {
                return closed;
            }
            match self.channel.wait().await {
                Some(ChannelMsg::Data { data }) => self.put(data),
                Some(ChannelMsg::Eof) => self.bytes = None,
                Some(ChannelMsg::WindowChange {
                    col_width,
                    row_height,
                    ..
                }) => self.sign(Sign::Size {
                    columns: col_width,
                    rows: row_height,
                }),
                Some(ChannelMsg::Signal { signal }) => self.sign(Sign::Signal(signal)),
                Some(ChannelMsg::Close) | None => return Closed::ByClient,
                Some(_) => {}
            }
        }
    }

    fn put(&self, data: Bytes) {
        let Some(bytes) = &self.bytes else { return };
        let length = data.len();
        self.waiting.bytes.fetch_add(length, Ordering::AcqRel);
        // What nobody takes any more is not kept.
        if bytes.send(data).is_err() {
            self.waiting.bytes.fetch_sub(length, Ordering::AcqRel);
        }
    }

    fn sign(&self, sign: Sign) {
        // One that nobody waits for any more is of no use.
        let _ = self.signs.send(sign);
    }

    /// Waits until more may be taken in.
    async fn room(&self) -> Result<(), Closed> {
        loop {
            // From before the look on, so that no change is missed.
            let mut changed = std::pin::pin!(self.flow.changed.notified());
            changed.as_mut().enable();
            // What nobody takes any more does not wait for room.
            if self
                .bytes
                .as_ref()
                .is_none_or(mpsc::UnboundedSender::is_closed)
            {
                return Ok(());
            }
            let waiting = self.waiting.bytes.load(Ordering::Acquire);
            let is_held_up = self.flow.held_up.load(Ordering::Acquire) > 0;
            if waiting < MUCH || (is_held_up && waiting < TOO_MUCH) {
                return Ok(());
            }
            if is_held_up {
                return Err(Closed::TooMuch);
            }
            let gone = async {
                match &self.bytes {
                    Some(bytes) => bytes.closed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = self.waiting.taken.notified() => {}
                () = gone => {}
                // Nothing is read here, so its end would not be heard from the channel.
                () = self.flow.over.cancelled() => return Err(Closed::ByClient),
            }
        }
    }
}
