//! The Connect protocol over HTTP: one message in, and one or many out.

use std::{
    collections::VecDeque,
    io,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body as HttpBody, Frame, Incoming};
use tokio::time::{Instant, Sleep};
use wire::{
    connect::{self, Code, Codec, Deframer, Error, Kind, Message},
    envd::{BOOT_HEADER, KEEPALIVE_HEADER, TIMEOUT_HEADER},
    process::{Empty, EventResponse, KeepAlive, ProcessEvent, StartEvent},
};

use crate::{
    fan::{Event, Listener, Source},
    filesystem, process,
    server::Agent,
};

/// What is answered.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The longest message taken.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(90);
/// The user agent of old Python SDKs, which fail on fields that they do not know.
const OLD_CLIENT: &[u8] = b"connect-python";

/// What a call says beside its message.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) username: Option<String>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) keepalive: Duration,
    pub(crate) old_client: bool,
    /// Whether it starts the sandbox's start command.
    pub(crate) boot: bool,
}

impl Call {
    fn read(headers: &HeaderMap) -> Result<Self, Error> {
        let timeout = connect::parse_timeout(headers.get(TIMEOUT_HEADER).map(|v| v.as_bytes()))?;
        let keepalive = headers
            .get(KEEPALIVE_HEADER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .filter(|seconds| *seconds > 0)
            .map_or(DEFAULT_KEEPALIVE, Duration::from_secs);
        Ok(Self {
            username: basic_user(headers)?,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            keepalive,
            old_client: headers
                .get(header::USER_AGENT)
                .is_some_and(|agent| agent.as_bytes() == OLD_CLIENT),
            boot: headers.contains_key(BOOT_HEADER),
        })
    }
}

/// The user that `Authorization: Basic` names; its password is not looked at.
fn basic_user(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Ok(None);
    };
    let bad = || {
        Error::new(
            Code::Unauthenticated,
            "Authorization is not Basic with a username",
        )
    };
    let value = value.to_str().map_err(|_| bad())?;
    let Some(encoded) = value
        .split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
        .map(|(_, encoded)| encoded.trim())
    else {
        // Another scheme is for somebody on the way, not for here.
        return Ok(None);
    };
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .map_err(|_| bad())?;
    let text = String::from_utf8(decoded).map_err(|_| bad())?;
    let user = text.split_once(':').map_or(text.as_str(), |(user, _)| user);
    Ok((!user.is_empty()).then(|| user.to_owned()))
}

/// Answers a call of one of the two services, or None if there is no such method.
pub(crate) async fn serve(
    agent: Arc<Agent>,
    service: &str,
    method: &str,
    request: Request<Incoming>,
) -> Option<Response<Body>> {
    Some(match (service, method) {
        (wire::process::SERVICE, "List") => unary(agent, request, process::list).await,
        (wire::process::SERVICE, "Start") => {
            server_stream(agent, request, process::start, &PROCESS).await
        }
        (wire::process::SERVICE, "Connect") => {
            server_stream(agent, request, process::connect, &PROCESS).await
        }
        (wire::process::SERVICE, "Update") => unary(agent, request, process::update).await,
        (wire::process::SERVICE, "SendInput") => unary(agent, request, process::send_input).await,
        (wire::process::SERVICE, "StreamInput") => {
            client_stream(agent, request, process::stream_input).await
        }
        (wire::process::SERVICE, "CloseStdin") => unary(agent, request, process::close_stdin).await,
        (wire::process::SERVICE, "SendSignal") => unary(agent, request, process::send_signal).await,
        (wire::filesystem::SERVICE, "Stat") => unary(agent, request, filesystem::stat).await,
        (wire::filesystem::SERVICE, "MakeDir") => unary(agent, request, filesystem::make_dir).await,
        (wire::filesystem::SERVICE, "Move") => unary(agent, request, filesystem::move_entry).await,
        (wire::filesystem::SERVICE, "ListDir") => unary(agent, request, filesystem::list_dir).await,
        (wire::filesystem::SERVICE, "Remove") => unary(agent, request, filesystem::remove).await,
        (wire::filesystem::SERVICE, "WatchDir") => {
            server_stream(agent, request, filesystem::watch_dir, &filesystem::WATCH).await
        }
        (wire::filesystem::SERVICE, "CreateWatcher") => {
            unary(agent, request, filesystem::create_watcher).await
        }
        (wire::filesystem::SERVICE, "GetWatcherEvents") => {
            unary(agent, request, filesystem::get_watcher_events).await
        }
        (wire::filesystem::SERVICE, "RemoveWatcher") => {
            unary(agent, request, filesystem::remove_watcher).await
        }
        _ => return None,
    })
}

/// The kind of a request by its content type.
fn kind_of<B>(request: &Request<B>) -> Option<Kind> {
    Kind::parse(request.headers().get(header::CONTENT_TYPE)?.to_str().ok()?)
}

/// Neither codec, or a stream where a call is meant: the protocol says 415 with what is taken.
fn unsupported(accept: &'static str) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
        .headers_mut()
        .insert("accept-post", header::HeaderValue::from_static(accept));
    response
}

fn check_encoding(headers: &HeaderMap, name: &str) -> Result<(), Error> {
    match headers.get(name) {
        Some(value) if !value.is_empty() && value != "identity" => Err(Error::new(
            Code::Unimplemented,
            format!("unknown compression {value:?}: supported encodings are identity"),
        )),
        _ => Ok(()),
    }
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn response(status: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content_type),
    );
    response
}

async fn within<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match deadline {
        None => work.await,
        Some(deadline) => tokio::time::timeout_at(deadline, work)
            .await
            .unwrap_or_else(|_| Err(deadline_exceeded())),
    }
}

fn deadline_exceeded() -> Error {
    Error::new(Code::DeadlineExceeded, "context deadline exceeded")
}

async fn unary<Q, A, F>(
    agent: Arc<Agent>,
    request: Request<Incoming>,
    handler: fn(Arc<Agent>, Call, Q) -> F,
) -> Response<Body>
where
    Q: Message,
    A: Message,
    F: Future<Output = Result<A, Error>>,
{
    let Some(Kind::Unary(codec)) = kind_of(&request) else {
        return unsupported("application/json, application/proto");
    };
    let work = async {
        check_encoding(request.headers(), "content-encoding")?;
        let call = Call::read(request.headers())?;
        within(call.deadline, async {
            let mut body = request.into_body();
            let mut bytes = Vec::new();
            while let Some(data) = next_data(&mut body).await? {
                if bytes.len() + data.len() > MAX_MESSAGE {
                    return Err(Error::new(
                        Code::ResourceExhausted,
                        format!("message is larger than configured max {MAX_MESSAGE}"),
                    ));
                }
                bytes.extend_from_slice(&data);
            }
            handler(agent, call, codec.decode(&bytes)?).await
        })
        .await
    };
    match work.await {
        Ok(answer) => response(200, codec.unary_type(), full(codec.encode(&answer))),
        Err(why) => response(
            why.code.http_status(),
            "application/json",
            full(why.to_json()),
        ),
    }
}

async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, Error> {
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|why| Error::new(Code::Canceled, format!("read request: {why}")))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The messages of a client's stream.
#[derive(Debug)]
pub(crate) struct Inputs<Q> {
    body: Incoming,
    deframer: Deframer,
    codec: Codec,
    of: PhantomData<fn() -> Q>,
}

impl<Q: Message> Inputs<Q> {
    /// The next message; None after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Q>, Error> {
        loop {
            if let Some(envelope) = self.deframer.next_envelope()? {
                if envelope.flags & connect::FLAG_END != 0 {
                    return Ok(None);
                }
                if envelope.flags & connect::FLAG_COMPRESSED != 0 {
                    return Err(Error::new(
                        Code::Internal,
                        "compressed message without an encoding",
                    ));
                }
                return self.codec.decode_bytes(envelope.payload).map(Some);
            }
            match next_data(&mut self.body).await? {
                Some(data) => self.deframer.push(data),
                None if self.deframer.is_mid_message() => {
                    return Err(Error::new(
                        Code::InvalidArgument,
                        "protocol error: incomplete envelope",
                    ));
                }
                None => return Ok(None),
            }
        }
    }
}

fn inputs<Q>(codec: Codec, body: Incoming) -> Inputs<Q> {
    Inputs {
        body,
        deframer: Deframer::new(MAX_MESSAGE),
        codec,
        of: PhantomData,
    }
}

/// The end of a stream that had nothing else.
fn stream_error(codec: Codec, why: &Error) -> Response<Body> {
    response(
        200,
        codec.stream_type(),
        full(connect::end_of_stream(Some(why))),
    )
}

async fn client_stream<Q, F>(
    agent: Arc<Agent>,
    request: Request<Incoming>,
    handler: fn(Arc<Agent>, Call, Inputs<Q>) -> F,
) -> Response<Body>
where
    Q: Message,
    F: Future<Output = Result<Empty, Error>>,
{
    let Some(Kind::Stream(codec)) = kind_of(&request) else {
        return unsupported("application/connect+json, application/connect+proto");
    };
    let work = async {
        check_encoding(request.headers(), "connect-content-encoding")?;
        let call = Call::read(request.headers())?;
        within(
            call.deadline,
            handler(agent, call, inputs(codec, request.into_body())),
        )
        .await
    };
    match work.await {
        Ok(answer) => {
            let mut bytes = codec.envelope(&answer).to_vec();
            bytes.extend_from_slice(&connect::end_of_stream(None));
            response(200, codec.stream_type(), full(bytes))
        }
        Err(why) => stream_error(codec, &why),
    }
}

/// How the events of a stream are written.
#[derive(Debug)]
pub(crate) struct Writer<T> {
    /// Appends the envelope of an event, in one piece or more.
    pub(crate) event: fn(Codec, T, &mut VecDeque<Bytes>),
    /// The envelope that says nothing.
    pub(crate) keepalive: fn(Codec) -> Bytes,
}

async fn server_stream<Q, T, F>(
    agent: Arc<Agent>,
    request: Request<Incoming>,
    handler: fn(Arc<Agent>, Call, Q) -> F,
    writer: &'static Writer<T>,
) -> Response<Body>
where
    Q: Message,
    T: Send + 'static,
    F: Future<Output = Result<Listener<T>, Error>>,
{
    let Some(Kind::Stream(codec)) = kind_of(&request) else {
        return unsupported("application/connect+json, application/connect+proto");
    };
    let work = async {
        check_encoding(request.headers(), "connect-content-encoding")?;
        let call = Call::read(request.headers())?;
        let started = within(call.deadline, async {
            let mut inputs = inputs::<Q>(codec, request.into_body());
            let message = inputs.next().await?.ok_or_else(|| {
                Error::new(Code::Unimplemented, "unary request has zero messages")
            })?;
            if inputs.next().await?.is_some() {
                return Err(Error::new(
                    Code::Unimplemented,
                    "unary request has multiple messages",
                ));
            }
            handler(agent, call.clone(), message).await
        });
        Ok((started.await?, call))
    };
    match work.await {
        Err(why) => stream_error(codec, &why),
        Ok((events, call)) => {
            let body = EventBody {
                events,
                codec,
                writer,
                keepalive: call.keepalive,
                ping: Box::pin(tokio::time::sleep(call.keepalive)),
                deadline: call
                    .deadline
                    .map(|at| Box::pin(tokio::time::sleep_until(at))),
                queue: VecDeque::new(),
                over: false,
            };
            let mut response = response(200, codec.stream_type(), body.boxed_unsync());
            response
                .headers_mut()
                .insert("x-accel-buffering", header::HeaderValue::from_static("no"));
            response
        }
    }
}

/// A stream of events on its way to a client.
struct EventBody<T: 'static> {
    events: Listener<T>,
    codec: Codec,
    writer: &'static Writer<T>,
    keepalive: Duration,
    ping: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
    queue: VecDeque<Bytes>,
    over: bool,
}

impl<T: Send + 'static> HttpBody for EventBody<T> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.queue.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if this.over {
                return Poll::Ready(None);
            }
            // Before the events: of a process that was killed at its deadline the client hears the
            // deadline, not the kill.
            let late = this
                .deadline
                .as_mut()
                .is_some_and(|deadline| deadline.as_mut().poll(context).is_ready());
            if late {
                this.over = true;
                this.queue
                    .push_back(connect::end_of_stream(Some(&deadline_exceeded())));
                continue;
            }
            match this.events.poll_recv(context) {
                Poll::Ready(Some(Ok(event))) => {
                    (this.writer.event)(this.codec, event, &mut this.queue);
                    this.ping.as_mut().reset(Instant::now() + this.keepalive);
                }
                Poll::Ready(Some(Err(why))) => {
                    this.over = true;
                    this.queue.push_back(connect::end_of_stream(Some(&why)));
                }
                Poll::Ready(None) => {
                    this.over = true;
                    this.queue.push_back(connect::end_of_stream(None));
                }
                Poll::Pending => {
                    ready!(this.ping.as_mut().poll(context));
                    this.ping.as_mut().reset(Instant::now() + this.keepalive);
                    this.queue.push_back((this.writer.keepalive)(this.codec));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over && self.queue.is_empty()
    }
}

/// How the events of a process are written.
static PROCESS: Writer<Event> = Writer {
    event: write_event,
    keepalive: write_keepalive,
};

fn write_keepalive(codec: Codec) -> Bytes {
    let event = ProcessEvent {
        keepalive: Some(KeepAlive {}),
        ..ProcessEvent::default()
    };
    codec.envelope(&EventResponse { event: Some(event) })
}

fn write_event(codec: Codec, event: Event, queue: &mut VecDeque<Bytes>) {
    let event = match event {
        Event::Data(source, bytes) => return write_data(codec, source, bytes, queue),
        Event::Start(pid) => ProcessEvent {
            start: Some(StartEvent { pid }),
            ..ProcessEvent::default()
        },
        Event::End(end) => ProcessEvent {
            end: Some(end),
            ..ProcessEvent::default()
        },
    };
    queue.push_back(codec.envelope(&EventResponse { event: Some(event) }));
}

/// Output by hand, because it is what flows: base64 goes straight into the envelope, and in
/// protobuf the bytes are not copied at all.
fn write_data(codec: Codec, source: Source, bytes: Bytes, queue: &mut VecDeque<Bytes>) {
    match codec {
        Codec::Json => {
            let (open, close): (&[u8], &[u8]) = match source {
                Source::Stdout => (br#"{"event":{"data":{"stdout":""#, br#""}}}"#),
                Source::Stderr => (br#"{"event":{"data":{"stderr":""#, br#""}}}"#),
                Source::Pty => (br#"{"event":{"data":{"pty":""#, br#""}}}"#),
            };
            let mut out = Vec::with_capacity(connect::PREFIX + 48 + bytes.len().div_ceil(3) * 4);
            out.extend_from_slice(&[0; connect::PREFIX]);
            out.extend_from_slice(open);
            wire::json::push_base64(&mut out, &bytes);
            out.extend_from_slice(close);
            connect::seal(&mut out, 0);
            queue.push_back(out.into());
        }
        Codec::Proto => {
            let tag = match source {
                Source::Stdout => 1,
                Source::Stderr => 2,
                Source::Pty => 3,
            };
            // EventResponse.event = 1, ProcessEvent.data = 2, DataEvent.<source>, all of them with
            // a length in front (wire type 2). Written from the inside out, lengths first.
            let mut inner = vec![tag << 3 | 2];
            connect::put_varint(&mut inner, bytes.len());
            let mut middle = vec![2 << 3 | 2];
            connect::put_varint(&mut middle, inner.len() + bytes.len());
            let mut outer = vec![0; connect::PREFIX];
            outer.push(1 << 3 | 2);
            connect::put_varint(&mut outer, middle.len() + inner.len() + bytes.len());
            outer.extend_from_slice(&middle);
            outer.extend_from_slice(&inner);
            let length =
                u32::try_from(outer.len() - connect::PREFIX + bytes.len()).unwrap_or(u32::MAX);
            outer[1..connect::PREFIX].copy_from_slice(&length.to_be_bytes());
            queue.push_back(outer.into());
            queue.push_back(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::process::DataEvent;

    use super::*;

    #[test]
    fn output_written_by_hand_is_the_message() {
        for length in [0, 1, 2, 3, 127, 128, 200, 16_383, 32_768] {
            for source in [Source::Stdout, Source::Stderr, Source::Pty] {
                for codec in [Codec::Json, Codec::Proto] {
                    let bytes = Bytes::from(vec![0xa5; length]);
                    let some = |is| (source == is).then(|| bytes.clone());
                    let data = DataEvent {
                        stdout: some(Source::Stdout),
                        stderr: some(Source::Stderr),
                        pty: some(Source::Pty),
                    };
                    let message = EventResponse {
                        event: Some(ProcessEvent {
                            data: Some(data),
                            ..ProcessEvent::default()
                        }),
                    };
                    let mut queue = VecDeque::new();
                    write_event(codec, Event::Data(source, bytes.clone()), &mut queue);
                    let written: Vec<u8> = queue.iter().flat_map(|b| b.to_vec()).collect();
                    assert_eq!(
                        written,
                        codec.envelope(&message),
                        "{codec:?} {source:?} {length}"
                    );
                }
            }
        }
    }

    #[test]
    fn basic_names_a_user() {
        let user = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            basic_user(&headers)
        };
        assert_eq!(user("Basic dXNlcjo=").unwrap().unwrap(), "user");
        assert_eq!(user("basic dXNlcg==").unwrap().unwrap(), "user");
        assert_eq!(user("Basic Og==").unwrap(), None);
        assert_eq!(user("Bearer x").unwrap(), None);
        assert_eq!(user("Basic ???").unwrap_err().code, Code::Unauthenticated);
    }
}
