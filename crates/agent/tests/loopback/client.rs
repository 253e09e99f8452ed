//! A small client: enough of HTTP and Connect to say exactly what a test means.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use agent::{Agent, Args};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use wire::connect::{self, Code, Codec, Deframer, Error, Message};

use crate::handed;

pub(crate) const BOTH: [Codec; 2] = [Codec::Json, Codec::Proto];
/// Longer than anything should take, shorter than anyone would wait.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// An agent in this process.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    tasks: kit::Tasks,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}

pub(crate) async fn serve() -> Served {
    serve_with(Args::default()).await
}

pub(crate) async fn serve_with(args: Args) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = kit::Tasks::default();
    let agent = Agent::new(&args);
    let stop = tasks.stopping().clone();
    tasks.spawn(async move {
        tokio::select! {
            served = Arc::clone(&agent).serve(listener) => served.unwrap(),
            () = stop.cancelled() => {}
        }
    });
    Served { address, tasks }
}

pub(crate) type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

pub(crate) fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// One answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

impl Served {
    pub(crate) async fn open(&self, request: Request<Body>) -> http::Response<Incoming> {
        self.try_open(request).await.unwrap()
    }

    async fn try_open(
        &self,
        request: Request<Body>,
    ) -> Result<http::Response<Incoming>, Box<dyn std::error::Error>> {
        let stream = tokio::net::TcpStream::connect(self.address).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        self.tasks.spawn(async move {
            connection.await.ok();
        });
        Ok(tokio::time::timeout(LONG, sender.send_request(request)).await??)
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.open(request).await;
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(LONG, body.collect())
            .await
            .unwrap()
            .unwrap()
            .to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(request(Method::GET, path, headers, Bytes::new()))
            .await
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        bytes: impl Into<Bytes>,
    ) -> Answer {
        self.send(request(Method::POST, path, headers, bytes)).await
    }

    /// A call of one message and one answer.
    pub(crate) async fn call<Q: Message, A: Message>(
        &self,
        codec: Codec,
        method: &str,
        message: &Q,
        headers: &[(&str, &str)],
    ) -> Result<A, Error> {
        let mut all = vec![("content-type", codec.unary_type())];
        all.extend_from_slice(headers);
        let answer = self.post(method, &all, codec.encode(message)).await;
        if answer.status == StatusCode::OK {
            assert_eq!(answer.header("content-type"), codec.unary_type());
            return Ok(codec.decode(&answer.body).unwrap());
        }
        assert_eq!(answer.header("content-type"), "application/json");
        let error: Error = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer.status.as_u16(), error.code.http_status());
        Err(error)
    }

    /// A call that is answered by a stream.
    pub(crate) async fn stream<Q: Message>(
        &self,
        codec: Codec,
        method: &str,
        message: &Q,
        headers: &[(&str, &str)],
    ) -> Stream {
        let mut all = vec![("content-type", codec.stream_type())];
        all.extend_from_slice(headers);
        let response = self
            .open(request(Method::POST, method, &all, codec.envelope(message)))
            .await;
        assert_eq!(response.status(), StatusCode::OK, "streams fail inside");
        assert_eq!(response.headers()["content-type"], codec.stream_type());
        Stream {
            body: response.into_body(),
            deframer: Deframer::new(1 << 24),
            codec,
        }
    }
}

pub(crate) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    bytes: impl Into<Bytes>,
) -> Request<Body> {
    let mut builder = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body(bytes)).unwrap()
}

/// The messages of a stream.
pub(crate) struct Stream {
    body: Incoming,
    deframer: Deframer,
    codec: Codec,
}

impl Stream {
    /// The next message, or how the stream ended.
    pub(crate) async fn next<A: Message>(&mut self) -> Result<A, Result<(), Error>> {
        loop {
            if let Some(envelope) = self.deframer.next_envelope().unwrap() {
                if envelope.flags & connect::FLAG_END != 0 {
                    return Err(connect::read_end_of_stream(&envelope.payload));
                }
                return Ok(self.codec.decode(&envelope.payload).unwrap());
            }
            let frame = tokio::time::timeout(LONG, self.body.frame())
                .await
                .expect("a message in time");
            let frame = frame.expect("a stream says how it ends").unwrap();
            self.deframer.push(frame.into_data().unwrap());
        }
    }
}

/// What a stream that never began ended with.
pub(crate) async fn failure(mut stream: Stream) -> Error {
    match stream.next::<wire::process::EventResponse>().await {
        Err(Err(error)) => error,
        other => panic!("not an error: {other:?}"),
    }
}

pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> Code {
    result.unwrap_err().code
}

/// Waits for something that comes by itself.
pub(crate) async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}

/// The real program, ended with the test.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    pub(crate) fn start(args: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_dormouse-agent"))
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Behind this socket, by a command that hands it on.
    pub(crate) async fn serve(
        command: &mut Command,
        listener: TcpListener,
        args: &[&str],
    ) -> (Self, Served) {
        let agent = at(listener.local_addr().unwrap());
        command.args(args).stderr(Stdio::piped());
        let mut program = Self(handed::spawn(command, listener));
        let asked = request(Method::GET, "/health", &[], Bytes::new());
        // Whatever it answers, it is up.
        match agent.try_open(asked).await {
            Ok(_) => (program, agent),
            Err(why) => panic!("no agent answers: {why}; it said: {}", program.end()),
        }
    }

    /// Ends it. Returns what it said.
    fn end(&mut self) -> String {
        self.0.kill().ok();
        let mut said = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut said).unwrap();
        }
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A connection to an agent that listens somewhere.
pub(crate) fn at(address: SocketAddr) -> Served {
    Served {
        address,
        tasks: kit::Tasks::default(),
    }
}
