//! A server that dies at every named step of a pause, a resume, a snapshot, a deletion and a sweep.
//!
//! Each step is a place in the code (`failpoints::Step`); a server that is told one in its
//! environment kills itself there. A step that is never reached fails the test, and so does one that
//! no operation claims.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    os::unix::process::ExitStatusExt as _,
    path::Path,
};

use failpoints::{Step, VARIABLE};

use crate::{
    kept::{Kept, Traces, address_of, entries, import, small},
    sandboxes::until,
};

const NAME: &str = "one";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Pause,
    Resume,
    Snapshot,
    Delete,
    Sweep,
}

/// Who reaches a step.
fn operations(step: Step) -> &'static [Operation] {
    use Operation::{Delete, Pause, Resume, Snapshot, Sweep};
    match step {
        Step::PausingSaid | Step::PausedUnsaid | Step::PausedSaid => &[Pause],
        Step::Frozen
        | Step::LayerWritten
        | Step::LayerNoted
        | Step::LayerNamed
        | Step::Committed
        | Step::BlobPushed
        | Step::ManifestPushed
        | Step::Pushed => &[Pause, Snapshot],
        Step::Removing | Step::Killed | Step::Ungrouped | Step::Emptied => &[Pause, Delete],
        Step::RecordLeft => &[Delete],
        Step::SnapshotBegun | Step::SnapshotUnsaid | Step::SnapshotSaid | Step::Thawed => {
            &[Snapshot]
        }
        Step::ResumingSaid
        | Step::Noted
        | Step::Directories
        | Step::Cgroups
        | Step::Cloned
        | Step::Mounted
        | Step::Executed
        | Step::Made
        | Step::AwakeUnsaid
        | Step::AwakeSaid => &[Resume],
        Step::ImageSwept | Step::LayerSwept | Step::BlobSwept | Step::Swept => &[Sweep],
    }
}

fn steps(operation: Operation) -> impl Iterator<Item = Step> {
    let all = Step::ALL.iter().copied();
    all.filter(move |step| operations(*step).contains(&operation))
}

/// A sandbox that is written to before each crash.
struct World {
    kept: Kept,
    written: String,
    uid: String,
    addresses: BTreeSet<Ipv4Addr>,
}

impl World {
    fn start() -> Self {
        let kept = Kept::start();
        kept.want(NAME, "Running");
        let sandbox = kept.becomes("sandbox", NAME, "Running");
        let uid = sandbox["metadata"]["uid"].as_str().unwrap().to_owned();
        kept.said(
            NAME,
            "head -c 300000 /dev/urandom > /data/big; sha256sum /data/big > /data/sum",
        );
        Self {
            kept,
            written: String::new(),
            uid,
            addresses: BTreeSet::new(),
        }
    }

    /// Writes something that is acknowledged.
    fn write(&mut self, step: Step) {
        let line = step.name();
        self.kept.said(NAME, &format!("echo {line} >> /data/log"));
        self.written.push_str(&format!("{line}\n"));
        let address = address_of(&self.kept.data(), &self.uid);
        self.addresses.extend(address);
    }

    /// All that was acknowledged is there, and the sandbox does as it is told.
    fn check(&self) {
        self.kept.becomes("sandbox", NAME, "Running");
        let said = self
            .kept
            .said(NAME, "sha256sum -c /data/sum && cat /data/log");
        assert_eq!(said, format!("/data/big: OK\n{}", self.written));
        // What is looked for when it sleeps or is gone is there while it runs.
        let data = self.kept.data();
        let address = address_of(&data, &self.uid).into_iter().collect();
        let traces = Traces::of(&data, &self.uid, &address);
        assert!(traces.directory && traces.processes > 0, "{traces:?}");
        assert!(!traces.cgroups.is_empty(), "{traces:?}");
        assert_eq!(traces.links.len(), 1, "{traces:?}");
    }

    /// Begins something that kills the server at a step.
    fn die_at(&mut self, step: Step, begin: impl FnOnce(&Kept)) {
        self.kept.restart(&[(VARIABLE, step.name())]);
        begin(&self.kept);
        self.died(step);
    }

    /// The server has died at a step; another one takes its place.
    fn died(&mut self, step: Step) {
        let server = self.kept.server.as_mut().unwrap();
        let status = server.wait();
        assert_eq!(
            status.signal(),
            Some(9),
            "{step:?} was not reached: {status}"
        );
        let home = self.kept.server.take().unwrap().kill();
        self.kept.start_in(home, &[]);
    }

    fn sleep(&self) {
        self.kept.want(NAME, "Paused");
        self.asleep();
    }

    /// It sleeps on its files, and nothing else of it is left on the host.
    fn asleep(&self) {
        let record = self.kept.becomes("sandbox", NAME, "Paused");
        let status = &record["status"];
        assert!(status["snapshot"].is_string(), "{status}");
        assert!(status["snapshotImage"].is_string(), "{status}");
        assert!(status["snapshotSize"].as_u64() > Some(300_000), "{status}");
        self.no_trace();
    }

    fn no_trace(&self) {
        until("nothing of it is left", || {
            let traces = Traces::of(&self.kept.data(), &self.uid, &self.addresses);
            (traces == Traces::default()).then_some(())
        });
    }

    /// Once nothing needs it, nothing but the image is left on disk, whatever died meanwhile.
    fn end(self) {
        self.kept
            .server()
            .run(&format!("delete sandbox {NAME}"))
            .ok();
        self.no_trace();
        self.kept.server().run("gc").ok();
        let data = self.kept.data();
        assert_eq!(
            layers(&data),
            BTreeMap::from([("captures", 0), ("sha256", 3)])
        );
        self.kept.server.unwrap().stop();
    }
}

/// How many captured layers and blobs there are. Nothing is half-done.
fn layers(data: &Path) -> BTreeMap<&'static str, usize> {
    for directory in [
        "layers/sha256",
        "layers/unpacked",
        "layers/partial",
        "layers/trash",
        "images/names",
        "images/manifests",
        "images/captures",
    ] {
        let half = entries(&data.join(directory));
        let half: Vec<_> = half
            .iter()
            .filter(|path| path.extension().is_some() || directory.ends_with("trash"))
            .collect();
        assert!(half.is_empty(), "{half:?}");
    }
    BTreeMap::from([
        ("captures", entries(&data.join("images/captures")).len()),
        ("sha256", entries(&data.join("layers/sha256")).len()),
    ])
}

#[test]
fn a_pause_that_dies_at_any_step_ends_asleep_with_all_that_was_written() {
    let mut world = World::start();
    for step in steps(Operation::Pause) {
        world.write(step);
        world.die_at(step, |kept| kept.want(NAME, "Paused"));
        world.asleep();
        world.kept.want(NAME, "Running");
        world.check();
    }
    world.end();
}

#[test]
fn a_resume_that_dies_at_any_step_ends_awake_with_all_that_was_written() {
    let mut world = World::start();
    for step in steps(Operation::Resume) {
        world.write(step);
        world.sleep();
        world.die_at(step, |kept| kept.want(NAME, "Running"));
        world.check();
    }
    world.end();
}

#[test]
fn a_snapshot_that_dies_at_any_step_is_taken_and_its_sandbox_goes_on() {
    let mut world = World::start();
    for (number, step) in steps(Operation::Snapshot).enumerate() {
        world.write(step);
        let name = format!("taken-{number}");
        world.die_at(step, |kept| kept.snapshot(&name, NAME));
        world.kept.becomes("sandboxsnapshot", &name, "Ready");
        world.check();
        let child = format!(
            "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\nmetadata:\n  name: child\nspec:\n  \
             snapshot: {name}\n  access:\n    agentIsOpen: true\n"
        );
        let server = world.kept.server();
        server.run_with("apply -f -", &child).ok();
        world.kept.becomes("sandbox", "child", "Running");
        assert_eq!(world.kept.said("child", "cat /data/log"), world.written);
        server.run("delete sandbox child").ok();
        server.run(&format!("delete sandboxsnapshot {name}")).ok();
    }
    world.end();
}

#[test]
fn a_deletion_that_dies_at_any_step_leaves_nothing() {
    let mut world = World::start();
    for step in steps(Operation::Delete) {
        world.write(step);
        world.die_at(step, |kept| {
            kept.server()
                .run(&format!("delete sandbox {NAME} --wait=false"))
                .ok();
        });
        until("its record goes", || {
            let found = world.kept.server().run(&format!("get sandbox {NAME}"));
            (found.code != Some(0)).then_some(())
        });
        world.no_trace();
        world.kept.want(NAME, "Running");
        let sandbox = world.kept.becomes("sandbox", NAME, "Running");
        world.uid = sandbox["metadata"]["uid"].as_str().unwrap().to_owned();
        world.written.clear();
        world.addresses.clear();
    }
    world.end();
}

#[test]
fn a_sweep_that_dies_at_any_step_takes_nothing_that_is_needed() {
    let mut world = World::start();
    for (number, step) in steps(Operation::Sweep).enumerate() {
        world.write(step);
        world.sleep();
        // Something of each kind that nothing leads to: an image of its own, and the layers of
        // earlier sleeps.
        let server = world.kept.server();
        import(server.home.path(), &small(&[b'0' + number as u8]), "lost:1");
        server.run("image rm lost:1").ok();
        let name = format!("taken-{number}");
        world.kept.want(NAME, "Running");
        world.kept.becomes("sandbox", NAME, "Running");
        world.kept.snapshot(&name, NAME);
        world.kept.becomes("sandboxsnapshot", &name, "Ready");
        let server = world.kept.server();
        server.run(&format!("delete sandboxsnapshot {name}")).ok();
        world.write(step);
        world.sleep();
        world.die_at(step, |kept| {
            kept.server().run("gc").failed();
        });
        world.kept.server().run("gc").ok();
        assert_eq!(layers(&world.kept.data())["captures"], 1);
        world.kept.want(NAME, "Running");
        world.check();
    }
    world.end();
}
