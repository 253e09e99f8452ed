//! What a sandbox looks like from outside, and whether one that starts over looks like a fresh one.
//!
//! A reset makes everything of a sandbox anew. That nothing of its last owner is left is not taken
//! from the code that does so: the first sandbox of a kind is looked at before anybody has used it,
//! and one that was reset must look the same, line by line, or it is not handed out again. Only the
//! kernel and the host's disk are asked, never anything inside.
//!
//! | Part | Lines |
//! |---|---|
//! | processes | every process of its cgroups: program, ids, privileges, limits |
//! | mounts | every mount it sees |
//! | sockets | every socket in its network namespace, but those of the agent's port |
//! | network | its links, routes, rules and neighbours |
//! | ipc | queues, semaphores, shared memory; its host name |
//! | files | the writable layer and everything in memory file systems |
//! | cgroups | limits, children, kills, whether it is frozen |
//! | host | what is kept of it beside the writable layer |
//!
//! Where nobody knows how a fresh one looks, as after a restart of the server, there is no proof.

use std::{
    collections::BTreeMap,
    fs, io,
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use ::runtime::RuntimeError;
use images::Origin;
use model::{StringMap, Uid, sandbox::NetworkPolicy, sandbox::Resources, template::RuntimeClass};
use parking_lot::Mutex;
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use crate::{
    cgroups::Cgroup,
    engine::Engine,
    error::{Doing as _, EngineError, Result},
    record::{Place, Record},
    workload::{Process, Workload},
};

/// A fresh sandbox has a handful of files; one with more than this is not fresh.
const MOST_FILES: usize = 10_000;

/// How often one that is unlike a fresh one is looked at: the server's own sockets inside are open for a
/// moment longer where another start has copied them, until its program runs.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Lines of each part, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look(BTreeMap<&'static str, Vec<String>>);

impl Look {
    /// The parts and their lines.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        self.0.iter().map(|(name, lines)| (*name, lines.as_slice()))
    }

    /// What the other one has more or less, part by part; nothing if they are the same.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut all = Vec::new();
        for name in self.0.keys().chain(other.0.keys()) {
            let (ours, theirs) = (self.0.get(name), other.0.get(name));
            let (ours, theirs) = (lines(ours), lines(theirs));
            let new = theirs.iter().filter(|line| !ours.contains(line));
            all.extend(new.map(|line| format!("{name}: + {line}")));
            let gone = ours.iter().filter(|line| !theirs.contains(line));
            all.extend(gone.map(|line| format!("{name}: - {line}")));
            if ours.len() != theirs.len() && all.is_empty() {
                all.push(format!(
                    "{name}: {} instead of {}",
                    theirs.len(),
                    ours.len()
                ));
            }
        }
        all.sort();
        all.dedup();
        all
    }
}

fn lines(of: Option<&Vec<String>>) -> &[String] {
    of.map_or(&[], Vec::as_slice)
}

/// What makes two fresh sandboxes look alike.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    origin: Option<Origin>,
    images: StringMap,
    resources: Option<Resources>,
    network: Option<Box<NetworkPolicy>>,
    class: RuntimeClass,
    sudo: bool,
}

impl Kind {
    fn of(record: &Record) -> Self {
        Self {
            origin: record.origin.clone(),
            images: record.images.clone(),
            resources: record.resources,
            network: record.network.clone(),
            class: record.class,
            sudo: record.sudo,
        }
    }
}

/// How fresh sandboxes look, by kind; the kind that was last needed is last.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<Vec<(Kind, Arc<Look>)>>);

/// More kinds than this are not remembered: the one that nobody needed for longest is forgotten, and
/// its members are not used twice until a fresh one was seen again.
const MOST_KINDS: usize = 1_000;

impl Looks {
    fn find(&self, kind: &Kind) -> Option<Arc<Look>> {
        let mut known = self.0.lock();
        let at = known.iter().position(|(known, _)| known == kind)?;
        let found = known.remove(at);
        let look = Arc::clone(&found.1);
        known.push(found);
        Some(look)
    }

    fn learn(&self, kind: Kind, look: Look) {
        let mut known = self.0.lock();
        if known.iter().any(|(there, _)| *there == kind) {
            return;
        }
        if known.len() >= MOST_KINDS {
            known.remove(0);
        }
        known.push((kind, Arc::new(look)));
    }
}

impl Engine {
    /// Remembers how a sandbox looks that was made a moment ago, if it is the first of its kind.
    pub(crate) fn learn_look(&self, uid: Uid, fresh: &Workload) {
        // Only the agent is known to do nothing of its own before it is asked.
        if self.options.agent_port.is_none() || fresh.record.layer.is_some() {
            return;
        }
        let kind = Kind::of(&fresh.record);
        if self.looks.find(&kind).is_some() {
            return;
        }
        let look_twice = || {
            let look = self.look(uid, fresh)?;
            thread::sleep(BETWEEN_LOOKS);
            Ok::<_, EngineError>((look, self.look(uid, fresh)?))
        };
        match look_twice() {
            Ok((look, again)) if look.differences(&again).is_empty() => {
                self.looks.learn(kind, look);
            }
            Ok(_) => tracing::debug!(%uid, "a fresh sandbox changed as it was looked at"),
            // It is as good as any other; only nobody learns from it.
            Err(error) => tracing::warn!(%uid, %error, "a fresh sandbox could not be looked at"),
        }
    }

    /// Why a sandbox that started over cannot be taken for a fresh one; nothing if it can.
    pub(crate) fn unlike_fresh(&self, uid: Uid, renewed: &Workload) -> Result<Option<String>> {
        if self.options.agent_port.is_none() {
            return Ok(None);
        }
        let Some(fresh) = self.looks.find(&Kind::of(&renewed.record)) else {
            return Ok(Some(
                "nobody knows how a fresh one looks since the server has started".into(),
            ));
        };
        for _ in 1..LOOKS {
            if fresh.differences(&self.look(uid, renewed)?).is_empty() {
                return Ok(None);
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        let differences = fresh.differences(&self.look(uid, renewed)?);
        Ok((!differences.is_empty()).then(|| differences.join("; ")))
    }

    /// How the sandbox of a uid looks now.
    pub(crate) fn look_at(&self, uid: Uid) -> Result<Look> {
        let slot = self.slot(uid).ok_or(RuntimeError::Absent(uid))?;
        let seen = slot.seen.lock().clone();
        self.look(uid, &seen.ok_or(RuntimeError::Absent(uid))?)
    }

    /// How a sandbox looks now.
    pub(crate) fn look(&self, uid: Uid, workload: &Workload) -> Result<Look> {
        let process = workload.alive(uid)?;
        let place = self.place(uid);
        let cgroup = self.cgroup(uid);
        let eye = Eye {
            pid: process.id.pid,
            process,
            first_uid: workload.record.first_uid,
            names: [
                (uid.to_string(), "UID"),
                (workload.record.container_id.to_string(), "CONTAINER"),
                (workload.record.first_uid.to_string(), "FIRST"),
            ],
            agent_port: self.options.agent_port.unwrap_or_default(),
        };
        let mounts = eye.read("mountinfo")?;
        let parts = [
            ("processes", eye.processes(&cgroup)?),
            ("mounts", eye.mounts(&mounts)),
            ("sockets", eye.sockets()?),
            ("network", eye.network()?),
            ("ipc", eye.ipc()?),
            ("files", eye.files(&place, &mounts)?),
            ("cgroups", eye.cgroups(&cgroup)?),
            ("host", eye.host(&place)?),
        ];
        Ok(Look(parts.into_iter().collect()))
    }
}

/// Looks at one sandbox.
struct Eye<'a> {
    pid: i32,
    process: &'a Process,
    first_uid: u32,
    /// What differs between two sandboxes of a kind, and what is written instead.
    names: [(String, &'static str); 3],
    agent_port: u16,
}

impl Eye<'_> {
    fn read(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.pid);
        read(Path::new(&path))
    }

    fn plain(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (own, instead) in &self.names {
            text = text.replace(own.as_str(), instead);
        }
        text
    }

    fn processes(&self, cgroup: &Cgroup<'_>) -> Result<Vec<String>> {
        /// Of `status`: what is set before a program is started, not what it does then.
        const KEPT: [&str; 9] = [
            "Uid:",
            "Gid:",
            "Groups:",
            "CapInh:",
            "CapPrm:",
            "CapBnd:",
            "CapAmb:",
            "NoNewPrivs:",
            "Seccomp:",
        ];
        let mut all = Vec::new();
        for directory in below(cgroup.unified())? {
            for pid in read(&directory.join("cgroup.procs"))?.lines() {
                let file = |name: &str| read(Path::new(&format!("/proc/{pid}/{name}")));
                // One that has ended since is as good as gone.
                let (Ok(command), Ok(status)) = (file("cmdline"), file("status")) else {
                    continue;
                };
                let status = status.lines();
                let kept = status.filter(|line| KEPT.iter().any(|name| line.starts_with(name)));
                let kept = kept.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
                // An OCI runtime's first process becomes the agent a moment after it was started.
                let mut line = vec![match pid.parse::<i32>() {
                    Ok(pid) if self.pid == pid => "the first".to_owned(),
                    _ => self.plain(&command.replace('\0', " ")),
                }];
                line.extend(kept.map(|text| self.plain(&text)));
                line.push(file("oom_score_adj").unwrap_or_default().trim().to_owned());
                let limits = file("limits").unwrap_or_default();
                let limits = limits
                    .lines()
                    .filter(|line| line.contains("Max open files"));
                line.extend(limits.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")));
                all.push(line.join(" | "));
            }
        }
        all.sort();
        Ok(all)
    }

    fn mounts(&self, mountinfo: &str) -> Vec<String> {
        let lines = mountinfo.lines().map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            // Numbers and peer groups are the kernel's.
            let after = fields.iter().position(|field| *field == "-");
            let what = fields.get(3..6).unwrap_or_default().join(" ");
            let kind = after.and_then(|at| fields.get(at + 1..));
            let [kind, source, options] = kind.unwrap_or_default() else {
                return self.plain(line);
            };
            let options: Vec<_> = options.split(',').map(|o| self.option(o)).collect();
            self.plain(&format!("{what} {kind} {source} {}", options.join(",")))
        });
        lines.collect()
    }

    /// An option of a mount, without what differs between two sandboxes of a kind.
    fn option(&self, option: &str) -> String {
        match option.split_once('=') {
            // Layers are handed over as descriptors.
            Some((name, value)) if value.starts_with("/proc/self/fd/") => name.to_owned(),
            Some((name @ ("uid" | "gid"), id)) => {
                format!(
                    "{name}={}",
                    id.parse().map_or_else(|_| id.into(), |id| self.id(id))
                )
            }
            _ => option.to_owned(),
        }
    }

    /// An id as it is seen inside.
    fn id(&self, id: u32) -> String {
        match id.checked_sub(self.first_uid).filter(|id| *id < 65_536) {
            Some(inside) => inside.to_string(),
            None => format!("host's {id}"),
        }
    }

    fn sockets(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for name in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6", "icmp", "icmp6"] {
            for line in self
                .read_or_nothing(&format!("net/{name}"))?
                .lines()
                .skip(1)
            {
                let fields: Vec<_> = line.split_whitespace().collect();
                let [_, local, remote, state, ..] = fields[..] else {
                    continue;
                };
                let port = local.rsplit(':').next().unwrap_or_default();
                if name.starts_with("tcp")
                    && u16::from_str_radix(port, 16).is_ok_and(|port| port == self.agent_port)
                {
                    continue;
                }
                all.push(format!("{name} {local} {remote} {state}"));
            }
        }
        for line in self.read_or_nothing("net/unix")?.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let kind = fields.get(4).copied().unwrap_or_default();
            // One without a name is nothing but a descriptor of some process.
            if let Some(path) = fields.get(7) {
                all.push(format!("unix {kind} {path}"));
            }
        }
        for name in ["packet", "netlink"] {
            let text = self.read_or_nothing(&format!("net/{name}"))?;
            for line in text.lines().skip(1) {
                let fields: Vec<_> = line.split_whitespace().collect();
                let (protocol, owner) = (fields.get(1), fields.get(2));
                // The kernel's own have no number.
                if name == "packet" || owner.is_some_and(|number| *number != "0") {
                    all.push(format!("{name} {}", protocol.unwrap_or(&"")));
                }
            }
        }
        all.sort();
        Ok(all)
    }

    fn network(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for line in self.read("net/dev")?.lines().skip(2) {
            all.push(format!(
                "link {}",
                words(line).first().map_or("", |name| name)
            ));
        }
        for line in self.read_or_nothing("net/route")?.lines().skip(1) {
            // Without counters of use.
            let fields = words(line);
            let fields: Vec<_> = fields.iter().take(4).chain(fields.get(7)).collect();
            all.push(format!("route {fields:?}"));
        }
        for line in self.read_or_nothing("net/ipv6_route")?.lines() {
            let fields = words(line);
            all.push(format!("route6 {:?} {:?}", fields.first(), fields.last()));
        }
        for line in self.read_or_nothing("net/arp")?.lines().skip(1) {
            let fields = words(line);
            all.push(format!(
                "neighbour {:?} {:?}",
                fields.first(),
                fields.get(2)
            ));
        }
        for name in ["ip_tables_names", "ip6_tables_names"] {
            for line in self.read_or_nothing(&format!("net/{name}"))?.lines() {
                all.push(format!("{name} {line}"));
            }
        }
        all.sort();
        Ok(all)
    }

    /// Seen from a thread that goes there and does not come back.
    fn ipc(&self) -> Result<Vec<String>> {
        let inside = || -> io::Result<Vec<String>> {
            let there = ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
            move_into_thread_name_spaces(self.process.pidfd.as_fd(), there)?;
            let name = rustix::system::uname();
            let mut all = vec![format!(
                "name {:?} {:?}",
                name.nodename(),
                name.domainname()
            )];
            for kind in ["shm", "sem", "msg"] {
                let text = fs::read_to_string(format!("/proc/sysvipc/{kind}"))?;
                all.extend(text.lines().skip(1).map(|line| format!("{kind} {line}")));
            }
            Ok(all)
        };
        let seen = thread::scope(|scope| scope.spawn(inside).join());
        seen.unwrap_or_else(|_| Err(io::Error::other("the thread that looks has panicked")))
            .doing("look at the sandbox's queues")
    }

    fn files(&self, place: &Place, mountinfo: &str) -> Result<Vec<String>> {
        let mut all = Vec::new();
        self.walk("", &place.upper(), &mut all)?;
        for line in mountinfo.lines() {
            let (before, after) = line.split_once(" - ").unwrap_or_default();
            let point = before.split(' ').nth(4).unwrap_or_default();
            let kind = after.split(' ').next().unwrap_or_default();
            if matches!(kind, "tmpfs" | "mqueue" | "ramfs") && !point.contains('\\') {
                let root = format!("/proc/{}/root{point}", self.pid);
                self.walk(point, Path::new(&root), &mut all)?;
            }
        }
        Ok(all)
    }

    fn walk(&self, shown: &str, directory: &Path, all: &mut Vec<String>) -> Result<()> {
        let looking = || format!("look at {shown:?} of the sandbox");
        let mut names = Vec::new();
        match fs::read_dir(directory) {
            Ok(entries) => {
                for entry in entries {
                    names.push(entry.doing(looking())?.file_name());
                }
            }
            // A file that something is mounted on, or one that has just gone.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotADirectory | io::ErrorKind::NotFound
                ) => {}
            Err(error) => return Err(error).doing(looking()),
        }
        names.sort();
        for name in names {
            if all.len() >= MOST_FILES {
                return Ok(());
            }
            let path = directory.join(&name);
            let Ok(meta) = fs::symlink_metadata(&path) else {
                continue;
            };
            let shown = format!("{shown}/{}", name.as_bytes().escape_ascii());
            // Of a directory, the size is the file system's.
            let size = if meta.is_dir() { 0 } else { meta.size() };
            all.push(format!(
                "{shown} {:o} {} {} {size} {:x} {}",
                meta.mode(),
                self.id(meta.uid()),
                self.id(meta.gid()),
                meta.rdev(),
                attributes(&path)
            ));
            if meta.is_dir() {
                self.walk(&shown, &path, all)?;
            }
        }
        Ok(())
    }

    fn cgroups(&self, cgroup: &Cgroup<'_>) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for root in cgroup.directories() {
            for directory in below(root)? {
                let own = directory.strip_prefix(root).unwrap_or(&directory);
                all.push(format!("{}", own.display()));
            }
        }
        all.push(format!("frozen {}", cgroup.is_frozen()));
        all.push(format!("kills {}", cgroup.oom_kills()));
        for (name, value) in cgroup.limits() {
            all.push(format!("{name} {value}"));
        }
        Ok(all)
    }

    fn host(&self, place: &Place) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for directory in [place.directory().to_owned(), place.inside()] {
            let entries = fs::read_dir(&directory).doing("list what is kept of the sandbox")?;
            for entry in entries {
                let entry = entry.doing("list what is kept of the sandbox")?;
                all.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        all.sort();
        Ok(all)
    }

    /// A file that some kernels do not have.
    fn read_or_nothing(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.pid);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            other => Ok(String::from_utf8_lossy(&other.doing(format!("read {path}"))?).into()),
        }
    }
}

fn read(path: &Path) -> Result<String> {
    // Names inside need not be UTF-8.
    let bytes = fs::read(path).doing(format!("read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into())
}

/// A cgroup and every one below it.
fn below(root: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut all = vec![root.to_owned()];
    let mut next = 0;
    while let Some(directory) = all.get(next).cloned() {
        next += 1;
        let entries = fs::read_dir(&directory).doing("list the sandbox's cgroups")?;
        for entry in entries {
            let entry = entry.doing("list the sandbox's cgroups")?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                all.push(entry.path());
            }
        }
    }
    Ok(all)
}

/// Names of extended attributes.
fn attributes(path: &Path) -> String {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or_default();
    names.truncate(length);
    names.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(number: usize) -> Kind {
        let image = number.to_string();
        Kind {
            origin: None,
            images: [("main", image.as_str())].into_iter().collect(),
            resources: None,
            network: None,
            class: RuntimeClass::default(),
            sudo: false,
        }
    }

    #[test]
    fn the_kind_that_nobody_needed_for_longest_makes_room_for_a_new_one() {
        let looks = Looks::default();
        for number in 0..MOST_KINDS {
            looks.learn(kind(number), Look::default());
        }
        assert!(looks.find(&kind(0)).is_some());
        looks.learn(kind(MOST_KINDS), Look::default());
        assert!(looks.find(&kind(MOST_KINDS)).is_some(), "the new one");
        assert!(looks.find(&kind(0)).is_some(), "needed a moment ago");
        assert!(looks.find(&kind(1)).is_none());
        assert!(looks.find(&kind(2)).is_some());
    }
}
