//! Cgroups: limits, freezing and killing.
//!
//! Freezing, killing and cloning into a cgroup use the unified (version 2) tree, which need not
//! have any controller for that. Each controller is used where it is: on the unified tree, or on a
//! version 1 hierarchy of its own on hosts that still have them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use model::Uid;
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::{
    error::{Doing as _, EngineError, Result},
    options::Limits,
};

/// Controllers that limits need.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// How long processes may take to stop or die. They are in the kernel's hands by then.
const PATIENCE: Duration = Duration::from_secs(10);

/// The hierarchies of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    /// Where the unified tree is mounted.
    pub(crate) unified: PathBuf,
    /// Controllers on the unified tree.
    pub(crate) version2: Vec<&'static str>,
    /// Controllers with a hierarchy of their own, and where.
    pub(crate) version1: BTreeMap<&'static str, PathBuf>,
    /// Other hierarchies, which OCI runtimes make cgroups in.
    others: Vec<PathBuf>,
}

impl Hierarchies {
    /// Looks at what is mounted.
    pub(crate) fn detect() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").doing("read the list of mounts")?;
        let unified = unified_mount(&mounts).ok_or_else(|| EngineError::Lacking {
            name: "cgroup2",
            detail: "no unified cgroup tree is mounted".into(),
            remedy: "Mount one: mount -t cgroup2 none /sys/fs/cgroup/unified",
        })?;
        let available = fs::read_to_string(unified.join("cgroup.controllers"))
            .doing("read the controllers of the unified cgroup tree")?;
        let version2: Vec<_> = CONTROLLERS
            .into_iter()
            .filter(|c| available.split_whitespace().any(|a| a == *c))
            .collect();
        let version1: BTreeMap<_, _> = CONTROLLERS
            .into_iter()
            .filter(|c| !version2.contains(c))
            .filter_map(|c| Some((c, version1_mount(&mounts, c)?)))
            .collect();
        let used: Vec<_> = version1.values().collect();
        let others = version1_mounts(&mounts).filter(|mount| !used.contains(&mount));
        Ok(Self {
            others: others.collect(),
            unified,
            version2,
            version1,
        })
    }

    /// Controllers this host has nowhere.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        CONTROLLERS
            .into_iter()
            .filter(|c| !self.version2.contains(c) && !self.version1.contains_key(c))
            .collect()
    }
}

fn unified_mount(mounts: &str) -> Option<PathBuf> {
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .map(|fields| PathBuf::from(fields[1]))
}

fn version1_mounts(mounts: &str) -> impl Iterator<Item = PathBuf> {
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2) == Some(&"cgroup"))
        .map(|fields| PathBuf::from(fields[1]))
}

fn version1_mount(mounts: &str, controller: &str) -> Option<PathBuf> {
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| {
            fields.get(2) == Some(&"cgroup")
                && fields
                    .get(3)
                    .is_some_and(|options| options.split(',').any(|o| o == controller))
        })
        .map(|fields| PathBuf::from(fields[1]))
}

/// The cgroups of one engine: the parents of its sandboxes' cgroups.
#[derive(Debug)]
pub(crate) struct Cgroups {
    hierarchies: Hierarchies,
    /// Below the root of each hierarchy.
    parent: PathBuf,
}

impl Cgroups {
    /// Makes the parents, and lets the controllers through to their children.
    pub(crate) fn open(parent: PathBuf) -> Result<Self> {
        let cgroups = Self {
            hierarchies: Hierarchies::detect()?,
            parent,
        };
        cgroups.prepare()?;
        Ok(cgroups)
    }

    fn prepare(&self) -> Result<()> {
        let mut level = self.hierarchies.unified.clone();
        let switch_on = |level: &Path| {
            for controller in &self.hierarchies.version2 {
                write(
                    &level.join("cgroup.subtree_control"),
                    &format!("+{controller}"),
                )
                .doing(format!("let {controller} through at {}", level.display()))?;
            }
            Ok::<_, EngineError>(())
        };
        switch_on(&level)?;
        for part in &self.parent {
            level.push(part);
            make(&level).doing(format!("make the cgroup {}", level.display()))?;
            switch_on(&level)?;
        }
        for mount in self.hierarchies.version1.values() {
            fs::create_dir_all(mount.join(&self.parent))
                .doing(format!("make a cgroup at {}", mount.display()))?;
        }
        Ok(())
    }

    /// Removes the parents that have no children; those that do stay.
    fn tidy(&self) {
        let hierarchies = &self.hierarchies;
        let version1 = hierarchies.version1.values().chain(&hierarchies.others);
        for mount in version1.chain([&hierarchies.unified]) {
            // Not empty, or gone already: both are fine.
            let _ = fs::remove_dir(mount.join(&self.parent));
        }
    }

    /// The cgroups of a sandbox, whether they are there or not.
    pub(crate) fn of(&self, name: &str) -> Cgroup<'_> {
        let below = self.parent.join(name);
        Cgroup {
            all: self,
            unified: self.hierarchies.unified.join(&below),
            below: below.clone(),
            version1: self
                .hierarchies
                .version1
                .iter()
                .map(|(controller, mount)| (*controller, mount.join(&below)))
                .collect(),
        }
    }

    /// Where the cgroups of a sandbox are below the root of each hierarchy.
    pub(crate) fn path(&self, uid: Uid) -> PathBuf {
        Path::new("/").join(&self.parent).join(uid.to_string())
    }

    /// Names of the sandboxes that have a cgroup.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let parent = self.hierarchies.unified.join(&self.parent);
        let entries = fs::read_dir(&parent).doing("list the cgroups of sandboxes")?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.doing("list the cgroups of sandboxes")?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.tidy();
    }
}

/// The cgroups of one sandbox.
#[derive(Debug)]
pub(crate) struct Cgroup<'a> {
    all: &'a Cgroups,
    /// Below the root of each hierarchy.
    below: PathBuf,
    unified: PathBuf,
    version1: Vec<(&'static str, PathBuf)>,
}

/// Where a runtime is started: the directory to clone it into, and files through which it puts
/// itself under the limits.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) unified: OwnedFd,
    pub(crate) doors: Vec<OwnedFd>,
}

impl Cgroup<'_> {
    /// Makes the directories and sets the limits.
    pub(crate) fn make(&self, limits: &Limits) -> Result<()> {
        let directories = || {
            make(&self.unified)?;
            self.version1.iter().try_for_each(|(_, path)| make(path))
        };
        match directories() {
            // Somebody has tidied the parents away while they had no children.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.all.prepare()?;
                directories()
            }
            other => other,
        }
        .doing("make the sandbox's cgroups")?;
        for controller in &self.all.hierarchies.version2 {
            limit_version2(&self.unified, controller, limits)?;
        }
        for (controller, path) in &self.version1 {
            limit_version1(path, controller, limits)?;
        }
        Ok(())
    }

    /// The directory to clone a process into.
    pub(crate) fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, &self.unified, flags, Mode::empty()).doing("open the cgroup")
    }

    /// Files through which a process puts itself under the limits of version 1 hierarchies; it is
    /// in the unified tree since its clone. By itself and one thread at a time: to move anybody
    /// else, or a whole process, the kernel stops every fork and exit of the host for a moment,
    /// and takes ten milliseconds to get there if nobody did so just before.
    pub(crate) fn doors(&self) -> Result<Vec<OwnedFd>> {
        let open = |(controller, path): &(&str, PathBuf)| {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            openat(CWD, path.join("tasks"), flags, Mode::empty())
                .doing(format!("open the {controller} limit"))
        };
        self.version1.iter().map(open).collect()
    }

    /// Where an OCI runtime is started. One that makes cgroups itself knows nothing of a unified
    /// tree beside version 1 hierarchies, and so is started in there; where the unified tree is all
    /// there is, it goes there alone, and would not go into a cgroup that has somebody in it.
    pub(crate) fn entry(&self, with_limits: bool) -> Result<Option<Entry>> {
        if !with_limits && self.version1.is_empty() {
            return Ok(None);
        }
        Ok(Some(Entry {
            unified: self.open()?,
            doors: if with_limits {
                self.doors()?
            } else {
                Vec::new()
            },
        }))
    }

    /// Where it is on the unified tree.
    pub(crate) fn unified(&self) -> &Path {
        &self.unified
    }

    /// Where it is on every hierarchy that it has limits on.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        let version1 = self.version1.iter().map(|(_, path)| path.as_path());
        version1.chain([self.unified.as_path()])
    }

    /// The limits in force, as the kernel writes them; those that it does not have are left out.
    pub(crate) fn limits(&self) -> Vec<(&'static str, String)> {
        const FILES: [&str; 8] = [
            "cpu.max",
            "cpu.cfs_quota_us",
            "cpu.shares",
            "memory.max",
            "memory.limit_in_bytes",
            "memory.oom.group",
            "pids.max",
            "cgroup.max.descendants",
        ];
        let mut all = Vec::new();
        for directory in self.directories() {
            for name in FILES {
                if let Ok(value) = fs::read_to_string(directory.join(name)) {
                    all.push((name, value.trim().to_owned()));
                }
            }
        }
        all
    }

    /// Where it is on the hierarchy that a controller has of its own.
    pub(crate) fn version1(&self, controller: &str) -> Option<&Path> {
        let mut all = self.version1.iter();
        let (_, path) = all.find(|(name, _)| *name == controller)?;
        Some(path)
    }

    /// Stops every process, and returns when they have stopped.
    pub(crate) fn freeze(&self) -> Result<()> {
        write(&self.unified.join("cgroup.freeze"), "1").doing("freeze the cgroup")?;
        self.wait_for("frozen 1")
            .doing("wait until every process is frozen")
    }

    /// Lets the processes go on.
    pub(crate) fn thaw(&self) -> Result<()> {
        write(&self.unified.join("cgroup.freeze"), "0").doing("thaw the cgroup")
    }

    /// Whether the processes are stopped, or told to.
    pub(crate) fn is_frozen(&self) -> bool {
        fs::read_to_string(self.unified.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
    }

    /// Kills every process, frozen ones too, and returns when they are gone. What is frozen stays
    /// so: nothing runs between the decision and the end.
    pub(crate) fn kill(&self) -> Result<()> {
        match write(&self.unified.join("cgroup.kill"), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.doing("kill every process of the cgroup")?,
        }
        match self.wait_for("populated 0") {
            // Somebody has tidied up: only an empty cgroup can be removed.
            Err(_) if !self.unified.exists() => Ok(()),
            other => other.doing("wait until every process is gone"),
        }
    }

    /// How many processes were killed because memory ran out; none where that is not known.
    pub(crate) fn oom_kills(&self) -> u32 {
        let file = self.version1("memory").map_or_else(
            || self.unified.join("memory.events"),
            |path| path.join("memory.oom_control"),
        );
        let text = fs::read_to_string(file).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Whether any process is inside.
    pub(crate) fn is_populated(&self) -> Result<bool> {
        is_populated(&self.unified)
    }

    /// Removes the directories.
    pub(crate) fn remove(&self) -> Result<()> {
        let others = (self.all.hierarchies.others.iter()).map(|mount| mount.join(&self.below));
        let all = self.version1.iter().map(|(_, path)| path.clone());
        for path in others.chain(all).chain([self.unified.clone()]) {
            remove(&path).doing(format!("remove the cgroup {}", path.display()))?;
        }
        Ok(())
    }

    /// Waits for a line of `cgroup.events`. The kernel gives notice of a change at most every ten
    /// milliseconds, which is longer than most changes take, so it is asked again and again, at
    /// first without a pause: an idle sandbox freezes faster than any sleep ends.
    fn wait_for(&self, line: &str) -> io::Result<()> {
        let mut events = File::open(self.unified.join("cgroup.events"))?;
        let mut text = String::new();
        let mut waited = Duration::ZERO;
        let mut pause = Duration::from_micros(10);
        let mut eager = 20;
        while waited < PATIENCE {
            text.clear();
            events.rewind()?;
            events.read_to_string(&mut text)?;
            if text.lines().any(|l| l == line) {
                return Ok(());
            }
            if eager > 0 {
                eager -= 1;
                thread::yield_now();
                continue;
            }
            thread::sleep(pause);
            waited += pause;
            pause = (pause * 5 / 4).min(Duration::from_millis(2));
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Where the cgroups of engines are on the unified tree.
pub(crate) fn below(parent: &str) -> Result<PathBuf> {
    Ok(Hierarchies::detect()?.unified.join(parent))
}

/// Whether any process is in a cgroup of the unified tree.
pub(crate) fn is_populated(unified: &Path) -> Result<bool> {
    match fs::read_to_string(unified.join("cgroup.events")) {
        Ok(events) => Ok(events.lines().any(|line| line == "populated 1")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).doing("read the events of the cgroup"),
    }
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// A dead process may hold its cgroup for a moment longer.
fn remove(path: &Path) -> io::Result<()> {
    let pause = Duration::from_millis(1);
    for _ in 0..PATIENCE.as_millis() {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(pause),
            other => return other,
        }
    }
    fs::remove_dir(path)
}

fn limit_version2(path: &Path, controller: &str, limits: &Limits) -> Result<()> {
    let set = |file: &str, value: &str| {
        write(&path.join(file), value).doing(format!("limit {controller} with {file}"))
    };
    match controller {
        "pids" => set("pids.max", &limits.pids.to_string()),
        "memory" => match limits.memory_mib {
            None => Ok(()),
            Some(mib) => {
                set("memory.max", &(u64::from(mib) << 20).to_string())?;
                set("memory.oom.group", "0")?;
                optional(&path.join("memory.swap.max"), "0").doing("limit swap")
            }
        },
        "cpu" => match limits.cpu_millis {
            None => Ok(()),
            Some(millis) => set("cpu.max", &format!("{} {PERIOD}", quota(millis))),
        },
        _ => Ok(()),
    }
}

fn limit_version1(path: &Path, controller: &str, limits: &Limits) -> Result<()> {
    let set = |file: &str, value: &str| {
        write(&path.join(file), value).doing(format!("limit {controller} with {file}"))
    };
    match controller {
        "pids" => set("pids.max", &limits.pids.to_string()),
        "memory" => match limits.memory_mib {
            None => Ok(()),
            Some(mib) => {
                let bytes = (u64::from(mib) << 20).to_string();
                set("memory.limit_in_bytes", &bytes)?;
                optional(&path.join("memory.memsw.limit_in_bytes"), &bytes).doing("limit swap")
            }
        },
        "cpu" => match limits.cpu_millis {
            None => Ok(()),
            Some(millis) => {
                set("cpu.cfs_period_us", &PERIOD.to_string())?;
                set("cpu.cfs_quota_us", &quota(millis).to_string())
            }
        },
        _ => Ok(()),
    }
}

/// Microseconds over which processor time is counted.
const PERIOD: u64 = 100_000;

/// Quota and period of a share of the processors.
pub(crate) fn cpu(millis: u32) -> (u64, u64) {
    (quota(millis), PERIOD)
}

fn quota(millis: u32) -> u64 {
    // The kernel refuses less than a millisecond.
    (u64::from(millis) * PERIOD / 1000).max(1000)
}

/// Writes a file of the kernel's, which is there already and needs neither truncation nor sync.
fn write(path: &Path, value: &str) -> io::Result<()> {
    use io::Write as _;
    fs::OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all(value.as_bytes())
}

/// The same, for a file that not every kernel has.
fn optional(path: &Path, value: &str) -> io::Result<()> {
    match write(path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn hierarchies_are_found_by_their_options_not_their_names() {
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(unified_mount(HYBRID), at("/sys/fs/cgroup/unified"));
        assert_eq!(
            version1_mount(HYBRID, "cpu"),
            at("/sys/fs/cgroup/cpu,cpuacct")
        );
        assert_eq!(
            version1_mount(HYBRID, "memory"),
            at("/sys/fs/cgroup/memory")
        );
        assert_eq!(version1_mount(HYBRID, "pids"), None);
        assert_eq!(unified_mount("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn a_tiny_share_of_a_processor_is_one_the_kernel_takes() {
        assert_eq!(quota(1), 1000);
        assert_eq!(quota(250), 25_000);
        assert_eq!(quota(2000), 200_000);
    }
}
