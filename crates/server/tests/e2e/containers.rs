//! Servers in containers: each has processes, mounts and a network of its own, and all share the host's
//! cgroups. They need root; without it these tests fail and say so.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Pid;

use crate::{
    kept::entries,
    run::agent,
    sandboxes::until,
    server::{Ran, Server, command, run},
};

/// A server whose data directory is at the same path as everybody's.
struct Container {
    /// `unshare`, which takes all inside along when it ends.
    child: Child,
    /// The directory of the host.
    volume: PathBuf,
}

impl Container {
    /// Over a directory of the host; `place` is where the server sees it.
    fn start(place: &Path, volume: &Path) -> Self {
        let mut container = Self::try_start(place, volume);
        until("it has announced itself", || {
            let said = container.said();
            assert_eq!(container.child.try_wait().unwrap(), None, "{said}");
            said.contains("dormouse get sandboxes").then_some(())
        });
        container
    }

    fn try_start(place: &Path, volume: &Path) -> Self {
        agent();
        fs::create_dir_all(volume.join("data")).unwrap();
        let log = File::create(volume.join("said")).unwrap();
        let script = "mount --bind \"$0/data\" data; ip link set lo up; exec \"$@\"";
        let child = command("unshare", place)
            .args([
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
            ])
            .args(["sh", "-ec", script])
            .arg(volume)
            .args([env!("CARGO_BIN_EXE_dormouse"), "serve"])
            .args(["--runtime", "local", "--data-dir", "data"])
            .args(["--listen", "127.0.0.1:0", "--e2b-listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            child,
            volume: volume.to_owned(),
        }
    }

    /// What the server has said.
    fn said(&self) -> String {
        fs::read_to_string(self.volume.join("said")).unwrap()
    }

    /// The first process inside, by its number outside.
    fn first(&self) -> Option<Pid> {
        let unshare = self.child.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        Pid::from_raw(children.ok()?.trim().parse().ok()?)
    }

    /// Runs one of our commands inside.
    fn run(&self, place: &Path, words: &str) -> Ran {
        let first = self.first().unwrap().to_string();
        let mut inside = command("nsenter", place);
        inside.args(["--mount", "--net", "--pid", "--target", &first]);
        inside.arg(env!("CARGO_BIN_EXE_dormouse"));
        inside.env("DORMOUSE_DATA_DIR", place.join("data"));
        run(inside.args(words.split_whitespace()), "")
    }

    /// The container is removed, with all that runs in it.
    fn end(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let first = self.first();
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The first process is the last to go.
        while first.is_some_and(is_alive) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn is_alive(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
        // With its network went what would tell others that this is left.
        let kept = fs::read_to_string(self.volume.join("data/run/instance")).unwrap_or_default();
        let Some(instance) = kept.split(' ').next().filter(|name| !name.is_empty()) else {
            return;
        };
        for hierarchy in entries(Path::new("/sys/fs/cgroup")) {
            let parent = hierarchy.join("dormouse").join(instance);
            for sandbox in entries(&parent).into_iter().filter(|path| path.is_dir()) {
                let _ = fs::remove_dir(sandbox);
            }
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Where servers see their data directory.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("data")).unwrap();
    place
}

/// What is written in the status of a sandbox.
fn phase(container: &Container, place: &Path, id: &str) -> String {
    let object = container.run(place, &format!("get sbx {id} -o json")).ok();
    let object: serde_json::Value = serde_json::from_str(&object).unwrap();
    object["status"]["phase"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn servers_with_the_same_path_leave_each_others_sandboxes_alone() {
    let (place, volumes) = (place(), tempfile::tempdir().unwrap());
    let place = place.path();
    let one = Container::start(place, &volumes.path().join("one"));
    let id = one.run(place, "sandbox create base").ok().trim().to_owned();
    let other = Container::start(place, &volumes.path().join("other"));
    // A server removes what no record speaks of before it has served for long.
    for _ in 0..5 {
        let its = other.run(place, "sandbox create base").ok();
        other
            .run(place, &format!("sandbox kill {}", its.trim()))
            .ok();
        let said = one.run(place, &format!("sandbox exec {id} -- echo lives"));
        assert_eq!(said.ok(), "lives\n");
    }
    let name = |volume: &str| fs::read(volumes.path().join(volume).join("data/run/instance"));
    assert_ne!(name("one").unwrap(), name("other").unwrap());
    one.run(place, &format!("sandbox kill {id}")).ok();
}

#[test]
fn files_outlive_the_container_of_their_server() {
    let (place, volume) = (place(), tempfile::tempdir().unwrap());
    let (place, volume) = (place.path(), volume.path());
    let mut first = Container::start(place, volume);
    let id = first
        .run(place, "sandbox create base")
        .ok()
        .trim()
        .to_owned();
    let write = format!("sandbox exec {id} -- touch /home/user/kept");
    first.run(place, &write).ok();
    first.end();
    let next = Container::start(place, volume);
    until("it sleeps on its files", || {
        (phase(&next, place, &id) == "Paused").then_some(())
    });
    let listed = next.run(place, &format!("sandbox exec {id} -- ls /home/user"));
    assert_eq!(listed.ok(), "kept\n", "it wakes with them");
    next.run(place, &format!("sandbox kill {id}")).ok();
}

#[test]
fn a_server_that_cannot_see_the_processes_of_its_sandboxes_does_not_start() {
    agent();
    let flags = ["--runtime", "local"];
    let server = Server::start_with(tempfile::tempdir().unwrap(), &flags);
    let id = server.run("sandbox create base").ok().trim().to_owned();
    // What is inside goes on, and a container gets the same directory.
    let (home, place) = (server.kill(), place());
    let mut container = Container::try_start(place.path(), home.path());
    until("it says why", || {
        container
            .said()
            .contains("Start the server there")
            .then_some(())
    });
    container.end();
    // Where it was before all is well.
    let server = Server::start_with(home, &flags);
    let said = server.run(&format!("sandbox exec {id} -- echo lives"));
    assert_eq!(said.ok(), "lives\n");
    server.run(&format!("sandbox kill {id}")).ok();
    server.stop();
}
