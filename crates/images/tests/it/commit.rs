//! Captured layers as images: other programs see in them what the sandbox saw.

use std::{
    fs::{self, File},
    io::{Seek as _, SeekFrom, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    process::Command,
};

use images::{
    Commit, Compression, Format, ImageError, Origin, Pinned, Store,
    layer::{Ids, capture, restore},
};
use model::Digest;
use rustix::fs::{CWD, Mode, XattrFlags, lgetxattr, llistxattr, lsetxattr};
use sha2::{Digest as _, Sha256};

use crate::{
    archives::{Head, Tar},
    layout::{ARCH, Layout, Pack, noise},
    overlay::writable,
    pull::options,
};

/// A base whose files the layer above changes, hides and replaces.
fn base() -> Layout {
    let lowest = Tar::default()
        .directory("etc")
        .file("etc/name", b"lowest")
        .file("etc/gone", b"x")
        .directory("opaque")
        .file("opaque/hidden", b"x")
        .directory("kept")
        .head(
            &Head {
                path: b"kept/tool",
                mode: 0o4755,
                uid: 33,
                gid: 44,
                ..Head::default()
            },
            b"program",
        )
        .end();
    let top = Tar::default()
        .file("etc/large", &noise(200_000))
        .file("etc/more", b"x")
        .end();
    let layout = Layout::new();
    let image = layout.image(ARCH, &[(lowest, Pack::Gzip), (top, Pack::Gzip)]);
    layout.add(image, Some("a.example/base:1"))
}

/// Everything that a layer has to carry, made through an overlay as a sandbox does.
fn change(top: &Path) {
    let at = |name: &str| top.join(name);
    let put = |name: &str, content: &[u8]| File::create(at(name)).unwrap().write_all(content);
    put("etc/name", b"changed").unwrap();
    fs::remove_file(at("etc/gone")).unwrap();
    fs::remove_dir_all(at("opaque")).unwrap();
    fs::create_dir(at("opaque")).unwrap();
    put("opaque/shown", b"new").unwrap();
    put("etc/one", b"several names").unwrap();
    fs::hard_link(at("etc/one"), at("kept/two")).unwrap();
    fs::hard_link(at("etc/one"), at("kept/three")).unwrap();
    symlink("/etc/passwd", at("absolute")).unwrap();
    symlink("nowhere at all", at("broken")).unwrap();
    put("setuid", b"#!").unwrap();
    fs::set_permissions(at("setuid"), fs::Permissions::from_mode(0o6711)).unwrap();
    std::os::unix::fs::chown(at("etc/one"), Some(1000), Some(100)).unwrap();
    rustix::fs::mkfifoat(CWD, at("pipe"), Mode::from_raw_mode(0o640)).unwrap();
    for (name, value) in [("user.plain", &b"v"[..]), ("user.bytes", b"a\nb\0c")] {
        lsetxattr(at("etc/name"), name, value, XattrFlags::empty()).unwrap();
    }
    lsetxattr(at("kept"), "user.directory", b"d", XattrFlags::empty()).unwrap();
    let mut sparse = File::create(at("sparse")).unwrap();
    sparse.seek(SeekFrom::Start(20 << 20)).unwrap();
    sparse.write_all(b"end").unwrap();
    let long = "n".repeat(200);
    fs::create_dir_all(at(&long).join(&long)).unwrap();
    File::create(at(&long).join(&long).join(&long)).unwrap();
    let odd = std::ffi::OsString::from_vec(b"not\xffutf8".to_vec());
    File::create(top.join(odd)).unwrap();
    put("with\nnewline", b"x").unwrap();
    put("with = and \"quotes\"", b"x").unwrap();
    put("empty", b"").unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(981_173_106, 789_000_000);
    File::open(at("empty")).unwrap().set_modified(old).unwrap();
}

/// One line for everything in a tree, times and attributes included.
pub(crate) fn describe(top: &Path) -> String {
    let mut lines = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let full = top.join(&path);
        let found = fs::symlink_metadata(&full).unwrap();
        let kind = found.file_type();
        let mut more = Vec::new();
        if kind.is_dir() {
            left.extend(fs::read_dir(&full).unwrap().map(|entry| {
                let name = entry.unwrap().file_name();
                path.join(name)
            }));
        } else if kind.is_symlink() {
            let to = fs::read_link(&full).unwrap();
            more.extend(to.as_os_str().as_bytes());
        } else if kind.is_file() {
            more.extend(Sha256::digest(fs::read(&full).unwrap()));
        } else {
            assert!(kind.is_fifo(), "{}", full.display());
        }
        let mut names = [0; 4096];
        let length = llistxattr(&full, &mut names[..]).unwrap();
        let names = names[..length].split(|byte| *byte == 0);
        let mut names: Vec<_> = names.filter(|name| name.starts_with(b"user.")).collect();
        names.sort_unstable();
        for name in names {
            let mut value = [0; 4096];
            let length = lgetxattr(&full, name, &mut value[..]).unwrap();
            more.extend(name);
            more.extend(&value[..length]);
        }
        let links = if kind.is_dir() { 0 } else { found.nlink() };
        let size = if kind.is_dir() { 0 } else { found.size() };
        lines.push(format!(
            "{path:?} {:o} {}:{} {links} {size} {}.{} {more:?}",
            found.mode(),
            found.uid(),
            found.gid(),
            found.mtime(),
            found.mtime_nsec(),
        ));
    }
    lines.sort();
    lines.join("\n")
}

pub(crate) struct Written {
    pub(crate) data: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) layer: Digest,
    /// What the sandbox saw.
    pub(crate) seen: String,
}

fn capture_of(store: &Store, upper: &Path, origin: &Origin) -> Digest {
    let note = |digest: &Digest| store.write_note(digest, Some(origin));
    capture(upper, Ids::Same, &store.blobs(), "new", u64::MAX, note)
        .unwrap()
        .0
}

/// What `look` says of a root that lies on an image.
fn over<T>(image: &Pinned, upper: &Path, look: impl FnOnce(&Path) -> T) -> T {
    let work = upper.with_extension("work");
    let _ = fs::create_dir(&work);
    let mount = writable(&image.directories(), upper, &work);
    look(Path::new(&format!("/proc/self/fd/{}", mount.as_raw_fd())))
}

/// A layer that was captured over an image.
pub(crate) fn written() -> Written {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path(), options()).unwrap();
    let image = store.import(base().path(), None).unwrap().remove(0).image;
    let upper = data.path().join("upper");
    fs::create_dir(&upper).unwrap();
    over(&image, &upper, change);
    // After the overlay is gone: nobody listens on it any more, and it is left out.
    let seen = over(&image, &upper, describe);
    UnixListener::bind(upper.join("socket")).unwrap();
    let times = fs::metadata(&upper).unwrap();
    let origin = Origin::Image {
        digest: image.digest().clone(),
    };
    let layer = capture_of(&store, &upper, &origin);
    assert!(times.is_dir());
    drop(image);
    Written {
        data,
        store,
        layer,
        seen,
    }
}

/// The root's own times change with the socket that is left out.
fn same(left: &str, right: &str) {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("\"\" "));
        lines.map(str::to_owned).collect()
    };
    for (left, right) in lines(left).iter().zip(&lines(right)) {
        assert_eq!(left, right);
    }
    assert_eq!(lines(left).len(), lines(right).len());
}

fn commit(layer: &Digest, compression: Compression) -> Commit {
    Commit {
        layer: layer.clone(),
        parent: None,
        compression,
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| {
        panic!("this test needs {program} (apt-get install {program}): {error}")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

#[test]
fn what_other_programs_unpack_is_what_the_sandbox_saw() {
    let written = written();
    let store = &written.store;
    for (compression, format) in [
        (Compression::Gzip, Format::OciDirectory),
        (Compression::Gzip, Format::OciArchive),
        (Compression::Zstd, Format::OciArchive),
        (Compression::None, Format::DockerArchive),
    ] {
        let committed = store.commit(&commit(&written.layer, compression)).unwrap();
        let again = store.commit(&commit(&written.layer, compression)).unwrap();
        assert_eq!(committed.digest(), again.digest(), "the same each time");
        drop(again);
        let kept = store.keep(committed, "a.example/committed:7").unwrap();
        let upper = written.data.path().join("empty");
        let _ = fs::create_dir(&upper);
        same(&over(&kept.image, &upper, describe), &written.seen);
        fs::remove_dir_all(&upper).unwrap();

        let out = tempfile::tempdir().unwrap();
        let exported = out.path().join("exported");
        store.export(&kept.names[0], &exported, format).unwrap();
        let twice = store.export(&kept.names[0], &exported, format);
        assert!(twice.is_err(), "nothing is overwritten");
        // Skopeo reads what umoci does not: archives, and what is compressed with zstd.
        let layout = out.path().join("layout");
        let from = match format {
            Format::OciDirectory => format!("oci:{}:7", exported.display()),
            Format::OciArchive => format!("oci-archive:{}:7", exported.display()),
            Format::DockerArchive => format!("docker-archive:{}", exported.display()),
        };
        let to = format!("oci:{}:7", layout.display());
        let mut copy = vec!["--insecure-policy", "copy"];
        if compression == Compression::Zstd {
            copy.extend(["--dest-compress", "--dest-compress-format", "gzip"]);
        }
        run("skopeo", &[&copy[..], &[&from, &to]].concat());
        let bundle = out.path().join("bundle");
        let image = format!("{}:7", layout.display());
        let bundle_path = bundle.to_str().unwrap();
        if compression != Compression::Zstd {
            run("umoci", &["unpack", "--image", &image, bundle_path]);
            same(&describe(&bundle.join("rootfs")), &written.seen);
        }
        // And back to us.
        let other = tempfile::tempdir().unwrap();
        let other = Store::open(other.path(), options()).unwrap();
        let imported = other.import(&exported, None).unwrap().remove(0);
        assert_eq!(imported.names, ["a.example/committed:7".into()]);
        assert_eq!(imported.image.config(), kept.image.config());
        store.remove("a.example/committed:7").unwrap();
    }
}

#[test]
fn fifty_captures_and_restores_change_nothing() {
    let written = written();
    let store = &written.store;
    let image = store.find("a.example/base:1").unwrap().unwrap();
    let origin = Origin::Image {
        digest: image.digest().clone(),
    };
    let mut layer = written.layer.clone();
    for round in 0..50 {
        let upper = written.data.path().join(format!("upper-{round}"));
        fs::create_dir(&upper).unwrap();
        restore(
            &store.blobs().join(images::digest::hex(&layer)),
            &layer,
            &upper,
            Ids::Same,
        )
        .unwrap();
        same(&over(&image, &upper, describe), &written.seen);
        let again = capture_of(store, &upper, &origin);
        assert_eq!(again, layer, "round {round}");
        layer = again;
        fs::remove_dir_all(&upper).unwrap();
    }
}

#[test]
fn the_image_says_what_it_lies_on_and_where_it_came_from() {
    let written = written();
    let parent = images::digest::digest_of(b"the layer before");
    let what = Commit {
        parent: Some(parent.clone()),
        ..commit(&written.layer, Compression::Zstd)
    };
    let committed = written.store.commit(&what).unwrap();
    let path = written
        .store
        .blobs()
        .join(images::digest::hex(committed.digest()));
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let notes = &manifest["annotations"];
    assert_eq!(
        notes["org.opencontainers.image.base.digest"],
        committed.base().as_str()
    );
    assert_eq!(notes["dev.dormouse.layer"], written.layer.as_str());
    assert_eq!(notes["dev.dormouse.parent"], parent.as_str());
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 3);
}

#[test]
fn a_layer_that_lies_on_no_image_is_refused_with_what_to_do() {
    let written = written();
    let upper = written.data.path().join("upper");
    let host = Origin::Host {
        fingerprint: "1".into(),
    };
    let layer = capture_of(&written.store, &upper, &host);
    let what = commit(&layer, Compression::Zstd);
    let refused = written.store.commit(&what).unwrap_err();
    assert!(matches!(refused, ImageError::NoBase { .. }), "{refused}");
    assert!(!refused.is_retryable());
    assert!(
        refused.to_string().contains("dormouse template build-base"),
        "{refused}"
    );
    let absent = images::digest::digest_of(b"nothing");
    let refused = written.store.commit(&commit(&absent, Compression::Gzip));
    assert!(matches!(refused, Err(ImageError::NoBase { .. })));
}

#[test]
fn a_layer_that_was_damaged_on_disk_becomes_no_image() {
    let written = written();
    let path = written
        .store
        .blobs()
        .join(images::digest::hex(&written.layer));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    kit::durable::write_file(&path, &bytes, 0o600).unwrap();
    let what = commit(&written.layer, Compression::Gzip);
    let refused = written.store.commit(&what).unwrap_err();
    assert!(matches!(refused, ImageError::Mismatch { .. }), "{refused}");
}
