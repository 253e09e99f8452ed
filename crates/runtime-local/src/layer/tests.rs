//! Archives that no capture has written.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::Path,
};

use model::Digest;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::{capture, restore};
use crate::ranges::Range;

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
fn own_range() -> Range {
    Range::starting(rustix::process::getuid().as_raw())
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
    let (digest, _) = capture(&upper, own_range(), around.path(), "new").unwrap();
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
    let failed = capture(&upper, own_range(), &layers, "new").unwrap_err();
    assert!(failed.to_string().contains("256 deep"), "{failed}");
    assert_eq!(fs::read_dir(&layers).unwrap().count(), 0);
}
