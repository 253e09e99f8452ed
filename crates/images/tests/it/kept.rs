//! What stays on disk and what goes: crashes, sweeps, and those who race with them.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use images::{ImageError, InUse, Kept, Origin, Store, digest::hex};
use model::Digest;

use crate::{
    layout::{ARCH, Layout, simple, three_layers, write},
    pull::{look, options},
};

fn open(at: &Path) -> Store {
    Store::open(at, options()).unwrap()
}

fn layout(content: &[u8], name: &str) -> Layout {
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(content));
    layout.add(image, Some(name))
}

fn count(data: &Path, directory: &str) -> usize {
    fs::read_dir(data.join(directory)).unwrap().count()
}

fn nothing() -> Result<InUse, ImageError> {
    Ok(InUse::default())
}

#[test]
fn a_sweep_removes_what_no_name_leads_to_and_lists_it_first() {
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path());
    store
        .import(layout(b"one", "a.example/x:1").path(), None)
        .unwrap();
    store
        .import(layout(b"two", "a.example/x:2").path(), None)
        .unwrap();
    assert!(store.gc(false, nothing).unwrap().is_empty());
    assert!(store.remove("a.example/x:1").unwrap());
    assert!(!store.remove("a.example/x:1").unwrap());
    let listed = store.gc(true, nothing).unwrap();
    assert_eq!(
        (listed.images.len(), listed.layers.len(), listed.blobs.len()),
        (1, 1, 3)
    );
    assert!(listed.bytes > 0);
    assert_eq!(count(data.path(), "layers/unpacked"), 2, "a dry run");
    assert_eq!(store.gc(false, nothing).unwrap(), listed);
    assert_eq!(count(data.path(), "layers/unpacked"), 1);
    assert_eq!(count(data.path(), "layers/sha256"), 3);
    assert_eq!(count(data.path(), "layers/trash"), 0);
    let kept = store.find("a.example/x:2").unwrap().unwrap();
    assert_eq!(look(&kept, "file").unwrap(), b"two");
}

#[test]
fn what_somebody_holds_or_a_sandbox_lies_on_stays() {
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path());
    let held = store
        .import(layout(b"one", "a.example/x:1").path(), None)
        .unwrap();
    store.remove("a.example/x:1").unwrap();
    assert!(store.gc(false, nothing).unwrap().is_empty(), "it is held");
    let digest = held[0].image.digest().clone();
    drop(held);
    let used = InUse {
        origins: vec![Origin::Image {
            digest: digest.clone(),
        }],
        ..InUse::default()
    };
    assert!(
        store.gc(false, || Ok(used)).unwrap().is_empty(),
        "it is used"
    );
    let cannot_tell = store.gc(false, || {
        Err(ImageError::Damaged {
            what: "a record".into(),
            how: "torn".into(),
        })
    });
    assert!(cannot_tell.is_err());
    assert!(
        store.find_digest(&digest).is_some(),
        "nothing is removed in doubt"
    );
    assert_eq!(store.gc(false, nothing).unwrap().images, [digest]);
}

#[test]
fn captured_layers_go_only_if_it_is_known_who_needs_them() {
    let data = tempfile::tempdir().unwrap();
    // One from before captures were noted.
    fs::create_dir_all(data.path().join("layers/sha256")).unwrap();
    let capture = |content: &[u8]| {
        let digest = images::digest::digest_of(content);
        write(
            &data.path().join("layers/sha256").join(hex(&digest)),
            content,
        );
        digest
    };
    let old = capture(b"from before");
    let store = open(data.path());
    assert_eq!(store.find_capture(&old).unwrap(), None);
    let image = store
        .import(layout(b"one", "a.example/x:1").path(), None)
        .unwrap();
    let digest = image[0].image.digest().clone();
    let origin = Origin::Image { digest };
    let new = images::digest::digest_of(b"new");
    store.note_capture(&new, Some(&origin)).unwrap();
    capture(b"new");
    drop(image);
    store.remove("a.example/x:1").unwrap();
    assert_eq!(store.find_capture(&new).unwrap(), Some(origin));
    assert!(
        store.gc(false, nothing).unwrap().is_empty(),
        "its image stays with it"
    );
    let only = |digests: &[&Digest]| {
        let digests: BTreeSet<_> = digests.iter().map(|d| (*d).clone()).collect();
        move || {
            Ok(InUse {
                captures: Kept::Only(digests),
                ..InUse::default()
            })
        }
    };
    assert_eq!(store.gc(false, only(&[&new])).unwrap().blobs, [old]);
    let swept = store.gc(false, only(&[])).unwrap();
    assert!(
        swept.blobs.contains(&new) && swept.images.len() == 1,
        "{swept:?}"
    );
    assert_eq!(count(data.path(), "layers/sha256"), 0);
    assert_eq!(count(data.path(), "images/captures"), 0);
}

#[test]
fn two_processes_may_use_it_and_only_one_alone_may_sweep() {
    let data = tempfile::tempdir().unwrap();
    let (one, two) = (open(data.path()), open(data.path()));
    one.import(layout(b"one", "a.example/x:1").path(), None)
        .unwrap();
    let error = two.gc(true, nothing).unwrap_err();
    assert!(matches!(error, ImageError::Busy { .. }), "{error}");
    drop(one);
    // It was opened before the import, and takes nothing away that it does not know of.
    drop(two);
    let two = open(data.path());
    assert!(two.gc(false, nothing).unwrap().is_empty());
    assert!(two.find("a.example/x:1").unwrap().is_some());
}

#[test]
fn leftovers_of_a_crash_are_removed_and_never_used() {
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path());
    let layout = Layout::new();
    let image = layout.image(ARCH, &three_layers());
    let layout = layout.add(image, Some("a.example/x:1"));
    store.import(layout.path(), None).unwrap();
    let layers = store.find("a.example/x:1").unwrap().unwrap().directories();
    drop(store);
    // A layer half unpacked, a blob half written, a name half given, a sweep half done.
    let half = data
        .path()
        .join("layers/unpacked")
        .join(format!("{}.1-1.new", "0".repeat(64)));
    fs::create_dir(&half).unwrap();
    write(&half.join("file"), b"half");
    write(&data.path().join("layers/sha256/blob.1-2.new"), b"half");
    write(&data.path().join("images/names/x.new"), b"{");
    fs::create_dir(data.path().join("layers/trash/y.1-3.new")).unwrap();
    let store = open(data.path());
    for directory in ["layers/trash", "layers/partial"] {
        assert_eq!(count(data.path(), directory), 0, "{directory}");
    }
    assert!(!half.exists());
    assert_eq!(count(data.path(), "layers/unpacked"), 3);
    assert!(store.find("a.example/x:1").unwrap().is_some());
    drop(store);
    // An image without one of its layers is taken for absent, and comes back whole.
    fs::remove_dir_all(&layers[1]).unwrap();
    let store = open(data.path());
    assert!(store.find("a.example/x:1").unwrap().is_none());
    store.import(layout.path(), None).unwrap();
    assert!(store.find("a.example/x:1").unwrap().is_some());
}

#[test]
fn a_sweep_that_races_with_imports_and_users_never_takes_what_they_hold() {
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path());
    let layouts: Vec<_> = (0..3_u8)
        .map(|n| layout(&[n; 100], &format!("a.example/x:{n}")))
        .collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sweeper = scope.spawn(|| {
            let mut swept = 0;
            while !done.load(Ordering::Relaxed) {
                swept += store.gc(false, nothing).unwrap().images.len();
            }
            swept
        });
        let users: Vec<_> = (0..2)
            .map(|user| {
                let (store, layouts) = (&store, &layouts);
                scope.spawn(move || {
                    for turn in 0..60 {
                        let number = (turn + user) % 3;
                        let held = store.import(layouts[number].path(), None).unwrap();
                        store.remove(&format!("a.example/x:{number}")).unwrap();
                        let content = look(&held[0].image, "file").unwrap();
                        assert_eq!(content, [u8::try_from(number).unwrap(); 100]);
                        if let Some(found) = store.find_digest(held[0].image.digest()) {
                            assert!(found.directories().iter().all(|layer| layer.is_dir()));
                        }
                    }
                })
            })
            .collect();
        for user in users {
            user.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(sweeper.join().unwrap() > 0, "it swept meanwhile");
    });
}
