//! Sandboxes on real images: pulled, imported, kept, swept.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails where it did not expect to"
)]

mod support;

#[allow(dead_code, reason = "shared with the tests of images")]
#[path = "../../images/tests/it/archives.rs"]
mod archives;
#[allow(dead_code, reason = "shared with the tests of images")]
#[path = "../../images/tests/it/layout.rs"]
mod layout;
#[allow(dead_code, reason = "shared with the tests of images")]
#[path = "../../images/tests/it/servers.rs"]
mod servers;

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use archives::{Head, Tar};
use images::{Kept, Origin, Sweep};
use layout::{ARCH, Layout, Pack};
use model::template::ImagePullPolicy;
use runtime::{Publication, Published, Runtime as _, RuntimeError, WorkloadSpec};
use servers::Registry;
use support::{Host, fence, fence_of, spec};

/// A small system: busybox, and the libraries that the tests' first process needs.
fn small(name: &str) -> Vec<(Vec<u8>, Pack)> {
    let busybox = fs::read("/bin/busybox")
        .or_else(|_| fs::read("/usr/bin/busybox"))
        .expect("this test needs busybox (apt-get install busybox-static)");
    let executable = |path: &'static str| Head {
        path: path.as_bytes(),
        mode: 0o755,
        ..Head::default()
    };
    let mut tar = Tar::default()
        .directory("bin")
        .head(&executable("bin/busybox"), &busybox)
        .symlink("bin/sh", "busybox")
        // cap_net_bind_service, permitted and effective
        .records(&[(
            "SCHILY.xattr.security.capability",
            b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        )])
        .head(&executable("bin/busybox-low"), &busybox)
        .file("etc/gone", b"");
    // What this very program has loaded.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libraries: BTreeSet<_> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.contains(".so"))
        .collect();
    for path in libraries {
        let name = path.trim_start_matches('/').trim_start_matches("usr/");
        let bytes = fs::read(path).unwrap();
        let head = Head {
            path: name.as_bytes(),
            mode: 0o755,
            ..Head::default()
        };
        tar = tar.head(&head, &bytes);
    }
    let loader = "lib64/ld-linux-x86-64.so.2";
    let tar = tar.symlink(loader, "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
    let top = Tar::default()
        .file("etc/.wh.gone", b"")
        .file("etc/name", name.as_bytes())
        .end();
    vec![(tar.end(), Pack::Zstd), (top, Pack::Gzip)]
}

fn layout(name: &str, called: Option<&str>) -> Layout {
    let layout = Layout::new();
    let image = layout.image(ARCH, &small(name));
    layout.add(image, called)
}

fn dry_run() -> Sweep {
    Sweep {
        dry_run: true,
        ..Sweep::default()
    }
}

fn on(image: &str) -> WorkloadSpec {
    WorkloadSpec {
        images: [("main", image)].into_iter().collect(),
        ..spec()
    }
}

fn sh(host: &Host, uid: model::Uid, script: &str) -> String {
    let reply = host.run(uid, 0, &["/bin/busybox", "sh", "-c", script]);
    assert_eq!(reply.code, 0, "{script}: {}", reply.output);
    reply.output
}

#[tokio::test]
async fn a_sandbox_on_a_pulled_image_runs_commands_of_the_image() {
    let registry = Registry::start();
    registry.push(layout("first", None).path(), "team/small:1");
    let host = Host::new();
    let name = format!("{}/team/small:1", registry.address);
    let at = fence(1, 1);
    let mut spec = on(&name);
    spec.sudo = true;
    let facts = host.runtime().create(at, &spec).await.unwrap();
    assert_eq!(
        facts.images.get("main"),
        Some(&*name),
        "as it was asked for"
    );
    assert_eq!(
        sh(
            &host,
            at.uid,
            "cat /etc/name; busybox ls /etc | grep -e name -e gone | grep -v hostname; echo new > /etc/new"
        ),
        "firstname\n"
    );
    let Some(Origin::Image { digest }) = host.runtime().origin(at.uid) else {
        panic!("no digest: {:?}", host.runtime().origin(at.uid));
    };
    assert!(host.runtime().images().find_digest(&digest).is_some());
    assert_eq!(
        host.runtime().image_config(at.uid).unwrap().working_dir,
        "/work"
    );
    // Ids and file capabilities of the shared layer are those inside.
    let seen = sh(&host, at.uid, "stat -c '%u %g' /bin/busybox");
    assert_eq!(seen, "0 0\n");
    let low = host.run(
        at.uid,
        1000,
        &["/bin/busybox-low", "cat", "/proc/self/status"],
    );
    assert!(
        low.output.contains("CapEff:\t0000000000000400"),
        "{}",
        low.output
    );
    // Another one on the same image, with another policy, while the registry is gone.
    drop(registry);
    let other = fence(2, 1);
    let never = WorkloadSpec {
        pull: ImagePullPolicy::Never,
        ..spec
    };
    host.runtime().create(other, &never).await.unwrap();
    assert_eq!(
        sh(
            &host,
            other.uid,
            "busybox ls /etc | grep -e name -e new | grep -v hostname"
        ),
        "name\n",
        "nothing of the first"
    );
    for at in [at, other] {
        host.runtime().delete(at).await.unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_with_the_remedy_and_leaves_nothing() {
    let host = Host::new();
    let at = fence(1, 1);
    let mut spec = on("example.com/nothing:1");
    spec.pull = ImagePullPolicy::Never;
    let refused = host.runtime().create(at, &spec).await.unwrap_err();
    let RuntimeError::Impossible { field, reason } = &refused else {
        panic!("{refused}");
    };
    assert!(
        *field == "images" && reason.contains("dormouse image pull"),
        "{refused}"
    );
    let refused = host
        .runtime()
        .create(at, &on("Not A Name"))
        .await
        .unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
    let later = host
        .runtime()
        .create(at, &on("127.0.0.1:1/a:1"))
        .await
        .unwrap_err();
    assert!(later.is_retryable(), "{later}");
    assert!(host.runtime().list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_captured_layer_goes_on_over_the_image_it_was_captured_on() {
    let host = Host::new();
    let images = host.runtime().images();
    let name = "a.example/small:1";
    images
        .import(layout("first", Some(name)).path(), None)
        .unwrap();
    let at = fence(1, 1);
    host.runtime().create(at, &on(name)).await.unwrap();
    sh(&host, at.uid, "echo mine > /mine");
    let origin = host.runtime().origin(at.uid);
    host.runtime().freeze(at).await.unwrap();
    let captured = host.runtime().capture(at, None).await.unwrap();
    host.runtime().delete(at).await.unwrap();
    // The name leads elsewhere by now, and a sweep has been.
    images
        .import(layout("second", Some(name)).path(), None)
        .unwrap();
    host.runtime()
        .sweep_images(Sweep::default(), Kept::All.into())
        .await
        .unwrap();
    let from = WorkloadSpec {
        from: Some(captured.digest.clone()),
        ..on(name)
    };
    let again = fence_of(at.uid, 2, 1);
    host.runtime().create(again, &from).await.unwrap();
    assert_eq!(sh(&host, at.uid, "cat /etc/name /mine"), "firstmine\n");
    assert_eq!(host.runtime().origin(at.uid), origin);
    // In use, though no name leads to it and nobody else asks for the layer.
    let nobody = || Kept::Only(BTreeSet::new());
    let swept = host
        .runtime()
        .sweep_images(Sweep::default(), nobody().into())
        .await
        .unwrap();
    assert!(swept.is_empty(), "{swept:?}");
    // Starting over stays with the image, too.
    host.runtime().reset(again, None).await.unwrap();
    assert_eq!(sh(&host, at.uid, "cat /etc/name"), "first");
    host.runtime().delete(again).await.unwrap();
    let swept = host
        .runtime()
        .sweep_images(dry_run(), nobody().into())
        .await
        .unwrap();
    assert!(
        swept.blobs.contains(&captured.digest) && swept.images.len() == 1,
        "{swept:?}"
    );
    host.runtime()
        .sweep_images(Sweep::default(), nobody().into())
        .await
        .unwrap();
    let gone = host.runtime().create(again, &from).await.unwrap_err();
    assert!(gone.to_string().contains("does not exist"), "{gone}");
}

#[tokio::test]
async fn a_layer_over_the_hosts_programs_goes_on_only_over_the_same_ones() {
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    let Some(Origin::Host { fingerprint }) = host.runtime().origin(at.uid) else {
        panic!("no fingerprint");
    };
    assert_eq!(host.runtime().base_origin(), host.runtime().origin(at.uid));
    host.runtime().freeze(at).await.unwrap();
    let captured = host.runtime().capture(at, None).await.unwrap();
    host.runtime().delete(at).await.unwrap();
    let from = WorkloadSpec {
        from: Some(captured.digest.clone()),
        ..spec()
    };
    let again = fence_of(at.uid, 2, 1);
    host.runtime().create(again, &from).await.unwrap();
    host.runtime().delete(again).await.unwrap();
    // As if the host had been upgraded in between.
    let other = Origin::Host {
        fingerprint: fingerprint.chars().rev().collect::<String>().into(),
    };
    let images = host.runtime().images();
    images.note_capture(&captured.digest, Some(&other)).unwrap();
    let refused = host
        .runtime()
        .create(fence_of(at.uid, 3, 1), &from)
        .await
        .unwrap_err();
    let RuntimeError::Impossible { field, reason } = &refused else {
        panic!("{refused}");
    };
    assert!(
        *field == "snapshot" && reason.contains("build-base"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_sweep_that_races_with_creates_never_takes_an_image_in_use() {
    let host = Host::new();
    let layout = layout("raced", Some("a.example/small:1"));
    let digest = {
        let imported = host.runtime().images().import(layout.path(), None).unwrap();
        imported[0].image.digest().clone()
    };
    let by_digest = on(&format!("a.example/small@{digest}"));
    let done = AtomicBool::new(false);
    let runtime = host.runtime();
    let sweep = async {
        let mut swept = 0;
        while !done.load(Ordering::Relaxed) {
            let found = runtime
                .sweep_images(Sweep::default(), Kept::Only(BTreeSet::new()).into())
                .await
                .unwrap();
            swept += found.images.len();
            tokio::task::yield_now().await;
        }
        swept
    };
    let use_it = async {
        for turn in 0..25 {
            let held = runtime.images().import(layout.path(), None).unwrap();
            runtime.images().remove("a.example/small:1").unwrap();
            let at = fence_of(model::Uid::from_random(turn), 1, 1);
            let create = runtime.create(at, &by_digest);
            let (created, ()) = tokio::join!(create, async { drop(held) });
            // It may be gone before it was asked for, but never while it is used.
            match created {
                Ok(_) => {
                    assert_eq!(sh(&host, at.uid, "cat /etc/name"), "raced");
                    runtime.delete(at).await.unwrap();
                }
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
        done.store(true, Ordering::Relaxed);
    };
    let (swept, ()) = tokio::join!(sweep, use_it);
    assert!(swept > 0, "it swept meanwhile");
}

#[tokio::test]
async fn base_has_what_clients_expect_of_it() {
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    let script = r#"
        set -e
        grep -q '^user:x:1000:1000:user:/home/user:/bin/bash$' /etc/passwd
        test "$(stat -c %U /home/user)" = user
        grep -q '^user ALL=(ALL:ALL) NOPASSWD: ALL$' /etc/sudoers
        test "$(stat -c %a /etc/sudoers)" = 440
        test -f /etc/pam.d/sudo
        . /etc/default/locale; test "$LANG" = C.UTF-8
        if [ -x /usr/bin/python3 ]; then python -c 'print("a python")'; fi
        if [ -x /usr/bin/git ]; then git --version >/dev/null; git daemon --help >/dev/null 2>&1 || true; fi
        if [ -x /usr/bin/tput ]; then tput -T xterm cols >/dev/null; fi
        if [ -e /usr/share/ca-certificates ]; then test -s /etc/ssl/certs/ca-certificates.crt; fi
        if grep -q '\$' /etc/shadow; then echo a password; exit 1; fi
        for secret in /etc/ssh /root/.ssh /root/.docker /etc/ssl/private /etc/machine-id /home/*/.ssh; do
            if [ -e "$secret" ]; then echo "$secret"; exit 1; fi
        done
    "#;
    host.sh(at.uid, script);
    host.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn a_layer_that_was_published_goes_on_where_only_the_registry_is_known() {
    let registry = Registry::with_users();
    let layout = layout("published", None);
    registry.push(layout.path(), "team/base:1");
    let name = format!("{}/team/base:1", registry.address);
    let secret = format!(
        r#"{{"auths": {{"{}": {{"username": "{}", "password": "{}"}}}}}}"#,
        registry.address,
        servers::USER,
        servers::PASSWORD
    );
    let write_secret = |host: &Host, name: &str| {
        let secrets = host.data.join("secrets");
        fs::create_dir_all(&secrets).unwrap();
        kit::durable::write_file(&secrets.join(name), secret.as_bytes(), 0o600).unwrap();
    };
    let (here, there) = (Host::new(), Host::new());
    // The image as it was brought here; the other host has never heard of it.
    here.runtime()
        .images()
        .import(layout.path(), Some(&name))
        .unwrap();
    let at = fence(1, 1);
    here.runtime().create(at, &on(&name)).await.unwrap();
    here.sh(at.uid, "echo kept > /kept; rm /etc/name; mkdir -p /a/b");
    here.runtime().freeze(at).await.unwrap();
    let captured = here.runtime().capture(at, None).await.unwrap();
    here.runtime().delete(at).await.unwrap();

    let mut to = Publication {
        registry: format!("{}/team/snapshots", registry.address).into(),
        secret: model::Name::new("push").ok(),
        parent: captured.parent.clone(),
    };
    let publish = || here.runtime().publish(&captured.digest, &to);
    let missing = publish().await.unwrap_err();
    let hopeless = matches!(
        &missing,
        RuntimeError::Impossible {
            field: "snapshotRegistry",
            ..
        }
    );
    assert!(
        hopeless && missing.to_string().contains("secret push"),
        "{missing}"
    );
    write_secret(&here, "push");
    let image = publish().await.unwrap();
    let path = format!("{}/team/snapshots@sha256:", registry.address);
    assert!(image.starts_with(&path), "{image}");

    // Whoever names no secret is not let in, and what is refused is worth no further try.
    to.secret = None;
    let refused = here.runtime().publish(&captured.digest, &to).await;
    assert!(!refused.unwrap_err().is_retryable());

    let from = WorkloadSpec {
        from: Some(captured.digest.clone()),
        published: Some(Box::new(Published {
            image,
            secret: model::Name::new("pull").ok(),
        })),
        ..on(&name)
    };
    let refused = there.runtime().create(at, &from).await.unwrap_err();
    assert!(refused.to_string().contains("secret pull"), "{refused}");
    write_secret(&there, "pull");
    let facts = there.runtime().create(at, &from).await.unwrap();
    assert_eq!(facts.layer, Some(captured.digest.clone()));
    let seen = there.sh(at.uid, "cat /kept; ls /a; ls /etc/name || true");
    assert!(
        seen.starts_with("kept\nb\n") && seen.contains("No such file"),
        "{seen}"
    );
    // It is written on as any other: image and one layer.
    there.sh(at.uid, "echo more > /more");
    there.runtime().freeze(at).await.unwrap();
    let again = there.runtime().capture(at, None).await.unwrap();
    assert_eq!(again.parent, Some(captured.digest));
    there.runtime().delete(at).await.unwrap();
}

#[tokio::test]
async fn runtimes_that_share_a_registry_share_what_was_published() {
    let registry = Registry::start();
    let layout = layout("shared", None);
    let name = format!("{}/base:1", registry.address);
    let (here, there) = (Host::new(), Host::new());
    here.runtime()
        .images()
        .import(layout.path(), Some(&name))
        .unwrap();
    let images = on(&name).images;
    let (here, there) = (here.runtime(), there.runtime());
    runtime::conformance::run_published(here, there, images, &registry.address).await;
}

#[tokio::test]
async fn a_layer_over_the_hosts_programs_is_published_nowhere() {
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    host.runtime().freeze(at).await.unwrap();
    let captured = host.runtime().capture(at, None).await.unwrap();
    host.runtime().delete(at).await.unwrap();
    let to = Publication {
        registry: "127.0.0.1:1".into(),
        secret: None,
        parent: None,
    };
    let refused = host
        .runtime()
        .publish(&captured.digest, &to)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("dormouse template build-base"),
        "{refused}"
    );
    assert!(!refused.is_retryable());
}
