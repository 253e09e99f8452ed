//! Archives that no capture has written.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::Path,
};

use model::Digest;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::{Ids, capture, restore};
use crate::error::ImageError;

/// An archive of one or more entries: kind, path, link target.
fn archive(at: &Path, entries: &[(EntryType, &str, &str)]) -> Digest {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, target) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        if !target.is_empty() {
            let record = [("linkpath", target.as_bytes())];
            builder.append_pax_extensions(record).unwrap();
        }
        builder.append(&header, std::io::empty()).unwrap();
    }
    let bytes = builder.into_inner().unwrap();
    kit::durable::write_file(at, &bytes, 0o600).unwrap();
    let hex: String = Sha256::digest(&bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    Digest::new(format!("sha256:{hex}")).unwrap()
}

/// Ids of whoever runs the tests, so that they need no rights.
fn own_range() -> Ids {
    Ids::From(rustix::process::getuid().as_raw())
}

#[test]
fn no_entry_leaves_the_layer() {
    use EntryType::{Directory, Link, Regular, Symlink};
    for entries in [
        &[(Regular, "../outside", "")][..],
        &[(Regular, "a/../../outside", "")],
        &[(Regular, "/outside", "")],
        &[(Directory, "..", "")],
        &[(Symlink, "link", ".."), (Regular, "link/outside", "")],
        &[(Symlink, "link", "/"), (Directory, "link/outside", "")],
        &[(Link, "stolen", "../secret")],
        &[(Symlink, "link", ".."), (Link, "stolen", "link/secret")],
        &[(Regular, ".wh...", "")],
        &[(Regular, ".wh.", "")],
        &[(EntryType::Block, "disk", "")],
        &[(EntryType::Char, "memory", "")],
    ] {
        let around = tempfile::tempdir().unwrap();
        let upper = around.path().join("upper");
        fs::create_dir(&upper).unwrap();
        File::create(around.path().join("secret")).unwrap();
        let file = around.path().join("layer");
        let digest = archive(&file, entries);
        let refused = restore(&file, &digest, &upper, own_range());
        assert!(refused.is_err(), "{entries:?}");
        assert!(!around.path().join("outside").exists(), "{entries:?}");
        assert!(!Path::new("/outside").exists(), "{entries:?}");
    }
}

#[test]
fn an_archive_cut_off_anywhere_is_refused() {
    let around = tempfile::tempdir().unwrap();
    let file = around.path().join("layer");
    let digest = archive(
        &file,
        &[
            (EntryType::Regular, "a", ""),
            (EntryType::Symlink, "b", "c"),
        ],
    );
    let whole = fs::read(&file).unwrap();
    for length in (0..whole.len()).step_by(256) {
        let upper = around.path().join(format!("upper-{length}"));
        fs::create_dir(&upper).unwrap();
        kit::durable::write_file(&file, &whole[..length], 0o600).unwrap();
        assert!(
            restore(&file, &digest, &upper, own_range()).is_err(),
            "{length}"
        );
    }
}

#[test]
fn a_capture_follows_no_link() {
    let around = tempfile::tempdir().unwrap();
    let upper = around.path().join("upper");
    fs::create_dir(&upper).unwrap();
    kit::durable::write_file(&around.path().join("secret"), b"the host's secret", 0o600).unwrap();
    symlink("../secret", upper.join("file")).unwrap();
    symlink("..", upper.join("directory")).unwrap();
    let (digest, _) = capture(&upper, own_range(), around.path(), "new", u64::MAX, |_| {
        Ok(None)
    })
    .unwrap();
    let name = digest.as_str().trim_start_matches("sha256:");
    let archive = fs::read(around.path().join(name)).unwrap();
    let secret = b"the host's secret";
    assert!(!archive.windows(secret.len()).any(|part| part == secret));
}

#[test]
fn a_capture_that_fails_leaves_no_file() {
    let around = tempfile::tempdir().unwrap();
    let (upper, layers) = (around.path().join("upper"), around.path().join("layers"));
    fs::create_dir(&layers).unwrap();
    let deep: std::path::PathBuf = std::iter::once(upper.clone())
        .chain((0..300).map(|_| "d".into()))
        .collect();
    fs::create_dir_all(deep).unwrap();
    let failed = capture(&upper, own_range(), &layers, "new", u64::MAX, |_| Ok(None)).unwrap_err();
    assert!(failed.to_string().contains("256 deep"), "{failed}");
    assert_eq!(fs::read_dir(&layers).unwrap().count(), 0);
}

/// A file with holes: data at these places, and so long.
fn with_holes(path: &Path, data: &[(u64, &[u8])], size: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = File::create(path).unwrap();
    for (at, bytes) in data {
        file.write_all_at(bytes, *at).unwrap();
    }
    file.set_len(size).unwrap();
}

#[test]
fn holes_are_not_written_out_and_come_back_as_holes() {
    use std::os::unix::fs::MetadataExt as _;
    let around = tempfile::tempdir().unwrap();
    let upper = around.path().join("upper");
    fs::create_dir(&upper).unwrap();
    const TERABYTE: u64 = 1 << 40;
    let long = "n".repeat(150);
    with_holes(&upper.join("all"), &[], TERABYTE);
    with_holes(&upper.join("middle"), &[(TERABYTE / 2, b"here")], TERABYTE);
    with_holes(
        &upper.join(&long),
        &[(0, b"first"), (1 << 30, b"last")],
        (1 << 30) + 4,
    );
    with_holes(&upper.join("none"), &[(0, &[7; 300_000])], 300_000);
    let (digest, size) = capture(&upper, own_range(), around.path(), "new", u64::MAX, |_| {
        Ok(None)
    })
    .unwrap();
    assert!(size < 1 << 20, "{size}");

    let again = around.path().join("again");
    fs::create_dir(&again).unwrap();
    let name = digest.as_str().trim_start_matches("sha256:");
    let archive = around.path().join(name);
    restore(&archive, &digest, &again, own_range()).unwrap();
    for name in ["all", "middle", &long, "none"] {
        let (before, after) = (upper.join(name), again.join(name));
        let (b, a) = (
            fs::metadata(&before).unwrap(),
            fs::metadata(&after).unwrap(),
        );
        assert_eq!((a.len(), a.blocks()), (b.len(), b.blocks()), "{name}");
    }
    use std::os::unix::fs::FileExt as _;
    let mut bytes = [0; 4];
    let middle = File::open(again.join("middle")).unwrap();
    middle.read_exact_at(&mut bytes, TERABYTE / 2).unwrap();
    assert_eq!(&bytes, b"here");
    assert_eq!(fs::read(again.join("none")).unwrap(), vec![7; 300_000]);
    let twice = capture(&again, own_range(), around.path(), "new", u64::MAX, |_| {
        Ok(None)
    })
    .unwrap();
    assert_eq!(twice, (digest, size), "the same content, the same archive");
    others_read(&archive, &long);
}

/// What other programs see in an archive: GNU tar, and Python's library.
fn others_read(archive: &Path, long: &str) {
    let run = |program: &str, args: &[&str]| {
        let output = std::process::Command::new(program).args(args).output();
        let output = output.unwrap_or_else(|error| panic!("this test needs {program}: {error}"));
        assert!(output.status.success(), "{program}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let archive = archive.to_str().unwrap();
    let listed = run("tar", &["--list", "--verbose", "--file", archive]);
    for (name, size) in [
        ("all", "1099511627776"),
        ("middle", "1099511627776"),
        (long, "1073741828"),
    ] {
        let line = listed
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")));
        assert!(
            line.is_some_and(|line| line.contains(size)),
            "{name}: {listed}"
        );
    }
    let script = "import sys, tarfile\nt = tarfile.open(sys.argv[1])\n\
        f = t.extractfile('middle'); f.seek(1 << 39); print(f.read(4).decode(), t.getmember('middle').size)";
    assert_eq!(
        run("python3", &["-c", script, archive]),
        "here 1099511627776\n"
    );
}

#[test]
fn a_layer_larger_than_allowed_is_refused_and_names_the_file() {
    let around = tempfile::tempdir().unwrap();
    let (upper, layers) = (around.path().join("upper"), around.path().join("layers"));
    fs::create_dir(&upper).unwrap();
    fs::create_dir(&layers).unwrap();
    with_holes(&upper.join("small"), &[(0, &[7; 1000])], 1000);
    with_holes(&upper.join("too-large"), &[(0, &[7; 200_000])], 200_000);
    let refused = capture(&upper, own_range(), &layers, "new", 100_000, |_| Ok(None)).unwrap_err();
    match &refused {
        ImageError::Uncapturable(reason) => assert!(reason.contains("too-large"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read_dir(&layers).unwrap().count(), 0);
}
