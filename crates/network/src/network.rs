//! The network of one engine: who is connected, by which address, under which policy.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use kit::Tasks;
use model::{Uid, sandbox::NetworkPolicy};
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::{
    error::{Doing as _, NetworkError, Result},
    link::{self, Cable},
    name::Name,
    netlink::Socket,
    nft::{self, Element, Transaction},
    options::{Block, Options},
    policy::{self, Policy},
    ranges::Addresses,
    table::{self, Rules},
};

/// A name's address stays open at least this long, whatever its answer says.
const SHORTEST: Duration = Duration::from_secs(60);
/// How the names of all tables begin.
pub(crate) const TABLE: &str = "dormouse-";
pub(crate) const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// The network of an engine. Dropping it leaves connected sandboxes connected, and their policy in
/// force; with none left it takes its table with it.
#[derive(Debug)]
pub struct Network {
    shared: Arc<Shared>,
    tasks: Tasks,
}

/// A sandbox that is connected already, as its record says.
#[derive(Debug)]
pub struct Adopted {
    /// Which one.
    pub uid: Uid,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its policy.
    pub policy: Policy,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    table: String,
    group: u32,
    mtu: u32,
    version_6: bool,
    special: Addresses,
    port: u16,
    host: Mutex<Socket>,
    listening: Mutex<Option<Listening>>,
    state: Mutex<State>,
}

/// Where questions for names arrive.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) datagrams: UdpSocket,
    pub(crate) connections: TcpListener,
}

#[derive(Debug)]
struct State {
    /// The owner of the table.
    nft: Socket,
    /// The table is this one's. Until then what is there, and keeps sandboxes that run, is another's.
    is_in_force: bool,
    sandboxes: BTreeMap<Uid, Connected>,
    by_address: HashMap<Ipv4Addr, Uid>,
    /// Addresses of sandboxes that are not connected yet.
    reserved: HashMap<Uid, Ipv4Addr>,
    /// Where the search for an address begins: one that was given back rests as long as possible.
    next: u32,
    /// Counts answers, so that the oldest is known.
    answers: u64,
}

#[derive(Debug)]
struct Connected {
    address: Ipv4Addr,
    policy: Arc<Policy>,
    /// Addresses that names led to.
    answers: HashMap<Ipv4Addr, Answer>,
}

#[derive(Debug)]
struct Answer {
    names: Vec<Name>,
    last: u64,
}

impl Network {
    /// Prepares the network of an engine; nothing is in force until [`Network::adopt`]. It is for
    /// the network namespace of the calling thread.
    ///
    /// # Errors
    /// If this host cannot connect sandboxes; the message says what it lacks.
    pub fn open(instance: &str, options: Options) -> Result<Self> {
        ensure_forwarding()?;
        let gateway = options.block.gateway();
        let listening = Listening::open(gateway).doing("listen for questions for names")?;
        let address = listening.datagrams.local_addr();
        let port = address.doing("listen for questions for names")?.port();
        let number = number_of(instance);
        let shared = Shared {
            table: table_of(instance),
            group: group_of(instance),
            mtu: uplink_mtu().unwrap_or(1500),
            version_6: fs::exists("/proc/thread-self/net/if_inet6").unwrap_or(false),
            special: policy::special(options.block),
            port,
            host: Mutex::new(Socket::route()?),
            listening: Mutex::new(Some(listening)),
            state: Mutex::new(State {
                nft: Socket::netfilter()?,
                is_in_force: false,
                sandboxes: BTreeMap::new(),
                by_address: HashMap::new(),
                reserved: HashMap::new(),
                next: number % options.block.size(),
                answers: 0,
            }),
            options,
        };
        Ok(Self {
            shared: Arc::new(shared),
            tasks: Tasks::default(),
        })
    }

    /// The address of every sandbox's way out and name server.
    #[must_use]
    pub fn gateway(&self) -> Ipv4Addr {
        self.shared.options.block.gateway()
    }

    /// Reads a policy for this network; none is the default one.
    ///
    /// # Errors
    /// With the entry that cannot be kept.
    pub fn compile(&self, policy: Option<&NetworkPolicy>) -> Result<Policy> {
        let default = NetworkPolicy::default();
        let policy = policy.unwrap_or(&default);
        Ok(Policy::compile(policy, self.shared.options.block)?)
    }

    /// Puts the table in force with these sandboxes in it, in one step, whatever was there; then
    /// takes away the links of sandboxes that are gone.
    ///
    /// # Errors
    /// If the kernel refuses; then what was in force still is.
    pub fn adopt(&self, sandboxes: Vec<Adopted>) -> Result<()> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        for one in sandboxes {
            state.by_address.insert(one.address, one.uid);
            let connected = Connected {
                address: one.address,
                policy: Arc::new(one.policy),
                answers: HashMap::new(),
            };
            state.sandboxes.insert(one.uid, connected);
        }
        let answers = nft::list_elements(&state.nft, &shared.table, &table::ANSWERS)?;
        let answers = state.readmit(answers);
        let mut t = Transaction::new(&shared.table);
        let rules = Rules {
            group: shared.group,
            gateway: self.gateway(),
            port: shared.port,
            connections: shared.options.connections,
            note: &shared.options.note,
        };
        table::make(&mut t, &rules, &shared.special);
        let all = || state.sandboxes.values();
        let sources: Vec<_> = all().map(|one| table::source(one.address)).collect();
        t.add_elements(&table::SOURCES, &sources);
        let open = all().filter(|one| one.policy.open);
        let open: Vec<_> = open.map(|one| table::open(one.address)).collect();
        t.add_elements(&table::OPEN, &open);
        let ranges = all().flat_map(|one| table::ranges(one.address, &one.policy));
        t.add_elements(&table::RANGES, &ranges.collect::<Vec<_>>());
        t.add_elements(&table::ANSWERS, &answers);
        t.commit(&state.nft).map_err(lacking)?;
        state.is_in_force = true;

        let host = shared.host.lock();
        let mut links = link::list(&host, shared.group)?;
        let connected: BTreeSet<_> = state
            .sandboxes
            .values()
            .map(|one| link::index_of(one.address))
            .collect();
        links.retain(|index| !connected.contains(index));
        if !links.is_empty() {
            tracing::info!(
                count = links.len(),
                "links of sandboxes that are gone are removed"
            );
        }
        link::remove(&host, &links)
    }

    /// Reserves an address for a sandbox that is about to be connected, so that it can be noted
    /// before. Another engine of this host may still have it.
    ///
    /// # Errors
    /// If every address is taken.
    pub fn reserve(&self, uid: Uid) -> Result<Ipv4Addr> {
        let mut state = self.shared.state.lock();
        let address = state.take(uid, self.shared.options.block)?;
        if let Some(before) = state.reserved.insert(uid, address) {
            state.by_address.remove(&before);
        }
        Ok(address)
    }

    /// Connects a sandbox, and returns its address: the one that was reserved, unless another
    /// engine has it. `pid` is a process in its network namespace, `inside` a netlink socket for
    /// routes that was made there.
    ///
    /// # Errors
    /// If the kernel refuses, or every address is taken; then nothing of it is left.
    pub fn attach(&self, uid: Uid, pid: i32, inside: OwnedFd, policy: Policy) -> Result<Ipv4Addr> {
        let shared = &*self.shared;
        let inside = Socket::from_fd(inside);
        for _ in 0..shared.options.block.size() {
            let address = {
                let mut state = shared.state.lock();
                let reserved = state.reserved.remove(&uid);
                reserved.map_or_else(|| state.take(uid, shared.options.block), Ok)?
            };
            let cable = Cable {
                address,
                gateway: self.gateway(),
                group: shared.group,
                mtu: shared.mtu,
                version_6: shared.version_6,
            };
            let made = cable.make(&shared.host.lock(), pid);
            if let Ok(false) = made {
                shared.state.lock().by_address.remove(&address);
                continue;
            }
            let connected = made
                .and_then(|_| cable.set_up_inside(&inside))
                .and_then(|()| shared.admit(uid, address, policy));
            if let Err(error) = connected {
                shared.state.lock().by_address.remove(&address);
                let removed = link::remove(&shared.host.lock(), &[link::index_of(address)]);
                if let Err(also) = removed {
                    tracing::warn!(%uid, error = %also, "a failed connection left its link");
                }
                return Err(error);
            }
            return Ok(address);
        }
        Err(NetworkError::Full(shared.options.block))
    }

    /// Puts another policy in force for a sandbox, in one step.
    ///
    /// # Errors
    /// If it is not connected, or the kernel refuses; then the old policy is in force.
    pub fn set_policy(&self, uid: Uid, policy: Policy) -> Result<()> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        let state = &mut *state;
        let one = state
            .sandboxes
            .get_mut(&uid)
            .ok_or(NetworkError::Unknown(uid))?;
        let (old, new) = (Arc::clone(&one.policy), policy);
        let mut t = Transaction::new(&shared.table);
        match (old.open, new.open) {
            (true, false) => t.remove_elements(&table::OPEN, &[table::open(one.address)]),
            (false, true) => t.add_elements(&table::OPEN, &[table::open(one.address)]),
            (true, true) | (false, false) => {}
        }
        let (before, after) = (
            table::ranges(one.address, &old),
            table::ranges(one.address, &new),
        );
        let minus = |a: &[Element], b: &[Element]| -> Vec<Element> {
            a.iter()
                .filter(|element| !b.contains(element))
                .cloned()
                .collect()
        };
        t.remove_elements(&table::RANGES, &minus(&before, &after));
        t.add_elements(&table::RANGES, &minus(&after, &before));
        let gone = |answer: &Answer| !answer.names.iter().any(|name| new.names(name));
        let gone: Vec<_> = one
            .answers
            .iter()
            .filter(|(_, answer)| gone(answer))
            .map(|(to, _)| *to)
            .collect();
        let elements = |to: &Ipv4Addr| table::answer(one.address, *to, "", Duration::ZERO);
        t.remove_elements(
            &table::ANSWERS,
            &gone.iter().map(elements).collect::<Vec<_>>(),
        );
        t.commit(&state.nft)?;
        for to in gone {
            one.answers.remove(&to);
        }
        one.policy = Arc::new(new);
        Ok(())
    }

    /// Forgets a sandbox; its link goes with its namespace. Nothing to do if it is not connected.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn detach(&self, uid: Uid) -> Result<()> {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        if let Some(reserved) = state.reserved.remove(&uid) {
            state.by_address.remove(&reserved);
        }
        let Some(one) = state.sandboxes.get(&uid) else {
            return Ok(());
        };
        let address = one.address;
        let mut t = Transaction::new(&shared.table);
        t.remove_elements(&table::SOURCES, &[table::source(address)]);
        t.remove_elements(&table::OPEN, &[table::open(address)]);
        t.remove_elements(&table::RANGES, &table::ranges(address, &one.policy));
        let answer = |to: &Ipv4Addr| table::answer(address, *to, "", Duration::ZERO);
        let answers: Vec<_> = one.answers.keys().map(answer).collect();
        t.remove_elements(&table::ANSWERS, &answers);
        table::forget_connections(&mut t, address);
        t.commit(&state.nft)?;
        state.sandboxes.remove(&uid);
        state.by_address.remove(&address);
        Ok(())
    }

    /// Gives up the table, so that another process can adopt it. What this one would change in it from
    /// then on is refused by the kernel.
    ///
    /// # Errors
    /// If the kernel gives no socket; then nothing is given up.
    pub fn let_go(&self) -> Result<()> {
        let mut state = self.shared.state.lock();
        // The socket that owns it is closed by this.
        state.nft = Socket::netfilter()?;
        state.is_in_force = false;
        Ok(())
    }

    pub(crate) const fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
        let state = self.shared.state.lock();
        if state.is_in_force && state.sandboxes.is_empty() {
            let mut t = Transaction::new(&self.shared.table);
            t.destroy_table();
            if let Err(error) = t.commit(&state.nft) {
                tracing::warn!(%error, "the policy table could not be removed");
            }
        }
    }
}

impl Shared {
    /// Lets the packets of a new sandbox pass.
    fn admit(&self, uid: Uid, address: Ipv4Addr, policy: Policy) -> Result<()> {
        let mut state = self.state.lock();
        let mut t = Transaction::new(&self.table);
        t.add_elements(&table::SOURCES, &[table::source(address)]);
        if policy.open {
            t.add_elements(&table::OPEN, &[table::open(address)]);
        }
        t.add_elements(&table::RANGES, &table::ranges(address, &policy));
        t.commit(&state.nft)?;
        let connected = Connected {
            address,
            policy: Arc::new(policy),
            answers: HashMap::new(),
        };
        state.sandboxes.insert(uid, connected);
        Ok(())
    }

    /// The policy of the sandbox that has an address.
    pub(crate) fn policy_of(&self, address: Ipv4Addr) -> Option<Arc<Policy>> {
        let state = self.state.lock();
        let one = state.sandboxes.get(state.by_address.get(&address)?)?;
        Some(Arc::clone(&one.policy))
    }

    /// Opens the addresses that a name led to, if the policy that is in force now names it.
    pub(crate) fn admit_answer(
        &self,
        asker: Ipv4Addr,
        name: &Name,
        addresses: &[(Ipv4Addr, Duration)],
    ) -> Result<()> {
        let mut state = self.state.lock();
        let State {
            nft,
            sandboxes,
            by_address,
            answers: count,
            ..
        } = &mut *state;
        let Some(one) = by_address
            .get(&asker)
            .and_then(|uid| sandboxes.get_mut(uid))
        else {
            return Ok(());
        };
        if one.policy.open || !one.policy.names(name) {
            return Ok(());
        }
        let mut t = Transaction::new(&self.table);
        let mut elements = Vec::new();
        for (to, time) in addresses {
            // A name must not lead to where only its address may.
            if self.special.contains(*to) {
                continue;
            }
            *count += 1;
            let entry = one.answers.entry(*to).or_insert_with(|| Answer {
                names: Vec::new(),
                last: 0,
            });
            entry.last = *count;
            if !entry.names.contains(name) && entry.names.len() < 8 {
                entry.names.push(name.clone());
            }
            let time = (*time).clamp(SHORTEST, table::RENEWAL);
            elements.push(table::answer(asker, *to, name.as_str(), time));
        }
        while one.answers.len() > self.options.names.addresses {
            let oldest = one.answers.iter().min_by_key(|(_, answer)| answer.last);
            let Some(oldest) = oldest.map(|(to, _)| *to) else {
                break;
            };
            one.answers.remove(&oldest);
            elements
                .retain(|element| table::read_answer(element).is_none_or(|(_, to)| to != oldest));
            let old = table::answer(asker, oldest, "", Duration::ZERO);
            t.remove_elements(&table::ANSWERS, &[old]);
        }
        t.add_elements(&table::ANSWERS, &elements);
        t.commit(nft)
    }

    /// The sockets for questions, once.
    pub(crate) fn take_listening(&self) -> Option<Listening> {
        self.listening.lock().take()
    }
}

impl State {
    /// Takes an address that no sandbox of this engine has.
    fn take(&mut self, uid: Uid, block: Block) -> Result<Ipv4Addr> {
        for _ in 0..block.size() {
            let address = block.address(self.next);
            self.next = (self.next + 1) % block.size();
            if let Entry::Vacant(free) = self.by_address.entry(address) {
                free.insert(uid);
                return Ok(address);
            }
        }
        Err(NetworkError::Full(block))
    }

    /// Keeps what an earlier server has answered, where the policy still names it.
    fn readmit(&mut self, elements: Vec<Element>) -> Vec<Element> {
        let mut kept = Vec::new();
        for element in elements {
            let name = std::str::from_utf8(&element.note).ok().and_then(Name::read);
            let (Some(name), Some((from, to))) = (name, table::read_answer(&element)) else {
                continue;
            };
            let uid = self.by_address.get(&from);
            let Some(one) = uid.and_then(|uid| self.sandboxes.get_mut(uid)) else {
                continue;
            };
            if one.policy.names(&name) {
                let answer = Answer {
                    names: vec![name],
                    last: 0,
                };
                one.answers.insert(to, answer);
                kept.push(element);
            }
        }
        kept
    }
}

impl Listening {
    /// The address is on the links of sandboxes, of which there may be none yet.
    fn open(gateway: Ipv4Addr) -> std::io::Result<Self> {
        let open = |kind, port| -> std::io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = socket_with(AddressFamily::INET, kind, flags, None)?;
            sockopt::set_ip_freebind(fd.as_fd(), true)?;
            bind(&fd, &SocketAddr::new(IpAddr::V4(gateway), port))?;
            Ok(fd)
        };
        let mut tries = 0;
        loop {
            let datagrams = UdpSocket::from(open(SocketType::DGRAM, 0)?);
            // Both at one port; somebody may have the other half of it.
            match open(SocketType::STREAM, datagrams.local_addr()?.port()) {
                Ok(connections) => {
                    listen(&connections, 128)?;
                    return Ok(Self {
                        datagrams,
                        connections: connections.into(),
                    });
                }
                Err(error) if tries == 16 => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }
}

/// The table of an engine.
pub(crate) fn table_of(instance: &str) -> String {
    format!("{TABLE}{instance}")
}

/// The group of the links of an engine: never one of the small numbers that people give.
pub(crate) fn group_of(instance: &str) -> u32 {
    number_of(instance) | 0x8000_0000
}

fn number_of(instance: &str) -> u32 {
    instance.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Without it the host takes packets of sandboxes for itself only.
fn ensure_forwarding() -> Result<()> {
    let lacking = |detail: String| NetworkError::Lacking {
        name: "forwarding of packets",
        detail: detail.into(),
        remedy: "Set the sysctl net.ipv4.ip_forward to 1.",
    };
    let now = fs::read_to_string(FORWARDING).map_err(|error| lacking(error.to_string()))?;
    if now.trim() != "0" {
        return Ok(());
    }
    let mut options = fs::OpenOptions::new();
    options
        .write(true)
        .open(FORWARDING)
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"1\n"))
        .map_err(|error| lacking(format!("it is off, and cannot be turned on: {error}")))?;
    tracing::info!("forwarding of packets was off on this host and is on now");
    Ok(())
}

/// The largest packet of the link that leads out, as far as the main table says.
fn uplink_mtu() -> Option<u32> {
    let routes = fs::read_to_string("/proc/thread-self/net/route").ok()?;
    let link = routes.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (link, to) = (fields.next()?, fields.next()?);
        (to == "00000000").then(|| link.to_owned())
    })?;
    let mtu = fs::read_to_string(format!("/sys/class/net/{link}/mtu")).ok()?;
    mtu.trim()
        .parse()
        .ok()
        .filter(|mtu| (576..=65_535).contains(mtu))
}

fn lacking(error: NetworkError) -> NetworkError {
    match error {
        // A kernel that can do it, for somebody who may.
        NetworkError::System { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            NetworkError::Owned
        }
        NetworkError::System { doing, source } => NetworkError::Lacking {
            name: "nftables",
            detail: format!("{doing}: {source}").into(),
            remedy: "Use Linux 6.12 or newer with nftables, connection tracking and NAT (modprobe nf_tables nft_ct nft_nat nft_masq nft_reject_inet).",
        },
        other => other,
    }
}
