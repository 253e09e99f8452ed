//! Starting a process, and hearing what becomes of it.

use std::{io, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderValue, Method, Request, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use wire::{
    connect::{self, Deframer, Message},
    envd::{BOOT_HEADER, KEEPALIVE_HEADER, TIMEOUT_HEADER},
    process::{
        self, EndEvent, EventResponse, ProcessEvent, ProcessInput, ProcessRequest, ProcessSelector,
        StartRequest, StreamInputData, StreamInputRequest, StreamInputStart,
    },
};

use crate::{
    calls::{CODEC, plain},
    connection::{Body, Client, Lease, MAX_ANSWER},
    error::{Error, Result},
};

/// The process of this number.
#[must_use]
pub fn by_pid(pid: u32) -> ProcessSelector {
    ProcessSelector {
        pid: Some(pid),
        tag: None,
    }
}

/// The process that was started with this tag.
#[must_use]
pub fn by_tag(tag: &str) -> ProcessSelector {
    ProcessSelector {
        pid: None,
        tag: Some(tag.to_owned()),
    }
}

/// What a process is told beside what to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartOptions {
    /// The agent kills the process when this has passed, and the events end with
    /// `DeadlineExceeded`.
    pub timeout: Option<Duration>,
    /// How long the agent may be silent before it sends a sign of life; at least a second.
    pub keepalive: Option<Duration>,
    /// Whether this is the sandbox's start command: an agent starts one in its life, and keeps what
    /// it says.
    pub boot: bool,
}

/// What happens to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It wrote to its standard output.
    Stdout(Bytes),
    /// It wrote to its standard error.
    Stderr(Bytes),
    /// It wrote to its terminal.
    Pty(Bytes),
    /// It has ended, and all of its output was heard. Nothing comes after this.
    End(EndEvent),
}

/// A process that runs, and what becomes of it. Who drops this stops listening; the process goes
/// on.
pub struct Process {
    pid: u32,
    messages: Messages,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Process")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

impl Process {
    /// Its number inside the sandbox.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// What happens next; none after the end.
    ///
    /// # Errors
    /// [`Error::Refused`] if the agent ended the events, with its reason;
    /// [`Error::EndedEarly`] if it did not get to say one: then the sandbox is likely gone.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        while let Some(event) = self.messages.next_event().await? {
            let event = match event {
                ProcessEvent { end: Some(end), .. } => Event::End(end),
                ProcessEvent {
                    data: Some(data), ..
                } => match (data.stdout, data.stderr, data.pty) {
                    (Some(bytes), ..) => Event::Stdout(bytes),
                    (_, Some(bytes), _) => Event::Stderr(bytes),
                    (_, _, Some(bytes)) => Event::Pty(bytes),
                    (None, None, None) => continue,
                },
                // Signs of life, and whatever a newer agent may add.
                _ => continue,
            };
            return Ok(Some(event));
        }
        Ok(None)
    }

    /// Waits for the end, and gives what comes before it to `output`.
    ///
    /// # Errors
    /// See [`Process::next`]; an error of `output` ends the listening.
    pub async fn wait<E: From<Error>>(
        mut self,
        mut output: impl FnMut(Event) -> Result<(), E>,
    ) -> Result<EndEvent, E> {
        while let Some(event) = self.next().await? {
            match event {
                Event::End(end) => {
                    // To the end of the stream, so that the connection can be used again; how the
                    // process ended is known whatever becomes of that.
                    self.next().await.ok();
                    return Ok(end);
                }
                Event::Stdout(_) | Event::Stderr(_) | Event::Pty(_) => output(event)?,
            }
        }
        Err(Error::Protocol("the events ended without the process's end".to_owned()).into())
    }
}

impl Client {
    /// Starts a process. It runs when this returns.
    ///
    /// # Errors
    /// `InvalidArgument` if it cannot be started as asked, `Unauthenticated` if there is no such
    /// user, `ResourceExhausted` if the sandbox is full, `AlreadyExists` for a second start command.
    pub async fn start(&self, request: &StartRequest, options: StartOptions) -> Result<Process> {
        let mut call = self.stream("Start", one(request))?;
        let headers = call.headers_mut();
        if let Some(timeout) = options.timeout {
            let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            // Ten digits are all there is room for: some months.
            headers.insert(TIMEOUT_HEADER, millis.min(9_999_999_999).into());
        }
        if let Some(keepalive) = options.keepalive {
            headers.insert(KEEPALIVE_HEADER, keepalive.as_secs().max(1).into());
        }
        if options.boot {
            headers.insert(BOOT_HEADER, HeaderValue::from_static("1"));
        }
        self.follow(call).await
    }

    /// Listens to a process that was started before, from now on. Of one that has just ended, its
    /// end is heard.
    ///
    /// # Errors
    /// `NotFound` if there is no such process.
    pub async fn connect(&self, process: ProcessSelector) -> Result<Process> {
        let request = ProcessRequest {
            process: Some(process),
        };
        let call = self.stream("Connect", one(&request))?;
        self.follow(call).await
    }

    /// Sends input to a process, piece after piece, as fast as the process takes it.
    ///
    /// # Errors
    /// As [`Client::send_input`].
    pub async fn stream_input(
        &self,
        process: ProcessSelector,
        pieces: impl Stream<Item = ProcessInput> + Send + 'static,
    ) -> Result<()> {
        let start = StreamInputRequest {
            start: Some(StreamInputStart {
                process: Some(process),
            }),
            ..StreamInputRequest::default()
        };
        let pieces = pieces.map(|input| StreamInputRequest {
            data: Some(StreamInputData { input: Some(input) }),
            ..StreamInputRequest::default()
        });
        let messages = futures_util::stream::iter([start]).chain(pieces);
        let body = messages.map(|message| Ok(Frame::data(CODEC.envelope(&message))));
        let call = self.stream("StreamInput", StreamBody::new(body).boxed_unsync())?;
        let answer = self.send(call).await?.successful().await?;
        let mut messages = Messages::new(answer.response.into_body(), answer.lease);
        while messages.next_envelope().await?.is_some() {}
        Ok(())
    }

    fn stream(&self, method: &str, body: Body) -> Result<Request<Body>> {
        let mut request = plain(
            Method::POST,
            &format!("/{}/{method}", process::SERVICE),
            Bytes::new(),
        )?;
        *request.body_mut() = body;
        let headers = request.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(CODEC.stream_type()),
        );
        headers.insert("connect-protocol-version", HeaderValue::from_static("1"));
        if let Some(user) = self.authorization() {
            headers.insert(header::AUTHORIZATION, user);
        }
        Ok(request)
    }

    async fn follow(&self, call: Request<Body>) -> Result<Process> {
        let answer = self.send(call).await?.successful().await?;
        let mut messages = Messages::new(answer.response.into_body(), answer.lease);
        let first = messages.next_event().await?.and_then(|event| event.start);
        let start = first.ok_or_else(|| {
            Error::Protocol("the events of a process do not begin with its start".to_owned())
        })?;
        Ok(Process {
            pid: start.pid,
            messages,
        })
    }
}

fn one(message: &impl Message) -> Body {
    crate::connection::full(CODEC.envelope(message))
}

/// The messages of a stream, up to the one that ends it.
struct Messages {
    body: Incoming,
    envelopes: Deframer,
    lease: Option<Lease>,
}

impl Messages {
    fn new(body: Incoming, lease: Lease) -> Self {
        Self {
            body,
            envelopes: Deframer::new(MAX_ANSWER),
            lease: Some(lease),
        }
    }

    async fn next_event(&mut self) -> Result<Option<ProcessEvent>> {
        let Some(payload) = self.next_envelope().await? else {
            return Ok(None);
        };
        let message: EventResponse = CODEC
            .decode_bytes(payload)
            .map_err(|why| Error::Protocol(why.message))?;
        Ok(Some(message.event.unwrap_or_default()))
    }

    async fn next_envelope(&mut self) -> Result<Option<Bytes>> {
        if self.lease.is_none() {
            return Ok(None);
        }
        loop {
            let next = self.envelopes.next_envelope();
            if let Some(envelope) = next.map_err(|why| Error::Protocol(why.message))? {
                if envelope.flags & connect::FLAG_COMPRESSED != 0 {
                    return Err(Error::Protocol("it compresses unasked".to_owned()));
                }
                if envelope.flags & connect::FLAG_END == 0 {
                    return Ok(Some(envelope.payload));
                }
                return self.end(&envelope.payload).await.map(|()| None);
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.envelopes.push(data);
                    }
                }
                None => {
                    let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Err(Error::EndedEarly(Some(cut)));
                }
            }
        }
    }

    async fn end(&mut self, payload: &[u8]) -> Result<()> {
        let lease = self.lease.take();
        // The end of the body itself, so that the connection can be used again.
        if self.body.frame().await.is_none()
            && let Some(lease) = lease
        {
            lease.give_back();
        }
        Ok(connect::read_end_of_stream(payload)?)
    }
}
