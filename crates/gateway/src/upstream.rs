//! A connection to a sandbox's port.
//!
//! It has no task of its own: whoever waits for its answer drives it, in the same task that serves
//! the client. So an answer crosses no queue between tasks, and when the client leaves, the
//! connection goes with the future that held it.

use std::{
    cell::Cell,
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
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

use crate::{ear::Ear, options::Limits};

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
    probe: Rc<Cell<bool>>,
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
    probe: Rc<Cell<bool>>,
    ear: Arc<Ear>,
    /// Wakes the ear.
    waker: Waker,
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
        let probe = Rc::new(Cell::new(false));
        let socket = Socket {
            stream,
            probe: probe.clone(),
        };
        let (sender, connection) = Builder::new()
            .max_buf_size(limits.buffer_bytes)
            .max_header_size(limits.head_bytes)
            .writev(false)
            .handshake(TokioIo::new(socket))
            .await?;
        let ear = Arc::<Ear>::default();
        Ok(Self {
            sender,
            connection: Box::new(connection),
            probe,
            waker: Waker::from(ear.clone()),
            ear,
            is_over: false,
        })
    }

    fn poll(&mut self) {
        let mut context = Context::from_waker(&self.waker);
        if !self.is_over
            && Pin::new(&mut *self.connection)
                .poll(&mut context)
                .is_ready()
        {
            // Its end, good or bad, is heard from the answer or its body.
            self.is_over = true;
        }
    }

    /// Lets the connection do what it can now, for the task that drives it.
    pub(crate) fn drive(&mut self, context: &Context<'_>) {
        self.ear.listen_for(context.waker());
        self.poll();
    }

    /// The next frame of a body that comes from here, if it is there already. Whoever takes it
    /// comes again, so that nobody need be woken for the room this makes.
    pub(crate) fn pull(
        &self,
        body: &mut Incoming,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.ear.deaf(|| pull(body))
    }

    /// Whether another request can be sent on it. With `surely`, the kernel is asked whether the
    /// peer is still there; else it is enough that nothing was heard since it came to rest.
    pub(crate) fn is_fresh(&mut self, surely: bool) -> bool {
        if surely || self.ear.has_heard() {
            self.probe.set(surely);
            self.poll();
            self.probe.set(false);
        }
        !self.is_over && self.sender.is_ready()
    }

    /// Whether it has done its work and can be kept. From here on `waker` hears of its end.
    pub(crate) fn rests(&mut self, waker: &Waker) -> bool {
        self.ear.listen_for(waker);
        self.poll();
        !self.is_over && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        let ear = self.ear.clone();
        // This turn drives the connection anyway.
        let answer = ear.deaf(|| self.sender.try_send_request(request));
        let mut answer = std::pin::pin!(answer);
        // The answer only ever comes from driving the connection, so only that needs a waker.
        let mut quiet = Context::from_waker(Waker::noop());
        poll_fn(|context| {
            self.drive(context);
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

/// The next frame of a body, if it is there already.
pub(crate) fn pull(body: &mut Incoming) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}
