//! Programs that listen on a sandbox's port.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};

/// A program that serves until it is dropped.
pub(crate) struct Program {
    pub(crate) port: u16,
    /// Connections it has taken.
    pub(crate) taken: Arc<AtomicUsize>,
    /// Connections that are open now.
    pub(crate) open: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Program {
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Does something with every connection; it is given the connection's number.
pub(crate) async fn raw<F, Fut>(ip: IpAddr, port: u16, serve: F) -> Program
where
    F: Fn(TcpStream, usize) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(SocketAddr::new(ip, port)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (taken, open) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (count, opened) = (taken.clone(), open.clone());
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let number = count.fetch_add(1, Ordering::SeqCst);
            opened.fetch_add(1, Ordering::SeqCst);
            let counted = Counted(opened.clone());
            let served = serve(stream, number);
            connections.spawn(async move {
                let _counted = counted;
                served.await;
            });
        }
    });
    Program {
        port,
        taken,
        open,
        task,
    }
}

/// Answers every connection once with these bytes, after it has read a head, and closes it.
pub(crate) async fn script(ip: IpAddr, answer: &'static [u8]) -> Program {
    raw(ip, 0, move |mut stream, _| async move {
        read_head(&mut stream).await;
        stream.write_all(answer).await.unwrap();
    })
    .await
}

/// Reads up to the end of a head, and answers it.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

type Body = BoxBody<Bytes, hyper::Error>;

/// A program of many paths.
pub(crate) async fn program(ip: IpAddr, port: u16) -> Program {
    raw(ip, port, |stream, number| async move {
        let service =
            service_fn(
                move |request| async move { Ok::<_, Infallible>(answer(request, number).await) },
            );
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let _ = connection.await;
    })
    .await
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed()
}

async fn answer(mut request: Request<Incoming>, number: usize) -> Response<Body> {
    match request.uri().path() {
        // What arrived: the line, the headers, and the body.
        "/mirror" | "/files" | "/health" => {
            let mut text = format!("{} {}\n", request.method(), request.uri());
            for (name, value) in request.headers() {
                text += &format!("{name}: {}\n", value.to_str().unwrap());
            }
            let body = request.into_body().collect().await;
            match body {
                Ok(body) => {
                    if let Some(trailers) = body.trailers() {
                        for (name, value) in trailers {
                            text += &format!("trailer {name}: {}\n", value.to_str().unwrap());
                        }
                    }
                    text += "\n";
                    text += &String::from_utf8_lossy(&body.to_bytes());
                    Response::new(full(text))
                }
                Err(_) => Response::new(full("broken body")),
            }
        }
        "/number" => Response::new(full(number.to_string())),
        "/echo" => Response::new(request.into_body().boxed()),
        "/trailers" => {
            let (frames, body) = channel();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", HeaderValue::from_static("42"));
            frames.send(Frame::data("hello".into())).await.unwrap();
            frames.send(Frame::trailers(trailers)).await.unwrap();
            let mut response = Response::new(body);
            let named = HeaderValue::from_static("x-sum");
            response.headers_mut().insert("trailer", named);
            response
        }
        "/upgrade" => {
            let upgrade = hyper::upgrade::on(&mut request);
            let protocol = request.headers().get("upgrade").cloned();
            tokio::spawn(async move {
                let Ok(upgraded) = upgrade.await else { return };
                let mut stream = TokioIo::new(upgraded);
                stream.write_all(b"welcome ").await.unwrap();
                let (mut read, mut write) = tokio::io::split(stream);
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
            let mut response = Response::new(full(""));
            let Some(protocol) = protocol else {
                *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
                return response;
            };
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert("connection", HeaderValue::from_static("upgrade"));
            headers.insert("upgrade", protocol);
            response
        }
        _ => {
            let mut response = Response::new(full("no such path"));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

fn channel() -> (mpsc::Sender<Frame<Bytes>>, Body) {
    let (frames, mut rest) = mpsc::channel(8);
    let stream = futures_util::stream::poll_fn(move |context| {
        rest.poll_recv(context).map(|frame| frame.map(Ok))
    });
    (frames, StreamBody::new(stream).boxed())
}
