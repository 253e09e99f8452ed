//! Limited disks: full for one sandbox, and nobody else notices.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use model::{Uid, sandbox::Resources};
use runtime::{Observed, Runtime as _, RuntimeError, WorkloadSpec, WorkloadState};
use support::{Host, fence, fence_of, leaks::Inventory, spec};

fn limited(mib: u32) -> WorkloadSpec {
    WorkloadSpec {
        resources: Some(Resources {
            cpu_millis: None,
            memory_mib: None,
            disk_mib: Some(mib),
        }),
        ..spec()
    }
}

/// How many MiB a sandbox can write, and what it is told then.
fn fill(host: &Host, uid: Uid, path: &str, at_most: u32) -> (u32, String) {
    let script = format!(
        "import os\nf = os.open('{path}', os.O_CREAT | os.O_WRONLY)\nn = 0\n\
         try:\n  while n < {at_most}:\n    os.write(f, os.urandom(1 << 20)); os.fsync(f); n += 1\n  print(n, 'all')\n\
         except OSError as e: print(n, e.strerror)"
    );
    let reply = host.run(uid, 0, &["/usr/bin/python3", "-c", &script]);
    assert_eq!(reply.code, 0, "{}", reply.output);
    let (number, said) = reply.output.trim().split_once(' ').unwrap();
    (number.parse().unwrap(), said.to_owned())
}

fn mounted(host: &Host) -> bool {
    let data = std::fs::canonicalize(&host.data).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(&*data.join("disks/mounted").to_string_lossy())
}

#[tokio::test]
async fn a_full_disk_is_full_for_its_sandbox_only() {
    let host = Host::new();
    let (at, beside, free) = (fence(1, 1), fence(2, 1), fence(3, 1));
    host.runtime().create(at, &limited(32)).await.unwrap();
    host.runtime().create(beside, &limited(64)).await.unwrap();
    host.runtime().create(free, &spec()).await.unwrap();
    let (written, said) = fill(&host, at.uid, "/home/user/big", 100);
    assert!((24..=32).contains(&written), "{written}");
    assert!(
        ["Disk quota exceeded", "No space left on device"].contains(&said.as_str()),
        "{said}"
    );
    assert_eq!(
        fill(&host, beside.uid, "/home/user/big", 40),
        (40, "all".into())
    );
    assert_eq!(
        fill(&host, free.uid, "/home/user/big", 70),
        (70, "all".into())
    );
    // What is removed can be written again.
    host.sh(at.uid, "rm /home/user/big && sync");
    assert_eq!(
        fill(&host, at.uid, "/home/user/big", 10),
        (10, "all".into())
    );
    // Starting over empties it, and the limit stays.
    fill(&host, at.uid, "/home/user/more", 100);
    host.runtime().reset(at, None).await.unwrap();
    let (written, _) = fill(&host, at.uid, "/home/user/big", 100);
    assert!((24..=32).contains(&written), "{written}");
    for at in [at, beside, free] {
        host.runtime().delete(at).await.unwrap();
    }
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn a_limited_disk_is_captured_restored_and_found_again() {
    let mut host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &limited(32)).await.unwrap();
    host.sh(at.uid, "echo kept > /home/user/file; rm -rf /srv; sync");
    host.runtime().freeze(at).await.unwrap();
    let captured = host.runtime().capture(at, None).await.unwrap();
    host.reopen();
    host.runtime().thaw(at).await.unwrap();
    assert_eq!(host.sh(at.uid, "cat /home/user/file"), "kept\n");
    host.run(at.uid, 0, &["exit", "0"]);

    // As after a restart of the host: nothing is mounted, and the processes are gone.
    host.runtime = None;
    let disks = host.data.join("disks/mounted");
    unmount_when_idle(&disks);
    assert!(!mounted(&host));
    host.reopen();
    assert!(mounted(&host));
    let seen = host.runtime().inspect(at.uid).await.unwrap();
    let Observed::Present(facts) = seen else {
        panic!("{seen:?}")
    };
    assert!(matches!(facts.state, WorkloadState::Exited { .. }));
    let file = disks.join(at.uid.to_string()).join("upper/home/user/file");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "kept\n");
    host.runtime().delete(fence(1, 2)).await.unwrap();

    let again = fence_of(at.uid, 2, 1);
    let from = WorkloadSpec {
        from: Some(captured.digest),
        ..limited(32)
    };
    host.runtime().create(again, &from).await.unwrap();
    let seen = host.sh(at.uid, "cat /home/user/file; ls -d /srv 2>&1 || true");
    assert!(
        seen.starts_with("kept\n") && seen.contains("No such file"),
        "{seen}"
    );
    host.runtime().delete(again).await.unwrap();
    assert!(mounted(&host));
    host.runtime = None;
    assert!(!mounted(&host), "nobody needs it any more");
    host.reopen();
}

/// The kernel takes a moment to let go of the last sandbox's mounts.
fn unmount_when_idle(path: &std::path::Path) {
    for _ in 0..12_000 {
        match rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()) {
            Ok(()) => return,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
    panic!("{} is still in use", path.display());
}

#[tokio::test]
async fn a_limit_of_nothing_is_refused_by_name() {
    let host = Host::new();
    let refused = host.runtime().create(fence(1, 1), &limited(0)).await;
    assert!(
        matches!(
            &refused,
            Err(RuntimeError::Impossible {
                field: "resources.diskMiB",
                ..
            })
        ),
        "{refused:?}"
    );
}
