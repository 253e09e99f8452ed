//! Sandboxes that an OCI runtime starts: the port's promises, what a server's death leaves, and
//! the same ground under both classes. They need runc; without it they fail and say so.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

use std::time::Duration;

use model::{Epoch, Uid, hook::Hook, sandbox::NetworkPolicy, template::RuntimeClass};
use runtime::{
    Arming, Booting, Captured, Facts, Fence, Observed, Outfit, Publication, Runtime, RuntimeError,
    WorkloadSpec, WorkloadState,
};
use runtime_local::{LocalRuntime, Step};
use support::{
    Host, die_as, fence, fence_of, images,
    leaks::{Inventory, Networks, own_mounts},
    spec,
};

/// Some count the open descriptors of their process, so where they share one they run one at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn runc() -> WorkloadSpec {
    WorkloadSpec {
        class: RuntimeClass::Runc,
        ..spec()
    }
}

/// Everything that is made is made by runc.
#[derive(Debug)]
struct ByRunc(LocalRuntime);

#[async_trait::async_trait]
impl Runtime for ByRunc {
    async fn inspect(&self, uid: Uid) -> Result<Observed, RuntimeError> {
        self.0.inspect(uid).await
    }
    async fn list(&self) -> Result<Vec<(Uid, Observed)>, RuntimeError> {
        self.0.list().await
    }
    async fn create(&self, fence: Fence, spec: &WorkloadSpec) -> Result<Facts, RuntimeError> {
        let spec = WorkloadSpec {
            class: RuntimeClass::Runc,
            ..spec.clone()
        };
        self.0.create(fence, &spec).await
    }
    async fn boot(&self, fence: Fence) -> Result<Booting, RuntimeError> {
        self.0.boot(fence).await
    }
    async fn arm(&self, fence: Fence, arming: &Arming) -> Result<(), RuntimeError> {
        self.0.arm(fence, arming).await
    }
    async fn run_hooks(&self, fence: Fence, hooks: &[Hook]) -> Result<Booting, RuntimeError> {
        self.0.run_hooks(fence, hooks).await
    }
    async fn freeze(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.0.freeze(fence).await
    }
    async fn thaw(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.0.thaw(fence).await
    }
    async fn swap_images(&self, fence: Fence, to: &Outfit) -> Result<Facts, RuntimeError> {
        self.0.swap_images(fence, to).await
    }
    async fn set_network(
        &self,
        fence: Fence,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError> {
        self.0.set_network(fence, policy).await
    }
    async fn capture(
        &self,
        fence: Fence,
        to: Option<&Publication>,
    ) -> Result<Captured, RuntimeError> {
        self.0.capture(fence, to).await
    }
    async fn reset(&self, fence: Fence, to: Option<&Outfit>) -> Result<(), RuntimeError> {
        self.0.reset(fence, to).await
    }
    async fn delete(&self, fence: Fence) -> Result<(), RuntimeError> {
        self.0.delete(fence).await
    }
}

async fn facts(host: &Host, uid: Uid) -> Facts {
    match host.runtime().inspect(uid).await.unwrap() {
        Observed::Present(facts) => facts,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn sandboxes_of_runc_keep_the_ports_promises() {
    let _alone = ALONE.lock().await;
    let host = Host::new();
    runtime::conformance::run(&ByRunc(host.runtime().clone()), images()).await;
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn a_sandbox_of_runc_stands_on_the_same_ground() {
    let _alone = ALONE.lock().await;
    let host = Host::new();
    let (by_engine, by_runc) = (fence(1, 1), fence(2, 1));
    host.runtime().create(by_engine, &spec()).await.unwrap();
    host.runtime().create(by_runc, &runc()).await.unwrap();
    for script in [
        "hostname; id -u; id -un 1000; cat /proc/1/comm; tr '\\0' ' ' < /proc/1/cmdline",
        "tr '\\0' '\\n' < /proc/1/environ | sed 's/DORMOUSE_UID=.*/its id/' | sort",
        "ls -A / /root /home /run /run/dormouse /usr/local/bin /sys/class/net",
        "ls -lA --time-style=+ /dev | sort; cat /sys/class/net/lo/operstate",
        "echo x > /usr/local/bin/x && cat /usr/local/bin/x; echo y > /etc/y; stat -c '%u %g' /etc/y",
        "rm -rf /etc/ssl /var/log && mkdir /var/log && ls -A /var/log",
        "grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/1/status; umask; ulimit -n; ulimit -c",
        "sed 's/.*:.*://' /proc/self/cgroup | sort -u",
        "grep -v ' 0$' /proc/self/uid_map | awk '{ print $1, $3 }'",
        "for f in kcore keys timer_list; do wc -c < /proc/$f; done; touch /proc/sys/x 2>&1 || true",
    ] {
        let (native, other) = (host.sh(by_engine.uid, script), host.sh(by_runc.uid, script));
        assert_eq!(native, other, "{script}");
    }
    for at in [by_engine, by_runc] {
        host.runtime().delete(at).await.unwrap();
    }
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn a_new_server_goes_on_with_what_runc_has_started() {
    let _alone = ALONE.lock().await;
    let mut host = Host::new();
    let (running, frozen) = (fence(1, 1), fence(2, 1));
    for at in [running, frozen] {
        host.runtime().create(at, &runc()).await.unwrap();
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
    assert_eq!(after[1].state, WorkloadState::Frozen);
    let late = host.runtime().thaw(fence(2, 6)).await;
    assert!(matches!(late, Err(RuntimeError::Stale(_))), "{late:?}");
    host.runtime().thaw(fence(2, 8)).await.unwrap();
    assert_eq!(host.sh(frozen.uid, "echo awake"), "awake\n");
    host.run(running.uid, 0, &["exit", "9"]);
    let mut code = None;
    for _ in 0..12_000 {
        if let WorkloadState::Exited { code: seen } = facts(&host, running.uid).await.state {
            code = Some(seen);
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(code, Some(9));
    for at in [running, frozen] {
        host.runtime().delete(fence_of(at.uid, 2, 1)).await.unwrap();
    }
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn a_layer_moves_between_classes() {
    let _alone = ALONE.lock().await;
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &runc()).await.unwrap();
    let make = "rm -rf /etc/ssl; echo kept > /home/user/file; chown 1000:100 /home/user/file; ln /home/user/file /opt/hard";
    host.sh(at.uid, make);
    host.runtime().freeze(at).await.unwrap();
    let captured = host.runtime().capture(at, None).await.unwrap();
    host.runtime().delete(at).await.unwrap();
    for class in [RuntimeClass::Native, RuntimeClass::Runc] {
        let again = WorkloadSpec {
            class,
            from: Some(captured.digest.clone()),
            ..spec()
        };
        host.runtime().create(at, &again).await.unwrap();
        let look = "ls -d /etc/ssl 2>&1 | grep -c 'No such'; cat /opt/hard; stat -c '%u %g %h' /home/user/file";
        assert_eq!(host.sh(at.uid, look), "1\nkept\n1000 100 2\n", "{class:?}");
        host.runtime().delete(at).await.unwrap();
    }
    assert!(Inventory::take(&host).is_clear());
}

#[tokio::test]
async fn a_server_killed_at_any_step_of_runc_leaves_something_that_can_be_removed() {
    let _alone = ALONE.lock().await;
    own_mounts();
    let mut host = Host::new();
    let at = fence(1, 2);
    let before = Inventory::take(&host);
    for verb in ["create", "reset", "delete"] {
        for step in Step::ALL {
            let mut networks = Networks::default();
            if verb != "create" {
                host.runtime().create(at, &runc()).await.unwrap();
                networks.note(&host);
            }
            host.runtime = None;
            die_as(&host, verb, step, RuntimeClass::Runc);
            networks.note(&host);
            let runtime = host.reopen();
            match runtime.inspect(at.uid).await.unwrap() {
                Observed::Absent => {
                    assert!(verb == "delete" && step < Step::Removing, "{verb} {step:?}");
                }
                Observed::Coming | Observed::Partial => {
                    let refused = runtime.freeze(at).await;
                    assert!(matches!(refused, Err(RuntimeError::WrongState { .. })));
                }
                Observed::Present(facts) => {
                    assert_eq!(facts.state, WorkloadState::Running, "{verb} {step:?}");
                }
            }
            runtime.delete(at).await.unwrap();
            assert!(runtime.list().await.unwrap().is_empty(), "{verb} {step:?}");
            let after = format!("{verb} {step:?}");
            before.assert_nothing_came(&host, &networks, &after).await;
        }
    }
}

#[tokio::test]
async fn a_start_that_runc_refuses_says_why_and_leaves_nothing() {
    let _alone = ALONE.lock().await;
    own_mounts();
    let mut options = support::options();
    let image = tempfile::tempdir().unwrap();
    // A link where a mount point should be: following it would mount over the host's files.
    std::os::unix::fs::symlink("/etc", image.path().join("run")).unwrap();
    options.images.insert("hostile".into(), image.path().into());
    let host = Host::with(options);
    let before = Inventory::take(&host);
    let hostile = WorkloadSpec {
        images: [("main", "hostile")].into_iter().collect(),
        ..runc()
    };
    let failed = host.runtime().create(fence(1, 1), &hostile).await;
    let text = failed.unwrap_err().to_string();
    assert!(text.contains("runc create"), "{text}");
    let none = Networks::default();
    before.assert_nothing_came(&host, &none, "a refusal").await;
}

/// Where the runtime is not installed; here a mount hides it from a server.
#[tokio::test]
async fn a_class_whose_runtime_is_missing_is_refused_by_name_with_what_to_do() {
    let _alone = ALONE.lock().await;
    let mut host = Host::new();
    host.runtime = None;
    for (class, program, remedy) in [
        ("Runc", "runc", "apt-get install runc"),
        ("Runsc", "runsc", "put gVisor's runsc"),
    ] {
        let hide = format!(
            "for d in $(echo $PATH | tr : ' ') /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin; do \
             if [ -e $d/{program} ]; then mount --bind /dev/null $d/{program}; fi; done; exec \"$0\" \"$@\""
        );
        let output = std::process::Command::new("unshare")
            .args([
                "--mount",
                "sh",
                "-ec",
                &hide,
                support::INIT,
                "die",
                "create",
            ])
            .arg(&host.data)
            .arg("Emptied")
            .arg(host.uids.start.to_string())
            .arg(format!("\"{class}\""))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("runtimeClass"), "{said}");
        assert!(said.contains(remedy), "{said}");
    }
    assert!(Inventory::take(&host).is_clear());
}
