//! What a runtime is told, from the same facts as the engine's own start.

use std::path::Path;

use model::Uid;
use rustix::{
    process::{Resource, Rlimit},
    thread::CapabilitySet,
};
use serde_json::{Value, json};

use super::Kind;
use crate::{
    engine::Engine,
    ranges::IDS,
    record::Record,
    rootfs::{HIDDEN, READ_ONLY},
    seccomp::Filter,
    start::KEPT,
};

/// What differs from start to start.
#[derive(Debug)]
pub(super) struct Config<'a> {
    pub(super) kind: Kind,
    /// Where the root filesystem is attached.
    pub(super) stage: &'a Path,
    /// The process whose user and network namespace are the sandbox's.
    pub(super) holder: i32,
    /// Below the root of each cgroup hierarchy.
    pub(super) cgroup: &'a Path,
}

impl Engine {
    pub(super) fn write_config(&self, config: &Config<'_>, uid: Uid, record: &Record) -> Value {
        let mapping = json!([{
            "containerID": 0, "hostID": record.range().first(), "size": IDS,
        }]);
        let path = |name: &std::ffi::CStr| format!("/{}", name.to_string_lossy());
        let mut masked: Vec<_> = HIDDEN.iter().map(|name| path(name)).collect();
        // A runtime mounts nothing of its configuration's in there: none is better than the host's.
        masked.push("/proc/sys/kernel/random/boot_id".into());
        let read_only: Vec<_> = READ_ONLY.iter().map(|name| path(name)).collect();
        json!({
            "ociVersion": "1.0.2",
            "hostname": "sandbox",
            "root": { "path": config.stage },
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "cwd": "/",
                "args": self.arguments(),
                "env": Self::environment(uid),
                "noNewPrivileges": !record.sudo,
                "capabilities": capabilities(),
                "rlimits": self.rlimits().map(|(resource, limit)| rlimit(resource, limit)),
            },
            "mounts": mounts(config),
            "linux": {
                "uidMappings": mapping,
                "gidMappings": mapping,
                "namespaces": namespaces(config),
                "cgroupsPath": config.cgroup,
                "resources": self.resources(record),
                "rootfsPropagation": "private",
                "maskedPaths": masked,
                "readonlyPaths": read_only,
                "seccomp": Filter::profile(),
            },
        })
    }

    fn resources(&self, record: &Record) -> Value {
        let limits = self.limits(record);
        let mut resources = json!({
            // Besides those that every container has.
            "devices": [{ "allow": false, "access": "rwm" }],
            "pids": { "limit": limits.pids },
        });
        if let Some(mib) = limits.memory_mib {
            let bytes = u64::from(mib) << 20;
            resources["memory"] = json!({ "limit": bytes, "swap": bytes });
        }
        if let Some(millis) = limits.cpu_millis {
            let (quota, period) = crate::cgroups::cpu(millis);
            resources["cpu"] = json!({ "quota": quota, "period": period });
        }
        resources
    }
}

fn namespaces(config: &Config<'_>) -> Value {
    let joined = |kind: &str, file: &str| json!({ "type": kind, "path": format!("/proc/{}/ns/{file}", config.holder) });
    let new = |kind: &str| json!({ "type": kind });
    let user = match config.kind {
        Kind::Runc => joined("user", "user"),
        // Its many threads cannot join one; the mapping is the same.
        Kind::Runsc => new("user"),
    };
    json!([
        user,
        joined("network", "net"),
        new("pid"),
        new("mount"),
        new("ipc"),
        new("uts"),
        new("cgroup"),
    ])
}

/// What is not in the root filesystem yet, in order.
fn mounts(config: &Config<'_>) -> Value {
    let mut mounts = common_mounts(config);
    if let (Kind::Runsc, Some(mounts)) = (config.kind, mounts.as_array_mut()) {
        // Else it would put a filesystem of its own memory there.
        mounts.push(json!({
            "destination": "/tmp", "type": "bind", "source": config.stage.join("tmp"),
            "options": ["bind", "nosuid", "nodev"],
        }));
    }
    mounts
}

fn common_mounts(config: &Config<'_>) -> Value {
    json!([
        // It is there already: said so that the runtime makes none of its own.
        {
            "destination": "/dev", "type": "bind", "source": config.stage.join("dev"),
            "options": ["bind", "nosuid", "noexec"],
        },
        {
            "destination": "/proc", "type": "proc", "source": "proc",
            "options": ["nosuid", "noexec", "nodev"],
        },
        {
            "destination": "/sys", "type": "sysfs", "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", "ro"],
        },
        {
            "destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {
            "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=64m"],
        },
        {
            "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
            "options": ["nosuid", "noexec", "nodev"],
        },
    ])
}

/// By the names of the runtime specification. A test keeps it complete.
const NAMES: [(CapabilitySet, &str); 12] = [
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
    (CapabilitySet::FOWNER, "CAP_FOWNER"),
    (CapabilitySet::FSETID, "CAP_FSETID"),
    (CapabilitySet::KILL, "CAP_KILL"),
    (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"),
    (CapabilitySet::SETFCAP, "CAP_SETFCAP"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::SETPCAP, "CAP_SETPCAP"),
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SYS_CHROOT, "CAP_SYS_CHROOT"),
    (CapabilitySet::AUDIT_WRITE, "CAP_AUDIT_WRITE"),
];

fn capabilities() -> Value {
    let kept = NAMES.iter().filter(|(set, _)| KEPT.contains(*set));
    let kept: Vec<_> = kept.map(|(_, name)| *name).collect();
    json!({ "bounding": kept, "effective": kept, "permitted": kept, "inheritable": [], "ambient": [] })
}

fn rlimit(resource: Resource, limit: Rlimit) -> Value {
    let name = match resource {
        Resource::Nofile => "RLIMIT_NOFILE",
        Resource::Core => "RLIMIT_CORE",
        Resource::Memlock => "RLIMIT_MEMLOCK",
        // The engine sets no other.
        _ => "RLIMIT_NPROC",
    };
    let value = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    json!({ "type": name, "hard": value(limit.maximum), "soft": value(limit.current) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_that_is_kept_has_a_name() {
        let named = NAMES
            .iter()
            .fold(CapabilitySet::empty(), |all, (set, _)| all | *set);
        assert_eq!(named, KEPT);
    }
}
