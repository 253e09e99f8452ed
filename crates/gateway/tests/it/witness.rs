//! A program that writes down what reaches it, byte by byte, and reads HTTP/1 more strictly than
//! anybody: whatever is not plainly one request after another is an outrage, and written down as
//! such.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::sandbox::{Program, raw};

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Request { line: String, body: String },
    Outrage(String),
}

pub(crate) struct Witness {
    pub(crate) program: Program,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Witness {
    pub(crate) async fn start(ip: IpAddr) -> Self {
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let notes = seen.clone();
        let program = raw(ip, 0, move |stream, _| serve(stream, notes.clone())).await;
        Self { program, seen }
    }

    /// What was seen since the last time.
    pub(crate) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

async fn serve(mut stream: TcpStream, notes: Arc<Mutex<Vec<Seen>>>) {
    let mut bytes = Vec::new();
    loop {
        match request(&bytes) {
            Some(Ok((seen, used))) => {
                bytes.drain(..used);
                notes.lock().unwrap().push(seen);
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                if stream.write_all(answer).await.is_err() {
                    return;
                }
            }
            Some(Err(why)) => {
                let text = format!("{why}: {:?}", String::from_utf8_lossy(&bytes));
                notes.lock().unwrap().push(Seen::Outrage(text));
                return;
            }
            None => match stream.read_buf(&mut bytes).await {
                Ok(1..) => {}
                // A request that was cut off in the middle is not one.
                Ok(0) | Err(_) => return,
            },
        }
    }
}

/// One request from the front of some bytes, if it is all there.
fn request(bytes: &[u8]) -> Option<Result<(Seen, usize), &'static str>> {
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n")?;
    let head = &bytes[..end];
    let Ok(text) = std::str::from_utf8(head) else {
        return Some(Err("not text"));
    };
    if text
        .chars()
        .any(|c| c.is_control() && !"\r\n\t".contains(c))
    {
        return Some(Err("control characters"));
    }
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default();
    if text.replace("\r\n", "").contains(['\r', '\n']) {
        return Some(Err("a bare end of line"));
    }
    let parts: Vec<&str> = line.split(' ').collect();
    if parts.len() != 3 || parts[2] != "HTTP/1.1" || !parts[1].starts_with(['/', '*']) {
        return Some(Err("the first line"));
    }
    let (mut hosts, mut lengths, mut codings) = (0, Vec::new(), Vec::new());
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return Some(Err("a line without a colon"));
        };
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Some(Err("a name"));
        }
        match &*name.to_ascii_lowercase() {
            "host" => hosts += 1,
            "content-length" => lengths.push(value.trim()),
            "transfer-encoding" => codings.push(value.trim()),
            "e2b-traffic-access-token" => return Some(Err("the gateway's token")),
            _ => {}
        }
    }
    if hosts != 1 {
        return Some(Err("hosts"));
    }
    let start = end + 4;
    let (body, used) = match (&lengths[..], &codings[..]) {
        ([], []) => (Vec::new(), start),
        ([length], []) => {
            let Ok(length) = length.parse::<usize>() else {
                return Some(Err("the length"));
            };
            let body = bytes.get(start..start + length)?;
            (body.to_vec(), start + length)
        }
        ([], ["chunked"]) => match chunks(bytes, start)? {
            Ok(read) => read,
            Err(why) => return Some(Err(why)),
        },
        _ => return Some(Err("two lengths")),
    };
    let seen = Seen::Request {
        line: line.to_owned(),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    Some(Ok((seen, used)))
}

type Chunks = Result<(Vec<u8>, usize), &'static str>;

fn chunks(bytes: &[u8], mut at: usize) -> Option<Chunks> {
    let mut body = Vec::new();
    loop {
        let rest = &bytes[at..];
        let end = rest.windows(2).position(|part| part == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size else {
            return Some(Err("a chunk's size"));
        };
        at += end + 2;
        if size == 0 {
            let after = &bytes[at..];
            if after.starts_with(b"\r\n") {
                return Some(Ok((body, at + 2)));
            }
            let end = after.windows(4).position(|part| part == b"\r\n\r\n")?;
            return Some(Ok((body, at + end + 4)));
        }
        body.extend_from_slice(bytes.get(at..at + size)?);
        if bytes.get(at + size..at + size + 2)? != b"\r\n" {
            return Some(Err("a chunk's end"));
        }
        at += size + 2;
    }
}
