//! A captured layer comes back beside the start of its sandbox, nothing runs over one that is not whole
//! and proven, and a host that crashes before the files are on disk goes back to it.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use std::{
    cell::Cell,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use runtime::{Fence, Observed, Runtime as _, WorkloadSpec};
use runtime_local::{Options, Step};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
use support::{Host, fence, options, spec};

/// A host that notes which steps its starts reach.
fn noting() -> (Host, Arc<Mutex<Vec<Step>>>) {
    let steps = Arc::<Mutex<Vec<Step>>>::default();
    let reached = Arc::clone(&steps);
    let host = Host::with(Options {
        on_step: Some(Arc::new(move |step| reached.lock().unwrap().push(step))),
        ..options()
    });
    (host, steps)
}

/// The layer of a sandbox that has written something, and the file it is in.
async fn sleeping(host: &Host, at: Fence) -> (WorkloadSpec, PathBuf) {
    host.runtime().create(at, &spec()).await.unwrap();
    host.sh(at.uid, "head -c 100000 /dev/zero > /home/user/zeroes");
    host.runtime().freeze(at).await.unwrap();
    let captured = host.runtime().capture(at, None).await.unwrap();
    host.runtime().delete(at).await.unwrap();
    let hex = captured.digest.as_str().trim_start_matches("sha256:");
    let file = host.data.join("layers/sha256").join(hex);
    assert_eq!(fs::metadata(&file).unwrap().len(), captured.size);
    let from = WorkloadSpec {
        from: Some(captured.digest),
        ..spec()
    };
    (from, file)
}

#[tokio::test]
async fn nothing_runs_over_a_damaged_layer() {
    let (host, steps) = noting();
    let at = fence(1, 1);
    let (from, file) = sleeping(&host, at).await;
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    kit::durable::write_file(&file, &bytes, 0o600).unwrap();

    steps.lock().unwrap().clear();
    let refused = host.runtime().create(at, &from).await.unwrap_err();
    assert!(refused.to_string().contains("damaged"), "{refused}");
    assert_eq!(
        host.runtime().inspect(at.uid).await.unwrap(),
        Observed::Absent
    );
    let steps = steps.lock().unwrap();
    assert!(!steps.contains(&Step::Executed), "nothing runs: {steps:?}");
}

#[tokio::test]
async fn a_first_process_is_made_while_its_layer_is_read_and_gets_its_root_after() {
    let (host, steps) = noting();
    let at = fence(1, 1);
    let (from, file) = sleeping(&host, at).await;
    // A pipe in its place: who opens it waits until somebody writes to it.
    fs::remove_file(&file).unwrap();
    mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();

    steps.lock().unwrap().clear();
    let reached = |step| steps.lock().unwrap().contains(&step);
    let is_over = Cell::new(false);
    let create = async {
        let created = host.runtime().create(at, &from).await;
        is_over.set(true);
        created
    };
    let write = async {
        while !reached(Step::Cloned) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!reached(Step::Mounted));
        // Whoever waits to read finds nothing, and goes on.
        while !is_over.get() {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            drop(openat(CWD, &file, flags, Mode::empty()));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let both = async { tokio::join!(create, write) };
    let (created, ()) = tokio::time::timeout(Duration::from_secs(30), both)
        .await
        .expect("it waits for its layer before it is made");
    created.unwrap_err();
    assert!(!reached(Step::Executed), "the layer was another");
}

/// What the next boot of the host finds of a sandbox that ran.
fn crash_the_host(host: &Host, at: Fence) {
    host.run(at.uid, 0, &["exit", "0"]);
    let place = host.upper(at.uid).parent().unwrap().to_path_buf();
    let text = fs::read_to_string(place.join("state.json")).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = text.replace(boot.trim(), "an-earlier-boot");
    kit::durable::write_file(&place.join("state.json"), text.as_bytes(), 0o600).unwrap();
    fs::remove_file(place.join("process.json")).unwrap();
}

#[tokio::test]
async fn files_that_were_not_on_disk_when_the_host_crashed_are_those_of_the_layer() {
    let mut host = Host::new();
    let at = fence(1, 1);
    let (from, _) = sleeping(&host, at).await;
    let layer = from.from.clone().unwrap();
    host.runtime().create(at, &from).await.unwrap();
    let mark = host.upper(at.uid).with_file_name("settled");
    host.sh(at.uid, "echo since > /home/user/since");
    crash_the_host(&host, at);
    // As a crash leaves them: a name without its content, and no word that they are whole.
    fs::File::create(host.upper(at.uid).join("home/user/zeroes")).unwrap();
    fs::remove_file(&mark).unwrap();
    fs::File::create_new(&mark).unwrap();
    host.reopen();
    let captured = host.runtime().capture(fence(1, 2), None).await.unwrap();
    assert_eq!(captured.digest, layer);
    assert!(captured.size > 100_000);
    host.runtime().delete(fence(1, 3)).await.unwrap();
}

#[tokio::test]
async fn files_that_were_on_disk_when_the_host_crashed_are_what_was_written_to_them() {
    let mut host = Host::new();
    let at = fence(1, 1);
    let (from, _) = sleeping(&host, at).await;
    host.runtime().create(at, &from).await.unwrap();
    // A server that dies before it has synced them leaves that to the next one.
    host.reopen();
    let mark = host.upper(at.uid).with_file_name("settled");
    let settled = async {
        while fs::read(&mark).unwrap() != b"whole" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), settled)
        .await
        .expect("they are synced soon");
    host.sh(at.uid, "echo since > /home/user/since");
    crash_the_host(&host, at);
    host.reopen();
    let captured = host.runtime().capture(fence(1, 2), None).await.unwrap();
    assert_ne!(Some(captured.digest), from.from);
    host.runtime().delete(fence(1, 3)).await.unwrap();
}
