//! What cannot be done from inside, as root and as a user: one line for each attempt.
#![expect(
    unsafe_code,
    reason = "System V queues have no safe interface, and the host must have one to be found"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use std::{
    net::{TcpListener, UdpSocket},
    os::linux::net::SocketAddrExt as _,
    os::unix::net::UnixListener,
};

use model::{Epoch, sandbox::Resources, template::RuntimeClass};
use runtime::{Arming, Runtime as _, WorkloadSpec};
use support::{Host, fence, spec};

const PIDS: u32 = 64;
const MEMORY: u32 = 96;

#[tokio::test]
async fn nobody_breaks_out() {
    attempt_all(RuntimeClass::Native, false)
        .await
        .all_refused(false);
}

#[tokio::test]
async fn nobody_breaks_out_who_may_become_root_inside() {
    attempt_all(RuntimeClass::Native, true)
        .await
        .all_refused(true);
}

#[tokio::test]
async fn nobody_breaks_out_of_runc() {
    attempt_all(RuntimeClass::Runc, false)
        .await
        .all_refused(false);
}

#[tokio::test]
async fn nobody_breaks_out_of_runc_who_may_become_root_inside() {
    attempt_all(RuntimeClass::Runc, true)
        .await
        .all_refused(true);
}

/// What the document says is what is seen here, word for word but for the words of the kernel.
#[tokio::test]
async fn classes_refuse_what_the_document_says() {
    let native = attempt_all(RuntimeClass::Native, false).await;
    let runc = attempt_all(RuntimeClass::Runc, false).await;
    let seen: Vec<_> = native.0.iter().zip(&runc.0).collect();
    let mut table = String::new();
    for (native, runc) in &seen {
        assert_eq!(native.attempt, runc.attempt);
        let (a, b) = (native.verdicts(), runc.verdicts());
        table += &format!("| {} | {a} | {b} |\n", native.attempt);
        if native.said != runc.said {
            println!(
                "{}: native {:?}, runc {:?}",
                native.attempt, native.said, runc.said
            );
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/isolation.md");
    let document = std::fs::read_to_string(path).unwrap();
    let kept: String = document
        .lines()
        .filter(|line| {
            seen.iter()
                .any(|(a, _)| line.starts_with(&format!("| {} |", a.attempt)))
        })
        .map(|line| format!("{line}\n"))
        .collect();
    println!("{table}");
    assert_eq!(kept, table, "docs/isolation.md is not what is seen");
}

/// How one attempt went, as root and as user.
struct Outcome {
    attempt: String,
    permitted: [bool; 2],
    said: [String; 2],
}

impl Outcome {
    fn verdicts(&self) -> &'static str {
        match self.permitted {
            [false, false] => "refused",
            [true, false] => "permitted to root",
            [false, true] => "permitted to users",
            [true, true] => "permitted",
        }
    }
}

struct Outcomes(Vec<Outcome>);

impl Outcomes {
    #[track_caller]
    fn all_refused(&self, sudo: bool) {
        let mut breaches = Vec::new();
        for outcome in &self.0 {
            let expected = [false, sudo && outcome.attempt == PROMISED];
            if outcome.permitted != expected {
                breaches.push(format!("{}: {:?}", outcome.attempt, outcome.said));
            }
        }
        assert!(breaches.is_empty(), "{breaches:#?}");
    }
}

/// The one attempt that is a promise where sudo is asked for.
const PROMISED: &str = "run a setuid program as root";

/// What the host has to be found is there once for a process: its names have the process's number.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn attempt_all(class: RuntimeClass, sudo: bool) -> Outcomes {
    let _alone = ALONE.lock().await;
    let mut options = support::options();
    options.limits.pids = PIDS;
    let host = Host::with(options);
    let (at, other) = (fence(1, 1), fence(2, 1));
    let limited = WorkloadSpec {
        resources: Some(Resources {
            cpu_millis: Some(1000),
            memory_mib: Some(MEMORY),
            disk_mib: None,
        }),
        class,
        sudo,
        ..spec()
    };
    for at in [at, other] {
        host.runtime().create(at, &limited).await.unwrap();
        let arming = Arming {
            epoch: Epoch(1),
            env: [("TOKEN", "secret")].into_iter().collect(),
            ..Arming::default()
        };
        host.runtime().arm(at, &arming).await.unwrap();
    }
    host.sh(other.uid, "echo theirs > /tmp/theirs");
    host.run(other.uid, 0, &["background", "/bin/sleep", "98765"]);
    host.sh(at.uid, "cp /usr/bin/id /tmp/setuid-id && chmod 4755 /tmp/setuid-id && cp /bin/cat /tmp/capable-cat");
    // Version 2, effective, all capabilities: what setcap writes.
    let script = "import os; os.setxattr('/tmp/capable-cat', 'security.capability', b'\\x01\\0\\0\\x02' + b'\\xff' * 4 + b'\\0' * 4 + b'\\xff\\x01\\0\\0' + b'\\0' * 4)";
    let set = host.run(at.uid, 0, &["/usr/bin/python3", "-c", script]);
    println!("file capabilities set: {} {}", set.code, set.output);

    // What there is to be found on the host.
    let secret = host.data.join("secret");
    std::fs::copy("/etc/hostname", &secret).unwrap();
    open_to_all(&host);
    let queue = Queue::make();
    let (port, datagrams) = listen_both_ways();
    let number = port.local_addr().unwrap().port();
    answer_datagrams(datagrams);
    let server = "import socketserver as s; h = type('H', (s.BaseRequestHandler,), {'handle': lambda h: h.request[1].sendto(b'x', h.client_address)}); s.UDPServer(('', 9000), h).serve_forever()";
    host.run(
        other.uid,
        0,
        &["background", "/usr/bin/python3", "-c", server],
    );
    host.run(
        other.uid,
        0,
        &[
            "background",
            "/usr/bin/python3",
            "-m",
            "http.server",
            "9000",
        ],
    );
    let name = format!("dormouse-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let path = host.data.join("socket");
    let _socket = UnixListener::bind(&path).unwrap();
    let state = host.data.join(format!("sandboxes/{}/state.json", at.uid));
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let given = [
        format!("secret={}", secret.display()),
        format!("state={}", state.display()),
        format!("pid={}", std::process::id().max(1000)),
        format!("other={}", "98765"),
        "file=/tmp/theirs".to_owned(),
        format!("queue={}", queue.key),
        format!("port={number}"),
        "gateway=100.87.0.1".to_owned(),
        format!("address={}", own_address()),
        format!(
            "neighbour={}",
            host.sh(
                other.uid,
                "ip -o -4 address show eth0 | sed 's/.*inet //; s,/.*,,'"
            )
            .trim()
        ),
        format!("socket={name}"),
        format!("path={}", path.display()),
        format!("pids={PIDS}"),
        format!("memory={MEMORY}"),
        format!("boot={}", boot.trim()),
    ];

    // The first process was given nothing but /dev/null; a socket is what it made itself.
    let pid = host.runtime().first_process(at.uid).unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<_> = open
        .map(|fd| std::fs::read_link(fd.unwrap().path()).unwrap())
        .collect();
    assert!(open.len() <= 4, "{open:?}");
    assert!(
        open[..3].iter().all(|target| target.ends_with("null")),
        "{open:?}"
    );

    let listed = host.run(at.uid, 0, &["/run/dormouse/init", "attempts"]);
    assert_eq!(listed.code, 0, "{}", listed.output);
    let attempts: Vec<_> = listed.output.lines().collect();
    assert!(attempts.len() >= 60, "{}", attempts.len());
    let mut outcomes = Vec::new();
    for attempt in &attempts {
        let mut outcome = Outcome {
            attempt: (*attempt).to_owned(),
            permitted: [false; 2],
            said: Default::default(),
        };
        for (index, (who, uid)) in [("root", 0), ("user", 1000)].into_iter().enumerate() {
            let mut argv = vec!["/run/dormouse/init", "attempt", attempt];
            argv.extend(given.iter().map(String::as_str));
            let reply = host.run(at.uid, uid, &argv);
            let said = reply.output.trim();
            // Ended by a signal: that is what a filter does to the worst. But the first process
            // must be there to say so.
            assert_ne!(said, "no reply", "{who}: {attempt}");
            outcome.permitted[index] = reply.code > 0;
            outcome.said[index] = if reply.code < 0 {
                format!("killed {said}")
            } else {
                said.to_owned()
            };
            let result = if reply.code > 0 {
                "PERMITTED"
            } else {
                "refused"
            };
            println!(
                "{class:?}  {result}  {who}  {attempt}: {}",
                outcome.said[index]
            );
        }
        outcomes.push(outcome);
    }
    // It is still there, and the other one did not notice.
    assert_eq!(host.sh(at.uid, "echo here"), "here\n");
    assert_eq!(host.sh(other.uid, "cat /tmp/theirs"), "theirs\n");
    for at in [at, other] {
        host.runtime().delete(at).await.unwrap();
    }
    println!("{} attempts, each as root and as user", attempts.len());
    Outcomes(outcomes)
}

/// The address of this host on the way to others; its own name for itself where it has no way.
fn own_address() -> std::net::IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    match socket.connect("203.0.113.1:9") {
        Ok(()) => socket.local_addr().unwrap().ip(),
        Err(_) => std::net::Ipv4Addr::LOCALHOST.into(),
    }
}

/// A port for connections, and the same for datagrams.
fn listen_both_ways() -> (TcpListener, UdpSocket) {
    let ports = (0..1000).find_map(|_| {
        let port = TcpListener::bind("0.0.0.0:0").ok()?;
        let number = port.local_addr().ok()?.port();
        Some((port, UdpSocket::bind(("0.0.0.0", number)).ok()?))
    });
    ports.expect("a port that nobody has for either")
}

fn answer_datagrams(socket: UdpSocket) {
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

/// No mode of a directory on the way is what refuses.
fn open_to_all(host: &Host) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(host.data.parent().unwrap(), mode(0o755)).unwrap();
    for name in ["", "secret"] {
        std::fs::set_permissions(host.data.join(name), mode(0o755)).unwrap();
    }
}

/// A message queue and shared memory of the host, under a key that nobody had.
struct Queue {
    key: i32,
    queue: i32,
    memory: i32,
}

impl Queue {
    fn make() -> Self {
        let entropy = kit::Entropy::from_os();
        let made = (0..1000).find_map(|_| {
            let [a, b, c, d, ..] = entropy.u64().to_le_bytes();
            // Never zero, which would be a queue without a key.
            Self::under(i32::from_le_bytes([a | 1, b, c, d]))
        });
        made.expect("a key that nobody has for either")
    }

    fn under(key: i32) -> Option<Self> {
        let create = libc::IPC_CREAT | libc::IPC_EXCL | 0o666;
        // Dropped, and removed, where the other one is somebody's.
        let mut made = Self {
            key,
            queue: -1,
            memory: -1,
        };
        // SAFETY: only numbers are passed.
        made.queue = unsafe { libc::msgget(key, create) };
        // SAFETY: only numbers are passed.
        made.memory = unsafe { libc::shmget(key, 4096, create) };
        (made.queue >= 0 && made.memory >= 0).then_some(made)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: removing needs no memory.
        unsafe {
            libc::msgctl(self.queue, libc::IPC_RMID, std::ptr::null_mut());
            libc::shmctl(self.memory, libc::IPC_RMID, std::ptr::null_mut());
        }
    }
}
