//! Machines on a network of their own: network namespaces on a bridge, whose links can be cut and made
//! slow. Needs root, `ip`, `nft` and `tc`; without them tests fail and say so.

use std::{
    net::{IpAddr, Ipv4Addr},
    process::Command,
};

/// Addresses for measuring, which nobody routes.
const NET: [u8; 2] = [198, 18];
const PODS: [u8; 2] = [198, 19];
/// What clients come from, and what the API server is at.
const CLIENTS: u8 = 1;
pub(crate) const API_SERVER: u8 = 3;

/// A network. It is gone when this is.
pub(crate) struct Lan {
    number: u8,
    machines: Vec<u8>,
}

impl Lan {
    pub(crate) fn new() -> Self {
        let lan = Self {
            number: number(),
            machines: Vec::new(),
        };
        let bridge = bridge(lan.number);
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
    pub(crate) fn machine(&mut self, host: u8) -> String {
        let (name, link) = (self.name(host), self.link(host));
        self.machines.push(host);
        ip(&format!("netns add {name}"));
        ip(&format!(
            "link add {link} type veth peer name eth0 netns {name}"
        ));
        let bridge = bridge(self.number);
        ip(&format!("link set {link} master {bridge} up"));
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
        format!("dormouse-{}-{host}", self.number)
    }

    fn link(&self, host: u8) -> String {
        format!("dmv{}-{host}", self.number)
    }

    fn remove(&self) {
        for host in &self.machines {
            // A namespace stays for a while after its end, with what connections still want to say.
            let _ = tried("ip", &format!("link del {}", self.link(*host)));
            let _ = tried("ip", &format!("netns del {}", self.name(*host)));
        }
        let _ = tried("ip", &format!("route del local {} dev lo", self.route()));
        // Last: then the number is somebody else's.
        let _ = tried("ip", &format!("link del {}", bridge(self.number)));
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        self.remove();
    }
}

fn bridge(number: u8) -> String {
    format!("dmb{number}")
}

/// A number that no other network has. Whoever made the bridge has it.
fn number() -> u8 {
    let mut last = String::new();
    for number in 0..=u8::MAX {
        let bridge = bridge(number);
        // It keeps its address whoever joins or leaves: else others would send into the void for a while.
        let address = format!("02:00:00:00:{number:02x}:01");
        let words = format!("link add {bridge} address {address} type bridge");
        match tried("ip", &words) {
            Ok(()) => return number,
            Err(error) => last = format!("{words}: {error}"),
        }
    }
    panic!("this test needs root, and a bridge: {last}");
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
