//! One server takes the place of another: nobody is refused, what is inside goes on, and whoever of the
//! two dies leaves the other able to serve. They need root; without it these tests fail and say so.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixDatagram, UnixStream},
        process::ExitStatusExt as _,
    },
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    run::agent,
    sandboxes::until,
    server::{Server, command, dormouse, launch, launch_as},
    tunnels::forwarding,
};

/// Long enough for what a test does meanwhile.
pub(crate) const PATIENT: [&str; 6] = [
    "--runtime",
    "local",
    "--drain-timeout",
    "10m",
    "--ssh-listen",
    "127.0.0.1:0",
];

pub(crate) fn start() -> Server {
    agent();
    Server::start_with(tempfile::tempdir().unwrap(), &PATIENT)
}

impl Server {
    /// Has another process take its place. Answers the one that was replaced.
    pub(crate) fn upgrade(&mut self, flags: &[&str]) -> Result<Child, String> {
        let flags = [&["--take-over"][..], flags].concat();
        let (next, _) = launch(self.home.path(), &flags, &[])?;
        Ok(std::mem::replace(&mut self.child, next))
    }

    pub(crate) fn door(&self) -> String {
        let url = self.exported("E2B_API_URL");
        url.strip_prefix("http://").unwrap().to_owned()
    }

    /// The first words of whoever serves SSH.
    fn ssh_says(&self) -> String {
        let line = self
            .announced
            .lines()
            .find(|line| line.contains("ssh SANDBOX_ID@"));
        let (_, port) = line.unwrap().rsplit_once(' ').unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        let mut said = [0; 8];
        stream.read_exact(&mut said).unwrap();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Begins to take over, as another server would.
    pub(crate) fn would_be(&self) -> WouldBe {
        // One that has only just started over serves a moment before it can be replaced.
        let stream = until("it can be replaced", || {
            UnixStream::connect(self.data().join("handover")).ok()
        });
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        WouldBe(BufReader::new(stream))
    }

    /// A request to its API that is under way and does not end.
    pub(crate) fn held_up(&self) -> TcpStream {
        let mut slow = TcpStream::connect(self.door()).unwrap();
        let key = self.exported("E2B_API_KEY");
        let head = format!(
            "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\
             Content-Type: application/json\r\nContent-Length: 100\r\n\
             Expect: 100-continue\r\n\r\n"
        );
        slow.write_all(head.as_bytes()).unwrap();
        // Somebody wants to read the rest of it.
        let mut wanted = [0; 21];
        slow.read_exact(&mut wanted).unwrap();
        assert_eq!(&wanted, b"HTTP/1.1 100 Continue");
        slow
    }

    /// One takes over as far as the data directory, and dies: it goes on, for the first time.
    pub(crate) fn is_not_replaced(&self) {
        let mut other = self.would_be();
        other.is_offered();
        other.say(r#"{"say":"ready"}"#);
        other.hears("released");
        drop(other);
        self.has_said("this one goes on", 1);
        drop(self.would_be());
    }

    /// Waits until it has logged this so many times.
    pub(crate) fn has_said(&self, text: &str, times: usize) {
        until(text, || {
            (self.log().matches(text).count() >= times).then_some(())
        });
    }
}

/// One that takes over as far as a test says.
pub(crate) struct WouldBe(BufReader<UnixStream>);

impl WouldBe {
    /// Asks for the listeners, and gets them.
    pub(crate) fn is_offered(&mut self) {
        self.say(r#"{"say":"takeOver","format":2,"version":"9"}"#);
        self.hears("offered");
    }

    pub(crate) fn say(&mut self, line: &str) {
        let stream = self.0.get_mut();
        stream.write_all(line.as_bytes()).unwrap();
        stream.write_all(b"\n").unwrap();
    }

    pub(crate) fn hears(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it hung up before it said {word}");
            if line.contains(&format!("\"say\":\"{word}\"")) {
                return line;
            }
        }
    }
}

/// Something open into a sandbox, which answers as long as it is.
pub(crate) struct Open(TcpStream);

impl Open {
    /// By way of the gateway, as a program would by WebSocket.
    pub(crate) fn into(server: &Server, id: &str) -> Self {
        let mut stream = TcpStream::connect(server.door()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 7000\r\n\
             Connection: Upgrade\r\nUpgrade: dormouse-tcp\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
        Self(stream)
    }

    #[track_caller]
    pub(crate) fn echoes(&mut self) {
        self.0.write_all(b"still there?").unwrap();
        let mut back = [0; 12];
        self.0.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"still there?");
    }
}

/// One request on a connection of its own; how it was answered, or why not.
pub(crate) fn ask(to: &str, head: &str) -> Result<String, String> {
    let mut stream = TcpStream::connect(to).map_err(|e| format!("connect: {e}"))?;
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let text = format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream
        .write_all(text.as_bytes())
        .map_err(|e| format!("write: {e}"))?;
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .map_err(|e| format!("read: {e}"))?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    match answer.starts_with("HTTP/1.1 200 ") {
        true => Ok(answer),
        false => Err(format!("answered: {answer:?}")),
    }
}

#[test]
fn nobody_is_refused_and_what_is_inside_goes_on_and_counts_as_use() {
    let mut server = start();
    let id = server.echoing("--auto-resume --idle-timeout 3s");
    let serve = "setsid python3 -m http.server 8000 >http.log 2>&1 &";
    server.inside(&id, serve);
    let inside = format!("GET /echo.py HTTP/1.1\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8000");
    let api = format!(
        "GET /v2/sandboxes HTTP/1.1\r\nX-API-Key: {}",
        server.exported("E2B_API_KEY")
    );
    until("the page is there", || ask(&server.door(), &inside).ok());
    let mut open = Open::into(&server, &id);
    open.echoes();
    let forward = forwarding(&server, &id, &["0:7000"]);
    let mut held = Open(TcpStream::connect(("127.0.0.1", forward.ports[0])).unwrap());
    held.echoes();
    // It may have slept before anybody was inside.
    let events = server.run(&format!("sandbox logs {id}")).ok();
    let slept = events.matches("Paused").count();
    let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let to = server.door();
    let (old, failures) = thread::scope(|scope| {
        let asking = [&inside, &inside, &api].map(|head| {
            let (done, asked, to) = (&done, &asked, &to);
            scope.spawn(move || {
                let mut failures = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    failures.extend(ask(to, head).err());
                    asked.fetch_add(1, Ordering::Relaxed);
                }
                failures
            })
        });
        let old = server.upgrade(&PATIENT);
        // Some more, by the new one.
        let so_far = asked.load(Ordering::Relaxed);
        until("more is asked", || {
            (asked.load(Ordering::Relaxed) > so_far + 50).then_some(())
        });
        done.store(true, Ordering::Relaxed);
        let failures = asking.map(|one| one.join().unwrap()).concat();
        (old, failures)
    });
    let mut old = old.unwrap();
    assert_eq!(failures, [""; 0], "of {}", asked.load(Ordering::Relaxed));
    assert_eq!(server.ssh_says(), "SSH-2.0-");
    // Another one that may idle as long, and is younger, sleeps; who is inside by the old one keeps this
    // one awake.
    let other = server.run("sandbox create --idle-timeout 3s").ok();
    let other = other.trim();
    until("another one sleeps", || {
        let events = server.run(&format!("sandbox logs {other}")).ok();
        events.contains("Paused").then_some(())
    });
    server.run(&format!("sandbox kill {other}")).ok();
    assert!(old.try_wait().unwrap().is_none(), "who is inside is inside");
    open.echoes();
    held.echoes();
    let events = server.run(&format!("sandbox logs {id}")).ok();
    assert_eq!(events.matches("Paused").count(), slept, "{events}");
    drop((open, held, forward));
    let ended = until("the old one ends", || old.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    // And now nobody does.
    until("it sleeps", || {
        let listed = server.run("sandbox ls").ok();
        listed.contains("paused").then_some(())
    });
    assert_eq!(server.inside(&id, "echo awake"), "awake\n");
    server.end();
}

#[test]
fn a_server_that_would_not_start_changes_nothing() {
    let mut server = start();
    let id = server.echoing("");
    let mut open = Open::into(&server, &id);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let domain = ["--e2b-domain", "sbx.test", "--e2b-tls-listen"];
    let half = ["127.0.0.1:0", "--e2b-certificate", "/nowhere"];
    let missing = [&half[..], &["--e2b-key", "/nowhere"]].concat();
    let refusals: [(&[&str], &[&str], &str); 5] = [
        (&domain, &missing, "certificates from /nowhere"),
        (&domain, &half, "go together"),
        (&domain, &[&at], "as e2b.tls_listen says"),
        (&["--e2b-listen"], &[&at], "as e2b.listen says"),
        (&["--metrics-listen"], &[&at], "as metrics.listen says"),
    ];
    for (flag, value, why) in refusals {
        let refused = server.upgrade(&[&PATIENT[..], flag, value].concat());
        let refused = refused.unwrap_err();
        assert!(refused.contains(why), "{why}: {refused}");
    }
    std::fs::rename(server.data().join("FORMAT"), server.data().join("F")).unwrap();
    let format = server.data().join("FORMAT");
    kit::durable::write_file(&format, b"7\n", 0o644).unwrap();
    let refused = server.upgrade(&PATIENT).unwrap_err();
    assert!(refused.contains('7'), "{refused}");
    std::fs::rename(server.data().join("F"), server.data().join("FORMAT")).unwrap();
    assert!(!server.log().contains("takes over"), "{}", server.log());
    open.echoes();
    server.run("sandbox ls").ok();
    let mode = server.data().join("handover").metadata().unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    let mut other = server.would_be();
    other.say(r#"{"say":"takeOver","format":99,"version":"9"}"#);
    assert!(other.hears("refused").contains("format"));
    server.end();
}

#[test]
fn a_server_that_dies_at_any_step_leaves_the_other_to_serve_with_what_is_inside() {
    let mut server = start();
    let id = server.echoing("");
    let mut open = Open::into(&server, &id);
    // At each step of the new one: it is there, has the listeners, is ready, has the data directory.
    for step in 0..4 {
        let mut other = server.would_be();
        if step > 0 {
            other.is_offered();
        }
        if step > 1 {
            other.say(r#"{"say":"ready"}"#);
        }
        if step > 2 {
            other.hears("released");
        }
        drop(other);
        if step > 1 {
            server.has_said("this one goes on", step - 1);
        }
        assert_eq!(server.inside(&id, "echo here"), "here\n", "{step}");
        open.echoes();
    }
    // What a start held that was given up is free.
    server.run("gc").ok();
    // The old one dies while it lets go, held up by a request that does not end.
    let _slow = server.held_up();
    let begun = server.log().matches("another server takes over").count();
    let (home, pid) = (server.home.path().to_owned(), server.child.id());
    let next = thread::spawn(move || {
        let flags = [&["--take-over"][..], &PATIENT].concat();
        launch(&home, &flags, &[]).map(|(child, _)| child)
    });
    server.has_said("another server takes over", begun + 1);
    assert_eq!(pid, server.child.id());
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    server.child = next.join().unwrap().unwrap();
    assert_eq!(server.inside(&id, "echo here"), "here\n");
    // Or while it sees out who is inside, which ends that: what it kept awake may sleep then.
    let open = Open::into(&server, &id);
    let mut old = server.upgrade(&PATIENT).unwrap();
    old.kill().unwrap();
    old.wait().unwrap();
    server.has_said("the server that was replaced is gone", 1);
    drop(open);
    server.run(&format!("sandbox pause {id}")).ok();
    server.run(&format!("sandbox resume {id}")).ok();
    assert_eq!(server.inside(&id, "echo here"), "here\n");
    server.run(&format!("sandbox kill {id}")).ok();
    until("it is gone", || {
        let left = server.run("get sandboxes -A").ok();
        left.is_empty().then_some(())
    });
}

#[test]
fn a_server_that_is_replaced_at_the_second_try_ends_when_it_is_told_to() {
    let mut server = start();
    let id = server.echoing("");
    // Inside since before the first try, which comes to nothing.
    let mut open = Open::into(&server, &id);
    server.is_not_replaced();
    let mut old = server.upgrade(&PATIENT).unwrap();
    open.echoes();
    assert!(old.try_wait().unwrap().is_none(), "who is inside is inside");
    // A signal before the old one has heard of it would stop both.
    server.has_said("replaced: what is inside", 1);
    let pid = Pid::from_raw(old.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = until("the old one ends", || old.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    assert_eq!(server.inside(&id, "echo here"), "here\n");
    server.run(&format!("sandbox kill {id}")).ok();
    until("it is gone", || {
        let left = server.run("get sandboxes -A").ok();
        left.is_empty().then_some(())
    });
}

/// Takes over, and does not get on when it has the data directory.
pub(crate) const STUCK: &str = r#"
import socket, sys, time
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
words = line.makefile("rb")
def hear(word):
    while b'"say":"%s"' % word not in words.readline(): pass
line.sendall(b'{"say":"takeOver","format":2,"version":"9"}\n')
hear(b"offered")
line.sendall(b'{"say":"ready"}\n')
hear(b"released")
print("released", flush=True)
time.sleep(600)
"#;

#[test]
fn a_server_that_stops_while_another_takes_over_and_does_not_serve_ends_it_too() {
    let mut server = Server::start_in(tempfile::tempdir().unwrap(), &[], &[]);
    let mut stuck = Command::new("python3")
        .args(["-c", STUCK])
        .arg(server.data().join("handover"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut says = BufReader::new(stuck.stdout.take().unwrap());
    says.read_line(&mut said).unwrap();
    assert_eq!(said, "released\n");
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "{}", server.log());
    assert_eq!(stuck.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_server_that_would_not_see_what_the_other_sees_is_refused() {
    let mut server = Server::start();
    for (flag, kind) in [("--net", "network"), ("--mount", "mount")] {
        let mut elsewhere = command("unshare", server.home.path());
        elsewhere.arg(flag);
        elsewhere.arg(dormouse(server.home.path()).get_program());
        let takes_over = ["--take-over"];
        let refused = launch_as(&mut elsewhere, server.home.path(), &takes_over, &[]).unwrap_err();
        let same = format!("the same {kind} namespace");
        assert!(refused.contains(&same), "{refused}");
    }
    let mut old = server.upgrade(&[]).unwrap();
    assert!(old.wait().unwrap().success());
    server.stop();
}

#[test]
fn a_server_that_could_not_be_ended_from_where_the_other_runs_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut inside = command("unshare", home.path());
    inside.args(["--pid", "--fork", "--kill-child"]);
    inside.arg(dormouse(home.path()).get_program());
    let (child, announced) = launch_as(&mut inside, home.path(), &[], &[]).unwrap();
    let mut server = Server {
        home,
        child,
        announced,
    };
    let refused = server.upgrade(&[]).unwrap_err();
    assert!(refused.contains("the same PID namespace"), "{refused}");
    server.run("get sandboxes").ok();
    // It is the first process there, and not the one of that number here.
    let told = launch(server.home.path(), &[], &[]).unwrap_err();
    let holder = "in use by another process, which cannot be seen from here";
    assert!(told.contains(holder), "{told}");
    server.kill();
}

#[test]
fn a_server_that_stops_while_it_lets_go_lets_nobody_take_over() {
    let mut server = start();
    let slow = server.held_up();
    let home = server.home.path().to_owned();
    let next = thread::spawn(move || {
        let flags = [&["--take-over"][..], &PATIENT].concat();
        launch(&home, &flags, &[]).map(|(child, _)| child)
    });
    server.has_said("another server takes over", 1);
    server.signal(Signal::TERM);
    server.has_said("nobody takes over", 1);
    drop(slow);
    assert!(server.wait().success(), "{}", server.log());
    let refused = next.join().unwrap().unwrap_err();
    assert!(refused.contains("it was told to stop"), "{refused}");
}

/// A process that is nobody's child here, and is not left behind.
struct Stray(Pid);

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn a_server_that_is_told_to_starts_the_one_that_replaces_it_and_says_which_that_is() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let notified = UnixDatagram::bind(&path).unwrap();
    notified
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let main = || {
        let mut heard = [0; 64];
        let length = notified.recv(&mut heard).unwrap();
        let text = String::from_utf8_lossy(&heard[..length]).into_owned();
        let pid = text.strip_prefix("READY=1\nMAINPID=").unwrap();
        pid.parse::<u32>().unwrap()
    };
    let socket = path.display().to_string();
    let mut server = Server::start_in(home, &[], &[("NOTIFY_SOCKET", &socket)]);
    assert_eq!(main(), server.child.id());
    let port = server.port();
    server.signal(Signal::USR2);
    let next = main();
    assert_ne!(next, server.child.id());
    let next = Stray(Pid::from_raw(next.try_into().unwrap()).unwrap());
    assert!(server.wait().success());
    assert_eq!(server.port(), port);
    server.run("get sandboxes -A").ok();
    // Once more: what was taken over can be handed over.
    kill_process(next.0, Signal::USR2).unwrap();
    let last = Stray(Pid::from_raw(main().try_into().unwrap()).unwrap());
    assert_ne!(last.0, next.0);
    server.run("get sandboxes -A").ok();
    assert!(!server.log().contains("ERROR"), "{}", server.log());
}
