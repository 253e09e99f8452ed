//! One request on its way to a sandbox, and its answer on its way back, at once.

use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use thiserror::Error;

use super::{Ask, Lane, poll_flush, poll_read, poll_write};
use crate::{
    codec::{self, Chunks, Length, Piece},
    headers,
    link::OverTcp,
    metrics::Waited,
    upstream::Upstream,
    worker::Worker,
};

/// Why there is no answer, or not all of it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum TurnError {
    #[error("nothing was sent")]
    NotSent,
    /// Some of the request may have been read. The client has seen nothing.
    #[error("the connection ended")]
    Lost,
    /// The client has seen nothing.
    #[error("what the sandbox says is no answer")]
    Nonsense,
    /// The client has seen some of the answer.
    #[error("the sandbox ended in the middle of its answer")]
    CutShort,
    /// The client has seen nothing.
    #[error("the client owes some of its body, and sends none of it")]
    Late,
    /// The same, and the client has seen some of the answer.
    #[error("the client still owes some of its body")]
    LateAfterAll,
    #[error("the client has left")]
    Client,
}

/// How far an answer was read.
#[derive(Debug)]
enum Reading {
    Head,
    Exact(u64),
    Chunked(Chunks),
    UntilEnd,
    Over,
}

#[derive(Debug)]
pub(super) struct Turn<'a, S: OverTcp> {
    lane: &'a mut Lane<S>,
    ask: &'a Ask,
    upstream: Upstream,
    started: Duration,
    /// How much of the client's body is to be read.
    left: u64,
    /// How much of the head was written.
    sent: usize,
    /// What the sandbox did not take yet, or the client.
    to_sandbox: Vec<u8>,
    to_client: Vec<u8>,
    /// The sandbox does not read any more. It may have answered.
    is_broken: bool,
    /// What was read of a head that is not whole.
    early: Vec<u8>,
    reading: Reading,
    can_stay: bool,
    is_last: bool,
}

impl<'a, S: OverTcp> Turn<'a, S> {
    pub(super) const fn new(
        lane: &'a mut Lane<S>,
        ask: &'a Ask,
        upstream: Upstream,
        started: Duration,
    ) -> Self {
        Self {
            lane,
            ask,
            upstream,
            started,
            left: ask.left,
            sent: 0,
            to_sandbox: Vec::new(),
            to_client: Vec::new(),
            is_broken: false,
            early: Vec::new(),
            reading: Reading::Head,
            can_stay: false,
            is_last: false,
        }
    }

    /// Moves what can be moved. Answers, at the end, whether the client was told that it is the
    /// last answer.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, TurnError>> {
        self.send(context)?;
        if let Poll::Ready(ended) = self.poll_answer(context) {
            return Poll::Ready(ended.map(|()| self.is_last));
        }
        if self.left == 0 && self.lane.is_client_gone(context) {
            return Poll::Ready(Err(TurnError::Client));
        }
        Poll::Pending
    }

    /// The same until an answer has begun; then there is nothing yet, or all of it.
    pub(super) fn poll_begun(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<bool, TurnError>>> {
        match self.poll(context) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if matches!(self.reading, Reading::Head) => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        }
    }

    /// How much of the client's body was not read, and the connection, if it can be used again.
    pub(super) fn into_rested(self) -> (u64, Option<Upstream>) {
        let is_sent = self.sent == self.lane.head.len()
            && self.to_sandbox.is_empty()
            && self.left == 0
            && matches!(self.reading, Reading::Over)
            && !self.is_broken;
        let rested = (is_sent && self.can_stay).then_some(self.upstream);
        (self.left, rested)
    }

    fn send(&mut self, context: &mut Context<'_>) -> Result<(), TurnError> {
        while self.sent < self.lane.head.len() && !self.is_broken {
            let rest = &self.lane.head[self.sent..];
            match self.upstream.poll_write(context, [rest]) {
                Poll::Ready(Ok(count @ 1..)) => self.sent += count,
                Poll::Ready(_) if self.sent == 0 => return Err(TurnError::NotSent),
                Poll::Ready(_) => self.is_broken = true,
                Poll::Pending => return Ok(()),
            }
        }
        let worker = self.lane.worker.clone();
        while !self.is_broken && (self.left > 0 || !self.to_sandbox.is_empty()) {
            if !self.to_sandbox.is_empty() {
                match self.upstream.poll_write(context, [&self.to_sandbox[..]]) {
                    Poll::Ready(Ok(count @ 1..)) => drop(self.to_sandbox.drain(..count)),
                    Poll::Ready(_) => self.is_broken = true,
                    Poll::Pending => {
                        self.lane.link.owes(false);
                        return Ok(());
                    }
                }
                continue;
            }
            let mut scratch = worker.scratch();
            let most = usize::try_from(self.left).unwrap_or(usize::MAX);
            let room = most.min(scratch.len());
            let count = match poll_read(&mut self.lane.client, context, &mut scratch[..room]) {
                Poll::Ready(Ok(count @ 1..)) => count,
                Poll::Ready(Ok(0) | Err(_)) => return Err(TurnError::Client),
                Poll::Pending => return self.owed(&worker),
            };
            self.lane.link.owes(false);
            self.left -= count as u64;
            let taken = match self.upstream.poll_write(context, [&scratch[..count]]) {
                Poll::Ready(Ok(taken @ 1..)) => taken,
                Poll::Ready(_) => {
                    self.is_broken = true;
                    count
                }
                Poll::Pending => 0,
            };
            self.to_sandbox.extend_from_slice(&scratch[taken..count]);
        }
        self.lane.link.owes(false);
        Ok(())
    }

    /// The client owes some of its body.
    fn owed(&self, worker: &Worker) -> Result<(), TurnError> {
        let link = &self.lane.link;
        link.owes(true);
        if !link.is_body_late(&worker.shared.options.limits) {
            return Ok(());
        }
        Err(match self.reading {
            Reading::Head => TurnError::Late,
            Reading::Exact(_) | Reading::Chunked(_) | Reading::UntilEnd | Reading::Over => {
                TurnError::LateAfterAll
            }
        })
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TurnError>> {
        let worker = self.lane.worker.clone();
        loop {
            while !self.to_client.is_empty() {
                match ready!(poll_write(&mut self.lane.client, context, &self.to_client)) {
                    Ok(count @ 1..) => drop(self.to_client.drain(..count)),
                    Ok(0) | Err(_) => return Poll::Ready(Err(TurnError::Client)),
                }
            }
            if matches!(self.reading, Reading::Over) {
                let flushed = ready!(poll_flush(&mut self.lane.client, context));
                return Poll::Ready(flushed.map_err(|_| TurnError::Client));
            }
            let mut scratch = worker.scratch();
            let read = match self.upstream.poll_read(context, &mut scratch) {
                Poll::Ready(read) => read,
                Poll::Pending => {
                    // Who waits for an event must have the last one.
                    return match poll_flush(&mut self.lane.client, context) {
                        Poll::Ready(Err(_)) => Poll::Ready(Err(TurnError::Client)),
                        Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
                    };
                }
            };
            match (read, &self.reading) {
                (Ok(count @ 1..), _) => self.take(context, &worker, &scratch[..count])?,
                (Ok(0), Reading::UntilEnd) => self.reading = Reading::Over,
                (_, Reading::Head) => return Poll::Ready(Err(TurnError::Lost)),
                (_, _) => return Poll::Ready(Err(TurnError::CutShort)),
            }
        }
    }

    /// Takes what the sandbox said, and gives the client what follows from it.
    fn take(
        &mut self,
        context: &mut Context<'_>,
        worker: &Worker,
        bytes: &[u8],
    ) -> Result<(), TurnError> {
        match &mut self.reading {
            // The middle of a large body goes through untouched.
            Reading::Exact(left) if *left >= bytes.len() as u64 => {
                *left -= bytes.len() as u64;
                if *left == 0 {
                    self.reading = Reading::Over;
                }
                return self.give(context, bytes);
            }
            Reading::UntilEnd => return self.give(context, bytes),
            Reading::Head | Reading::Exact(_) | Reading::Chunked(_) | Reading::Over => {}
        }
        let mut out = worker.out();
        out.clear();
        if matches!(self.reading, Reading::Head) {
            if self.early.is_empty() {
                let used = self.read_head(worker, bytes, &mut out)?;
                match used {
                    Some(used) => self.read_body(&bytes[used..], &mut out)?,
                    None => self.early.extend_from_slice(bytes),
                }
            } else {
                let mut early = std::mem::take(&mut self.early);
                let looked = early.len();
                early.extend_from_slice(bytes);
                let is_worth_it = codec::may_end(&early, looked)
                    || early.len() > worker.shared.options.limits.head_bytes;
                let used = match is_worth_it {
                    true => self.read_head(worker, &early, &mut out)?,
                    false => None,
                };
                match used {
                    Some(used) => self.read_body(&early[used..], &mut out)?,
                    None => self.early = early,
                }
            }
        } else {
            self.read_body(bytes, &mut out)?;
        }
        self.give(context, &out)
    }

    /// Reads a head, if it is all there, and writes the one for the client.
    fn read_head(
        &mut self,
        worker: &Worker,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, TurnError> {
        let mut start = 0;
        loop {
            let mut room = codec::room();
            let read = codec::Response::read(&bytes[start..], &mut room, self.ask.to_head);
            let head = match read.map_err(|_| TurnError::Nonsense)? {
                Some(head) => head,
                None if bytes.len() - start > worker.shared.options.limits.head_bytes => {
                    return Err(TurnError::Nonsense);
                }
                None if start > 0 => {
                    self.early.extend_from_slice(&bytes[start..]);
                    return Ok(Some(bytes.len()));
                }
                None => return Ok(None),
            };
            start += head.end;
            match head.status {
                // Nobody asked for it.
                101 => return Err(TurnError::Nonsense),
                // What is said before the answer is between neighbours.
                100..200 => continue,
                _ => {}
            }
            let took = worker.monotonic().saturating_sub(self.started);
            worker.counters.waited(Waited::FirstByte, took);
            self.can_stay = head.can_stay;
            // Who answers early may never read the rest, and then nothing can follow it.
            self.is_last = self.ask.is_last
                || self.left > 0
                || head.length == Length::UntilEnd
                || self.lane.is_leaving();
            let id = self.ask.found.request_id.as_ref().map(|id| id.as_bytes());
            headers::write_answer(out, &head, id, self.is_last);
            self.reading = match head.length {
                Length::None => Reading::Over,
                Length::Exact(length) => Reading::Exact(length),
                Length::Chunked => Reading::Chunked(Chunks::default()),
                Length::UntilEnd => Reading::UntilEnd,
            };
            return Ok(Some(start));
        }
    }

    fn read_body(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), TurnError> {
        match &mut self.reading {
            Reading::Head => return Ok(()),
            Reading::UntilEnd => {
                out.extend_from_slice(bytes);
                return Ok(());
            }
            Reading::Exact(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX);
                let (body, rest) = bytes.split_at(count.min(bytes.len()));
                out.extend_from_slice(body);
                *left -= body.len() as u64;
                bytes = rest;
                if *left == 0 {
                    self.reading = Reading::Over;
                }
            }
            Reading::Chunked(chunks) => loop {
                let piece = chunks.next(&mut bytes);
                match piece.map_err(|_| TurnError::CutShort)? {
                    Some(Piece::Data(data)) => headers::write_chunk(out, data),
                    Some(Piece::End) => {
                        chunks.write_end(out);
                        self.reading = Reading::Over;
                        break;
                    }
                    None => return Ok(()),
                }
            },
            Reading::Over => {}
        }
        // Whoever says more than its answer is not asked again.
        self.can_stay &= bytes.is_empty();
        Ok(())
    }

    /// Writes to the client, and keeps what it does not take now.
    fn give(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Result<(), TurnError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let taken = match poll_write(&mut self.lane.client, context, bytes) {
            Poll::Ready(Ok(taken @ 1..)) => taken,
            Poll::Ready(Ok(0) | Err(_)) => return Err(TurnError::Client),
            Poll::Pending => 0,
        };
        self.to_client.extend_from_slice(&bytes[taken..]);
        Ok(())
    }
}
