//! Registries for the tests: Debian's, one that breaks off, and one that lies.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::layout::write;

/// The user that a registry with users knows.
pub(crate) const USER: &str = "me";
pub(crate) const PASSWORD: &str = "secret";
const HTPASSWD: &str = "me:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

/// A real registry on loopback; it ends with this.
pub(crate) struct Registry {
    child: Child,
    pub(crate) address: String,
    _directory: tempfile::TempDir,
}

impl Registry {
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// One that wants to know who asks.
    pub(crate) fn with_users() -> Self {
        Self::start_with("auth:\n  htpasswd:\n    realm: tests\n    path: DIRECTORY/htpasswd\n")
    }

    fn start_with(more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().display().to_string();
        write(&directory.path().join("htpasswd"), HTPASSWD.as_bytes());
        let more = more.replace("DIRECTORY", &at);
        let config = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {at}/data\n\
             http:\n  addr: 127.0.0.1:0\n{more}"
        );
        let path = directory.path().join("config.yml");
        write(&path, config.as_bytes());
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("this test needs docker-registry (apt-get install docker-registry): {error}")
            });
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            if log.read_line(&mut line).unwrap() == 0 {
                panic!("docker-registry does not start: {said}");
            }
            if let Some((_, rest)) = line.split_once("listening on ") {
                let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'));
                break rest[..end.unwrap_or(rest.len())].to_owned();
            }
            said.push_str(&line);
        };
        // Nobody reads on: its log must not stop it.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self {
            child,
            address,
            _directory: directory,
        }
    }

    /// Puts an image of a layout into it, by a program that is not ours.
    pub(crate) fn push(&self, layout: &Path, name: &str) {
        let to = format!("docker://{}/{name}", self.address);
        let from = format!("oci:{}", layout.display());
        skopeo(&[
            "copy",
            "--all",
            "--preserve-digests",
            "--dest-tls-verify=false",
            "--dest-creds",
            &format!("{USER}:{PASSWORD}"),
            &from,
            &to,
        ]);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn skopeo(arguments: &[&str]) {
    let output = Command::new("skopeo")
        .arg("--insecure-policy")
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("this test needs skopeo (apt-get install skopeo): {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "skopeo {arguments:?}: {said}");
}

/// Passes bytes on to another server, and breaks answers off.
pub(crate) struct Cutter {
    pub(crate) address: String,
    /// Answers that were broken off.
    pub(crate) cut: Arc<AtomicUsize>,
    /// Requests for a part of something.
    pub(crate) ranges: Arc<AtomicUsize>,
}

impl Cutter {
    /// Breaks off the first `times` answers that are longer than `after` bytes.
    pub(crate) fn start(to: &str, after: usize, times: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let to: SocketAddr = to.parse().unwrap();
        let (cut, ranges) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (cuts, asked) = (cut.clone(), ranges.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (cuts, asked) = (cuts.clone(), asked.clone());
                thread::spawn(move || {
                    // A connection that breaks is what this is for.
                    let _ = pass(stream?, to, after, times, &cuts, &asked);
                    std::io::Result::Ok(())
                });
            }
        });
        Self {
            address,
            cut,
            ranges,
        }
    }
}

fn pass(
    client: TcpStream,
    to: SocketAddr,
    after: usize,
    times: usize,
    cuts: &AtomicUsize,
    ranges: &AtomicUsize,
) -> std::io::Result<()> {
    let server = TcpStream::connect(to)?;
    let (mut from, mut up) = (client.try_clone()?, server.try_clone()?);
    let mut first = [0; 1 << 16];
    let read = from.read(&mut first)?;
    if String::from_utf8_lossy(&first[..read])
        .to_lowercase()
        .contains("\r\nrange: bytes=")
    {
        ranges.fetch_add(1, Ordering::SeqCst);
    }
    up.write_all(&first[..read])?;
    thread::spawn(move || std::io::copy(&mut from, &mut up));
    let (mut server, mut client) = (server, client);
    let (mut buffer, mut sent) = ([0; 4096], 0);
    loop {
        let read = server.read(&mut buffer)?;
        if read == 0 {
            return client.shutdown(Shutdown::Both);
        }
        sent += read;
        let again = |count: usize| (count < times).then_some(count + 1);
        if sent > after
            && cuts
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, again)
                .is_ok()
        {
            return client.shutdown(Shutdown::Both);
        }
        client.write_all(&buffer[..read])?;
    }
}

/// What a server of the tests' own answers: status, headers, body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn ok(body: &[u8]) -> Answer {
    Answer {
        status: 200,
        headers: Vec::new(),
        body: body.to_vec(),
    }
}

/// A server that answers what it is told to, and remembers what it was asked.
pub(crate) struct Stub {
    pub(crate) address: String,
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

impl Stub {
    /// `answer` gets the path and the headers, in lower case.
    pub(crate) fn start(
        answer: impl Fn(&str, &BTreeMap<String, String>) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, log) = (answer.clone(), log.clone());
                thread::spawn(move || serve(stream?, &*answer, &log));
            }
        });
        Self { address, asked }
    }
}

fn serve(
    mut stream: TcpStream,
    answer: &dyn Fn(&str, &BTreeMap<String, String>) -> Answer,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    // Also ends what speaks TLS: it is answered with what is none.
    if lines.read_line(&mut request).is_err() || !request.starts_with("GET ") {
        return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    }
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let authorization = headers.get("authorization").cloned().unwrap_or_default();
    log.lock()
        .unwrap()
        .push(format!("{path} {authorization}").trim().to_owned());
    let Answer {
        status,
        headers,
        body,
    } = answer(path, &headers);
    write!(
        stream,
        "HTTP/1.1 {status} Answer\r\nContent-Length: {}\r\n",
        body.len()
    )?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"Connection: close\r\n\r\n")?;
    stream.write_all(&body)
}

/// What is done to one request.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Pass,
    /// The connection breaks after this much of the request has been passed on.
    CutRequest(usize),
    /// The request is passed on, and its answer lost.
    CutAnswer,
    /// Somebody else answers.
    Answer(String),
}

/// Stands before a registry, sees each request, and meddles with some.
pub(crate) struct Front {
    pub(crate) address: String,
    /// The first lines of the requests.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

impl Front {
    /// `decide` gets the number of a request and its head.
    pub(crate) fn start(
        to: &str,
        decide: impl Fn(usize, &str) -> What + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let to: SocketAddr = to.parse().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, decide) = (asked.clone(), Arc::new(decide));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, decide) = (log.clone(), decide.clone());
                thread::spawn(move || front(stream?, to, &log, &*decide));
            }
        });
        Self { address, asked }
    }

    /// How many requests began so.
    pub(crate) fn count(&self, method: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|line| line.starts_with(method)).count()
    }
}

fn front(
    mut client: TcpStream,
    to: SocketAddr,
    log: &Mutex<Vec<String>>,
    decide: &dyn Fn(usize, &str) -> What,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        // What speaks TLS is no request: it is answered with what is none.
        if client.read(&mut byte)? == 0 || (head.is_empty() && byte[0] == 0x16) {
            return client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
        head.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let number = {
        let mut log = log.lock().unwrap();
        log.push(text.lines().next().unwrap_or_default().to_owned());
        log.len() - 1
    };
    let what = decide(number, &text);
    let length = text.to_lowercase();
    let length = length.split("content-length: ").nth(1).map_or(0, |rest| {
        let digits = rest.split("\r\n").next().unwrap_or("0");
        digits.parse().unwrap_or(0)
    });
    if let What::Answer(answer) = &what {
        // All of the request first: a sender that is cut off does not hear an answer.
        std::io::copy(&mut (&client).take(length), &mut std::io::sink())?;
        return client.write_all(answer.as_bytes());
    }
    let mut server = TcpStream::connect(to)?;
    server.write_all(&head)?;
    let (mut from, mut up) = (client.try_clone()?, server.try_clone()?);
    if let What::CutRequest(after) = what {
        let passed = length.min(after as u64);
        std::io::copy(&mut (&mut from).take(passed), &mut up)?;
        // Long enough for the other side to have read it.
        thread::sleep(std::time::Duration::from_millis(50));
        server.shutdown(Shutdown::Both)?;
        return client.shutdown(Shutdown::Both);
    }
    thread::spawn(move || std::io::copy(&mut from, &mut up));
    if matches!(what, What::CutAnswer) {
        let mut some = [0; 64];
        let _ = server.read(&mut some)?;
        return client.shutdown(Shutdown::Both);
    }
    std::io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}
