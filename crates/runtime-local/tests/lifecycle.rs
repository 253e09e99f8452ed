//! Real sandboxes: the port's promises, and what a server's death leaves.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use std::time::Duration;

use model::Epoch;
use runtime::{Arming, Facts, Observed, Runtime as _, RuntimeError, WorkloadSpec, WorkloadState};
use runtime_local::Step;
use support::{Host, fence, fence_of, images, leaks::Inventory, spec};

async fn facts(host: &Host, uid: model::Uid) -> Facts {
    match host.runtime().inspect(uid).await.unwrap() {
        Observed::Present(facts) => facts,
        other => panic!("{other:?}"),
    }
}

/// Waits until the first process is seen to have ended.
async fn exit_code(host: &Host, uid: model::Uid) -> i32 {
    for _ in 0..12_000 {
        if let WorkloadState::Exited { code } = facts(host, uid).await.state {
            return code;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not end");
}

#[tokio::test]
async fn the_local_runtime_keeps_the_ports_promises() {
    let host = Host::new();
    runtime::conformance::run(host.runtime(), images()).await;
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn a_sandbox_sees_itself_and_the_hosts_programs_only() {
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    let sh = |script| host.sh(at.uid, script);
    assert_eq!(sh("hostname"), "sandbox\n");
    assert_eq!(sh("id -u; id -un 1000"), "0\nuser\n");
    // The one name that is generated where the host has the program.
    let own = sh("ls -A /root; ls -A /usr/local/bin | grep -vx python; ls /home");
    assert_eq!(own, "user\n");
    assert_eq!(
        sh("echo x > /usr/local/bin/x && cat /usr/local/bin/x"),
        "x\n"
    );
    assert_eq!(sh("cat /proc/1/comm"), "init\n");
    assert_eq!(
        sh("cat /proc/self/cgroup | grep -c '/$'"),
        sh("wc -l < /proc/self/cgroup")
    );
    assert!(sh("cat /proc/net/dev").contains("lo:"));
    assert_eq!(
        sh("cat /sys/class/net/lo/operstate"),
        "unknown\n",
        "it is up"
    );
    assert_eq!(sh("ls /sys/class/net"), "eth0\nlo\n");
    let user = host.run(
        at.uid,
        1000,
        &["/bin/sh", "-c", "touch ~user/a /tmp/b && stat -c %U /tmp/b"],
    );
    assert_eq!((user.code, user.output.as_str()), (0, "user\n"));
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn directories_of_the_image_can_be_removed_and_made_again() {
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    let said = host.sh(
        at.uid,
        "rm -rf /etc/ssl /var/log && mkdir /var/log && ls -A /var/log && ls /etc/ssl 2>&1 || true",
    );
    assert!(said.contains("No such file"), "{said}");
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn a_new_server_goes_on_with_what_runs() {
    let mut host = Host::new();
    let (running, frozen) = (fence(1, 1), fence(2, 1));
    for at in [running, frozen] {
        host.runtime().create(at, &spec()).await.unwrap();
        let arming = Arming {
            epoch: Epoch(4),
            env: [("TOKEN", "secret")].into_iter().collect(),
            ..Arming::default()
        };
        host.runtime().arm(at, &arming).await.unwrap();
    }
    host.runtime().freeze(fence(2, 7)).await.unwrap();
    let before = [
        facts(&host, running.uid).await,
        facts(&host, frozen.uid).await,
    ];
    host.reopen();
    let after = [
        facts(&host, running.uid).await,
        facts(&host, frozen.uid).await,
    ];
    assert_eq!(before, after);
    assert_eq!(after[0].state, WorkloadState::Running);
    assert_eq!(after[1].state, WorkloadState::Frozen);
    assert_eq!(after[0].epoch, Epoch(4));
    assert!(
        host.sh(running.uid, "cat /run/dormouse/arming.json")
            .contains("secret")
    );
    let late = host.runtime().thaw(fence(2, 6)).await;
    assert!(
        matches!(late, Err(RuntimeError::Stale(_))),
        "fences are kept: {late:?}"
    );
    host.runtime().thaw(fence(2, 8)).await.unwrap();
    assert_eq!(host.sh(frozen.uid, "echo awake"), "awake\n");
    for at in [running, frozen] {
        host.runtime().delete(fence_of(at.uid, 2, 1)).await.unwrap();
    }
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn how_the_first_process_ended_is_known_to_its_server_and_to_the_next() {
    let mut host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    host.run(at.uid, 0, &["exit", "7"]);
    assert_eq!(exit_code(&host, at.uid).await, 7);
    let refused = host.runtime().freeze(at).await;
    assert!(
        matches!(refused, Err(RuntimeError::WrongState { .. })),
        "{refused:?}"
    );
    host.reopen();
    assert_eq!(exit_code(&host, at.uid).await, 7);
    host.runtime().delete(at).await.unwrap();
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn an_adopted_first_process_tells_how_it_ended() {
    let mut host = Host::new();
    let at = fence(1, 2);
    // Made by another server, which is gone: no child of this one.
    host.runtime = None;
    support::die(&host, "create", Step::Emptied);
    host.reopen();
    assert_eq!(facts(&host, at.uid).await.state, WorkloadState::Running);
    host.run(at.uid, 0, &["exit", "9"]);
    assert_eq!(exit_code(&host, at.uid).await, 9);
    host.runtime().delete(at).await.unwrap();
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn a_reset_leaves_nothing_of_the_last_delivery() {
    let host = Host::new();
    let at = fence(1, 1);
    let before = host.runtime().create(at, &spec()).await.unwrap();
    let arming = Arming {
        epoch: Epoch(1),
        env: [("TOKEN", "secret")].into_iter().collect(),
        ..Arming::default()
    };
    host.runtime().arm(at, &arming).await.unwrap();
    host.sh(
        at.uid,
        "echo mine > /home/user/file; echo mine > /dev/shm/file; rm -rf /srv",
    );
    host.run(at.uid, 0, &["background", "/bin/sleep", "1000"]);
    host.runtime().freeze(at).await.unwrap();
    host.runtime().reset(at, None).await.unwrap();
    let after = facts(&host, at.uid).await;
    assert_eq!(after.state, WorkloadState::Running);
    assert_ne!(after.container_id, before.container_id);
    let left = host.sh(at.uid, "ls -A /home/user /dev/shm /run/dormouse; ls -d /srv; ps ax | grep -c '[s]leep 1000' || true");
    assert_eq!(
        left,
        "/dev/shm:\n\n/home/user:\n\n/run/dormouse:\nboot_id\nexit\ninit\n/srv\n0\n"
    );
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn an_image_swap_keeps_the_delivery() {
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    let arming = Arming {
        epoch: Epoch(2),
        env: [("A", "b")].into_iter().collect(),
        ..Arming::default()
    };
    host.runtime().arm(at, &arming).await.unwrap();
    let facts = host
        .runtime()
        .swap_images(at, &spec().outfit())
        .await
        .unwrap();
    assert_eq!(facts.epoch, Epoch(2));
    assert!(
        host.sh(at.uid, "cat /run/dormouse/arming.json")
            .contains('b')
    );
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn what_this_engine_cannot_do_is_refused_by_name() {
    let host = Host::new();
    let two = [("main", "base"), ("other", "base")];
    let unknown = [("main", "/")];
    let layer = model::Digest::new(format!("sha256:{:064}", 0)).unwrap();
    for (field, spec) in [
        (
            "images",
            WorkloadSpec {
                images: two.into_iter().collect(),
                ..spec()
            },
        ),
        (
            "images",
            WorkloadSpec {
                images: unknown.into_iter().collect(),
                ..spec()
            },
        ),
        (
            "snapshot",
            WorkloadSpec {
                from: Some(layer),
                ..spec()
            },
        ),
    ] {
        let refused = host.runtime().create(fence(1, 1), &spec).await;
        let named =
            matches!(&refused, Err(RuntimeError::Impossible { field: f, .. }) if *f == field);
        assert!(named, "{field}: {refused:?}");
    }
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_leaves_nothing() {
    let mut options = support::options();
    let image = tempfile::tempdir().unwrap();
    // A link where a mount point should be: following it would mount over the host's files.
    std::os::unix::fs::symlink("/etc", image.path().join("proc")).unwrap();
    options.images.insert("hostile".into(), image.path().into());
    let host = Host::with(options);
    let hostile = WorkloadSpec {
        images: [("main", "hostile")].into_iter().collect(),
        ..spec()
    };
    let failed = host.runtime().create(fence(1, 1), &hostile).await;
    let text = failed.unwrap_err().to_string();
    assert!(text.contains("mounting into the root filesystem"), "{text}");
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn after_a_crash_of_the_host_the_writable_layer_is_still_known() {
    let mut host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    host.sh(at.uid, "echo kept > /home/user/file");
    host.run(at.uid, 0, &["exit", "0"]);
    // As the next boot finds it: the note that it runs is of another boot, or never reached the disk.
    let place = host.upper(at.uid).parent().unwrap().to_path_buf();
    let text = std::fs::read_to_string(place.join("state.json")).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(text.contains(boot.trim()) && text.contains("starting"));
    let text = text.replace(boot.trim(), "an-earlier-boot");
    kit::durable::write_file(&place.join("state.json"), text.as_bytes(), 0o600).unwrap();
    std::fs::remove_file(place.join("process.json")).unwrap();
    host.reopen();
    let seen = facts(&host, at.uid).await;
    assert_eq!(seen.state, WorkloadState::Cut);
    let layer = host
        .runtime()
        .capture(fence(1, 2), None)
        .await
        .unwrap()
        .digest;
    host.runtime().delete(fence(1, 3)).await.unwrap();
    let from = WorkloadSpec {
        from: Some(layer),
        ..spec()
    };
    host.runtime().create(at, &from).await.unwrap();
    let kept = std::fs::read_to_string(host.upper(at.uid).join("home/user/file"));
    assert_eq!(kept.unwrap(), "kept\n");
    host.runtime().delete(fence(1, 4)).await.unwrap();
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn every_start_has_a_boot_id_of_its_own_and_a_thaw_is_no_start() {
    let host = Host::new();
    let (at, other) = (fence(1, 1), fence(2, 1));
    for at in [at, other] {
        host.runtime().create(at, &spec()).await.unwrap();
    }
    let boot_id = |uid| host.sh(uid, "cat /proc/sys/kernel/random/boot_id");
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let first = boot_id(at.uid);
    assert_eq!(first.len(), own.len());
    assert_eq!(first.as_bytes()[14], b'4', "{first} is a random UUID");
    assert_ne!(first, own);
    assert_ne!(first, boot_id(other.uid));
    host.runtime().freeze(at).await.unwrap();
    host.runtime().thaw(at).await.unwrap();
    assert_eq!(first, boot_id(at.uid));
    host.runtime().reset(at, None).await.unwrap();
    assert_ne!(first, boot_id(at.uid));
    for at in [at, other] {
        host.runtime().delete(at).await.unwrap();
    }
}

#[tokio::test]
async fn an_image_without_names_of_its_own_gets_those_of_the_engine() {
    let mut options = support::options();
    let image = tempfile::tempdir().unwrap();
    bring_libraries(image.path(), &options.init);
    options.images.insert("empty".into(), image.path().into());
    options.resolv_conf = "nameserver 192.0.2.53\n".into();
    let host = Host::with(options);
    let at = fence(1, 1);
    let empty = WorkloadSpec {
        images: [("main", "empty")].into_iter().collect(),
        ..spec()
    };
    host.runtime().create(at, &empty).await.unwrap();
    let pid = host.runtime().first_process(at.uid).unwrap();
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/root/etc/{name}"));
    assert_eq!(read("resolv.conf").unwrap(), "nameserver 192.0.2.53\n");
    assert!(read("hosts").unwrap().contains("localhost"));
    host.runtime().delete(fence(1, 2)).await.unwrap();
}

/// Copies what a program of this host needs to start into an image.
fn bring_libraries(image: &std::path::Path, program: &std::path::Path) {
    let listed = std::process::Command::new("ldd").arg(program).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let libraries = listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    for library in libraries {
        let copy = image.join(library.trim_start_matches('/'));
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(library, copy).unwrap();
    }
}
