//! Machines on a network of their own: network namespaces on a bridge, whose links can be cut and made
//! slow. Needs root, `ip`, `nft` and `tc`; without them tests fail and say so.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    process::Command,
};

use serde_json::Value;

/// Addresses for measuring, which nobody routes.
const NET: [u8; 2] = [198, 18];
const PODS: [u8; 2] = [198, 19];
/// What clients come from, and what the API server is at.
const CLIENTS: u8 = 1;
pub(crate) const API_SERVER: u8 = 3;

/// A network. It is gone when this is.
pub(crate) struct Lan {
    number: u8,
    /// Dropped last: then the number is somebody else's.
    _claim: UnixListener,
}

impl Lan {
    pub(crate) fn new() -> Self {
        let (number, claim) = claim();
        let lan = Self {
            number,
            _claim: claim,
        };
        // What one that was killed has left.
        lan.remove();
        let bridge = lan.bridge();
        // It keeps its address whoever joins or leaves: else others would send into the void for a while.
        let address = format!("02:00:00:00:{number:02x}:01");
        ip(&format!("link add {bridge} address {address} type bridge"));
        for host in [CLIENTS, API_SERVER] {
            ip(&format!("addr add {}/24 dev {bridge}", lan.address(host)));
        }
        ip(&format!("link set {bridge} up"));
        // Every address of Pods is this machine's.
        ip(&format!("route add local {} dev lo", lan.route()));
        lan
    }

    pub(crate) fn address(&self, host: u8) -> IpAddr {
        Ipv4Addr::new(NET[0], NET[1], self.number, host).into()
    }

    /// How the addresses of Pods begin.
    pub(crate) fn pods(&self) -> Vec<u8> {
        [&PODS[..], &[self.number]].concat()
    }

    fn route(&self) -> String {
        format!("{}.{}.{}.0/24", PODS[0], PODS[1], self.number)
    }

    /// Adds a machine; answers its network namespace.
    pub(crate) fn machine(&self, host: u8) -> String {
        let (name, link) = (self.name(host), self.link(host));
        ip(&format!("netns add {name}"));
        ip(&format!(
            "link add {link} type veth peer name eth0 netns {name}"
        ));
        ip(&format!("link set {link} master {} up", self.bridge()));
        ip(&format!(
            "-n {name} addr add {}/24 dev eth0",
            self.address(host)
        ));
        for device in ["lo", "eth0"] {
            ip(&format!("-n {name} link set {device} up"));
        }
        let way_out = self.address(CLIENTS);
        ip(&format!("-n {name} route add default via {way_out}"));
        name
    }

    /// A machine and these do not hear from each other any more. Its clients and Pods do.
    pub(crate) fn cut(&self, host: u8, from: &[u8]) {
        let others: Vec<_> = from.iter().map(|o| self.address(*o).to_string()).collect();
        let others = others.join(", ");
        let hook = |way: &str| format!("{{ type filter hook {way} priority 0 ; }} ;");
        let (input, output) = (hook("input"), hook("output"));
        self.nft(
            host,
            &format!(
                "add table ip cut ; add chain ip cut in {input} add chain ip cut out {output} \
                 add rule ip cut in ip saddr {{ {others} }} drop ; \
                 add rule ip cut out ip daddr {{ {others} }} drop"
            ),
        );
    }

    pub(crate) fn heal(&self, host: u8) {
        self.nft(host, "delete table ip cut");
    }

    fn nft(&self, host: u8, words: &str) {
        ip(&format!("netns exec {} nft {words}", self.name(host)));
    }

    /// A machine is connected by a thin wire, both ways.
    pub(crate) fn slow(&self, host: u8) {
        let thin = "root tbf rate 128kbit burst 4kb latency 800ms";
        let link = self.link(host);
        run("tc", &format!("qdisc add dev {link} {thin}"));
        run(
            "tc",
            &format!("-n {} qdisc add dev eth0 {thin}", self.name(host)),
        );
    }

    /// The network namespace of a machine.
    pub(crate) fn name(&self, host: u8) -> String {
        format!("{}{host}", self.names())
    }

    /// How the names of its machines begin.
    fn names(&self) -> String {
        format!("dormouse-{}-", self.number)
    }

    fn link(&self, host: u8) -> String {
        format!("{}{host}", self.links())
    }

    /// How its links are called, but for the bridge.
    fn links(&self) -> String {
        format!("dmv{}-", self.number)
    }

    fn bridge(&self) -> String {
        format!("dmb{}", self.number)
    }

    fn remove(&self) {
        // A namespace stays for a while after its end, with what connections still want to say: so the
        // links first.
        let (links, bridge) = (self.links(), self.bridge());
        for link in listed("link", "ifname") {
            if link.starts_with(&links) || link == bridge {
                let _ = tried("ip", &format!("link del {link}"));
            }
        }
        for name in listed("netns", "name") {
            if name.starts_with(&self.names()) {
                let _ = tried("ip", &format!("netns del {name}"));
            }
        }
        let _ = tried("ip", &format!("route del local {} dev lo", self.route()));
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A number that no other network has, and the claim to it. Whoever listens has it, and a process that is
/// killed listens no more.
fn claim() -> (u8, UnixListener) {
    for number in 0..=u8::MAX {
        let at = SocketAddr::from_abstract_name(format!("dormouse-lan-{number}")).unwrap();
        match UnixListener::bind_addr(&at) {
            Ok(claim) => return (number, claim),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => panic!("this test cannot claim a network: {error}"),
        }
    }
    panic!("every number of a network is taken");
}

/// The names of all there is of this kind.
fn listed(kind: &str, field: &str) -> Vec<String> {
    let ran = Command::new("ip").args(["-json", kind, "show"]).output();
    // Who cannot list cannot make any either, and that is said.
    let said = ran.map(|ran| ran.stdout).unwrap_or_default();
    let all: Vec<Value> = serde_json::from_slice(&said).unwrap_or_default();
    let names = all.iter().filter_map(|one| one[field].as_str());
    names.map(str::to_owned).collect()
}

#[track_caller]
fn ip(words: &str) {
    run("ip", words);
}

#[track_caller]
fn run(program: &str, words: &str) {
    if let Err(error) = tried(program, words) {
        panic!("this test needs root, and `{program} {words}` to work: {error}");
    }
}

fn tried(program: &str, words: &str) -> Result<(), String> {
    let ran = Command::new(program)
        .args(words.split_whitespace())
        .output()
        .map_err(|error| error.to_string())?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ran.stderr).into_owned()),
    }
}
