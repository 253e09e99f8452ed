//! What stays on disk and what goes: crashes, sweeps, and those who race with them.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use images::{ImageError, InUse, Kept, OnSweep, Origin, Store, Sweep, digest::hex};
use model::Digest;
use proptest::prelude::*;

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

fn dry_run() -> Sweep {
    Sweep {
        dry_run: true,
        ..Sweep::default()
    }
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
    assert!(store.gc(Sweep::default(), nothing).unwrap().is_empty());
    assert!(store.remove("a.example/x:1").unwrap());
    assert!(!store.remove("a.example/x:1").unwrap());
    let listed = store.gc(dry_run(), nothing).unwrap();
    assert_eq!(
        (listed.images.len(), listed.layers.len(), listed.blobs.len()),
        (1, 1, 3)
    );
    assert!(listed.bytes > 0);
    assert_eq!(count(data.path(), "layers/unpacked"), 2, "a dry run");
    assert_eq!(store.gc(Sweep::default(), nothing).unwrap(), listed);
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
    assert!(
        store.gc(Sweep::default(), nothing).unwrap().is_empty(),
        "it is held"
    );
    let digest = held[0].image.digest().clone();
    drop(held);
    let used = InUse {
        origins: vec![Origin::Image {
            digest: digest.clone(),
        }],
        ..InUse::default()
    };
    assert!(
        store.gc(Sweep::default(), || Ok(used)).unwrap().is_empty(),
        "it is used"
    );
    let cannot_tell = store.gc(Sweep::default(), || {
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
    assert_eq!(
        store.gc(Sweep::default(), nothing).unwrap().images,
        [digest]
    );
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
        store.gc(Sweep::default(), nothing).unwrap().is_empty(),
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
    assert_eq!(
        store.gc(Sweep::default(), only(&[&new])).unwrap().blobs,
        [old]
    );
    let swept = store.gc(Sweep::default(), only(&[])).unwrap();
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
    let error = two.gc(dry_run(), nothing).unwrap_err();
    assert!(matches!(error, ImageError::Busy { .. }), "{error}");
    drop(one);
    // It was opened before the import, and takes nothing away that it does not know of.
    drop(two);
    let two = open(data.path());
    assert!(two.gc(Sweep::default(), nothing).unwrap().is_empty());
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
                swept += store.gc(Sweep::default(), nothing).unwrap().images.len();
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

#[test]
fn what_was_just_written_stays_for_the_grace_and_the_rest_says_why() {
    let data = tempfile::tempdir().unwrap();
    let store = open(data.path());
    let image = store.import(layout(b"one", "a.example/x:1").path(), None);
    let digest = image.unwrap()[0].image.digest().clone();
    let layer = images::digest::digest_of(b"layer");
    let origin = Origin::Image {
        digest: digest.clone(),
    };
    let capture = || {
        store.note_capture(&layer, Some(&origin)).unwrap();
        write(&store.blobs().join(hex(&layer)), b"layer");
    };
    capture();
    store.remove("a.example/x:1").unwrap();
    let nobody = || Ok(InUse::from(Kept::Only(BTreeSet::new())));
    let at = |seconds| Sweep {
        grace: Duration::from_secs(60),
        at: Duration::from_secs(seconds),
        ..Sweep::default()
    };
    let swept = store.gc(at(100), nobody).unwrap();
    assert!(swept.is_empty(), "{swept:?}");
    let why = |digest| swept.kept[digest].iter().cloned().collect::<String>();
    assert!(why(&layer).contains("goes in 60 s"), "{swept:?}");
    assert!(why(&digest).contains(layer.as_str()), "{swept:?}");
    // Captured again: it may be on its way into a record.
    assert!(store.gc(at(130), nobody).unwrap().is_empty());
    capture();
    assert!(store.gc(at(161), nobody).unwrap().is_empty());
    // Once somebody needed it, it waits anew.
    let needed = || {
        let mut used = InUse::from(Kept::Only(BTreeSet::from([layer.clone()])));
        used.add(&layer, "sandbox team/box");
        Ok(used)
    };
    let swept = store.gc(at(200), needed).unwrap();
    assert!(swept.kept[&layer].contains("sandbox team/box"), "{swept:?}");
    assert!(store.gc(at(230), nobody).unwrap().is_empty());
    assert!(store.gc(at(289), nobody).unwrap().is_empty());
    let swept = store.gc(at(290), nobody).unwrap();
    assert!(swept.blobs.contains(&layer), "{swept:?}");
    // What it lay on waits from then on.
    assert!(swept.images.is_empty());
    assert!(store.gc(at(340), nobody).unwrap().is_empty());
    assert_eq!(store.gc(at(350), nobody).unwrap().images, [digest]);
    assert_eq!(count(data.path(), "layers/sha256"), 0);
}

/// Sweeps once no process has the store open that was forked elsewhere and has not executed yet.
fn alone(store: &Store, used: &InUse) {
    loop {
        match store.gc(Sweep::default(), || Ok(used.clone())) {
            Err(ImageError::Busy { .. }) => std::thread::yield_now(),
            other => return drop(other.unwrap()),
        }
    }
}

/// What there is in a world of four images, and what leads to it.
#[derive(Clone, Debug)]
struct Shape {
    named: [bool; 4],
    /// A layer was captured over it, and a record may need that.
    captured: [Option<bool>; 4],
    used: [bool; 4],
}

fn shapes() -> impl Strategy<Value = Shape> {
    let flags = || prop::array::uniform4(any::<bool>());
    let captured = prop::array::uniform4(any::<Option<bool>>());
    (flags(), captured, flags()).prop_map(|(named, captured, used)| Shape {
        named,
        captured,
        used,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_reached_is_collected_and_a_crash_at_any_step_changes_nothing_of_that(
        shape in shapes(), dies_at in 0_usize..24,
    ) {
        let data = tempfile::tempdir().unwrap();
        let store = open(data.path());
        let mut digests = Vec::new();
        let mut used = InUse::from(Kept::Only(BTreeSet::new()));
        let mut layers = Vec::new();
        for number in 0..4_u8 {
            let name = format!("a.example/x:{number}");
            let imported = store.import(layout(&[number; 9], &name).path(), None).unwrap();
            let digest = imported[0].image.digest().clone();
            let origin = Origin::Image { digest: digest.clone() };
            let at = usize::from(number);
            if let Some(needed) = shape.captured[at] {
                let layer = images::digest::digest_of(&[number; 5]);
                store.note_capture(&layer, Some(&origin)).unwrap();
                write(&store.blobs().join(hex(&layer)), &[number; 5]);
                if let (true, Kept::Only(kept)) = (needed, &mut used.captures) {
                    kept.insert(layer.clone());
                }
                layers.push((layer, needed));
            }
            if shape.used[at] {
                used.origins.push(origin);
            }
            if !shape.named[at] {
                store.remove(&name).unwrap();
            }
            digests.push(digest);
        }
        drop(store);
        let step = std::sync::atomic::AtomicUsize::new(0);
        let mut dying = options();
        dying.on_sweep = OnSweep(Some(std::sync::Arc::new(move || {
            assert!(step.fetch_add(1, Ordering::SeqCst) != dies_at, "the test's own death");
        })));
        let store = Store::open(data.path(), dying).unwrap();
        let sweep = || alone(&store, &used);
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(sweep));
        drop(store);
        for again in [false, true] {
            let store = open(data.path());
            if again || died.is_ok() {
                alone(&store, &used);
            }
            for (at, digest) in digests.iter().enumerate() {
                let lain_on = shape.captured[at] == Some(true);
                let reached = shape.named[at] || shape.used[at] || lain_on;
                let found = store.find_digest(digest);
                prop_assert!(found.is_some() || !reached, "image {at} is reached and gone");
                if let Some(found) = found {
                    prop_assert_eq!(look(&found, "file").unwrap(), [u8::try_from(at).unwrap(); 9]);
                    let name = format!("a.example/x:{at}");
                    if shape.named[at] {
                        let to = tempfile::tempdir().unwrap();
                        let to = to.path().join("exported");
                        store.export(&name, &to, images::Format::OciDirectory).unwrap();
                    }
                    prop_assert!(reached || !again, "image {at} stays for nobody");
                }
            }
            for (layer, needed) in &layers {
                let there = store.blobs().join(hex(layer)).exists();
                prop_assert!(there || !needed, "a layer is needed and gone");
                prop_assert!(!there || *needed || !again, "a layer stays for nobody");
            }
        }
    }
}
