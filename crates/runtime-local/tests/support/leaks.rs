//! Counting what a sandbox could leave behind on the host.
#![expect(
    unsafe_code,
    reason = "a thread takes mounts of its own by a call that other threads could notice"
)]

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount},
    thread::{UnshareFlags, unshare_unsafe},
};

use super::Host;

/// What is there for one engine.
#[derive(Debug)]
pub(crate) struct Inventory {
    left: Left,
    /// Mounts that this thread sees, each by its number and place. See [`own_mounts`].
    mounts: BTreeSet<String>,
    /// Open descriptors of this process.
    descriptors: usize,
}

/// What is the engine's by its name.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    /// Cgroups of the engine's sandboxes, in all hierarchies.
    cgroups: Vec<String>,
    /// Directories of sandboxes.
    sandboxes: Vec<String>,
    /// Processes that run the tests' init.
    processes: Vec<String>,
}

impl Inventory {
    /// Takes it. Tests that compare run alone in their process, with mounts of their own.
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
        Self {
            left: Left {
                cgroups: super::cgroup_mounts()
                    .iter()
                    .flat_map(|mount| names(&mount.join("dormouse").join(host.instance())))
                    .collect(),
                sandboxes: names(&host.data.join("sandboxes")),
                processes: processes_of(host)
                    .into_iter()
                    .map(|(path, name)| format!("{} {name}", path.display()))
                    .collect(),
            },
            mounts: mounts()
                .map(|(number, place)| format!("{number} {place}"))
                .collect(),
            descriptors: descriptors(),
        }
    }

    pub(crate) fn is_clear(&self) -> bool {
        let Left {
            cgroups,
            sandboxes,
            processes,
        } = &self.left;
        cgroups.is_empty() && sandboxes.is_empty() && processes.is_empty()
    }

    /// Nothing is there that was not there then: now, and not soon. Only descriptors have time, as those
    /// of engines that were dropped go with their tasks.
    pub(crate) async fn assert_nothing_came(&self, host: &Host, networks: &Networks, after: &str) {
        let now = Self::take(host);
        assert_eq!(now.left, self.left, "{after}");
        // Those of others may be gone: who removes a directory removes what is mounted there for all.
        let came: Vec<_> = now.mounts.difference(&self.mounts).collect();
        assert!(came.is_empty(), "{after}: {came:?}");
        let inside = networks.inside();
        assert!(inside.is_empty(), "{after}: {inside:?}");
        let expected = self.descriptors + networks.count();
        for _ in 0..3000 {
            if descriptors() == expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(descriptors(), expected, "{after}: descriptors");
    }
}

/// Network namespaces that sandboxes of an engine were in. They are kept open: the number of one that is
/// gone may be given to somebody else's.
#[derive(Debug, Default)]
pub(crate) struct Networks(Vec<File>);

impl Networks {
    /// Adds those of the sandboxes that are there.
    pub(crate) fn note(&mut self, host: &Host) {
        let own = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        for (process, _) in processes_of(host) {
            // One that has just ended is in none.
            let Ok(network) = File::open(process.join("ns/net")) else {
                continue;
            };
            let number = network.metadata().unwrap().ino();
            if number != own && !self.numbers().contains(&number) {
                self.0.push(network);
            }
        }
    }

    pub(crate) const fn count(&self) -> usize {
        self.0.len()
    }

    fn numbers(&self) -> BTreeSet<u64> {
        let all = self.0.iter();
        all.map(|network| network.metadata().unwrap().ino())
            .collect()
    }

    /// Threads of all processes that are in one, whoever they run as.
    fn inside(&self) -> Vec<PathBuf> {
        let numbers = self.numbers();
        let entries = |path: PathBuf| {
            let found = fs::read_dir(path).into_iter().flatten();
            found.filter_map(|entry| Some(entry.ok()?.path()))
        };
        entries("/proc".into())
            .flat_map(|process| entries(process.join("task")))
            .filter(|thread| {
                let network = fs::metadata(thread.join("ns/net"));
                network.is_ok_and(|network| numbers.contains(&network.ino()))
            })
            .collect()
    }
}

/// Gives this thread, and those that it starts, mounts of their own, so that they can be counted. To be
/// called before there are any.
pub(crate) fn own_mounts() {
    // SAFETY: no other thread shares a working directory or a root with this one any more; none of them
    // changes either.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("these tests need root");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).unwrap();
    // Disks of other tests would be in use for as long as they are seen here.
    let temporary = std::env::temp_dir();
    for (_, place) in mounts() {
        let place = Path::new(&place);
        if place.starts_with(&temporary) && place != temporary {
            // What was in another is gone with it.
            let _ = unmount(place, UnmountFlags::DETACH);
        }
    }
}

/// Mounts that this thread sees, by number and place.
fn mounts() -> impl Iterator<Item = (String, String)> {
    let lines = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let mounts: Vec<_> = lines
        .lines()
        .map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            (fields[0].to_owned(), fields[4].to_owned())
        })
        .collect();
    mounts.into_iter()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Processes in user namespaces of this engine's ranges, by the ids they run as: where they are in `/proc`,
/// and what they are called.
fn processes_of(host: &Host) -> Vec<(PathBuf, String)> {
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
            found.push((path, status.lines().next().unwrap().to_owned()));
        }
    }
    found
}
