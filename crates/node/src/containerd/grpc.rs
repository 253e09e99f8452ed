//! One gRPC call over a Unix socket: a message there, messages back.
//!
//! Each call has a connection of its own. Connecting takes microseconds, and so a containerd that was
//! restarted, as an upgrade of a node does, is simply there again for the next call.

use std::{path::Path, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kit::Tasks;
use prost::Message;
use tokio::{net::UnixStream, time::timeout};

use super::Code;
use crate::error::{NodeError, Result};

/// How long a call may take to begin, and each part of its answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest message that is read.
const MAX_MESSAGE: usize = 16 << 20;
/// Before each message: whether it is compressed, and its length.
const HEAD: usize = 5;

/// A call: its path, and what people call it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) path: &'static str,
    pub(super) name: &'static str,
}

/// The messages of an answer, as they come.
pub(super) struct Answer {
    call: Call,
    body: Incoming,
    buffer: BytesMut,
    trailers: Option<HeaderMap>,
}

/// Makes a call.
pub(super) async fn call(
    socket: &Path,
    namespace: &str,
    call: Call,
    message: &impl Message,
) -> Result<Answer> {
    let unreachable = |source| NodeError::Unreachable {
        socket: socket.to_owned(),
        source,
    };
    let nonsense = |why: &dyn std::fmt::Display| NodeError::Nonsense {
        call: call.name,
        why: why.to_string(),
    };
    let late = |_| NodeError::Late { call: call.name };
    let stream = timeout(PATIENCE, UnixStream::connect(socket)).await;
    let stream = stream.map_err(late)?.map_err(unreachable)?;
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let broken = |error: hyper::Error| unreachable(std::io::Error::other(error));
    let (mut sender, connection) = timeout(PATIENCE, handshake)
        .await
        .map_err(late)?
        .map_err(broken)?;
    // It ends with the answer; what goes wrong with it, whoever waits for the answer hears.
    Tasks::default().spawn(async move {
        let _ = connection.await;
    });
    let mut body = BytesMut::with_capacity(HEAD + message.encoded_len());
    body.put_u8(0);
    body.put_u32(u32::try_from(message.encoded_len()).map_err(|e| nonsense(&e))?);
    message.encode(&mut body).map_err(|e| nonsense(&e))?;
    let namespace = HeaderValue::from_str(namespace).map_err(|e| nonsense(&e))?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://containerd{}", call.path))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header("containerd-namespace", namespace)
        .body(Full::new(body.freeze()))
        .map_err(|e| nonsense(&e))?;
    let response = timeout(PATIENCE, sender.send_request(request)).await;
    let response: Response<Incoming> = response.map_err(late)?.map_err(broken)?;
    if response.status() != StatusCode::OK {
        return Err(nonsense(&response.status()));
    }
    // One without messages may say how it ended at once.
    if response.headers().contains_key("grpc-status") {
        status(call, response.headers())?;
    }
    Ok(Answer {
        call,
        body: response.into_body(),
        buffer: BytesMut::new(),
        trailers: None,
    })
}

impl Answer {
    /// The only message.
    pub(super) async fn only<M: Message + Default>(mut self) -> Result<M> {
        let first = self.next().await?;
        let nothing = || NodeError::Nonsense {
            call: self.call.name,
            why: "there is no message".into(),
        };
        let first = first.ok_or_else(nothing)?;
        // How it ended is said after the message.
        while self.next::<M>().await?.is_some() {}
        Ok(first)
    }

    /// The next message; none after the last one of a call that succeeded.
    pub(super) async fn next<M: Message + Default>(&mut self) -> Result<Option<M>> {
        let nonsense = |why: String| NodeError::Nonsense {
            call: self.call.name,
            why,
        };
        loop {
            if let Some(message) = take(&mut self.buffer).map_err(nonsense)? {
                let message = M::decode(message).map_err(|e| nonsense(e.to_string()))?;
                return Ok(Some(message));
            }
            let late = |_| NodeError::Late {
                call: self.call.name,
            };
            let frame = timeout(PATIENCE, self.body.frame()).await.map_err(late)?;
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
                Some(Err(error)) => return Err(nonsense(error.to_string())),
                None if !self.buffer.is_empty() => {
                    return Err(nonsense("it ends in the middle of a message".into()));
                }
                None => {
                    let none = HeaderMap::new();
                    status(self.call, self.trailers.as_ref().unwrap_or(&none))?;
                    return Ok(None);
                }
            }
        }
    }
}

/// Takes a whole message out of what has arrived.
fn take(buffer: &mut BytesMut) -> std::result::Result<Option<Bytes>, String> {
    let Some(head) = buffer.get(..HEAD) else {
        return Ok(None);
    };
    if head[0] != 0 {
        return Err("a message is compressed, which was not asked for".into());
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > MAX_MESSAGE {
        return Err(format!("a message of {length} bytes"));
    }
    if buffer.len() < HEAD + length {
        return Ok(None);
    }
    buffer.advance(HEAD);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// How a call ended.
fn status(call: Call, headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status").and_then(|code| code.parse().ok());
    match code {
        Some(0) => Ok(()),
        Some(code) => {
            let message = text("grpc-message").unwrap_or_default().as_bytes();
            let message = percent_encoding::percent_decode(message).decode_utf8_lossy();
            Err(NodeError::Refused {
                call: call.name,
                code: Code::from_number(code),
                message: message.chars().take(512).collect(),
            })
        }
        None => Err(NodeError::Nonsense {
            call: call.name,
            why: "it does not say how it ended".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole_however_they_arrive() {
        let mut sent = BytesMut::new();
        for text in ["", "a", "hello"] {
            sent.put_u8(0);
            sent.put_u32(text.len() as u32);
            sent.extend_from_slice(text.as_bytes());
        }
        let (mut buffer, mut seen) = (BytesMut::new(), Vec::new());
        for byte in sent {
            buffer.put_u8(byte);
            while let Some(message) = take(&mut buffer).unwrap() {
                seen.push(message);
            }
        }
        assert_eq!(seen, ["", "a", "hello"]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_is_compressed_or_too_long_is_refused() {
        let mut compressed = BytesMut::from(&[1, 0, 0, 0, 0][..]);
        assert!(take(&mut compressed).is_err());
        let mut long = BytesMut::from(&[0, 255, 255, 255, 255][..]);
        assert!(take(&mut long).is_err());
    }

    #[test]
    fn how_a_call_ended_is_a_number_and_never_a_text() {
        let call = Call {
            path: "/a/B",
            name: "b",
        };
        let ended = |code: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", HeaderValue::from_static(code));
            let said = HeaderValue::from_static("container%20%22a%22: not found");
            headers.insert("grpc-message", said);
            status(call, &headers)
        };
        assert!(ended("0").is_ok());
        let refused = ended("5").unwrap_err();
        assert!(
            matches!(&refused, NodeError::Refused { code: Code::NotFound, message, .. }
            if message == "container \"a\": not found")
        );
        assert!(matches!(ended("x"), Err(NodeError::Nonsense { .. })));
        assert!(status(call, &HeaderMap::new()).is_err());
    }
}
