//! A Debian root, really built: from the host's package sources, with fewer packages than `base`.

use std::{fs, os::unix::fs::MetadataExt as _};

use images::{BASE, Debian, ImageError, Store};

use crate::pull::options;

#[test]
fn a_root_is_built_from_the_hosts_sources_and_is_base_from_then_on() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    let what = Debian {
        packages: vec!["sudo".into()],
        ..Debian::default()
    };
    let mut said = Vec::new();
    let built = store.build_base(&what, |line| said.push(line.to_owned()));
    let built = built.unwrap_or_else(|error| {
        panic!(
            "this test needs mmdebstrap (apt-get install mmdebstrap) and package sources: {error}"
        )
    });
    assert!(!said.is_empty());
    assert_eq!(built.image.config().working_dir, "/home/user");
    let root = built.image.directories().remove(0);
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert!(text("etc/passwd").contains("user:x:1000:1000::/home/user:/bin/bash\n"));
    assert!(text("etc/sudoers.d/user").contains("NOPASSWD"));
    assert_eq!(fs::metadata(root.join("home/user")).unwrap().uid(), 1000);
    assert_eq!(text("etc/hostname"), "sandbox\n");
    assert_eq!(text("etc/resolv.conf"), "");
    let sudo = fs::metadata(root.join("usr/bin/sudo")).unwrap();
    assert_eq!(sudo.mode() & 0o7777, 0o4755);
    let digest = built.image.digest().clone();
    drop((built, store));
    let store = Store::open(data.path(), options()).unwrap();
    assert_eq!(*store.find(BASE).unwrap().unwrap().digest(), digest);
}

#[test]
fn a_build_that_cannot_be_says_why_and_leaves_nothing() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    let missing = Debian {
        program: "/nowhere/mmdebstrap".into(),
        ..Debian::default()
    };
    let error = store.build_base(&missing, |_| {}).unwrap_err();
    assert!(matches!(error, ImageError::Tool { .. }), "{error}");
    assert!(
        error.to_string().contains("apt-get install mmdebstrap"),
        "{error}"
    );
    let unknown = Debian {
        suite: Some("no-such-release".into()),
        ..Debian::default()
    };
    let error = store.build_base(&unknown, |_| {}).unwrap_err();
    assert!(matches!(error, ImageError::Tool { .. }), "{error}");
    assert!(store.find(BASE).unwrap().is_none());
    assert_eq!(
        fs::read_dir(data.path().join("layers/partial"))
            .unwrap()
            .count(),
        0
    );
}
