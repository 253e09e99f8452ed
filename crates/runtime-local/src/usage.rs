//! What a sandbox uses: processor time and memory from its cgroups, disk from its writable layer.
//!
//! Processor time is counted by the unified tree whichever hierarchy limits it, so one file says it
//! everywhere. Memory is read where its controller is. Disk is counted file by file, which takes
//! time with the number of files, so it is a call of its own; a sandbox with very many files is
//! counted up to a bound.

use std::{fs, io, os::fd::OwnedFd, path::Path, time::Duration};

use model::Uid;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};

use crate::engine::Engine;

/// What a sandbox uses now. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since its start, of all processors together.
    pub cpu: Duration,
    /// Memory, without caches of files.
    pub memory: u64,
    /// Memory that holds files and can be had back.
    pub cache: u64,
    /// The most memory it may use, where there is a limit.
    pub memory_limit: Option<u64>,
}

/// What a sandbox has written. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// What its writable layer takes; of very many files, at least so much.
    pub used: u64,
    /// What it could take: its limit, or else the disk.
    pub total: u64,
}

/// The most files that are counted.
const MOST: u32 = 200_000;
/// The deepest directory that is looked into. Each level holds a file open.
const DEEPEST: u32 = 64;
/// A limit from here on is none: what the kernel writes where there is none differs by page size.
const ENDLESS: u64 = 1 << 62;

impl Engine {
    /// What a sandbox uses; nothing if it does not run, or is frozen: that changes nothing.
    pub(crate) fn usage(&self, uid: Uid) -> Option<Usage> {
        let slot = self.slot(uid)?;
        {
            let seen = slot.seen.lock();
            let workload = seen.as_ref()?;
            if workload.process.is_none() || workload.frozen {
                return None;
            }
        }
        let cgroup = self.cgroup(uid);
        let cpu = fs::read_to_string(cgroup.unified().join("cpu.stat")).ok()?;
        let cpu = Duration::from_micros(field(&cpu, "usage_usec")?);
        let (memory, files) = match cgroup.version1("memory") {
            Some(path) => (path, VERSION1),
            None => (cgroup.unified(), VERSION2),
        };
        let number = |name: &str| {
            let text = fs::read_to_string(memory.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let all = number(files.usage)?;
        let stat = fs::read_to_string(memory.join("memory.stat")).ok()?;
        let cache = files.cache.iter().filter_map(|name| field(&stat, name));
        let cache = cache.sum::<u64>().min(all);
        Some(Usage {
            cpu,
            memory: all - cache,
            cache,
            memory_limit: number(files.limit).filter(|limit| *limit < ENDLESS),
        })
    }

    /// What a sandbox has written.
    pub(crate) fn disk_usage(&self, uid: Uid) -> Option<DiskUsage> {
        let slot = self.slot(uid)?;
        let limit = {
            let seen = slot.seen.lock();
            seen.as_ref()?.record.resources.and_then(|r| r.disk_mib)
        };
        let upper = self.place(uid).upper();
        let total = match limit {
            Some(mib) => u64::from(mib) << 20,
            None => {
                let host = rustix::fs::statvfs(&upper).ok()?;
                host.f_blocks.saturating_mul(host.f_frsize)
            }
        };
        Some(DiskUsage {
            used: below(&upper),
            total,
        })
    }
}

/// What the files of a version of the memory controller are called.
struct Files {
    usage: &'static str,
    limit: &'static str,
    cache: [&'static str; 2],
}

const VERSION1: Files = Files {
    usage: "memory.usage_in_bytes",
    limit: "memory.limit_in_bytes",
    cache: ["total_active_file", "total_inactive_file"],
};
const VERSION2: Files = Files {
    usage: "memory.current",
    limit: "memory.max",
    cache: ["active_file", "inactive_file"],
};

fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value)
}

/// The bytes that everything below a directory takes. What it is may change at any moment, by the
/// sandbox's hand: each step goes from an open directory to a name in it, never through a link.
fn below(path: &Path) -> u64 {
    let mut left = MOST;
    match open(CWD, path) {
        Ok(directory) => count(&directory, DEEPEST, &mut left),
        Err(_) => 0,
    }
}

fn open(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

fn count(directory: &OwnedFd, deeper: u32, left: &mut u32) -> u64 {
    let Ok(entries) = Dir::read_from(directory) else {
        return 0;
    };
    let mut bytes = 0u64;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if *left == 0 {
            break;
        }
        *left -= 1;
        let Ok(seen) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        // The kernel counts in these units whatever the filesystem does.
        let blocks = u64::try_from(seen.st_blocks).unwrap_or_default();
        bytes = bytes.saturating_add(blocks.saturating_mul(512));
        if FileType::from_raw_mode(seen.st_mode) == FileType::Directory
            && deeper > 0
            && let Ok(child) = open(directory, name)
        {
            bytes = bytes.saturating_add(count(&child, deeper - 1, left));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "cache 1\ntotal_cache 2\nusage_usec 34\n";
        assert_eq!(field(text, "cache"), Some(1));
        assert_eq!(field(text, "usage_usec"), Some(34));
        assert_eq!(field(text, "usage"), None);
    }

    #[test]
    fn files_are_counted_and_links_are_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        let put = |path: &Path, bytes: usize| {
            let content = vec![1; bytes];
            kit::durable::write_file(path, &content, 0o644).unwrap();
        };
        put(&outside.path().join("big"), 1 << 20);
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("a")).unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
        let empty = below(root.path());
        assert!(empty < 1 << 20, "{empty}");
        put(&root.path().join("a/file"), 1 << 16);
        let more = below(root.path());
        assert!(more >= empty + (1 << 16), "{empty} {more}");
    }
}
