//! What clients send, bounded: in how long it is, and in how long none of it comes.
//!
//! A body whose length was told is owed to its end. One that ends when its sender says so is owed
//! until the sandbox answers: from then on it may be one half of a conversation, in which saying
//! nothing is fine. A gRPC call is one from its first message on.

use std::{
    cell::Cell,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use thiserror::Error;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{answer::Refusal, metrics::Outcome, options::Limits};

/// Why no more of a body is taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum UploadError {
    #[error("the client's body is longer than it may be")]
    TooLarge,
    #[error("the client owes some of its body, and sends none of it")]
    Late,
    #[error("the client's body ended early")]
    Client,
}

impl UploadError {
    /// What the client is answered, if it was not answered yet.
    pub(crate) const fn refusal(self) -> Refusal {
        match self {
            Self::TooLarge => Refusal::TooLarge,
            Self::Late => Refusal::BodyLate,
            Self::Client => Refusal::NoAnswer,
        }
    }

    /// How it is counted, if it was.
    pub(crate) const fn outcome(self) -> Outcome {
        match self {
            Self::TooLarge => Outcome::TooLarge,
            Self::Late => Outcome::BodyLate,
            Self::Client => Outcome::Abandoned,
        }
    }
}

impl Limits {
    /// Whether a body of this length is refused before any of it is read.
    pub(crate) const fn refuse(&self, length: u64) -> bool {
        self.body_bytes > 0 && length > self.body_bytes
    }
}

/// What is known of a body by those who do not read it.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    is_answered: Cell<bool>,
    ended: Cell<Option<UploadError>>,
}

impl Fate {
    /// The sandbox has begun to answer.
    pub(crate) fn answered(&self) {
        self.is_answered.set(true);
    }

    /// Why no more of it was taken.
    pub(crate) const fn ended(&self) -> Option<UploadError> {
        self.ended.get()
    }
}

/// Until when a body is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    ToTheEnd,
    UntilAnswered,
    UntilBegun,
}

/// A client's body.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Incoming,
    /// How much of it may still come; none if that is not bounded.
    room: Option<u64>,
    owed: Owed,
    patience: Duration,
    /// Since when something is waited for.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    fate: Rc<Fate>,
}

impl Upload {
    pub(crate) fn new(body: Incoming, is_call: bool, limits: &Limits) -> Self {
        let owed = match body.size_hint().exact() {
            Some(_) => Owed::ToTheEnd,
            None if is_call => Owed::UntilBegun,
            None => Owed::UntilAnswered,
        };
        Self {
            body,
            room: Some(limits.body_bytes).filter(|bytes| *bytes > 0),
            owed,
            patience: limits.body_timeout,
            since: None,
            timer: None,
            fate: Rc::default(),
        }
    }

    /// What becomes of it, for those who do not read it.
    pub(crate) fn fate(&self) -> Rc<Fate> {
        self.fate.clone()
    }

    fn is_owed(&self) -> bool {
        match self.owed {
            Owed::ToTheEnd | Owed::UntilBegun => true,
            Owed::UntilAnswered => !self.fate.is_answered.get(),
        }
    }

    fn refuse(&self, why: UploadError) -> UploadError {
        self.fate.ended.set(Some(why));
        why
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, UploadError> {
        let count = frame.data_ref().map_or(0, |data| data.len() as u64);
        if let Some(room) = &mut self.room {
            match room.checked_sub(count) {
                Some(left) => *room = left,
                None => return Err(self.refuse(UploadError::TooLarge)),
            }
        }
        if self.owed == Owed::UntilBegun && count > 0 {
            self.owed = Owed::UntilAnswered;
            self.fate.answered();
        }
        Ok(frame)
    }

    /// Waits for what is owed, from when it was first waited for. The timer is set again only when it
    /// rings: what comes in time costs none.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let until = since + self.patience;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        loop {
            ready!(timer.as_mut().poll(context));
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.since = None;
            return Poll::Ready(frame.map(|frame| match frame {
                Ok(frame) => this.take(frame),
                Err(_) => Err(this.refuse(UploadError::Client)),
            }));
        }
        if !this.is_owed() {
            return Poll::Pending;
        }
        ready!(this.poll_late(context));
        Poll::Ready(Some(Err(this.refuse(UploadError::Late))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
