//! Every wake delivers what woke it, once, whatever the protocol.
//!
//! Sandboxes are put to sleep again and again, side by side, and woken by HTTP, WebSocket, TCP and SSH
//! in turn, each time with a number that nothing else had. A program inside notes the numbers it is
//! told. In the end each must be there once: one that is missing was lost, one that is there twice was
//! doubled. And each sleep has ended once.
//!
//! `DORMOUSE_WAKES` says how often each protocol has its turn; `cargo xtask soak --wakes N` sets it,
//! and `DORMOUSE_PROGRAM`, so that it is the program in release that is woken in.

use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::{
    sandboxes::{json, until},
    ssh::{Place, place},
    tunnels::{Forwarding, forwarding},
};

/// Enough to see that it works; a soak asks for more.
const FEW: usize = 20;
/// Sandboxes side by side, with at least this many wakes each.
const BESIDE: usize = 8;
const LEAST: usize = 5;
/// Longer than any wake may take.
const PATIENCE: Duration = Duration::from_secs(90);

const KINDS: [&str; 4] = ["http", "websocket", "tcp", "ssh"];

const PROGRAM: &str = r#"
import socket, threading
notes, lock = open("notes", "a", buffering=1), threading.Lock()
def note(kind, number):
    with lock:
        notes.write(f"{kind} {number}\n")
    return f"got {number}".encode()
def tcp(c):
    said = b""
    while (d := c.recv(4096)):
        said += d
    c.sendall(note("tcp", said.decode()))
def http(c):
    head = b""
    while b"\r\n\r\n" not in head:
        d = c.recv(4096)
        if not d:
            return
        head += d
    head, rest = head.split(b"\r\n\r\n", 1)
    if b"upgrade: websocket" in head.lower():
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        while len(rest) < 2 or len(rest) < 6 + (rest[1] & 127):
            rest += c.recv(4096)
        mask, size = rest[2:6], rest[1] & 127
        text = bytes(b ^ mask[i % 4] for i, b in enumerate(rest[6:6 + size]))
        answer = note("websocket", text.decode())
        c.sendall(bytes([0x81, len(answer)]) + answer)
    else:
        number = head.split(b" ")[1].decode().strip("/")
        answer = note("http", number)
        c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
def listen(port, serve):
    s = socket.create_server(("127.0.0.1", port))
    def one(c):
        try:
            serve(c)
        finally:
            c.close()
    while True:
        threading.Thread(target=one, args=(s.accept()[0],), daemon=True).start()
threading.Thread(target=listen, args=(7000, tcp), daemon=True).start()
listen(7001, http)
"#;

/// Says something on a connection, and answers what came back up to the end.
fn exchange(port: u16, said: &[u8], half_close: bool) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(said)?;
    if half_close {
        stream.shutdown(Shutdown::Write)?;
    }
    let mut back = Vec::new();
    stream.read_to_end(&mut back)?;
    Ok(String::from_utf8_lossy(&back).into_owned())
}

/// A short text in a frame of a client.
fn frame(text: &str) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let size = u8::try_from(text.len()).unwrap();
    let mut frame = vec![0x81, 0x80 | size];
    frame.extend_from_slice(&mask);
    frame.extend(
        text.bytes()
            .enumerate()
            .map(|(at, byte)| byte ^ mask[at % 4]),
    );
    frame
}

/// One sandbox, with the program inside.
struct Scene<'a> {
    place: &'a Place,
    id: String,
    gateway: u16,
    /// To port 7000.
    forward: Forwarding,
}

impl<'a> Scene<'a> {
    fn set(place: &'a Place) -> Self {
        let server = &place.server;
        let id = server.run("sandbox create --auto-resume --timeout 1h").ok();
        let id = id.trim().to_owned();
        let start =
            format!("cat >program.py <<'E'{PROGRAM}E\nsetsid python3 program.py >log 2>&1 &");
        server.inside(&id, &start);
        until("it listens", || {
            let seen = server.inside(&id, "grep -c ':1B5[89] .* 0A ' /proc/net/tcp || true");
            (seen.trim() == "2").then_some(())
        });
        let url = server.exported("E2B_API_URL");
        Self {
            gateway: url.rsplit_once(':').unwrap().1.parse().unwrap(),
            forward: forwarding(server, &id, &[":7000"]),
            place,
            id,
        }
    }

    fn pause(&self) -> io::Result<()> {
        let key = self.place.server.exported("E2B_API_KEY");
        let head = format!(
            "POST /sandboxes/{}/pause HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n",
            self.id
        );
        let said = exchange(self.gateway, head.as_bytes(), false)?;
        match said.starts_with("HTTP/1.1 204") {
            true => Ok(()),
            false => Err(io::Error::other(said)),
        }
    }

    /// Tells the program inside a number, and answers what it said.
    fn tell(&self, kind: &str, number: usize) -> io::Result<String> {
        let path = format!("/-/{}/7001", self.id);
        match kind {
            "http" => {
                let head = format!(
                    "GET {path}/{number} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                );
                exchange(self.gateway, head.as_bytes(), false)
            }
            "websocket" => {
                let head = format!(
                    "GET {path}/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
                     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
                );
                let said = [head.as_bytes(), &frame(&number.to_string())].concat();
                exchange(self.gateway, &said, false)
            }
            "tcp" => {
                let said = number.to_string();
                exchange(self.forward.ports[0], said.as_bytes(), true)
            }
            _ => {
                let command = format!("echo ssh {number} >>notes; echo got {number}");
                let ran = self.place.ssh(&self.id, &[&command], "");
                Ok(format!("{}{}", ran.stdout, ran.stderr))
            }
        }
    }

    /// Puts it to sleep and wakes it with each of these numbers. Answers what went wrong.
    fn wake(&self, numbers: impl Iterator<Item = usize>, progress: &Progress) -> Vec<String> {
        let mut wrong = Vec::new();
        for number in numbers {
            for kind in KINDS {
                let said = self.pause().and_then(|()| self.tell(kind, number));
                match said {
                    Ok(said) if said.contains(&format!("got {number}")) => {}
                    other => wrong.push(format!("{kind} {number}: {other:?}")),
                }
                progress.one();
            }
        }
        wrong
    }

    /// How often each line is in the notes.
    fn notes(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in self.place.server.inside(&self.id, "cat notes").lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }

    fn wakes(&self) -> u64 {
        let words = format!("get sandbox {} -o json", self.id);
        let record = json(&self.place.server.run(&words).ok());
        record["status"]["sleeps"]["woken"].as_u64().unwrap()
    }
}

/// Says how far it has come, twenty times.
struct Progress {
    all: usize,
    done: AtomicUsize,
}

impl Progress {
    fn one(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of((self.all / 20).max(1)) {
            println!("{done} of {} wakes", self.all);
        }
    }
}

#[test]
fn every_wake_delivers_what_woke_it_once_whatever_the_protocol() {
    let wakes = std::env::var("DORMOUSE_WAKES").ok();
    let wakes = wakes.map_or(FEW, |number| number.parse().unwrap());
    let beside = wakes.div_ceil(LEAST).min(BESIDE);
    let place = place();
    let scenes: Vec<Scene<'_>> = (0..beside).map(|_| Scene::set(&place)).collect();
    let progress = Progress {
        all: wakes * KINDS.len(),
        done: AtomicUsize::new(0),
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let work = |at: usize| (at..wakes).step_by(beside);
        let waking: Vec<_> = scenes
            .iter()
            .enumerate()
            .map(|(at, scene)| {
                let progress = &progress;
                scope.spawn(move || scene.wake(work(at), progress))
            })
            .collect();
        let ended = waking.into_iter().map(|thread| thread.join().unwrap());
        ended.flatten().collect()
    });
    let notes: Vec<_> = scenes.iter().map(Scene::notes).collect();
    let mut all_right = wrong.is_empty();
    for kind in KINDS {
        let times = (0..wakes).map(|number| {
            let line = format!("{kind} {number}");
            let of = |notes: &BTreeMap<String, usize>| notes.get(&line).copied().unwrap_or(0);
            notes.iter().map(of).sum::<usize>()
        });
        let times: Vec<usize> = times.collect();
        let lost = times.iter().filter(|times| **times == 0).count();
        let doubled = times.iter().filter(|times| **times > 1).count();
        println!("{kind}: {wakes} wakes, {lost} lost, {doubled} doubled");
        all_right &= lost == 0 && doubled == 0;
    }
    let expected = (wakes * KINDS.len()) as u64;
    // Who was waited for is answered before the record says that it is awake.
    let woken = until("every wake is in a record", || {
        let woken: u64 = scenes.iter().map(Scene::wakes).sum();
        (woken >= expected).then_some(woken)
    });
    println!("sleeps that ended: {woken}, in {beside} sandboxes");
    assert!(all_right, "{wrong:#?}");
    assert_eq!(woken, expected);
    drop(scenes);
    place.server.end();
}
