//! Pulling, from a real registry and from bad ones.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    sync::{Arc, Mutex},
    time::Duration,
};

use images::{Credentials, ImageError, Options, Pinned, Store, digest::digest_of};
use model::template::ImagePullPolicy::{Always, IfNotPresent, Never};
use serde_json::{Value, json};

use crate::{
    archives::{Tar, sha256},
    layout::{ARCH, Layout, OTHER_ARCH, Pack, noise, pack, simple, three_layers},
    servers::{Answer, Cutter, PASSWORD, Registry, Stub, USER, ok},
};

pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options.registry.patience = Duration::from_secs(20);
    options.registry.retries = 2;
    options
}

fn store(at: &Path) -> Store {
    Store::open(at, options()).unwrap()
}

/// What is in a file, in the uppermost layer that has it.
pub(crate) fn look(image: &Pinned, path: &str) -> Option<Vec<u8>> {
    let found = image.directories().into_iter().map(|d| d.join(path));
    let found = found
        .into_iter()
        .find(|path| path.symlink_metadata().is_ok())?;
    fs::read(found).ok()
}

#[tokio::test]
async fn an_image_is_pulled_for_this_platform_verified_and_unpacked() {
    let registry = Registry::start();
    let layout = Layout::new();
    let ours = layout.image(ARCH, &three_layers());
    let other = layout.image(OTHER_ARCH, &simple(b"another platform"));
    let index = layout.index(&[other, ours.clone()]);
    let layout = layout.add(index.clone(), None);
    registry.push(layout.path(), "team/app:1");

    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let name = format!("{}/team/app:1", registry.address);
    let told = Arc::new(Mutex::new(Vec::new()));
    let flight = store.pull(&name).unwrap();
    let image = flight
        .wait(|progress| told.lock().unwrap().push(progress.clone()))
        .await
        .unwrap();
    assert_eq!(image.digest().as_str(), ours["digest"].as_str().unwrap());
    assert_eq!(
        image.index().unwrap().as_str(),
        index["digest"].as_str().unwrap()
    );
    assert_eq!(look(&image, "etc/name").unwrap(), b"middle");
    assert_eq!(look(&image, "large").unwrap(), noise(300_000));
    assert_eq!(image.config().user, "1000:1000");
    assert_eq!(image.config().working_dir, "/work");
    assert_eq!(image.config().entrypoint, ["/bin/sh"]);
    assert_eq!(image.config().env, ["PATH=/bin", "FROM=image"]);
    let last = told.lock().unwrap().last().cloned().unwrap();
    assert_eq!((last.done(), last.total), (image.size(), image.size()));

    // Another server finds it again, by name and by digest, without asking anybody.
    drop((image, store));
    drop(registry);
    let store = self::store(data.path());
    for policy in [Never, IfNotPresent] {
        let again = store.ensure(&name, policy).await.unwrap();
        assert_eq!(look(&again, "etc/name").unwrap(), b"middle");
    }
    let by_digest = format!("other.example/x@{}", ours["digest"].as_str().unwrap());
    store.ensure(&by_digest, Always).await.unwrap();
    let unreachable = store.ensure(&name, Always).await.unwrap_err();
    assert!(unreachable.is_retryable(), "{unreachable}");
}

#[tokio::test]
async fn always_follows_a_tag_and_never_asks_nobody() {
    let registry = Registry::start();
    let push = |content: &[u8]| {
        let layout = Layout::new();
        let image = layout.image(ARCH, &simple(content));
        registry.push(layout.add(image, None).path(), "app:latest");
    };
    push(b"one");
    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let name = format!("{}/app", registry.address);
    let missing = store.ensure(&name, Never).await.unwrap_err();
    assert!(matches!(missing, ImageError::NotPresent(_)), "{missing}");
    assert!(
        missing.to_string().contains("dormouse image pull"),
        "{missing}"
    );
    let first = store.ensure(&name, IfNotPresent).await.unwrap();
    push(b"two");
    let kept = store.ensure(&name, IfNotPresent).await.unwrap();
    assert_eq!(kept.digest(), first.digest());
    let new = store.ensure(&name, Always).await.unwrap();
    assert_ne!(new.digest(), first.digest());
    assert_eq!(look(&new, "file").unwrap(), b"two");
    assert_eq!(
        store.ensure(&name, Never).await.unwrap().digest(),
        new.digest()
    );
}

#[tokio::test]
async fn a_pull_that_breaks_off_goes_on_where_it_was() {
    let registry = Registry::start();
    let layout = Layout::new();
    let large = Tar::default().file("large", &noise(3_000_000)).end();
    let image = layout.image(ARCH, &[(large, Pack::Plain)]);
    registry.push(layout.add(image, None).path(), "app:1");
    let cutter = Cutter::start(&registry.address, 1_000_000, 2);

    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let name = format!("{}/app:1", cutter.address);
    let image = store.ensure(&name, IfNotPresent).await.unwrap();
    assert_eq!(look(&image, "large").unwrap(), noise(3_000_000));
    assert_eq!(cutter.cut.load(Ordering::SeqCst), 2);
    assert_eq!(
        cutter.ranges.load(Ordering::SeqCst),
        2,
        "it did not start over"
    );
}

#[tokio::test]
async fn another_process_takes_a_download_up_again() {
    let registry = Registry::start();
    let layout = Layout::new();
    let large = Tar::default().file("large", &noise(3_000_000)).end();
    let image = layout.image(ARCH, &[(large, Pack::Plain)]);
    registry.push(layout.add(image, None).path(), "app:1");
    // Each connection gives another bit, and this pull loses its patience before the end.
    let cutter = Cutter::start(&registry.address, 1_000_000, 1);
    let data = tempfile::tempdir().unwrap();
    let name = format!("{}/app:1", cutter.address);
    {
        let store = store(data.path());
        let flight = store.pull(&name).unwrap();
        let stop = store.clone();
        let stopped = flight
            .wait(move |progress| {
                if progress.done() > 500_000 {
                    stop.stop();
                }
            })
            .await
            .unwrap_err();
        assert!(matches!(stopped, ImageError::Stopped(_)), "{stopped}");
        assert!(stopped.is_retryable());
    }
    // What has arrived is still being written.
    let arrived = || {
        let partial = fs::read_dir(data.path().join("layers/partial")).unwrap();
        partial
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum::<u64>()
    };
    for _ in 0..12_000 {
        if arrived() > 100_000 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(arrived() > 100_000, "{}", arrived());
    let before = cutter.ranges.load(Ordering::SeqCst);
    let store = store(data.path());
    let image = store.ensure(&name, IfNotPresent).await.unwrap();
    assert_eq!(look(&image, "large").unwrap(), noise(3_000_000));
    assert!(
        cutter.ranges.load(Ordering::SeqCst) > before,
        "it started over"
    );
    assert_eq!(
        fs::read_dir(data.path().join("layers/partial"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn credentials_decide_and_are_never_shown() {
    let registry = Registry::with_users();
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(b"private"));
    registry.push(layout.add(image, None).path(), "private:1");
    let name = format!("{}/private:1", registry.address);
    let pull = async |credentials: Option<Credentials>, file: Option<&str>| {
        let data = tempfile::tempdir().unwrap();
        let mut options = options();
        options.registry.credentials = credentials
            .into_iter()
            .map(|credentials| (registry.address.clone(), credentials))
            .collect();
        if let Some(auth) = file {
            let path = data.path().join("config.json");
            let text = json!({"auths": {registry.address.clone(): {"auth": auth}}});
            crate::layout::write(&path, text.to_string().as_bytes());
            options.registry.docker_config = Some(path);
        }
        let store = Store::open(data.path(), options).unwrap();
        let pulled = store.ensure(&name, IfNotPresent).await;
        pulled.map(|image| look(&image, "file").unwrap())
    };
    assert_eq!(
        pull(Some(Credentials::new(USER, PASSWORD)), None)
            .await
            .unwrap(),
        b"private"
    );
    // base64 of me:secret
    assert_eq!(pull(None, Some("bWU6c2VjcmV0")).await.unwrap(), b"private");
    for (credentials, file, remedy) in [
        (Some(Credentials::new(USER, "guessed-it")), None, "wrong"),
        (None, Some("bWU6Z3Vlc3NlZC1pdA=="), "wrong"),
        (None, None, "docker login"),
    ] {
        let error = pull(credentials, file).await.unwrap_err();
        assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
        assert!(!error.is_retryable());
        let shown = format!("{error} {error:?}");
        assert!(
            shown.contains(remedy) && !shown.contains("guessed"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn what_a_registry_does_not_have_is_said_so() {
    let registry = Registry::start();
    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let name = format!("{}/nothing:1", registry.address);
    let error = store.ensure(&name, IfNotPresent).await.unwrap_err();
    assert!(matches!(error, ImageError::Unknown { .. }), "{error}");
    assert!(!error.is_retryable() && error.to_string().contains("nothing:1"));
    let error = store.ensure("Not A Name", IfNotPresent).await.unwrap_err();
    assert!(matches!(error, ImageError::Name { .. }), "{error}");
    let error = store
        .ensure("127.0.0.1:1/x", IfNotPresent)
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

/// A registry in memory: documents and blobs by path.
pub(crate) fn registry_of(
    layout: &Layout,
    image: &Value,
    change: impl Fn(&str, Answer) -> Answer + Send + Sync + 'static,
) -> Stub {
    let mut files = BTreeMap::new();
    for blob in fs::read_dir(layout.path().join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap();
        let digest = format!("sha256:{}", blob.file_name().to_str().unwrap());
        files.insert(digest, fs::read(blob.path()).unwrap());
    }
    let tagged = image["digest"].as_str().unwrap().to_owned();
    Stub::start(move |path, _| {
        let name = path.rsplit('/').next().unwrap();
        let name = if name == "1" { &tagged } else { name };
        let answer = match files.get(name) {
            Some(bytes) => ok(bytes),
            None => Answer {
                status: 404,
                ..Answer::default()
            },
        };
        change(path, answer)
    })
}

async fn pull_from(stub: &Stub) -> (tempfile::TempDir, Result<(), ImageError>) {
    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let name = format!("{}/app:1", stub.address);
    let outcome = store.ensure(&name, IfNotPresent).await.map(drop);
    if outcome.is_err() {
        assert!(store.list().is_empty());
        let layers = fs::read_dir(data.path().join("layers/unpacked")).unwrap();
        for layer in layers {
            // One that was good, below one that was not.
            assert!(layer.unwrap().path().extension().is_none());
        }
    }
    (data, outcome)
}

#[tokio::test]
async fn a_registry_that_lies_is_found_out() {
    let layout = Layout::new();
    let image = layout.image(ARCH, &three_layers());
    let layer = pack(&three_layers()[1].0, Pack::Zstd);
    let layer_path = format!("/v2/app/blobs/{}", sha256(&layer));
    let of = |path: String, lie: fn(Vec<u8>) -> Vec<u8>| {
        registry_of(&layout, &image, move |asked, mut answer| {
            if asked == path {
                answer.body = lie(answer.body);
            }
            answer
        })
    };
    let flip = |mut body: Vec<u8>| {
        let middle = body.len() / 2;
        body[middle] ^= 1;
        body
    };
    let (data, outcome) = pull_from(&of(layer_path.clone(), flip)).await;
    assert!(
        matches!(outcome, Err(ImageError::Mismatch { .. })),
        "{outcome:?}"
    );
    let name = layer_path.rsplit(':').next().unwrap();
    for directory in ["partial", "sha256"] {
        let path = data.path().join("layers").join(directory).join(name);
        assert!(!path.exists(), "it is not kept in {directory}");
    }
    let (_data, outcome) = pull_from(&of(layer_path.clone(), |mut body| {
        body.push(0);
        body
    }))
    .await;
    assert!(
        matches!(outcome, Err(ImageError::TooLarge { .. })),
        "{outcome:?}"
    );
    let (_data, outcome) = pull_from(&of(layer_path, |mut body| {
        body.pop();
        body
    }))
    .await;
    assert!(
        matches!(outcome, Err(ImageError::Unreachable { .. })),
        "{outcome:?}"
    );

    // A manifest that is not what its own header or an index says.
    let claims = registry_of(&layout, &image, |path, mut answer| {
        if path.contains("/manifests/") {
            answer
                .headers
                .push(("Docker-Content-Digest", sha256(b"another")));
        }
        answer
    });
    let (_data, outcome) = pull_from(&claims).await;
    assert!(
        matches!(outcome, Err(ImageError::Mismatch { .. })),
        "{outcome:?}"
    );

    // A configuration that speaks of other layers: each blob is right, the image is not.
    let other = Layout::new();
    let config = json!({"rootfs": {"type": "layers", "diff_ids": [sha256(b"x")]}});
    let wrong = other.image_with(&config, ARCH, &simple(b"y"));
    let (_data, outcome) = pull_from(&registry_of(&other, &wrong, |_, answer| answer)).await;
    assert!(
        matches!(outcome, Err(ImageError::Mismatch { .. })),
        "{outcome:?}"
    );

    // A layer that tries to leave.
    let hostile = Layout::new();
    let archive = Tar::default().file("../out", b"x").end();
    let bad = hostile.image(ARCH, &[(archive, Pack::Gzip)]);
    let (_data, outcome) = pull_from(&registry_of(&hostile, &bad, |_, answer| answer)).await;
    assert!(
        matches!(outcome, Err(ImageError::Hostile { .. })),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn bombs_and_what_nobody_can_run_are_refused() {
    let bomb = Layout::new();
    let archive = Tar::default().file("zeroes", &vec![0; 8 << 20]).end();
    let image = bomb.image(ARCH, &[(archive, Pack::Zstd)]);
    let stub = registry_of(&bomb, &image, |_, answer| answer);
    let data = tempfile::tempdir().unwrap();
    let mut options = options();
    options.limits.bytes = 1 << 20;
    let store = Store::open(data.path(), options).unwrap();
    let error = store
        .ensure(&format!("{}/app:1", stub.address), IfNotPresent)
        .await;
    let error = error.unwrap_err();
    assert!(
        matches!(
            error,
            ImageError::Hostile {
                why: images::Hostile::Bytes,
                ..
            }
        ),
        "{error}"
    );

    let foreign = Layout::new();
    let image = foreign.image(OTHER_ARCH, &simple(b"x"));
    let (_data, outcome) = pull_from(&registry_of(&foreign, &image, |_, answer| answer)).await;
    assert!(
        matches!(outcome, Err(ImageError::Platform { .. })),
        "{outcome:?}"
    );
    let index = foreign.index(&[image]);
    let (_data, outcome) = pull_from(&registry_of(&foreign, &index, |_, answer| answer)).await;
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.contains(OTHER_ARCH) && error.contains(ARCH),
        "{error}"
    );

    let garbage = Layout::new();
    let image = garbage.image(ARCH, &simple(b"x"));
    for body in [
        json!({"schemaVersion": 1}).to_string(),
        "not json".to_owned(),
        json!({"schemaVersion": 2}).to_string(),
        json!({"schemaVersion": 2, "config": {"digest": "sha256:1", "size": 1}, "layers": []})
            .to_string(),
    ] {
        let stub = registry_of(&garbage, &image, move |path, answer| {
            match path.contains("/manifests/") {
                true => ok(body.as_bytes()),
                false => answer,
            }
        });
        let (_data, outcome) = pull_from(&stub).await;
        let error = outcome.unwrap_err();
        assert!(!error.is_retryable(), "{error}");
    }
    // It will be there again.
    let down = registry_of(&garbage, &image, |_, _| Answer {
        status: 503,
        ..Answer::default()
    });
    let (_data, outcome) = pull_from(&down).await;
    assert!(outcome.unwrap_err().is_retryable());
}

#[tokio::test]
async fn tokens_are_fetched_where_a_registry_says_and_stay_there() {
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(b"behind a token"));
    let storage = registry_of(&layout, &image, |_, answer| answer);
    let tokens = Stub::start(|path, headers| {
        // base64 of me:secret
        match headers.get("authorization").map(String::as_str) == Some("Basic bWU6c2VjcmV0")
            && path.contains("scope=repository%3Aapp%3Apull")
            && path.contains("service=tests")
        {
            true => ok(br#"{"token": "let-me-in"}"#),
            false => Answer {
                status: 401,
                ..Answer::default()
            },
        }
    });
    let (realm, behind) = (tokens.address.clone(), storage.address.clone());
    let front = Stub::start(move |path, headers| {
        if headers.get("authorization").map(String::as_str) != Some("Bearer let-me-in") {
            let challenge = format!(
                r#"Bearer realm="http://{realm}/token",service="tests",scope="repository:app:pull""#
            );
            return Answer {
                status: 401,
                headers: vec![("WWW-Authenticate", challenge)],
                body: Vec::new(),
            };
        }
        // Blobs are elsewhere, as with most large registries.
        Answer {
            status: 307,
            headers: vec![("Location", format!("http://{behind}{path}"))],
            body: Vec::new(),
        }
    });
    let data = tempfile::tempdir().unwrap();
    let mut options = options();
    let credentials = Credentials::new(USER, PASSWORD);
    options
        .registry
        .credentials
        .insert(front.address.clone(), credentials);
    let store = Store::open(data.path(), options).unwrap();
    let name = format!("{}/app:1", front.address);
    let image = store.ensure(&name, IfNotPresent).await.unwrap();
    assert_eq!(look(&image, "file").unwrap(), b"behind a token");
    let asked = storage.asked.lock().unwrap().clone();
    assert!(asked.len() >= 3);
    assert!(
        asked.iter().all(|line| !line.contains("let-me-in")),
        "{asked:?}"
    );
    assert_eq!(
        tokens.asked.lock().unwrap().len(),
        1,
        "once for all requests"
    );
}

#[tokio::test]
async fn only_registries_on_loopback_are_spoken_to_openly() {
    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let away = Stub::start(|_, _| Answer {
        status: 302,
        headers: vec![("Location", "http://example.com/elsewhere".into())],
        body: Vec::new(),
    });
    let error = store
        .ensure(&format!("{}/app:1", away.address), IfNotPresent)
        .await;
    let error = error.unwrap_err();
    assert!(matches!(error, ImageError::Insecure { .. }), "{error}");
    let lost = Stub::start(|path, _| Answer {
        status: 302,
        headers: vec![("Location", path.to_owned())],
        body: Vec::new(),
    });
    let error = store
        .ensure(&format!("{}/app:1", lost.address), IfNotPresent)
        .await;
    assert!(error.unwrap_err().to_string().contains("redirects"));
}

#[tokio::test]
async fn many_who_ask_at_once_share_one_pull_and_whoever_leaves_cancels_nothing() {
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(b"shared"));
    let manifests = Arc::new(AtomicUsize::new(0));
    let (count, open) = (manifests.clone(), Arc::new(AtomicBool::new(false)));
    let gate = open.clone();
    let stub = registry_of(&layout, &image, move |path, answer| {
        if path.contains("/manifests/") {
            count.fetch_add(1, Ordering::SeqCst);
        } else {
            while !gate.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        answer
    });
    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let name = format!("{}/app:1", stub.address);
    // The first one leaves before anything has come.
    let left = tokio::time::timeout(
        Duration::from_millis(300),
        store.ensure(&name, IfNotPresent),
    );
    assert!(left.await.is_err());
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let (store, name) = (store.clone(), name.clone());
            kit::Tasks::default().spawn(async move {
                let image = store.ensure(&name, IfNotPresent).await?;
                Ok::<_, ImageError>(image.digest().clone())
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    open.store(true, Ordering::SeqCst);
    for one in waiting {
        let digest = one.await.unwrap().unwrap();
        assert_eq!(digest.as_str(), image["digest"].as_str().unwrap());
    }
    assert_eq!(manifests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_failure_reaches_all_who_wait_and_the_next_try_starts_anew() {
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(b"x"));
    let broken = Arc::new(AtomicUsize::new(1));
    let state = broken.clone();
    let stub = registry_of(&layout, &image, move |path, answer| {
        std::thread::sleep(Duration::from_millis(50));
        match path.contains("/manifests/") && state.load(Ordering::SeqCst) == 1 {
            true => Answer {
                status: 403,
                ..Answer::default()
            },
            false => answer,
        }
    });
    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let name = format!("{}/app:1", stub.address);
    let all = futures_util::future::join_all((0..5).map(|_| store.ensure(&name, IfNotPresent)));
    for outcome in all.await {
        assert!(matches!(outcome, Err(ImageError::Unauthorized { .. })));
    }
    assert_eq!(stub.asked.lock().unwrap().len(), 1, "they shared it");
    broken.store(0, Ordering::SeqCst);
    store.ensure(&name, IfNotPresent).await.unwrap();
}

#[tokio::test]
async fn two_pulls_that_share_a_layer_do_not_disturb_each_other() {
    let layout = Layout::new();
    let shared = (
        Tar::default().file("large", &noise(500_000)).end(),
        Pack::Gzip,
    );
    let one = layout.image(ARCH, &[shared.clone(), simple(b"one").remove(0)]);
    let two = layout.image(ARCH, &[shared, simple(b"two").remove(0)]);
    let (first, second) = (
        registry_of(&layout, &one, |_, answer| answer),
        registry_of(&layout, &two, |_, answer| answer),
    );
    let data = tempfile::tempdir().unwrap();
    let store = store(data.path());
    let (one, two) = (
        format!("{}/app:1", first.address),
        format!("{}/app:1", second.address),
    );
    let (one, two) = tokio::join!(store.ensure(&one, Always), store.ensure(&two, Always));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(look(&one, "file").unwrap(), b"one");
    assert_eq!(look(&two, "file").unwrap(), b"two");
    assert_eq!(one.directories().last(), two.directories().last());
    assert_eq!(
        digest_of(&look(&one, "large").unwrap()),
        digest_of(&noise(500_000))
    );
}
