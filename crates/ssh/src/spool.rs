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
//! - at the bound, which is one for all channels of a connection, a channel of which much waits is
//!   given up, with a word why. One of which little waits goes on.
//!
//! Sizes and signals go beside the bytes: of sizes only the last one counts, and signals that a
//! program does not get around to are dropped.

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
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// If so much of a channel waits, its client does too.
const MUCH: usize = 1 << 20;
/// If so much of a connection waits, a channel of which much waits is given up.
const TOO_MUCH: usize = 32 << 20;
/// What a piece takes besides its bytes, about: a client can send them one by one.
const PIECE: usize = 128;
/// Signals that wait to be passed on.
const SIGNALS: usize = 16;

/// What moves on one connection.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Sends that are under way.
    held_up: AtomicUsize,
    /// What waits on all its channels.
    waiting: AtomicUsize,
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
    intake: Intake,
}

/// Where a channel's input is put.
struct Intake {
    flow: Arc<Flow>,
    waiting: Arc<Waiting>,
    bytes: Option<mpsc::UnboundedSender<Piece>>,
    size: watch::Sender<(u32, u32)>,
    signals: mpsc::Sender<Sig>,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    taken: Notify,
}

/// Some bytes that wait. Once taken or given up, they do not count any more.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    flow: Arc<Flow>,
    waiting: Arc<Waiting>,
}

impl Piece {
    fn new(bytes: Bytes, flow: Arc<Flow>, waiting: Arc<Waiting>) -> Self {
        let piece = Self {
            bytes,
            flow,
            waiting,
        };
        let cost = piece.cost();
        piece.flow.waiting.fetch_add(cost, Ordering::AcqRel);
        piece.waiting.bytes.fetch_add(cost, Ordering::AcqRel);
        piece
    }

    fn cost(&self) -> usize {
        self.bytes.len() + PIECE
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let cost = self.cost();
        self.flow.waiting.fetch_sub(cost, Ordering::AcqRel);
        self.waiting.bytes.fetch_sub(cost, Ordering::AcqRel);
        self.waiting.taken.notify_one();
    }
}

/// The bytes of a client, up to the end of what it sends.
#[derive(Debug)]
pub(crate) struct Bucket {
    pieces: mpsc::UnboundedReceiver<Piece>,
}

impl Stream for Bucket {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = self.pieces.poll_recv(context);
        next.map(|piece| piece.map(|piece| piece.bytes.clone()))
    }
}

/// The signs of a client.
#[derive(Debug)]
pub(crate) struct Signs {
    size: watch::Receiver<(u32, u32)>,
    signals: mpsc::Receiver<Sig>,
}

impl Signs {
    /// The next one, until there are no more. Sizes that another one followed are left out.
    pub(crate) async fn next(&mut self) -> Option<Sign> {
        tokio::select! {
            Some(signal) = self.signals.recv() => Some(Sign::Signal(signal)),
            Ok(()) = self.size.changed() => {
                let (columns, rows) = *self.size.borrow_and_update();
                Some(Sign::Size { columns, rows })
            }
            else => None,
        }
    }
}

/// Takes a channel's input apart: bytes, and signs. Who wants no signs drops them.
pub(crate) fn spool(channel: ChannelReadHalf, flow: Arc<Flow>) -> (Pump, Bucket, Signs) {
    let (intake, bucket, signs) = intake(flow);
    (Pump { channel, intake }, bucket, signs)
}

fn intake(flow: Arc<Flow>) -> (Intake, Bucket, Signs) {
    let (bytes, pieces) = mpsc::unbounded_channel();
    let (size, sizes) = watch::channel((0, 0));
    let (signals, of_client) = mpsc::channel(SIGNALS);
    let intake = Intake {
        flow,
        waiting: Arc::default(),
        bytes: Some(bytes),
        size,
        signals,
    };
    let signs = Signs {
        size: sizes,
        signals: of_client,
    };
    (intake, Bucket { pieces }, signs)
}

impl Pump {
    /// Moves what comes, until nothing does.
    pub(crate) async fn run(mut self) -> Closed {
        loop {
            if let Err(closed) = self.intake.room().await {
                return closed;
            }
            match self.channel.wait().await {
                Some(ChannelMsg::Data { data }) => self.intake.put(data),
                Some(ChannelMsg::Eof) => self.intake.bytes = None,
                Some(ChannelMsg::WindowChange {
                    col_width,
                    row_height,
                    ..
                }) => self.intake.resize(col_width, row_height),
                Some(ChannelMsg::Signal { signal }) => self.intake.signal(signal),
                Some(ChannelMsg::Close) | None => return Closed::ByClient,
                Some(_) => {}
            }
        }
    }
}

impl Intake {
    fn put(&self, data: Bytes) {
        let Some(bytes) = &self.bytes else { return };
        let piece = Piece::new(data, self.flow.clone(), self.waiting.clone());
        // What nobody takes any more is not kept.
        let _ = bytes.send(piece);
    }

    fn resize(&self, columns: u32, rows: u32) {
        // One that nobody waits for is of no use.
        let _ = self.size.send((columns, rows));
    }

    fn signal(&self, signal: Sig) {
        // As is one more where many wait already.
        let _ = self.signals.try_send(signal);
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
            let on_connection = self.flow.waiting.load(Ordering::Acquire);
            if waiting < MUCH || (is_held_up && on_connection < TOO_MUCH) {
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

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    fn fill(intake: &Intake, bytes: usize) {
        intake.put(Bytes::from(vec![0; bytes]));
    }

    #[tokio::test]
    async fn only_the_last_size_counts_and_few_signals_wait() {
        let (intake, _bucket, mut signs) = intake(Arc::default());
        for number in 1..=1000 {
            intake.resize(number, number);
            intake.signal(Sig::TERM);
        }
        drop(intake);
        let (mut sizes, mut signals) = (Vec::new(), 0);
        while let Some(sign) = signs.next().await {
            match sign {
                Sign::Size { columns, rows } => sizes.push((columns, rows)),
                Sign::Signal(_) => signals += 1,
            }
        }
        assert_eq!((sizes, signals), (vec![(1000, 1000)], SIGNALS));
    }

    #[tokio::test]
    async fn signs_that_nobody_wants_are_not_kept_and_bytes_go_on() {
        let (intake, mut bucket, _) = intake(Arc::default());
        for number in 1..=1000 {
            intake.resize(number, number);
            intake.signal(Sig::TERM);
        }
        assert_eq!(intake.signals.capacity(), SIGNALS);
        assert_eq!(*intake.size.borrow(), (0, 0));
        intake.put(Bytes::from_static(b"on"));
        assert_eq!(intake.room().await, Ok(()));
        assert_eq!(bucket.next().await.unwrap(), "on");
    }

    #[tokio::test]
    async fn the_bound_is_on_all_channels_of_a_connection_together() {
        let flow = Arc::<Flow>::default();
        let (first, mut first_bucket, _) = intake(flow.clone());
        let (second, second_bucket, _) = intake(flow.clone());
        let (third, _third_bucket, _) = intake(flow.clone());
        fill(&first, TOO_MUCH / 2);
        assert!(first.room().now_or_never().is_none(), "the client waits");
        let _held_up = HeldUp::new(&flow);
        assert_eq!(first.room().await, Ok(()), "output waits too");
        fill(&second, TOO_MUCH / 2);
        assert_eq!(first.room().await, Err(Closed::TooMuch));
        assert_eq!(second.room().await, Err(Closed::TooMuch));
        fill(&third, 1);
        assert_eq!(third.room().await, Ok(()), "little waits of this one");
        // What is given up makes room, as does what is taken.
        drop(second_bucket);
        assert_eq!(first.room().await, Ok(()));
        assert!(first_bucket.next().await.is_some());
        assert_eq!(flow.waiting.load(Ordering::Acquire), 1 + PIECE);
        // What comes where nobody takes it any more is not counted.
        fill(&second, TOO_MUCH);
        assert_eq!(flow.waiting.load(Ordering::Acquire), 1 + PIECE);
    }

    #[tokio::test]
    async fn bytes_sent_one_by_one_count_for_what_they_take() {
        let (intake, _bucket, _) = intake(Arc::default());
        for _ in 0..=MUCH / PIECE {
            fill(&intake, 1);
        }
        assert!(intake.room().now_or_never().is_none());
    }
}
