//! A small world: a host that is a network namespace, an internet behind it that has every address
//! a sandbox might want to reach, private ones included, and sandboxes that are namespaces too.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use model::{Uid, sandbox::NetworkPolicy};
use network::{Adopted, Network, Options};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, socket_with,
    sockopt,
};

/// Addresses of the internet.
pub(crate) const SERVER: &str = "203.0.113.10";
pub(crate) const OTHER: &str = "203.0.113.20";
pub(crate) const PRIVATE: [&str; 4] = ["10.1.2.3", "192.168.7.7", "172.16.5.5", "100.99.1.1"];
pub(crate) const METADATA: &str = "169.254.169.254";
/// Where every address of the internet sends back what it gets.
pub(crate) const ECHO: u16 = 7000;

/// How long what must arrive may take, on a busy machine too, and how often it is tried that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const TRIES: u32 = 20;
/// How long is waited for what must not arrive: a connection or its bytes, and a datagram.
const A_WHILE: Duration = Duration::from_secs(2);
pub(crate) const BRIEF: Duration = Duration::from_millis(500);

/// A network namespace, and a thread in it that does what it is told.
pub(crate) struct Space {
    jobs: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    pub(crate) tid: i32,
}

impl Space {
    #[expect(unsafe_code, reason = "a thread leaves its network namespace")]
    pub(crate) fn new() -> Self {
        let (jobs, receiver) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (told, tid) = mpsc::channel();
        thread::spawn(move || {
            // SAFETY: descriptors stay shared; only the network namespace is another.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
                .expect("these tests need root");
            told.send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            for job in receiver {
                job();
            }
        });
        let space = Self {
            jobs,
            tid: tid.recv().unwrap(),
        };
        space.ip("link set lo up");
        space
    }

    /// Does something there, and waits for what comes of it.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.jobs
            .send(Box::new(move || {
                let _ = done.send(job());
            }))
            .unwrap();
        result.recv().expect("the job did not panic")
    }

    pub(crate) fn ip(&self, args: &str) {
        let args = args.to_owned();
        self.run(move || {
            let output = Command::new("ip")
                .args(args.split(' '))
                .output()
                .expect("ip is there");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "ip {args}: {said}");
        });
    }

    pub(crate) fn shell(&self, command: &'static str) -> String {
        self.run(move || {
            let output = Command::new("sh").args(["-c", command]).output().unwrap();
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        })
    }

    /// Connects, says something and hears it.
    pub(crate) fn reaches(&self, address: &str, port: u16) -> bool {
        self.connect(address, port)
            .is_ok_and(|mut stream| echoes(&mut stream))
    }

    /// Does not, for a while.
    pub(crate) fn misses(&self, address: &str, port: u16) -> bool {
        self.connect_within(address, port, A_WHILE)
            .map_or(true, |mut stream| is_cut(&mut stream))
    }

    pub(crate) fn connect(&self, address: &str, port: u16) -> io::Result<TcpStream> {
        self.connect_within(address, port, PATIENCE)
    }

    fn connect_within(&self, address: &str, port: u16, time: Duration) -> io::Result<TcpStream> {
        let address: SocketAddr = format!("{address}:{port}").parse().unwrap();
        self.run(move || TcpStream::connect_timeout(&address, time))
    }

    /// The same by a datagram: one that is lost is sent again.
    pub(crate) fn reaches_by_datagram(&self, from: &str, to: &str, port: u16) -> bool {
        (0..TRIES).any(|_| !self.misses_by_datagram(from, to, port))
    }

    pub(crate) fn misses_by_datagram(&self, from: &str, to: &str, port: u16) -> bool {
        let (from, to) = (format!("{from}:0"), format!("{to}:{port}"));
        self.run(move || {
            let ask = || -> io::Result<bool> {
                let socket = UdpSocket::bind(&from)?;
                socket.set_read_timeout(Some(BRIEF))?;
                socket.connect(&to)?;
                socket.send(b"hello")?;
                let mut buffer = [0; 16];
                let length = socket.recv(&mut buffer)?;
                Ok(&buffer[..length] == b"hello")
            };
            !ask().unwrap_or(false)
        })
    }

    /// Sends an echo request, and hears the answer.
    pub(crate) fn pings(&self, address: &str) -> bool {
        (0..TRIES).any(|_| !self.pings_in_vain(address))
    }

    pub(crate) fn pings_in_vain(&self, address: &str) -> bool {
        let to: SocketAddr = format!("{address}:0").parse().unwrap();
        self.run(move || {
            let raw = (AddressFamily::INET, SocketType::RAW);
            let socket = socket_with(raw.0, raw.1, SocketFlags::CLOEXEC, Some(ipproto::ICMP));
            let socket = socket.unwrap();
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(BRIEF)).unwrap();
            // Type 8, code 0, the sum of what follows, identifier and number.
            let request = [8, 0, 0xf7 - 0x12, 0xff - 0x34, 0x12, 0x34, 0, 0];
            if rustix::net::sendto(&socket, &request, SendFlags::empty(), &to).is_err() {
                return true;
            }
            let mut buffer = [0; 256];
            while let Ok((length, _)) = recv(&socket, &mut buffer[..], RecvFlags::empty()) {
                // After the header of IP: an answer with that identifier, from there.
                let IpAddr::V4(from) = to.ip() else {
                    return true;
                };
                let answer = &buffer[..length];
                if answer[12..16] == from.octets()
                    && answer[20] == 0
                    && answer[24..26] == [0x12, 0x34]
                {
                    return false;
                }
            }
            true
        })
    }

    /// A netlink socket for routes that was made there.
    pub(crate) fn netlink(&self) -> OwnedFd {
        self.run(|| {
            let kind = SocketType::RAW;
            socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, None).unwrap()
        })
    }
}

/// Says something and hears it.
pub(crate) fn echoes(stream: &mut TcpStream) -> bool {
    echoes_within(stream, PATIENCE)
}

/// Does not, for a while.
pub(crate) fn is_cut(stream: &mut TcpStream) -> bool {
    !echoes_within(stream, A_WHILE)
}

fn echoes_within(stream: &mut TcpStream, time: Duration) -> bool {
    stream.set_read_timeout(Some(time)).unwrap();
    let mut buffer = [0; 5];
    stream.write_all(b"hello").is_ok()
        && stream.read_exact(&mut buffer).is_ok()
        && &buffer == b"hello"
}

/// Everything.
pub(crate) struct World {
    pub(crate) host: Space,
    pub(crate) internet: Space,
    pub(crate) network: Option<Arc<Network>>,
    pub(crate) options: Options,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Options {
            upstreams: vec!["203.0.113.53:53".parse().unwrap()],
            ..Options::default()
        })
    }

    pub(crate) fn with(options: Options) -> Self {
        let (host, internet) = (Space::new(), Space::new());
        host.ip(&format!(
            "link add up0 type veth peer name net0 netns {}",
            internet.tid
        ));
        host.ip("address add 203.0.113.254/24 dev up0");
        host.ip("link set up0 up");
        for address in ["203.0.113.1/24", "203.0.113.53/24"] {
            internet.ip(&format!("address add {address} dev net0"));
        }
        for address in [SERVER, OTHER, METADATA].iter().chain(&PRIVATE) {
            internet.ip(&format!("address add {address}/32 dev lo"));
        }
        internet.ip("link set net0 up");
        host.ip("route add default via 203.0.113.1");
        internet.run(|| {
            let listener = TcpListener::bind(("0.0.0.0", ECHO)).unwrap();
            echo_connections(listener);
            // One for each address, so that the answer comes from where the question went.
            for address in [SERVER, OTHER, METADATA].iter().chain(&PRIVATE) {
                let socket = UdpSocket::bind((*address, ECHO)).unwrap();
                thread::spawn(move || {
                    let mut buffer = [0; 2048];
                    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                        let _ = socket.send_to(&buffer[..length], from);
                    }
                });
            }
        });
        let mut world = Self {
            host,
            internet,
            network: None,
            options,
        };
        world.open(Vec::new());
        world
    }

    /// A server on this host.
    pub(crate) fn open(&mut self, sandboxes: Vec<(Uid, Ipv4Addr, NetworkPolicy)>) {
        self.network = None;
        let options = self.options.clone();
        self.network = Some(Arc::new(self.host.run(move || {
            let network = Network::open("0123456789ab", options).unwrap();
            let adopted = sandboxes.into_iter().map(|(uid, address, policy)| Adopted {
                uid,
                address,
                policy: network.compile(Some(&policy)).unwrap(),
            });
            let adopted = adopted.collect();
            network.adopt(adopted).unwrap();
            network
        })));
    }

    /// A server that ends before it knows of any sandbox.
    pub(crate) fn open_and_fail(&self) {
        let options = self.options.clone();
        self.host
            .run(move || drop(Network::open("0123456789ab", options).unwrap()));
    }

    pub(crate) fn network(&self) -> Arc<Network> {
        Arc::clone(self.network.as_ref().unwrap())
    }

    pub(crate) fn sandbox(&self, policy: &NetworkPolicy) -> Sandbox {
        let space = Space::new();
        let uid = next_uid();
        let network = self.network();
        let policy = network.compile(Some(policy)).unwrap();
        let address = network
            .attach(uid, space.tid, space.netlink(), policy)
            .unwrap();
        Sandbox {
            space,
            uid,
            address,
        }
    }

    pub(crate) fn set(&self, sandbox: &Sandbox, policy: &NetworkPolicy) {
        let network = self.network();
        let policy = network.compile(Some(policy)).unwrap();
        network.set_policy(sandbox.uid, policy).unwrap();
    }

    /// Names of the links of sandboxes on the host.
    pub(crate) fn links(&self) -> Vec<String> {
        let listed = self.host.shell("ip -o link | cut -d' ' -f2");
        let names = listed.lines().filter(|name| name.starts_with("dm"));
        names.map(str::to_owned).collect()
    }

    pub(crate) fn table(&self) -> String {
        self.host.shell("nft list ruleset")
    }

    /// Waits until no link is left.
    pub(crate) fn wait_for_no_links(&self) {
        for _ in 0..3000 {
            if self.links().is_empty() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("links are left: {:?}", self.links());
    }
}

pub(crate) fn echo_connections(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut buffer = [0; 2048];
                while let Ok(length) = stream.read(&mut buffer) {
                    if length == 0 || stream.write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// A connected sandbox.
pub(crate) struct Sandbox {
    pub(crate) space: Space,
    pub(crate) uid: Uid,
    pub(crate) address: Ipv4Addr,
}

pub(crate) fn next_uid() -> Uid {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Uid::from_random(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)))
}

pub(crate) fn policy(internet: Option<bool>, allow: &[&str], deny: &[&str]) -> NetworkPolicy {
    let boxed = |list: &[&str]| list.iter().map(|entry| (*entry).into()).collect();
    NetworkPolicy {
        internet_access: internet,
        allow_out: boxed(allow),
        deny_out: boxed(deny),
        ..NetworkPolicy::default()
    }
}
