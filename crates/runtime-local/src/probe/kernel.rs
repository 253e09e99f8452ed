//! What the kernel lets this process do.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, openat, statat, unlinkat},
    thread::{CapabilitySet, capabilities},
};

use super::{Lack, Seen, own_name};
use crate::{
    cgroups::{Cgroups, Hierarchies},
    error::{Doing as _, Result},
    kernel::{
        clone::NAMESPACES,
        trial::{Trial, is_filtered},
    },
    mounts,
    options::Limits,
    ranges::Range,
    seccomp::Filter,
};

const NO_SANDBOX: &str = "no sandbox can be started";

/// Ids that a trial maps: far from those of any sandbox or user.
const IDS: Range = Range::starting(0x7fff_0000);

pub(super) fn privileges() -> Seen {
    let lacking = |detail| {
        let remedy = "Run it as root on the host itself, or in a container that is privileged and \
                      shares the host's user namespace.";
        Lack::missing(detail, NO_SANDBOX, remedy)
    };
    let needed = [
        ("SYS_ADMIN", CapabilitySet::SYS_ADMIN),
        ("CHOWN", CapabilitySet::CHOWN),
        ("DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
        ("FOWNER", CapabilitySet::FOWNER),
        ("KILL", CapabilitySet::KILL),
        ("MKNOD", CapabilitySet::MKNOD),
        ("NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("SETFCAP", CapabilitySet::SETFCAP),
        ("SETGID", CapabilitySet::SETGID),
        ("SETUID", CapabilitySet::SETUID),
        ("SYS_CHROOT", CapabilitySet::SYS_CHROOT),
        ("SYS_PTRACE", CapabilitySet::SYS_PTRACE),
    ];
    let held = capabilities(None).map_err(|error| lacking(io::Error::from(error).to_string()))?;
    let missing = needed.iter().filter(|(_, c)| !held.effective.contains(*c));
    let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        return Err(lacking(format!(
            "capabilities {} are missing",
            missing.join(", ")
        )));
    }
    // In another user namespace than the first, capabilities are over less than the host.
    let map = fs::read_to_string("/proc/self/uid_map")
        .map_err(|error| lacking(format!("/proc/self/uid_map: {error}")))?;
    let first: Vec<_> = map.split_whitespace().collect();
    if first != ["0", "0", "4294967295"] {
        return Err(lacking("this is root of a user namespace only".to_owned()));
    }
    Ok("root of the host, with every capability that is needed".into())
}

pub(super) fn user_namespaces() -> Seen {
    let lacking = |error| {
        let remedy = "Set the sysctl user.max_user_namespaces above the number of sandboxes, and \
                      kernel.unprivileged_userns_clone or kernel.apparmor_restrict_unprivileged_userns \
                      to what lets root make them.";
        Lack::missing(error, NO_SANDBOX, remedy)
    };
    mapped_trial()
        .map(|_| "one was made and its ids mapped".into())
        .map_err(lacking)
}

pub(super) fn other_namespaces() -> Seen {
    Trial::start(NAMESPACES, None)
        .map(|_| "pid, mount, network, ipc, uts".into())
        .map_err(|error| {
            let remedy = "Set the sysctls user.max_{pid,mnt,net,ipc,uts}_namespaces above the \
                          number of sandboxes.";
            Lack::missing(error, NO_SANDBOX, remedy)
        })
}

/// A child in a user namespace with ids.
fn mapped_trial() -> io::Result<Trial> {
    let trial = Trial::start(libc::CLONE_NEWUSER, None)?;
    for file in ["uid_map", "gid_map"] {
        use io::Write as _;
        let path = format!("/proc/{}/{file}", trial.pid());
        File::options()
            .write(true)
            .open(path)?
            .write_all(IDS.map().as_bytes())?;
    }
    Ok(trial)
}

/// A cgroup of our own for one trial.
fn with_cgroup<T>(work: impl FnOnce(&crate::cgroups::Cgroup<'_>) -> Result<T>) -> Result<T> {
    let parent = PathBuf::from("dormouse").join(own_name());
    let cgroups = Cgroups::open(parent)?;
    let cgroup = cgroups.of("trial");
    let limits = Limits {
        pids: 16,
        memory_mib: Some(64),
        cpu_millis: Some(500),
        ..Limits::default()
    };
    let done = cgroup.make(&limits).and_then(|()| work(&cgroup));
    let removed = cgroup.remove();
    let done = done?;
    removed?;
    Ok(done)
}

pub(super) fn cgroup_limits() -> Seen {
    let lacking = |detail: String| {
        let remedy = "Let this process write its cgroups, and enable the controllers cpu, memory \
                      and pids on the kernel's command line (cgroup_enable=memory).";
        Lack::missing(detail, "sandboxes cannot be limited", remedy)
    };
    let hierarchies = Hierarchies::detect().map_err(|error| lacking(error.to_string()))?;
    let missing = hierarchies.missing();
    if !missing.is_empty() {
        return Err(lacking(format!("no controller {}", missing.join(", "))));
    }
    with_cgroup(|_| Ok(())).map_err(|error| lacking(error.to_string()))?;
    let old: Vec<_> = hierarchies.version1.keys().copied().collect();
    Ok(format!(
        "set on version 2: {}; on version 1: {}",
        list(&hierarchies.version2),
        list(&old)
    ))
}

fn list(names: &[&str]) -> String {
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

const UNIFIED: &str = "Use Linux 5.14 or newer, mount the unified tree (mount -t cgroup2 none \
                       /sys/fs/cgroup/unified), and let this process write it.";

pub(super) fn cgroup_clone() -> Seen {
    let tried = with_cgroup(|cgroup| {
        let child = Trial::start(0, Some(cgroup.open()?.as_fd())).doing("clone into a cgroup")?;
        let populated = cgroup.is_populated()?;
        drop(child);
        Ok(populated)
    });
    match tried {
        Ok(true) => Ok("a process began in a cgroup of its own".into()),
        Ok(false) => Err(Lack::missing(
            "a process was not where it was cloned to",
            NO_SANDBOX,
            UNIFIED,
        )),
        Err(error) => Err(Lack::missing(error, NO_SANDBOX, UNIFIED)),
    }
}

pub(super) fn cgroup_freeze() -> Seen {
    let tried = with_cgroup(|cgroup| {
        let child = Trial::start(0, Some(cgroup.open()?.as_fd())).doing("clone into a cgroup")?;
        cgroup.freeze()?;
        cgroup.kill()?;
        drop(child);
        Ok(())
    });
    tried
        .map(|()| "a process was frozen, and killed as it was".into())
        .map_err(|error| {
            let meaning = "sandboxes can neither sleep nor be ended for sure";
            Lack::missing(error, meaning, UNIFIED)
        })
}

pub(super) fn seccomp() -> Seen {
    let remedy = "Use a kernel with CONFIG_SECCOMP_FILTER.";
    let meaning = "nothing would keep a sandbox from the kernel's whole surface";
    match is_filtered(Filter::new().program()) {
        Ok(true) => Ok("a call was refused by a filter".into()),
        Ok(false) => Err(Lack::missing("a filter has no effect", meaning, remedy)),
        Err(error) => Err(Lack::missing(error, meaning, remedy)),
    }
}

/// A file of the host's root must be root's inside, which is another id outside.
pub(super) fn idmapped_mounts(ground: &Path) -> Seen {
    let lacking = |detail: String| {
        let remedy = "Put the data directory on a filesystem that can be idmapped: ext4, xfs, \
                      btrfs, or tmpfs from Linux 6.3.";
        Lack::missing(detail, NO_SANDBOX, remedy)
    };
    let tried = || {
        let layer = ground.join("layer");
        fs::create_dir_all(layer.join("directory")).doing("make a layer")?;
        let trial = mapped_trial().doing("map ids")?;
        let namespace = user_namespace(&trial)?;
        let mount = mounts::mapped(&layer, namespace.as_fd(), 0)?;
        let own = fs::metadata(&layer).doing("look at a layer")?.uid();
        let seen = statat(&mount, "directory", AtFlags::empty()).doing("look through a mount")?;
        Ok::<_, crate::EngineError>(IDS.outside(own) == Some(seen.st_uid))
    };
    match tried() {
        Ok(true) => Ok("a layer was mapped to a sandbox's ids".into()),
        Ok(false) => Err(lacking("a mapped mount shows other ids".into())),
        Err(error) => Err(lacking(error.to_string())),
    }
}

fn user_namespace(trial: &Trial) -> Result<File> {
    File::open(format!("/proc/{}/ns/user", trial.pid())).doing("open a user namespace")
}

/// A directory of the lower layer is removed, which takes a device node as its mark, and another
/// is made in its place, which takes an attribute that only the host's root can set.
pub(super) fn overlay(ground: &Path) -> Seen {
    let tried = || {
        for name in ["lower/directory", "upper", "work"] {
            fs::create_dir_all(ground.join(name)).doing("make layers")?;
        }
        let open = |name: &str| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, ground.join(name), flags, Mode::empty()).doing("open a layer")
        };
        let trial = mapped_trial().doing("map ids")?;
        let namespace = user_namespace(&trial)?;
        let lower = mounts::mapped(&ground.join("lower"), namespace.as_fd(), 0)?;
        let (upper, work) = (open("upper")?, open("work")?);
        let mount = mounts::overlay(&[lower], upper.as_fd(), work.as_fd())?;
        unlinkat(&mount, "directory", AtFlags::REMOVEDIR).doing("remove a directory")?;
        rustix::fs::mkdirat(&mount, "directory", Mode::from_raw_mode(0o755))
            .doing("make a directory again")
    };
    tried()
        .map(|()| "layers were stacked over a mapped one, and changed".into())
        .map_err(|error| {
            let remedy = "Load the module (modprobe overlay), and put the data directory on ext4, \
                          xfs or btrfs: no network filesystem and no overlay can hold writable layers.";
            Lack::missing(error, NO_SANDBOX, remedy)
        })
}
