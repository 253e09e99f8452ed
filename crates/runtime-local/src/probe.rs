//! What this host can do, for `dormouse doctor`.

use std::{fs, io, path::Path};

use rustix::{
    fs::CWD,
    mount::{FsOpenFlags, OpenTreeFlags, fsopen, open_tree},
    thread::{CapabilitySet, capabilities},
};

use crate::cgroups::Hierarchies;

/// One thing that sandboxes need or can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its name.
    pub name: &'static str,
    /// Whether this host has it.
    pub ok: bool,
    /// What was seen.
    pub detail: String,
    /// What to do where it is missing; empty where it is there.
    pub remedy: &'static str,
}

fn capability(
    name: &'static str,
    remedy: &'static str,
    seen: Result<String, String>,
) -> Capability {
    let (ok, detail) = match seen {
        Ok(detail) => (true, detail),
        Err(detail) => (false, detail),
    };
    Capability {
        name,
        ok,
        detail,
        remedy: if ok { "" } else { remedy },
    }
}

/// Looks at everything, and changes nothing.
#[must_use]
pub fn probe() -> Vec<Capability> {
    let hierarchies = Hierarchies::detect().map_err(|error| error.to_string());
    vec![
        capability("privileges", "Run the server as root.", privileges()),
        capability(
            "user namespaces",
            "Set the sysctl user.max_user_namespaces to a number above the sandboxes you want.",
            limit("/proc/sys/user/max_user_namespaces"),
        ),
        capability(
            "network namespaces",
            "Set the sysctl user.max_net_namespaces to a number above the sandboxes you want.",
            limit("/proc/sys/user/max_net_namespaces"),
        ),
        capability(
            "overlayfs",
            "Load the module: modprobe overlay.",
            mountable("overlay"),
        ),
        capability(
            "mount API",
            "Use Linux 6.12 or newer.",
            open_tree(
                CWD,
                "/",
                OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
            )
            .map(|_| "mounts can be cloned".into())
            .map_err(|error| io::Error::from(error).to_string()),
        ),
        capability(
            "cgroup freeze and kill",
            "Use Linux 5.14 or newer, and mount the unified tree: mount -t cgroup2 none /sys/fs/cgroup/unified.",
            hierarchies.clone().and_then(|h| freezer(&h.unified)),
        ),
        capability(
            "cgroup limits",
            "Enable the controllers cpu, memory and pids on the kernel's command line.",
            hierarchies.and_then(|h| controllers(&h)),
        ),
        capability(
            "seccomp",
            "Use a kernel with CONFIG_SECCOMP_FILTER.",
            fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail")
                .map(|text| text.trim().to_owned())
                .map_err(|error| error.to_string()),
        ),
        capability(
            "base image",
            "Give sandboxes an image of their own.",
            merged_usr(),
        ),
        capability(
            "disk limits",
            "Not built yet: a sandbox that asks for a disk limit is refused.",
            Err("writable layers are plain directories".into()),
        ),
    ]
}

fn privileges() -> Result<String, String> {
    let needed = CapabilitySet::SYS_ADMIN
        | CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::MKNOD
        | CapabilitySet::SETFCAP
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID;
    let held = capabilities(None).map_err(|error| io::Error::from(error).to_string())?;
    let missing = needed - held.effective;
    if missing.is_empty() {
        Ok("all capabilities that sandboxes need".into())
    } else {
        Err(format!("missing {missing:?}"))
    }
}

fn limit(path: &str) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    match text.trim().parse::<u64>() {
        Ok(0) => Err("none are allowed".into()),
        Ok(most) => Ok(format!("up to {most}")),
        Err(error) => Err(error.to_string()),
    }
}

fn mountable(filesystem: &str) -> Result<String, String> {
    fsopen(filesystem, FsOpenFlags::FSOPEN_CLOEXEC)
        .map(|_| "present".into())
        .map_err(|error| io::Error::from(error).to_string())
}

fn freezer(unified: &Path) -> Result<String, String> {
    // The root has neither file; any child has both or the kernel has neither.
    let children = fs::read_dir(unified).map_err(|error| error.to_string())?;
    let child = children
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.join("cgroup.procs").exists());
    match child {
        None => Ok(format!("at {}, not tried yet", unified.display())),
        Some(child)
            if child.join("cgroup.kill").exists() && child.join("cgroup.freeze").exists() =>
        {
            Ok(format!("at {}", unified.display()))
        }
        Some(_) => Err("this kernel's cgroups cannot be killed".into()),
    }
}

fn controllers(hierarchies: &Hierarchies) -> Result<String, String> {
    let missing = hierarchies.missing();
    if missing.is_empty() {
        let old: Vec<_> = hierarchies.version1.keys().copied().collect();
        Ok(format!(
            "version 2: {:?}, version 1: {old:?}",
            hierarchies.version2
        ))
    } else {
        Err(format!("missing {}", missing.join(", ")))
    }
}

fn merged_usr() -> Result<String, String> {
    match fs::read_link("/bin") {
        Ok(target) => Ok(format!("/bin leads to {}", target.display())),
        Err(_) => Err("/bin is not a link into /usr".into()),
    }
}
