//! Pushing to a real registry, through connections that break and with the wrong credentials; and
//! captured layers that only a registry has.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use images::{
    Commit, Compression, Credentials, ImageError, Login, Options, Origin, Progress, Pushed, Store,
    digest::hex,
};

use crate::{
    archives::Tar,
    commit::{Written, written},
    layout::{ARCH, Layout, Pack, noise},
    pull::options,
    servers::{Front, PASSWORD, Registry, Stub, USER, What, ok, skopeo},
};

fn open(at: &Path, options: Options) -> Store {
    Store::open(at, options).unwrap()
}

fn patient(retries: u32) -> Options {
    let mut options = options();
    options.registry.retries = retries;
    options
}

fn commit(written: &Written) -> Commit {
    Commit {
        layer: written.layer.clone(),
        parent: None,
        compression: Compression::Zstd,
    }
}

async fn publish(store: &Store, written: &Written, to: &str) -> Result<Pushed, ImageError> {
    let flight = store.publish(commit(written), to, Login::Configured)?;
    flight.wait(|_| {}).await
}

/// Whether a registry has an image, by a program that is not ours.
fn inspect(address: &str, name: &str) -> bool {
    let name = format!("docker://{address}/{name}");
    let asked = ["inspect", "--raw", "--tls-verify=false", &name];
    let output = std::process::Command::new("skopeo").args(asked).output();
    output.unwrap().status.success()
}

/// An image with one layer of several pieces.
fn large() -> Layout {
    let tar = Tar::default().file("large", &noise(20 << 20)).end();
    let layout = Layout::new();
    let image = layout.image(ARCH, &[(tar, Pack::Plain)]);
    layout.add(image, Some("a.example/large:1"))
}

#[tokio::test]
async fn a_layer_that_was_published_is_fetched_by_a_host_that_shares_only_the_registry() {
    let registry = Registry::start();
    let here = written();
    let front = Front::start(&registry.address, |_, _| What::Pass);
    let to = format!("{}/team/kept", front.address);
    let told = Arc::new(Mutex::new(Vec::<Progress>::new()));
    let flight = here.store.publish(commit(&here), &to, Login::Configured);
    let flight = flight.unwrap();
    let pushed = flight.wait(|p| told.lock().unwrap().push(p.clone())).await;
    let pushed = pushed.unwrap();
    assert_eq!(&*pushed.reference, format!("{to}@{}", pushed.digest));
    let last = told.lock().unwrap().last().cloned().unwrap();
    assert!(last.total > 0 && last.done() == last.total, "{last:?}");
    let uploads = front.count("PATCH");
    assert!(uploads > 0);

    // What is there is not sent again.
    assert_eq!(publish(&here.store, &here, &to).await.unwrap(), pushed);
    assert_eq!(front.count("PATCH"), uploads);

    // Any tool finds it, by its digest and by the tag that keeps it.
    let out = tempfile::tempdir().unwrap();
    let out = format!("dir:{}", out.path().display());
    let by_digest = format!("team/kept@{}", pushed.digest);
    let by_tag = format!("team/kept:layer-{}", hex(&here.layer));
    for name in [by_digest, by_tag] {
        let from = format!("docker://{}/{name}", registry.address);
        skopeo(&["copy", "--src-tls-verify=false", &from, &out]);
    }

    let there = tempfile::tempdir().unwrap();
    let store = open(there.path(), options());
    assert!(!store.has_capture(&here.layer).unwrap());
    let fetch = || store.fetch(&here.layer, &pushed.reference, Login::Configured);
    let fetched = fetch().unwrap().wait(|_| {}).await.unwrap();
    assert!(store.has_capture(&here.layer).unwrap());
    let name = hex(&here.layer);
    let (ours, theirs) = (here.store.blobs().join(name), store.blobs().join(name));
    assert_eq!(fs::read(ours).unwrap(), fs::read(theirs).unwrap());
    let origin = Origin::Image {
        digest: fetched.base().digest().clone(),
    };
    assert_eq!(store.find_capture(&here.layer).unwrap(), Some(origin));
    assert!(
        store.find_capture(&here.layer).unwrap() == here.store.find_capture(&here.layer).unwrap()
    );

    // A sweep leaves it alone while it is held, and a name that is no digest is none.
    drop(fetched);
    let by_tag = store
        .fetch(&here.layer, &to, Login::Configured)
        .unwrap_err();
    assert!(matches!(by_tag, ImageError::Name { .. }), "{by_tag}");
    let other = images::digest::digest_of(b"another layer");
    let wrong = store.fetch(&other, &pushed.reference, Login::Configured);
    let wrong = wrong.unwrap().wait(|_| {}).await.unwrap_err();
    assert!(matches!(wrong, ImageError::Malformed { .. }), "{wrong}");
}

#[tokio::test]
async fn what_another_repository_has_is_not_sent() {
    let registry = Registry::start();
    let layout = large();
    registry.push(layout.path(), "team/base:1");
    let front = Front::start(&registry.address, |_, _| What::Pass);
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path(), options());
    let base = format!("{}/team/base:1", front.address);
    store.pull(&base).unwrap().wait(|_| {}).await.unwrap();
    let to = format!("{}/team/copy:2", front.address);
    let pushed = store.push(&base, &to, Login::Configured).unwrap();
    pushed.wait(|_| {}).await.unwrap();
    assert_eq!(front.count("PATCH"), 0, "{:?}", front.asked);
    assert!(inspect(&registry.address, "team/copy:2"));
}

#[tokio::test]
async fn a_push_that_is_cut_at_any_request_ends_well() {
    let here = written();
    // How many requests there are.
    let registry = Registry::start();
    let front = Front::start(&registry.address, |_, _| What::Pass);
    publish(&here.store, &here, &front.address).await.unwrap();
    let requests = front.asked.lock().unwrap().len();
    assert!(requests > 10, "{requests}");

    for number in 0..requests {
        for cut in [What::CutRequest(40), What::CutAnswer] {
            let kind = if matches!(cut, What::CutAnswer) {
                "answer"
            } else {
                "request"
            };
            let what = cut.clone();
            let front = Front::start(&registry.address, move |at, _| match at == number {
                true => what.clone(),
                false => What::Pass,
            });
            let store = open(here.data.path(), patient(2));
            let to = format!("{}/{kind}/{number}", front.address);
            let pushed = publish(&store, &here, &to).await;
            let pushed = pushed.unwrap_or_else(|e| panic!("{cut:?} of {number}: {e}"));
            let name = format!("{kind}/{number}@{}", pushed.digest);
            assert!(inspect(&registry.address, &name), "{cut:?} of {number}");
        }
    }
}

#[tokio::test]
async fn a_push_that_fails_has_published_nothing_and_can_be_tried_again() {
    let here = written();
    let tag = format!("snapshots:layer-{}", hex(&here.layer));
    let registry = Registry::start();
    let mut number = 0;
    loop {
        // Each try gets one request further, because what has arrived stays.
        let front = Front::start(&registry.address, move |at, _| match at >= number {
            true => What::CutRequest(10),
            false => What::Pass,
        });
        let store = open(here.data.path(), patient(0));
        match publish(&store, &here, &front.address).await {
            Ok(_) => break,
            Err(error) => {
                assert!(error.is_retryable(), "{number}: {error}");
                assert!(!inspect(&registry.address, &tag), "{number}");
            }
        }
        number += 1;
        assert!(number < 100, "it never gets through");
    }
    assert!(number > 5, "{number}");
    assert!(inspect(&registry.address, &tag));
}

#[tokio::test]
async fn an_upload_goes_on_where_it_broke_off() {
    let registry = Registry::start();
    let cut = std::sync::atomic::AtomicUsize::new(0);
    // This registry keeps an upload that was cut before a piece, and forgets one that was cut within.
    let front = Front::start(&registry.address, move |_, head| {
        let second =
            head.starts_with("PATCH") && cut.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1;
        match second {
            true => What::CutRequest(0),
            false => What::Pass,
        }
    });
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path(), options());
    let layout = large();
    store.import(layout.path(), None).unwrap();
    let to = format!("{}/large:1", front.address);
    let flight = store.push("a.example/large:1", &to, Login::Configured);
    flight.unwrap().wait(|_| {}).await.unwrap();
    let asked = front.asked.lock().unwrap().join("\n");
    assert!(asked.contains("GET /v2/large/blobs/uploads/"), "{asked}");
    let begun = asked.matches("POST /v2/large/blobs/uploads/").count();
    assert_eq!(begun, 2, "one for each blob: {asked}");
    // Three pieces of the layer, the one that broke, one of the configuration.
    assert_eq!(front.count("PATCH"), 5, "{asked}");
    assert!(inspect(&registry.address, "large:1"));
}

#[tokio::test]
async fn who_may_write_is_asked_and_no_error_shows_a_secret() {
    let registry = Registry::with_users();
    let here = written();
    let given = |password: &str| {
        let mut options = patient(0);
        let credentials = Credentials::new(USER, password);
        let by_host = [(registry.address.clone(), credentials)];
        options.registry.credentials = by_host.into();
        options
    };
    for options in [patient(0), given("wrong-password")] {
        let store = open(here.data.path(), options);
        let refused = publish(&store, &here, &registry.address).await.unwrap_err();
        let unauthorized = matches!(refused, ImageError::Unauthorized { .. });
        assert!(unauthorized, "{refused}");
        assert!(!refused.is_retryable());
        assert!(refused.to_string().contains("write"), "{refused}");
        assert!(!format!("{refused:?}").contains("wrong-password"));
    }
    let store = open(here.data.path(), given(PASSWORD));
    let pushed = publish(&store, &here, &registry.address).await.unwrap();

    // A secret by its file: for pushing, and for pulling elsewhere.
    let secrets = tempfile::tempdir().unwrap();
    let secret = secrets.path().join("registry");
    let text = format!(
        r#"{{"auths": {{"{}": {{"username": "{USER}", "password": "{PASSWORD}"}}}}}}"#,
        registry.address
    );
    kit::durable::write_file(&secret, text.as_bytes(), 0o600).unwrap();
    let login = Login::Secret(secret);
    let store = open(here.data.path(), patient(0));
    let flight = store.publish(commit(&here), &registry.address, login.clone());
    assert_eq!(flight.unwrap().wait(|_| {}).await.unwrap(), pushed);
    let there = tempfile::tempdir().unwrap();
    let store = open(there.path(), patient(0));
    let fetch = |login| store.fetch(&here.layer, &pushed.reference, login).unwrap();
    let refused = fetch(Login::Configured).wait(|_| {}).await.unwrap_err();
    assert!(
        matches!(refused, ImageError::Unauthorized { .. }),
        "{refused}"
    );
    fetch(login).wait(|_| {}).await.unwrap();
}

#[tokio::test]
async fn a_token_for_writing_is_asked_for_where_tokens_are_wanted() {
    let registry = Registry::start();
    let tokens = Stub::start(|_, _| ok(br#"{"token": "sesame"}"#));
    let realm = format!("http://{}/token", tokens.address);
    let front = Front::start(&registry.address, move |_, head| {
        match head.to_lowercase().contains("authorization: bearer sesame") {
            true => What::Pass,
            false => What::Answer(format!(
                "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"{realm}\",\
                 service=\"tests\"\r\nContent-Length: 0\r\n\r\n"
            )),
        }
    });
    let here = written();
    let pushed = publish(&here.store, &here, &front.address).await.unwrap();
    let name = format!("snapshots@{}", pushed.digest);
    assert!(inspect(&registry.address, &name));
    let asked = tokens.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 1, "{asked:?}");
    let scope = "scope=repository%3Asnapshots%3Apull%2Cpush";
    assert!(asked[0].contains(scope), "{asked:?}");
}

#[tokio::test]
async fn a_registry_that_is_down_or_refuses_says_so() {
    let here = written();
    // Taken, so that nobody else can listen there.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = closed.local_addr().unwrap().to_string();
    let store = open(here.data.path(), patient(1));
    let down = publish(&store, &here, &gone).await.unwrap_err();
    assert!(matches!(down, ImageError::Unreachable { .. }), "{down}");
    assert!(down.is_retryable());

    let registry = Registry::start();
    let front = Front::start(&registry.address, |_, head| {
        match head.starts_with("PUT") && head.contains("/manifests/") {
            true => What::Answer(
                "HTTP/1.1 400 Bad Request\r\nContent-Length: 38\r\n\r\n\
                 {\"errors\": [{\"code\": \"MANIFEST_BAD\"}]}"
                    .into(),
            ),
            false => What::Pass,
        }
    });
    let refused = publish(&store, &here, &front.address).await.unwrap_err();
    let text = refused.to_string();
    assert!(
        matches!(refused, ImageError::Rejected { status: 400, .. }),
        "{text}"
    );
    assert!(text.contains("400 MANIFEST_BAD"), "{text}");

    let named = publish(&store, &here, "registry.example.com/x:1").await;
    assert!(matches!(named, Err(ImageError::Name { .. })));
}

#[tokio::test]
async fn a_blob_that_was_damaged_here_is_not_published() {
    let registry = Registry::start();
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path(), patient(1));
    let layout = large();
    let image = store.import(layout.path(), None).unwrap().remove(0).image;
    let largest = fs::read_dir(store.blobs()).unwrap().map(|e| e.unwrap());
    let largest = largest.max_by_key(|e| e.metadata().unwrap().len());
    let path = largest.unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    kit::durable::write_file(&path, &bytes, 0o600).unwrap();
    let to = format!("{}/large:1", registry.address);
    let flight = store.push("a.example/large:1", &to, Login::Configured);
    let refused = flight.unwrap().wait(|_| {}).await.unwrap_err();
    assert!(matches!(refused, ImageError::Damaged { .. }), "{refused}");
    assert!(!inspect(&registry.address, "large:1"));
    drop(image);
}

#[tokio::test]
async fn a_registry_that_keeps_something_else_is_not_believed() {
    let registry = Registry::start();
    let here = written();
    let front = Front::start(&registry.address, |_, head| {
        match head.starts_with("PUT") && head.contains("/manifests/") {
            true => What::Answer(format!(
                "HTTP/1.1 201 Created\r\nDocker-Content-Digest: sha256:{}\r\nContent-Length: 0\r\n\r\n",
                "0".repeat(64)
            )),
            false => What::Pass,
        }
    });
    let store = open(here.data.path(), patient(0));
    let lied = publish(&store, &here, &front.address).await.unwrap_err();
    assert!(matches!(lied, ImageError::Mismatch { .. }), "{lied}");
}
