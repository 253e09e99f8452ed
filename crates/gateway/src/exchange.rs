//! One request and its answer, for clients whose side a library speaks: bodies come and go as
//! frames.

use std::{
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use hyper::body::{Body as _, Frame};
use thiserror::Error;
use tokio::net::TcpStream;

use crate::{
    codec::{self, Chunks, HeadError, Length, Piece, room},
    headers,
    upload::{Upload, UploadError},
    upstream::Upstream,
    worker::Worker,
};

/// The body of a request.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Client(Upload),
    Empty,
}

impl RequestBody {
    /// How it is told on the way to the sandbox.
    pub(crate) fn length(&self, was_told: bool) -> Length {
        match self {
            Self::Client(body) if !body.is_end_stream() => body
                .size_hint()
                .exact()
                .map_or(Length::Chunked, Length::Exact),
            _ if was_told => Length::Exact(0),
            _ => Length::None,
        }
    }
}

/// Why there is no answer, or no more of it.
#[derive(Debug, Error)]
pub(crate) enum ExchangeError {
    #[error("the connection had ended before anything was sent")]
    NotSent,
    #[error("the connection ended")]
    Lost(#[source] io::Error),
    #[error("the sandbox's answer cannot be read")]
    Head(#[from] HeadError),
    #[error("the sandbox's answer is not framed as it says")]
    Framing,
    #[error("no more of the client's body is taken")]
    Upload(#[from] UploadError),
}

/// What is left to send.
#[derive(Debug)]
enum Sending {
    /// The body, in one piece of a length that was told, or in chunks.
    Body {
        body: Upload,
        left: Option<u64>,
    },
    /// Nothing but what is written already.
    Rest,
    Done,
    /// The sandbox does not read any more. It may have answered.
    Broken,
}

/// What is left to read.
#[derive(Debug)]
enum Reading {
    Exact(u64),
    Chunked(Chunks),
    UntilEnd,
    Over,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    upstream: Upstream,
    worker: Rc<Worker>,
    /// What waits to be written: head and framing, then data, then the end of a chunk.
    out: BytesMut,
    data: Bytes,
    tail: &'static [u8],
    sending: Sending,
    was_written: bool,
    /// What was read and not used.
    early: BytesMut,
    /// How much of that was found to be a part of a head.
    looked: usize,
    reading: Reading,
    to_head: bool,
    can_stay: bool,
}

impl Exchange {
    /// Prepares to send a request whose head was written for the sandbox.
    pub(crate) fn new(
        worker: Rc<Worker>,
        upstream: Upstream,
        head: &[u8],
        body: RequestBody,
        length: Length,
        to_head: bool,
    ) -> Self {
        let left = match length {
            Length::Exact(length) => Some(length),
            Length::None | Length::Chunked | Length::UntilEnd => None,
        };
        let sending = match body {
            RequestBody::Client(body) if !body.is_end_stream() => Sending::Body { body, left },
            RequestBody::Client(_) | RequestBody::Empty => Sending::Rest,
        };
        Self {
            upstream,
            worker,
            out: BytesMut::from(head),
            data: Bytes::new(),
            tail: b"",
            sending,
            was_written: false,
            early: BytesMut::new(),
            looked: 0,
            reading: Reading::Over,
            to_head,
            can_stay: false,
        }
    }

    /// Sends as much as can be sent now.
    fn send(&mut self, context: &mut Context<'_>) -> Result<(), ExchangeError> {
        loop {
            while !(self.out.is_empty() && self.data.is_empty() && self.tail.is_empty()) {
                let parts = [&self.out[..], &self.data, self.tail];
                match self.upstream.poll_write(context, parts) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Ok(count @ 1..)) => self.wrote(count),
                    Poll::Ready(_) if !self.was_written => return Err(ExchangeError::NotSent),
                    Poll::Ready(_) => {
                        self.sending = Sending::Broken;
                        self.out.clear();
                        self.data.clear();
                        self.tail = b"";
                    }
                }
            }
            match &mut self.sending {
                Sending::Body { body, .. } => {
                    let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
                        return Ok(());
                    };
                    let frame = frame.transpose()?;
                    self.frame(frame)?;
                }
                Sending::Rest => self.sending = Sending::Done,
                Sending::Done | Sending::Broken => return Ok(()),
            }
        }
    }

    fn wrote(&mut self, count: usize) {
        self.was_written = true;
        let of_out = count.min(self.out.len());
        self.out.advance(of_out);
        let of_data = (count - of_out).min(self.data.len());
        self.data.advance(of_data);
        self.tail = &self.tail[count - of_out - of_data..];
    }

    /// Takes a frame of the client's body; none is its end.
    fn frame(&mut self, frame: Option<Frame<Bytes>>) -> Result<(), ExchangeError> {
        let Sending::Body { left, .. } = &mut self.sending else {
            return Ok(());
        };
        let trailers = match frame.map(Frame::into_data) {
            Some(Ok(data)) if data.is_empty() => return Ok(()),
            Some(Ok(data)) => {
                let count = data.len() as u64;
                match left {
                    Some(left) => *left = left.checked_sub(count).ok_or(UploadError::Client)?,
                    None => {
                        self.out
                            .extend_from_slice(format!("{count:x}\r\n").as_bytes());
                        self.tail = b"\r\n";
                    }
                }
                self.data = data;
                return Ok(());
            }
            Some(Err(frame)) => frame.into_trailers().unwrap_or_default(),
            None => HeaderMap::new(),
        };
        match left {
            Some(0) => {}
            Some(_) => return Err(UploadError::Client.into()),
            None => headers::write_end(&mut self.out, &trailers),
        }
        self.sending = Sending::Rest;
        Ok(())
    }

    /// Waits for the head of the answer.
    pub(crate) fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        request_id: Option<&[u8]>,
    ) -> Poll<Result<Response<()>, ExchangeError>> {
        self.send(context)?;
        loop {
            let is_worth_it = match self.looked {
                0 => !self.early.is_empty(),
                looked => codec::may_end(&self.early, looked),
            };
            if is_worth_it && let Some(response) = self.read_head(request_id)? {
                if let Sending::Body { body, .. } = &self.sending {
                    body.fate().answered();
                }
                return Poll::Ready(Ok(response));
            }
            self.looked = self.early.len();
            if self.looked > self.worker.shared.options.limits.head_bytes {
                return Poll::Ready(Err(HeadError::Syntax.into()));
            }
            let worker = self.worker.clone();
            let mut scratch = worker.scratch();
            match ready!(self.upstream.poll_read(context, &mut scratch)) {
                Ok(0) => {
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(ExchangeError::Lost(error)));
                }
                Ok(count) => self.early.extend_from_slice(&scratch[..count]),
                Err(error) => return Poll::Ready(Err(ExchangeError::Lost(error))),
            }
        }
    }

    fn read_head(
        &mut self,
        request_id: Option<&[u8]>,
    ) -> Result<Option<Response<()>>, ExchangeError> {
        loop {
            let mut room = room();
            let Some(head) = codec::Response::read(&self.early, &mut room, self.to_head)? else {
                return Ok(None);
            };
            let is_upgrade = head.status == 101;
            let end = head.end;
            if head.status < 200 && !is_upgrade {
                // What is said before the answer is between neighbours.
                self.early.advance(end);
                continue;
            }
            let mut response = Response::new(());
            *response.status_mut() =
                StatusCode::from_u16(head.status).map_err(|_| HeadError::Syntax)?;
            *response.headers_mut() = headers::answer_map(&head, request_id, is_upgrade);
            self.can_stay = head.can_stay;
            self.reading = match head.length {
                Length::None => Reading::Over,
                Length::Exact(length) => Reading::Exact(length),
                Length::Chunked => Reading::Chunked(Chunks::default()),
                Length::UntilEnd => Reading::UntilEnd,
            };
            self.early.advance(end);
            return Ok(Some(response));
        }
    }

    /// The next frame of the answer's body.
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        if let Err(error) = self.send(context) {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            if let Some(frame) = self.next_frame().transpose() {
                return Poll::Ready(Some(frame));
            }
            if matches!(self.reading, Reading::Over) {
                return Poll::Ready(None);
            }
            let worker = self.worker.clone();
            let mut scratch = worker.scratch();
            match ready!(self.upstream.poll_read(context, &mut scratch)) {
                Ok(0) if matches!(self.reading, Reading::UntilEnd) => self.reading = Reading::Over,
                Ok(0) => {
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Some(Err(ExchangeError::Lost(error))));
                }
                Ok(count) => self.early.extend_from_slice(&scratch[..count]),
                Err(error) => return Poll::Ready(Some(Err(ExchangeError::Lost(error)))),
            }
        }
    }

    /// A frame of what was read already.
    fn next_frame(&mut self) -> Result<Option<Frame<Bytes>>, ExchangeError> {
        if self.early.is_empty() {
            return Ok(None);
        }
        match &mut self.reading {
            Reading::Over => Ok(None),
            Reading::UntilEnd => Ok(Some(Frame::data(self.early.split().freeze()))),
            Reading::Exact(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX);
                let data = self.early.split_to(count.min(self.early.len())).freeze();
                *left -= data.len() as u64;
                if *left == 0 {
                    self.reading = Reading::Over;
                }
                Ok(Some(Frame::data(data)))
            }
            Reading::Chunked(chunks) => {
                let mut bytes = &self.early[..];
                let piece = chunks
                    .next(&mut bytes)
                    .map_err(|_| ExchangeError::Framing)?;
                let used = self.early.len() - bytes.len();
                match piece {
                    None => {
                        self.early.advance(used);
                        Ok(None)
                    }
                    Some(Piece::Data(data)) => {
                        let count = data.len();
                        let mut taken = self.early.split_to(used);
                        taken.advance(used - count);
                        Ok(Some(Frame::data(taken.freeze())))
                    }
                    Some(Piece::End) => {
                        let trailers = chunks.trailers();
                        self.early.advance(used);
                        self.reading = Reading::Over;
                        Ok(trailers.map(Frame::trailers))
                    }
                }
            }
        }
    }

    /// The request's body, after nothing of it was sent.
    pub(crate) fn into_unsent(self) -> RequestBody {
        match self.sending {
            Sending::Body { body, .. } => RequestBody::Client(body),
            Sending::Rest | Sending::Done | Sending::Broken => RequestBody::Empty,
        }
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.reading, Reading::Over)
    }

    /// How much of the body is left, if that is known.
    pub(crate) const fn left(&self) -> Option<u64> {
        match &self.reading {
            Reading::Exact(left) => Some(*left),
            Reading::Over => Some(0),
            Reading::Chunked(_) | Reading::UntilEnd => None,
        }
    }

    /// The connection, if it can be used again.
    pub(crate) fn into_rested(self) -> Option<Upstream> {
        let is_done = matches!(self.sending, Sending::Done) && self.is_over();
        (is_done && self.can_stay && self.early.is_empty()).then_some(self.upstream)
    }

    /// After a 101: the connection, and what was read beyond the head.
    pub(crate) fn into_bare(self) -> (TcpStream, Bytes) {
        (self.upstream.into_stream(), self.early.freeze())
    }
}
