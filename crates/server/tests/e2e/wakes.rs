//! Every wake delivers what woke it, once, whatever the protocol.
//!
//! A sandbox is put to sleep again and again, and woken by HTTP, WebSocket, TCP and SSH in turn, each
//! time with a number that nothing else had. A program inside notes the numbers it is told. In the
//! end each must be there once: one that is missing was lost, one that is there twice was doubled.
//!
//! `DORMOUSE_WAKES` says how often each protocol has its turn; `cargo xtask soak --wakes N` sets it.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use crate::{
    sandboxes::until,
    ssh::{Place, place},
    tunnels::forwarding,
};

/// Enough to see that it works; a soak asks for more.
const FEW: usize = 20;

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
fn exchange(mut stream: TcpStream, said: &[u8], half_close: bool) -> String {
    stream.write_all(said).unwrap();
    if half_close {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    String::from_utf8_lossy(&back).into_owned()
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

struct Scene {
    place: Place,
    id: String,
    /// Of the gateway, and of a forward to port 7000.
    ports: (u16, u16),
}

impl Scene {
    /// Tells the program inside a number, and answers what it said.
    fn tell(&self, kind: &str, number: usize) -> String {
        let (gateway, forward) = self.ports;
        let connect = |port| TcpStream::connect(("127.0.0.1", port)).unwrap();
        let path = format!("/-/{}/7001", self.id);
        match kind {
            "http" => {
                let head = format!(
                    "GET {path}/{number} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                );
                exchange(connect(gateway), head.as_bytes(), false)
            }
            "websocket" => {
                let head = format!(
                    "GET {path}/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
                     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
                );
                let said = [head.as_bytes(), &frame(&number.to_string())].concat();
                exchange(connect(gateway), &said, false)
            }
            "tcp" => exchange(connect(forward), number.to_string().as_bytes(), true),
            _ => {
                let command = format!("echo ssh {number} >>notes; echo got {number}");
                self.place.ssh(&self.id, &[&command], "").ok()
            }
        }
    }
}

#[test]
fn every_wake_delivers_what_woke_it_once_whatever_the_protocol() {
    let wakes = std::env::var("DORMOUSE_WAKES").ok();
    let wakes = wakes.map_or(FEW, |number| number.parse().unwrap());
    let place = place();
    let id = place
        .server
        .run("sandbox create --auto-resume --timeout 1h")
        .ok();
    let id = id.trim().to_owned();
    let start = format!("cat >program.py <<'E'{PROGRAM}E\nsetsid python3 program.py >log 2>&1 &");
    place.server.inside(&id, &start);
    until("it listens", || {
        let seen = place
            .server
            .inside(&id, "grep -c ':1B5[89] .* 0A ' /proc/net/tcp || true");
        (seen.trim() == "2").then_some(())
    });
    let forward = forwarding(&place.server, &id, &[":7000"]);
    let url = place.server.exported("E2B_API_URL");
    let gateway = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let scene = Scene {
        ports: (gateway, forward.ports[0]),
        place,
        id,
    };
    let mut unanswered = Vec::new();
    for number in 0..wakes {
        for kind in ["http", "websocket", "tcp", "ssh"] {
            let words = format!("sandbox pause {}", scene.id);
            scene.place.server.run(&words).ok();
            let said = scene.tell(kind, number);
            if !said.contains(&format!("got {number}")) {
                unanswered.push(format!("{kind} {number}: {said:?}"));
            }
        }
    }
    let notes = scene.place.server.inside(&scene.id, "cat notes");
    let mut counts = BTreeMap::<&str, usize>::new();
    for line in notes.lines() {
        *counts.entry(line).or_default() += 1;
    }
    for kind in ["http", "websocket", "tcp", "ssh"] {
        let lines: Vec<String> = (0..wakes)
            .map(|number| format!("{kind} {number}"))
            .collect();
        let of = |line: &String| counts.get(line.as_str()).copied().unwrap_or_default();
        let lost = lines.iter().filter(|line| of(line) == 0).count();
        let doubled = lines.iter().filter(|line| of(line) > 1).count();
        println!("{kind}: {wakes} wakes, {lost} lost, {doubled} doubled");
        assert_eq!((lost, doubled), (0, 0), "{kind}: {unanswered:?}");
    }
    assert!(unanswered.is_empty(), "{unanswered:?}");
    drop(forward);
    scene.place.server.end();
}
