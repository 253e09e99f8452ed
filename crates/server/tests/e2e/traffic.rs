//! Servers take each other's place under traffic of every kind: whoever has a connection of its own
//! is answered, always. A client that keeps its connection may find it closed between two requests,
//! and asks again; that is counted apart. They need root; without it these tests fail and say so.
//!
//! `DORMOUSE_UPGRADES` says how many times, to measure; what was seen is printed.

use std::{
    fmt, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use kit::{Clock as _, SystemClock};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{
    https::Https,
    run::agent,
    sandboxes::until,
    server::{Server, launch_as},
    upgrades::{PATIENT, STUCK, WouldBe},
};

/// What is served inside: a page, a page that takes two seconds, and a WebSocket that says
/// everything again.
const INSIDE: &str = r#"
import base64, hashlib, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def log_message(self, *_): pass
    def do_GET(self):
        if self.path == "/socket":
            key = self.headers["Sec-WebSocket-Key"] + GUID
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "websocket")
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
            self.send_header("Sec-WebSocket-Accept", accept.decode())
            self.end_headers()
            while (said := self.connection.recv(4096)):
                self.connection.sendall(said)
            self.close_connection = True
            return
        pieces = 20 if self.path == "/slow" else 1
        self.send_response(200)
        self.send_header("Content-Length", str(5 * pieces))
        self.end_headers()
        for _ in range(pieces):
            self.wfile.write(b"piece")
            if pieces > 1:
                time.sleep(0.1)
class Server(ThreadingHTTPServer):
    request_queue_size = 256
Server(("127.0.0.1", 8000), Page).serve_forever()
"#;

/// Long enough for a server that is ended because it does not get on.
const PATIENCE: Duration = Duration::from_secs(150);

/// A request, but for how its connection goes on.
#[derive(Clone, Debug)]
struct Asked {
    what: &'static str,
    head: String,
}

/// What became of the requests of one client.
#[derive(Debug, Default)]
struct Seen {
    asked: usize,
    longest: Duration,
    /// A kept connection was closed before anything of an answer came.
    closed: usize,
    failures: Vec<String>,
}

/// A server that is replaced again and again, and what is asked of it meanwhile.
struct Scene {
    server: Server,
    id: String,
    to: String,
    done: AtomicBool,
    clock: SystemClock,
    /// By what was asked, and how.
    seen: Mutex<Vec<(String, Seen)>>,
}

impl Scene {
    fn start(server: Server) -> Self {
        let id = server.sandbox();
        let script =
            format!("cat >page.py <<'E'{INSIDE}E\nsetsid python3 page.py >page.log 2>&1 &");
        server.inside(&id, &script);
        let scene = Self {
            to: server.door(),
            id,
            server,
            done: AtomicBool::new(false),
            clock: SystemClock::default(),
            seen: Mutex::default(),
        };
        let page = scene.inside("/");
        until("the page is there", || one(&scene.to, &page).ok());
        scene
    }

    fn inside(&self, path: &str) -> Asked {
        let id = &self.id;
        let port = "E2b-Sandbox-Port: 8000";
        Asked {
            what: "sandbox",
            head: format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {id}\r\n{port}"
            ),
        }
    }

    fn api(&self) -> Asked {
        let key = self.server.exported("E2B_API_KEY");
        Asked {
            what: "E2B API",
            head: format!("GET /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}"),
        }
    }

    /// The process that has the data directory.
    fn pid(&self) -> Pid {
        until("somebody has the data directory", || {
            let text = fs::read_to_string(self.server.data().join("lock")).ok()?;
            Pid::from_raw(text.trim().parse().ok()?)
        })
    }

    /// Does something while everything is asked all the time, and says what became of that.
    fn under_traffic(&self, act: impl FnOnce() + Send) {
        let done = |what: &str, how: &str, seen| {
            let title = format!("{what}, {how}");
            self.seen.lock().unwrap().push((title, seen));
        };
        thread::scope(|scope| {
            for asked in [self.inside("/"), self.inside("/"), self.api()] {
                scope.spawn(move || done(asked.what, "own connections", self.by_itself(&asked)));
            }
            for asked in [self.inside("/"), self.api()] {
                scope.spawn(move || done(asked.what, "a kept connection", self.kept(&asked)));
            }
            scope.spawn(move || done("resource API", "own connections", self.objects()));
            scope.spawn(move || done("sandbox", "long requests", self.slow()));
            scope.spawn(move || done("sandbox", "WebSockets", self.socket()));
            // However it ends: nobody may ask for ever.
            let acted = catch_unwind(AssertUnwindSafe(act));
            self.some_more();
            self.done.store(true, Ordering::Relaxed);
            if let Err(panicked) = acted {
                std::panic::resume_unwind(panicked);
            }
        });
    }

    /// Lets the traffic go on for a while.
    fn some_more(&self) {
        thread::sleep(Duration::from_millis(500));
    }

    fn while_asked(&self, mut ask: impl FnMut(&mut Seen)) -> Seen {
        let mut seen = Seen::default();
        while !self.done.load(Ordering::Relaxed) {
            let began = self.clock.monotonic();
            ask(&mut seen);
            seen.asked += 1;
            let took = self.clock.monotonic().saturating_sub(began);
            seen.longest = seen.longest.max(took);
        }
        seen
    }

    fn by_itself(&self, asked: &Asked) -> Seen {
        self.while_asked(|seen| seen.failures.extend(one(&self.to, asked).err()))
    }

    fn kept(&self, asked: &Asked) -> Seen {
        let mut kept: Option<Kept> = None;
        self.while_asked(|seen| {
            if let Some(line) = &mut kept {
                match line.ask(asked) {
                    Ok(true) => return,
                    Ok(false) => kept = None,
                    Err(Lost::Unanswered) => {
                        seen.closed += 1;
                        kept = None;
                    }
                    Err(Lost::Wrong(why)) => {
                        seen.failures.push(why);
                        kept = None;
                        return;
                    }
                }
            }
            match Kept::open(&self.to)
                .and_then(|mut line| line.ask(asked).map(|stays| (line, stays)))
            {
                Ok((line, stays)) => kept = stays.then_some(line),
                Err(lost) => seen.failures.push(format!("a new one to keep: {lost}")),
            }
        })
    }

    fn objects(&self) -> Seen {
        self.while_asked(|seen| {
            let asked = catch_unwind(AssertUnwindSafe(|| {
                let path = "/apis/dormouse.dev/v1alpha1/sandboxes";
                let mut client = Https::connect(&self.server);
                client.be_patient_for(PATIENCE);
                client.call("GET", path, "")
            }));
            match asked {
                Ok(Some((200, _))) => {}
                Ok(other) => seen.failures.push(format!("{other:?}")),
                Err(_) => seen
                    .failures
                    .push("it could not be asked: see above".into()),
            }
        })
    }

    fn slow(&self) -> Seen {
        let asked = self.inside("/slow");
        self.while_asked(|seen| match one(&self.to, &asked) {
            Ok(body) if body == "piece".repeat(20) => {}
            Ok(short) => seen.failures.push(format!("cut short: {short:?}")),
            Err(why) => seen.failures.push(why),
        })
    }

    /// Each is used over more than one upgrade.
    fn socket(&self) -> Seen {
        self.while_asked(|seen| {
            let used = Socket::open(self).and_then(|mut socket| {
                for number in 0..40 {
                    socket.echoes(number)?;
                    thread::sleep(Duration::from_millis(100));
                }
                Ok(())
            });
            seen.failures.extend(used.err());
        })
    }

    /// Tells the server to replace itself, and waits until that is done.
    fn upgrade(&self) {
        let pid = self.pid();
        let before = self.replaced();
        kill_process(pid, Signal::USR2).unwrap();
        until("it is replaced", || {
            (self.replaced() > before).then_some(())
        });
        assert_ne!(self.pid(), pid);
    }

    fn replaced(&self) -> usize {
        self.server
            .log()
            .matches("replaced: what is inside")
            .count()
    }

    /// Nobody was refused, and nothing is left.
    #[track_caller]
    fn end(self, what: &str) {
        let mut failures = Vec::new();
        eprintln!("{what}:");
        for (title, seen) in self.seen.lock().unwrap().iter() {
            eprintln!(
                "  {title}: {} requests, {} failed, {} closed while idle, the longest {:?}",
                seen.asked,
                seen.failures.len(),
                seen.closed,
                seen.longest
            );
            failures.extend(seen.failures.iter().map(|why| format!("{title}: {why}")));
        }
        let log = self.server.log();
        self.server.run(&format!("sandbox kill {}", self.id)).ok();
        until("its sandbox is gone", || {
            let left = self.server.run("get sandboxes -A").ok();
            left.is_empty().then_some(())
        });
        let last = self.pid();
        kill_process(last, Signal::TERM).unwrap();
        let mut server = self.server;
        if i32::try_from(server.child.id()) == Ok(last.as_raw_nonzero().get()) {
            assert!(server.wait().success(), "{}", server.log());
        } else {
            until("the last one ends", || {
                test_kill_process(last).is_err().then_some(())
            });
        }
        // Last, so that nothing is left either way.
        assert!(failures.is_empty(), "{failures:#?}\n{log}");
    }
}

/// One request on a connection of its own: the body of its answer, or why there is none.
fn one(to: &str, asked: &Asked) -> Result<String, String> {
    let mut stream = connect(to)?;
    let text = format!("{}\r\nConnection: close\r\n\r\n", asked.head);
    let mut answer = Vec::new();
    let done = stream
        .write_all(text.as_bytes())
        .and_then(|()| stream.read_to_end(&mut answer).map(drop));
    let answer = String::from_utf8_lossy(&answer).into_owned();
    done.map_err(|e| format!("{e}, after {answer:?}"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(format!("answered {answer:?}")),
    }
}

fn connect(to: &str) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(to).map_err(|e| format!("connect: {e}"))?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    Ok(stream)
}

/// A connection for one request after another.
struct Kept(BufReader<TcpStream>);

/// Why a request on a kept connection has no answer.
enum Lost {
    /// The connection ended before anything of it came: whoever asked asks again.
    Unanswered,
    Wrong(String),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unanswered => f.write_str("no answer"),
            Self::Wrong(why) => f.write_str(why),
        }
    }
}

impl Kept {
    fn open(to: &str) -> Result<Self, Lost> {
        let stream = connect(to).map_err(Lost::Wrong)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Whether the connection stays.
    fn ask(&mut self, asked: &Asked) -> Result<bool, Lost> {
        let text = format!("{}\r\n\r\n", asked.head);
        let mut line = String::new();
        let begun = self
            .0
            .get_mut()
            .write_all(text.as_bytes())
            .and_then(|()| self.0.read_line(&mut line));
        if !begun.is_ok_and(|read| read > 0) {
            return Err(Lost::Unanswered);
        }
        if !line.starts_with("HTTP/1.1 200 ") {
            return Err(Lost::Wrong(format!("answered {line:?}")));
        }
        let (mut length, mut stays) = (0, true);
        let wrong = |e: std::io::Error| Lost::Wrong(format!("in the middle of an answer: {e}"));
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).map_err(wrong)?;
            let line = line.trim_end().to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(("connection", value)) => stays = value != "close",
                Some(_) => {}
                None if line.is_empty() => break,
                None => return Err(Lost::Wrong(format!("not a head: {line:?}"))),
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).map_err(wrong)?;
        Ok(stays)
    }
}

/// A WebSocket that says again what it is told.
struct Socket(TcpStream);

impl Socket {
    fn open(scene: &Scene) -> Result<Self, String> {
        let mut stream = connect(&scene.to)?;
        let text = format!(
            "{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            scene.inside("/socket").head
        );
        let read = |e: std::io::Error| format!("open a WebSocket: {e}");
        stream.write_all(text.as_bytes()).map_err(read)?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).map_err(read)?;
            answer.push(byte[0]);
        }
        match answer.starts_with(b"HTTP/1.1 101 ") {
            true => Ok(Self(stream)),
            false => Err(format!(
                "no WebSocket: {}",
                String::from_utf8_lossy(&answer)
            )),
        }
    }

    fn echoes(&mut self, number: u8) -> Result<(), String> {
        // A masked text of four letters.
        let frame = [0x81, 0x84, 1, 2, 3, 4, b'a', b'b', b'c', number];
        let mut back = [0; 10];
        let said = self.0.write_all(&frame);
        said.and_then(|()| self.0.read_exact(&mut back))
            .map_err(|e| format!("a WebSocket was cut: {e}"))?;
        assert_eq!(back, frame);
        Ok(())
    }
}

/// What was started on behalf of a server, and would outlive a test that fails.
struct Last<'a>(&'a Scene);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = kill_process(self.0.pid(), Signal::KILL);
        }
    }
}

fn start() -> Server {
    agent();
    Server::start_with(tempfile::tempdir().unwrap(), &PATIENT)
}

/// How many times a server is replaced.
fn upgrades() -> usize {
    let asked = std::env::var("DORMOUSE_UPGRADES").ok();
    asked.map_or(3, |text| text.parse().unwrap())
}

#[test]
fn upgrades_under_traffic_refuse_nobody() {
    let scene = Scene::start(start());
    {
        let _last = Last(&scene);
        scene.under_traffic(|| {
            for _ in 0..upgrades() {
                scene.some_more();
                scene.upgrade();
            }
        });
    }
    scene.end(&format!("{} upgrades", upgrades()));
}

#[test]
fn two_upgrades_asked_for_at_once_refuse_nobody() {
    let scene = Scene::start(start());
    {
        let _last = Last(&scene);
        scene.under_traffic(|| {
            scene.some_more();
            let (pid, before) = (scene.pid(), scene.replaced());
            kill_process(pid, Signal::USR2).unwrap();
            // Signals that nobody has heard yet are one.
            scene.server.has_said("the next version is started", 1);
            kill_process(pid, Signal::USR2).unwrap();
            until("it is replaced", || {
                (scene.replaced() > before).then_some(())
            });
            // The second was refused, or came next. Either way it can be done once more.
            scene.some_more();
            scene.upgrade();
        });
    }
    scene.end("two upgrades at once");
}

#[test]
fn a_server_that_is_taken_over_from_by_hand_under_traffic_refuses_nobody() {
    let server = start();
    let mut old = Vec::new();
    let home = server.home.path().to_owned();
    let mut scene = Scene::start(server);
    let mut next = None;
    scene.under_traffic(|| {
        for _ in 0..2 {
            scene.some_more();
            let flags = [&["--take-over"][..], &PATIENT].concat();
            let launched = launch_as(&mut crate::server::dormouse(&home), &home, &flags, &[]);
            old.extend(next.replace(launched.unwrap().0));
        }
    });
    old.push(std::mem::replace(&mut scene.server.child, next.unwrap()));
    for mut old in old {
        let ended = until("the old one ends", || old.try_wait().unwrap());
        assert!(ended.success(), "{ended}");
    }
    scene.end("two servers that took over by hand");
}

#[test]
fn upgrades_that_come_to_nothing_under_traffic_refuse_nobody() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("dormouse");
    agent();
    for name in ["dormouse", "dormouse-agent"] {
        let built = Path::new(env!("CARGO_BIN_EXE_dormouse")).with_file_name(name);
        // Another name of the same file, where that can be: it is large.
        let to = home.path().join(name);
        if fs::hard_link(&built, &to).is_err() {
            fs::copy(&built, &to).unwrap();
        }
    }
    let mut command = crate::server::command(program.to_str().unwrap(), home.path());
    let (child, announced) = launch_as(&mut command, home.path(), &PATIENT, &[]).unwrap();
    let scene = Scene::start(Server {
        home,
        child,
        announced,
    });
    let replace = |text: &str| {
        let new = program.with_file_name("new");
        kit::durable::write_file(&new, text.as_bytes(), 0o755).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, &program).unwrap();
    };
    let pid = scene.pid();
    scene.under_traffic(|| {
        // It does not even start to speak.
        replace("#!/bin/sh\nexit 3\n");
        kill_process(pid, Signal::USR2).unwrap();
        scene.server.has_said("the next version has ended", 1);
        // It gets everything, and dies.
        for (times, after) in ["0", "1"].into_iter().enumerate() {
            let dies = STUCK.replace("600", after);
            let dies = dies.replace("print(\"released\", flush=True)\n", "");
            let text = dies.replace("sys.argv[1]", "\"data/handover\"");
            replace(&format!("#!/usr/bin/env python3\n{text}"));
            kill_process(pid, Signal::USR2).unwrap();
            scene.server.has_said("this one goes on", times + 1);
            scene.some_more();
        }
        // It has the listeners, and never gets ready.
        let mut idle: WouldBe = scene.server.would_be();
        idle.is_offered();
        scene.some_more();
        drop(idle);
    });
    assert_eq!(scene.pid(), pid, "nobody took over");
    scene.end("upgrades that come to nothing");
}
