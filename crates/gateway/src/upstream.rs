//! A connection to a sandbox's port.
//!
//! It has no task of its own: whoever waits for its answer drives it, in the same task that serves
//! the client. So an answer crosses no queue between tasks, and when the client leaves, the
//! connection goes with the future that held it.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::http1::{Builder, Connection, Parts, SendRequest},
};
use hyper_util::rt::TokioIo;
use rustix::net::{RecvFlags, recv};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::options::Limits;

/// What is sent to a sandbox: a client's body as it comes, or none.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Client(Incoming),
    Empty,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Client(body) => Pin::new(body).poll_frame(context),
            Self::Empty => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Client(body) => body.is_end_stream(),
            Self::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Client(body) => body.size_hint(),
            Self::Empty => SizeHint::with_exact(0),
        }
    }
}

/// A socket that can be asked, past what the reactor has heard, whether its peer is still there.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    probe: Rc<std::cell::Cell<bool>>,
}

impl Socket {
    /// Whether the peer has closed, or speaks out of turn. Asks the kernel.
    fn is_spent(&self) -> bool {
        let mut byte = [0];
        let seen = recv(
            &self.stream,
            &mut byte,
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
        !matches!(seen, Err(rustix::io::Errno::AGAIN))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.probe.get() {
            // Nothing read is the end, and ends the connection.
            return if self.is_spent() {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            };
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connection and the way to ask on it.
#[derive(Debug)]
pub(crate) struct Upstream {
    sender: SendRequest<RequestBody>,
    /// Boxed once, so that what moves with every request is small.
    connection: Box<Connection<TokioIo<Socket>, RequestBody>>,
    probe: Rc<std::cell::Cell<bool>>,
    /// The connection has ended, and must not be driven any more.
    is_over: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The connection had ended before anything was sent: the request is as it was.
    NotSent(Box<Request<RequestBody>>),
    /// Some of it may have been read.
    Lost(hyper::Error),
}

impl Upstream {
    /// Speaks HTTP on a new connection.
    pub(crate) async fn start(stream: TcpStream, limits: &Limits) -> Result<Self, hyper::Error> {
        let probe = Rc::new(std::cell::Cell::new(false));
        let socket = Socket {
            stream,
            probe: probe.clone(),
        };
        let (sender, connection) = Builder::new()
            .max_buf_size(limits.buffer_bytes)
            .max_header_size(limits.head_bytes)
            .handshake(TokioIo::new(socket))
            .await?;
        Ok(Self {
            sender,
            connection: Box::new(connection),
            probe,
            is_over: false,
        })
    }

    /// Lets the connection do what it can now.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) {
        if !self.is_over && Pin::new(&mut *self.connection).poll(context).is_ready() {
            // Its end, good or bad, is heard from the answer or its body.
            self.is_over = true;
        }
    }

    /// Whether another request can be sent on it. Asks the kernel whether the peer is still there.
    pub(crate) fn is_fresh(&mut self) -> bool {
        self.probe.set(true);
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.probe.set(false);
        !self.is_over && self.sender.is_ready()
    }

    /// Whether it has done its work and can be kept. From here on `waker` hears of its end.
    pub(crate) fn rests(&mut self, waker: &Waker) -> bool {
        self.drive(&mut Context::from_waker(waker));
        !self.is_over && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        let answer = self.sender.try_send_request(request);
        let mut answer = std::pin::pin!(answer);
        // The answer only ever comes from driving the connection, so only that needs the waker.
        let mut quiet = Context::from_waker(Waker::noop());
        poll_fn(|context| {
            if !self.is_over && Pin::new(&mut *self.connection).poll(context).is_ready() {
                self.is_over = true;
            }
            answer.as_mut().poll(&mut quiet)
        })
        .await
        .map_err(|mut error| match error.take_message() {
            Some(request) => ExchangeError::NotSent(Box::new(request)),
            None => ExchangeError::Lost(error.into_error()),
        })
    }

    /// After a 101: the bare connection, and what was read beyond the head.
    pub(crate) async fn into_bare(mut self) -> Parts<TokioIo<Socket>> {
        poll_fn(|context| {
            self.drive(context);
            if self.is_over {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        self.connection.into_parts()
    }
}
