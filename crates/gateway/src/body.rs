//! What clients are sent.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use model::SandboxId;
use thiserror::Error;

use crate::{
    exchange::{Exchange, ExchangeError},
    link::Open,
    metrics::Outcome,
    pool::Key,
    upload::{Fate, UploadError},
    worker::Worker,
};

/// The body of an answer, and the mark that its request is open until this is dropped.
#[derive(Debug)]
pub(crate) struct Body {
    content: Content,
    open: Option<Open>,
}

#[derive(Debug)]
enum Content {
    Own(Option<Bytes>),
    Sandbox(Box<Relay>),
    /// A sandbox's, in HTTP/2, and what became of the body that it answers.
    Call(Incoming, Rc<Fate>),
    Fallback(axum::body::Body),
}

/// The rest of a body does not come.
#[derive(Debug, Error)]
pub(crate) enum BodyError {
    #[error("the sandbox ended in the middle of its answer")]
    Sandbox(#[source] ExchangeError),
    #[error("the sandbox ended its answer with an error")]
    Call(#[source] hyper::Error),
    #[error("the inner service ended in the middle of its answer")]
    Fallback(#[source] axum::Error),
}

impl Body {
    /// Whether a sandbox answers.
    pub(crate) fn is_of_a_sandbox(&self) -> bool {
        matches!(self.content, Content::Sandbox(_) | Content::Call(..))
    }

    pub(crate) fn own(bytes: Bytes, open: Open) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self {
            content: Content::Own(bytes),
            open: Some(open),
        }
    }

    /// None, for an answer whose request goes on otherwise.
    pub(crate) const fn none() -> Self {
        Self {
            content: Content::Own(None),
            open: None,
        }
    }

    pub(crate) fn fallback(body: axum::body::Body, open: Open) -> Self {
        Self {
            content: Content::Fallback(body),
            open: Some(open),
        }
    }

    pub(crate) fn call(body: Incoming, asked: Rc<Fate>, mut open: Open) -> Self {
        if body.is_end_stream() {
            open.ended(Outcome::Forwarded);
        }
        Self {
            content: Content::Call(body, asked),
            open: Some(open),
        }
    }

    pub(crate) fn sandbox(relay: Relay, mut open: Open) -> Self {
        if relay.is_whole() {
            open.ended(Outcome::Forwarded);
        }
        Self {
            content: Content::Sandbox(Box::new(relay)),
            open: Some(open),
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match &mut this.content {
            Content::Own(bytes) => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            Content::Sandbox(relay) => {
                let frame = relay.poll_frame(context);
                if let Some(open) = &mut this.open {
                    match &frame {
                        Poll::Ready(Some(Err(ExchangeError::Upload(why)))) => {
                            open.cut(why.outcome());
                        }
                        Poll::Ready(Some(Err(_))) => open.cut(Outcome::CutShort),
                        Poll::Ready(_) if relay.is_whole() => open.ended(Outcome::Forwarded),
                        Poll::Ready(_) | Poll::Pending => {}
                    }
                }
                frame.map_err(BodyError::Sandbox)
            }
            Content::Call(body, asked) => {
                let frame = Pin::new(body).poll_frame(context);
                if let Some(open) = &mut this.open {
                    match &frame {
                        Poll::Ready(Some(Err(_))) => {
                            let why = asked.ended().map(UploadError::outcome);
                            open.cut(why.unwrap_or(Outcome::CutShort));
                        }
                        Poll::Ready(None) => open.ended(Outcome::Forwarded),
                        Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => {
                            open.ended(Outcome::Forwarded);
                        }
                        Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
                    }
                }
                frame.map_err(BodyError::Call)
            }
            Content::Fallback(body) => Pin::new(body)
                .poll_frame(context)
                .map_err(BodyError::Fallback),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own(bytes) => bytes.is_none(),
            Content::Sandbox(relay) => relay.is_whole(),
            Content::Call(body, _) => body.is_end_stream(),
            Content::Fallback(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Sandbox(relay) => {
                let left = relay.exchange.as_ref().and_then(Exchange::left);
                left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
            Content::Call(body, _) => body.size_hint(),
            Content::Fallback(body) => body.size_hint(),
        }
    }
}

/// A sandbox's body on its way, and the connection it comes from. At its end the connection goes
/// back to the pool; before it, dropping this closes the connection.
#[derive(Debug)]
pub(crate) struct Relay {
    exchange: Option<Exchange>,
    worker: Rc<Worker>,
    key: Key,
    id: SandboxId,
}

impl Relay {
    pub(crate) const fn new(
        exchange: Exchange,
        worker: Rc<Worker>,
        key: Key,
        id: SandboxId,
    ) -> Self {
        Self {
            exchange: Some(exchange),
            worker,
            key,
            id,
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.exchange.as_ref().is_some_and(Exchange::is_over)
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Ready(None);
        };
        let frame = exchange.poll_frame(context);
        if let Poll::Ready(Some(Err(_))) = &frame {
            self.exchange = None;
        }
        frame
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(upstream) = self.exchange.take().and_then(Exchange::into_rested) {
            self.worker.keep(self.key, &self.id, upstream);
        }
    }
}
