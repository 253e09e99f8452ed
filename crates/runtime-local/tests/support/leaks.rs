//! Counting what a sandbox could leave behind on the host.

use std::{fs, path::Path};

use super::Host;

/// What is there for one engine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inventory {
    /// Mounts of the engine in this mount namespace.
    mounts: Vec<String>,
    /// Cgroups of the engine's sandboxes, in all hierarchies.
    cgroups: Vec<String>,
    /// Directories of sandboxes.
    sandboxes: Vec<String>,
    /// Processes that run the tests' init.
    processes: Vec<String>,
    /// Open descriptors of this process.
    descriptors: usize,
}

impl Inventory {
    /// What is there once the tasks of engines that were dropped have ended.
    pub(crate) async fn settled(host: &Host, expected: &Self) -> Self {
        for _ in 0..3000 {
            if Self::take(host) == *expected {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        Self::take(host)
    }

    /// Takes it. Tests that compare run alone in their process.
    pub(crate) fn take(host: &Host) -> Self {
        let names = |path: &Path| -> Vec<String> {
            let Ok(entries) = fs::read_dir(path) else {
                return Vec::new();
            };
            let entries = entries.filter_map(Result::ok);
            let mut names: Vec<_> = entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path().display().to_string())
                .collect();
            names.sort();
            names
        };
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let data = host.data.to_str().unwrap();
        Self {
            mounts: mounts
                .lines()
                .filter(|line| line.contains(data))
                .map(str::to_owned)
                .collect(),
            cgroups: super::cgroup_mounts()
                .iter()
                .flat_map(|mount| names(&mount.join("dormouse").join(host.instance())))
                .collect(),
            sandboxes: names(&host.data.join("sandboxes")),
            processes: processes_of(host),
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        }
    }

    pub(crate) fn is_clear(&self) -> bool {
        self.cgroups.is_empty() && self.sandboxes.is_empty() && self.processes.is_empty()
    }
}

/// Processes in user namespaces of this engine's ranges: by the ids they run as.
fn processes_of(host: &Host) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let path = entry.path();
        let Ok(status) = fs::read_to_string(path.join("status")) else {
            continue;
        };
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .and_then(|line| line.split_whitespace().next()?.parse::<u32>().ok());
        // Dead, and for the host's own first process to reap.
        if status.contains("State:\tZ") {
            continue;
        }
        if uid.is_some_and(|uid| host.uids.contains(&uid)) {
            found.push(format!(
                "{} {}",
                path.display(),
                status.lines().next().unwrap()
            ));
        }
    }
    found
}
