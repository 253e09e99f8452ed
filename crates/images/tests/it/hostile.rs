//! Archives that somebody hostile has written: each is refused by name, and nothing of it is
//! outside of its directory.

use std::{fs, path::Path};

use images::{
    Hostile, ImageError,
    layer::{Ids, Limits, unpack},
};

use crate::archives::{Head, Tar, seal};

const LIMITS: Limits = Limits {
    entries: 100,
    bytes: 1 << 20,
};

fn unpack_one(archive: &[u8], around: &Path) -> Result<(), ImageError> {
    let into = around.join("layer");
    fs::create_dir(&into).unwrap();
    unpack(archive, &into, &[], Ids::Same, LIMITS)
}

fn head<'a>(kind: u8, path: &'a [u8]) -> Head<'a> {
    Head {
        path,
        kind,
        ..Head::default()
    }
}

#[expect(clippy::too_many_lines, reason = "a list")]
fn corpus() -> Vec<(&'static str, Hostile, Vec<u8>)> {
    use Hostile::*;
    let tar = Tar::default;
    let long = vec![b'n'; 300];
    let deep = b"d/".repeat(300);
    let mut broken = [0; 512];
    broken[..4].copy_from_slice(b"file");
    let mut numbers = [0; 512];
    numbers[..4].copy_from_slice(b"file");
    numbers[124..135].copy_from_slice(b"not a size!");
    numbers[156] = b'0';
    seal(&mut numbers);
    vec![
        ("../out", Parent, tar().file("../out", b"x").end()),
        ("a/../../out", Parent, tar().file("a/../../out", b"x").end()),
        ("a/..", Parent, tar().directory("a").directory("a/..").end()),
        ("..", Parent, tar().directory("..").end()),
        ("/out", Absolute, tar().file("/out", b"x").end()),
        ("//out", Absolute, tar().file("//out", b"x").end()),
        (
            "records lead out",
            Parent,
            tar().records(&[("path", b"../out")]).file("in", b"x").end(),
        ),
        (
            "records lead to the root",
            Absolute,
            tar().records(&[("path", b"/out")]).file("in", b"x").end(),
        ),
        (
            "a long name leads out",
            Parent,
            tar()
                .head(&head(b'L', b"././@LongLink"), b"../out\0")
                .file("in", b"x")
                .end(),
        ),
        (
            "a link up and through it",
            Through,
            tar().symlink("up", "..").file("up/out", b"x").end(),
        ),
        (
            "a link to the root and through it",
            Through,
            tar().symlink("root", "/").file("root/out", b"x").end(),
        ),
        (
            "a link to a link and through it",
            Through,
            tar()
                .symlink("one", "..")
                .symlink("two", "one")
                .file("two/out", b"x")
                .end(),
        ),
        (
            "a link beneath and through it",
            Through,
            tar()
                .directory("there")
                .symlink("here", "there")
                .file("here/file", b"x")
                .end(),
        ),
        (
            "a link and a directory of its name",
            Duplicate,
            tar().symlink("up", "..").directory("up").end(),
        ),
        (
            "a link and a file of its name",
            Duplicate,
            tar().symlink("up", "../out").file("up", b"x").end(),
        ),
        (
            "through a file",
            Through,
            tar().file("file", b"x").file("file/out", b"x").end(),
        ),
        (
            "a hard link out",
            Link,
            tar().entry(b'1', "stolen", "../secret").end(),
        ),
        (
            "a hard link to the root",
            Link,
            tar().entry(b'1', "stolen", "/etc/shadow").end(),
        ),
        (
            "a hard link through a link",
            Link,
            tar()
                .symlink("up", "..")
                .entry(b'1', "stolen", "up/secret")
                .end(),
        ),
        (
            "a hard link to nothing",
            Link,
            tar().entry(b'1', "link", "nothing").end(),
        ),
        (
            "a hard link to a directory",
            Link,
            tar().directory("d").entry(b'1', "link", "d").end(),
        ),
        (
            "a hard link to a whiteout",
            Link,
            tar()
                .file(".wh.gone", b"")
                .entry(b'1', "link", "gone")
                .end(),
        ),
        (
            "a hard link to itself",
            Link,
            tar().entry(b'1', "self", "self").end(),
        ),
        ("memory", Device, tar().entry(b'3', "mem", "").end()),
        ("a disk", Device, tar().entry(b'4', "etc/disk", "").end()),
        (
            "a device beside /dev",
            Device,
            tar().entry(b'3', "devices/mem", "").end(),
        ),
        (
            "twice the same file",
            Duplicate,
            tar().file("a", b"1").file("a", b"2").end(),
        ),
        (
            "twice by another spelling",
            Duplicate,
            tar().file("d/a", b"1").file("./d//a", b"2").end(),
        ),
        (
            "twice the same whiteout",
            Duplicate,
            tar().file(".wh.a", b"").file(".wh.a", b"").end(),
        ),
        (
            "a whiteout of nothing",
            Whiteout,
            tar().file(".wh.", b"").end(),
        ),
        (
            "a whiteout of itself",
            Whiteout,
            tar().file(".wh..", b"").end(),
        ),
        (
            "a whiteout of above",
            Whiteout,
            tar().file("d/.wh...", b"").end(),
        ),
        (
            "a whiteout of a whiteout",
            Whiteout,
            tar().file(".wh..wh.a", b"").end(),
        ),
        (
            "a whiteout that is a link",
            Whiteout,
            tar().symlink(".wh.a", "..").end(),
        ),
        (
            "an opaque mark that is a directory",
            Whiteout,
            tar().directory("d/.wh..wh..opq").end(),
        ),
        (
            "through a whiteout",
            Through,
            tar().file(".wh.d", b"").file("d/a", b"x").end(),
        ),
        (
            "more bytes than allowed",
            Bytes,
            tar().file("large", &vec![0; 2 << 20]).end(),
        ),
        (
            "a size beyond any disk",
            Cut,
            tar()
                .head(
                    &Head {
                        path: b"giant",
                        size: Some(0o77_777_777_777),
                        ..Head::default()
                    },
                    b"",
                )
                .0,
        ),
        (
            "a size in the records beyond any disk",
            Cut,
            tar()
                .records(&[("size", b"18446744073709551615")])
                .file("giant", b"x")
                .0,
        ),
        ("more entries than allowed", Entries, {
            let mut tar = tar();
            for number in 0..200 {
                tar = tar.directory(&format!("d{number}"));
            }
            tar.end()
        }),
        ("deeper than allowed", Deep, {
            tar().records(&[("path", &deep)]).directory("d").end()
        }),
        ("a name that is too long", Name, {
            tar().records(&[("path", &long)]).file("n", b"").end()
        }),
        (
            "a name with a zero in it",
            Name,
            tar().records(&[("path", b"a\0b")]).file("n", b"").end(),
        ),
        ("no name", Name, tar().file("", b"").end()),
        (
            "a link where the top is",
            Name,
            tar().symlink(".", "..").end(),
        ),
        ("a header that is none", Header, tar().raw(&broken).end()),
        ("a size that is none", Header, tar().raw(&numbers).end()),
        (
            "records without an end",
            Records,
            tar()
                .head(&head(b'x', b"records"), b"99 path=a\n")
                .file("a", b"")
                .end(),
        ),
        (
            "records without a length",
            Records,
            tar()
                .head(&head(b'x', b"records"), b"path=a\n")
                .file("a", b"")
                .end(),
        ),
        (
            "records of a length of zero",
            Records,
            tar()
                .head(&head(b'x', b"records"), b"0 path=a\n")
                .file("a", b"")
                .end(),
        ),
        (
            "records longer than any",
            Records,
            tar()
                .head(
                    &Head {
                        path: b"records",
                        kind: b'x',
                        size: Some(2 << 20),
                        ..Head::default()
                    },
                    b"",
                )
                .0,
        ),
        (
            "an owner that is none",
            Owner,
            tar()
                .records(&[("uid", b"4294967295")])
                .file("a", b"")
                .end(),
        ),
        (
            "an owner beyond all",
            Owner,
            tar()
                .records(&[("gid", b"99999999999")])
                .file("a", b"")
                .end(),
        ),
        (
            "a kind of its own",
            Kind,
            tar().entry(b'Q', "odd", "").end(),
        ),
        (
            "a sparse file of old",
            Kind,
            tar().head(&head(b'S', b"sparse"), b"").end(),
        ),
        (
            "a sparse file whose parts are none",
            Records,
            tar()
                .records(&[
                    ("GNU.sparse.major", b"1"),
                    ("GNU.sparse.minor", b"0"),
                    ("GNU.sparse.realsize", b"100"),
                ])
                .file("sparse", &[b'x'; 512])
                .end(),
        ),
        (
            "a sparse file longer than any",
            Bytes,
            tar()
                .records(&[
                    ("GNU.sparse.major", b"1"),
                    ("GNU.sparse.minor", b"0"),
                    ("GNU.sparse.realsize", b"9223372036854775807"),
                ])
                .file("sparse", &[b"0\n".as_slice(), &[0; 510]].concat())
                .end(),
        ),
        (
            "a sparse file of no size",
            Kind,
            tar()
                .records(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")])
                .file("sparse", b"1\n0\n5\n")
                .end(),
        ),
        ("cut off in the content", Cut, {
            let mut bytes = tar().file("a", &[7; 1000]).0;
            bytes.truncate(900);
            bytes
        }),
        ("cut off in a header", Cut, {
            let mut bytes = tar().file("a", b"").file("b", b"").0;
            bytes.truncate(700);
            bytes
        }),
        (
            "an attribute with an impossible name",
            Attribute,
            tar()
                .records(&[(&format!("SCHILY.xattr.user.{}", "x".repeat(300)), b"v")])
                .file("a", b"")
                .end(),
        ),
    ]
}

#[test]
fn every_hostile_archive_is_refused_by_name_and_leaves_nothing_outside() {
    let corpus = corpus();
    assert!(corpus.len() >= 50, "{}", corpus.len());
    for (what, expected, archive) in corpus {
        let around = tempfile::tempdir().unwrap();
        fs::File::create(around.path().join("secret")).unwrap();
        match unpack_one(&archive, around.path()) {
            Err(ImageError::Hostile { why, .. }) => assert_eq!(why, expected, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
        let outside: Vec<_> = fs::read_dir(around.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != "layer" && name != "secret")
            .collect();
        assert!(outside.is_empty(), "{what}: {outside:?}");
        assert!(!Path::new("/out").exists(), "{what}");
        let nlink = std::os::unix::fs::MetadataExt::nlink(
            &fs::metadata(around.path().join("secret")).unwrap(),
        );
        assert_eq!(nlink, 1, "{what}: somebody linked to the secret");
    }
}

#[test]
fn the_entry_that_breaks_a_rule_is_named() {
    let around = tempfile::tempdir().unwrap();
    let archive = Tar::default().file("fine", b"").file("bad/../x", b"").end();
    let error = unpack_one(&archive, around.path()).unwrap_err().to_string();
    assert_eq!(error, "entry `bad/../x` of the layer has `..` in its path");
}

#[test]
fn what_would_change_the_overlay_itself_is_left_out() {
    let around = tempfile::tempdir().unwrap();
    let archive = Tar::default()
        .records(&[
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.security.selinux", b"x"),
            ("SCHILY.xattr.user.kept", b"yes"),
        ])
        .directory("d")
        .end();
    unpack_one(&archive, around.path()).unwrap();
    let mut names = [0; 1024];
    let length = rustix::fs::listxattr(around.path().join("layer/d"), &mut names[..]).unwrap();
    assert_eq!(&names[..length], b"user.kept\0");
}

#[test]
fn devices_below_dev_are_passed_over_and_odd_names_are_kept() {
    let around = tempfile::tempdir().unwrap();
    let not_text = b"not\xfftext";
    let archive = Tar::default()
        .entry(b'3', "dev/null", "")
        .entry(b'4', "./dev/deep/sda", "")
        .head(&head(b'0', not_text), b"content")
        .head(&head(b'g', b"global"), b"30 comment=from a repository\n\n")
        .head(&head(b'0', b"old-style-directory/"), b"")
        .head(&head(b'7', b"contiguous"), b"content")
        .end();
    unpack_one(&archive, around.path()).unwrap();
    let layer = around.path().join("layer");
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(not_text);
    assert_eq!(fs::read(layer.join(name)).unwrap(), b"content");
    assert!(layer.join("old-style-directory").is_dir());
    assert!(!layer.join("dev/null").exists());
    assert_eq!(fs::read(layer.join("contiguous")).unwrap(), b"content");
}

#[test]
fn no_bytes_at_random_do_more_than_fail() {
    use proptest::prelude::*;
    let seeds: Vec<Vec<u8>> = corpus().into_iter().map(|(.., archive)| archive).collect();
    let change = (
        0..seeds.len(),
        prop::collection::vec((any::<usize>(), any::<u8>()), 1..8),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let test = |(seed, changes): (usize, Vec<(usize, u8)>)| {
        let mut archive = seeds[seed].clone();
        for (at, byte) in changes {
            let at = at % archive.len();
            archive[at] = byte;
            // A header that is believed is worth more than one that is not.
            let start = at / 512 * 512;
            if let Some(block) = archive.get_mut(start..start + 512) {
                let mut sealed: [u8; 512] = (&*block).try_into().unwrap();
                seal(&mut sealed);
                block.copy_from_slice(&sealed);
            }
        }
        let around = tempfile::tempdir().unwrap();
        let _ = unpack_one(&archive, around.path());
        let count = fs::read_dir(around.path()).unwrap().count();
        prop_assert_eq!(count, 1);
        Ok(())
    };
    runner.run(&change, test).unwrap();
}
