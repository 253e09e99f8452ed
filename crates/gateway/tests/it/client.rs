//! A client that says exactly what a test wants it to.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A connection to the gateway.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    early: Vec<u8>,
}

/// An answer, its body taken out of its framing.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A GET.
pub(crate) fn get(path: &str, headers: &[(&str, &str)]) -> String {
    request("GET", path, headers, "")
}

/// A request; with a host unless there is one among the headers.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        text += "Host: localhost\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    text + "\r\n" + body
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            early: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).await.unwrap();
    }

    pub(crate) async fn ask(&mut self, text: impl AsRef<[u8]>) -> Answer {
        self.send(text).await;
        self.answer().await
    }

    /// Reads until these bytes have come.
    pub(crate) async fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.early.windows(end.len()).position(|part| part == end) {
                return self.early.drain(..at + end.len()).collect();
            }
            let count = self.stream.read_buf(&mut self.early).await.unwrap();
            assert!(
                count > 0,
                "ended after {:?}",
                String::from_utf8_lossy(&self.early)
            );
        }
    }

    /// The next bytes that come; none at the end, whatever kind it is.
    pub(crate) async fn read_some(&mut self) -> Option<Vec<u8>> {
        let count = self.stream.read_buf(&mut self.early).await.unwrap_or(0);
        (count > 0).then(|| self.take_early())
    }

    pub(crate) async fn read_exact(&mut self, count: usize) -> Vec<u8> {
        while self.early.len() < count {
            let more = self.stream.read_buf(&mut self.early).await.unwrap();
            assert!(more > 0, "ended after {} bytes", self.early.len());
        }
        self.early.drain(..count).collect()
    }

    /// What was read beyond what was asked for.
    pub(crate) fn take_early(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.early)
    }

    /// Reads to the end, which must be a goodbye.
    pub(crate) async fn read_to_end(&mut self) -> Vec<u8> {
        while self.stream.read_buf(&mut self.early).await.unwrap() > 0 {}
        std::mem::take(&mut self.early)
    }

    /// Reads to the end, whatever kind it is.
    pub(crate) async fn read_to_any_end(&mut self) -> (Vec<u8>, std::io::Result<()>) {
        loop {
            match self.stream.read_buf(&mut self.early).await {
                Ok(0) => return (std::mem::take(&mut self.early), Ok(())),
                Ok(_) => {}
                Err(error) => return (std::mem::take(&mut self.early), Err(error)),
            }
        }
    }

    pub(crate) async fn head(&mut self) -> Answer {
        let head = String::from_utf8(self.read_until(b"\r\n\r\n").await).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer {
            status,
            head,
            body: String::new(),
        }
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        let body = if let Some(length) = answer.header("content-length") {
            let length = length.parse().unwrap();
            self.read_exact(length).await
        } else if answer.header("transfer-encoding").is_some() {
            self.chunks().await
        } else if answer.status == 204 || answer.status == 304 {
            Vec::new()
        } else {
            self.read_to_end().await
        };
        answer.body = String::from_utf8(body).unwrap();
        answer
    }

    /// A chunked body; its trailers follow after a line of their own.
    async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = String::from_utf8(self.read_until(b"\r\n").await).unwrap();
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            if size == 0 {
                loop {
                    let line = self.read_until(b"\r\n").await;
                    if line == b"\r\n" {
                        return body;
                    }
                    body.extend_from_slice(b"\ntrailer ");
                    body.extend_from_slice(line.trim_ascii());
                }
            }
            body.extend(self.read_exact(size).await);
            self.read_until(b"\r\n").await;
        }
    }
}

/// One request on a connection of its own.
pub(crate) async fn once(to: SocketAddr, text: impl AsRef<[u8]>) -> Answer {
    Client::connect(to).await.ask(text).await
}
