//! Random trees, written as layers, unpacked and seen through a real overlay, are what a model of
//! the rules says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{FileTypeExt as _, MetadataExt as _},
        },
    },
    path::{Path, PathBuf},
};

use images::layer::{Ids, Limits, unpack};
use proptest::prelude::*;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

use crate::archives::{Head, Tar};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    File(Vec<u8>),
    Symlink(String),
    Fifo,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    kind: Kind,
    mode: u32,
    uid: u32,
    gid: u32,
    /// Not known of directories that no archive mentions.
    mtime: Option<i64>,
    xattr: Option<Vec<u8>>,
}

type Tree = BTreeMap<String, Node>;

#[derive(Clone, Debug)]
enum Op {
    Put(String, Node),
    /// Another name of the file that was put last.
    Link(String),
    Hide(String),
    Opaque(String),
}

fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c", "ö", ".wh"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn node() -> impl Strategy<Value = Node> {
    let kind = prop_oneof![
        3 => Just(Kind::Directory),
        4 => prop::collection::vec(any::<u8>(), 0..4).prop_map(Kind::File),
        1 => prop::sample::select(vec!["/etc", "../..", "a", "nowhere"])
            .prop_map(|target| Kind::Symlink(target.into())),
        1 => Just(Kind::Fifo),
    ];
    let mode = prop::sample::select(vec![0o755, 0o600, 0o1777, 0o4711, 0o2750]);
    let id = || prop::sample::select(vec![0, 1000, 65_534]);
    let xattr = prop::option::of(prop::collection::vec(any::<u8>(), 0..20));
    (kind, mode, id(), id(), 0_i64..2_000_000_000, xattr).prop_map(
        |(kind, mode, uid, gid, mtime, xattr)| {
            let plain = matches!(kind, Kind::Directory | Kind::File(_));
            Node {
                mode: if matches!(kind, Kind::Symlink(_)) {
                    0o777
                } else {
                    mode
                },
                xattr: xattr.filter(|_| plain),
                mtime: Some(mtime),
                kind,
                uid,
                gid,
            }
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (path(), node()).prop_map(|(path, node)| Op::Put(path, node)),
        1 => path().prop_map(Op::Link),
        3 => path().prop_map(Op::Hide),
        1 => path().prop_map(Op::Opaque),
    ]
}

fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

fn is_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// A layer as an archive, and its effect on a model of what is below. What no writer of layers
/// would do is left out.
#[derive(Default)]
struct Layer {
    marks: Tar,
    entries: Tar,
    /// What this layer has itself.
    own: BTreeMap<String, Node>,
    hidden: BTreeSet<String>,
    last_file: Option<String>,
}

impl Layer {
    fn put(&mut self, below: &Tree, path: &str, node: &Node, link: Option<&str>) {
        let is_directory = node.kind == Kind::Directory;
        let taken = self.own.contains_key(path)
            || (!is_directory && self.own.keys().any(|own| is_below(own, path)))
            || (!is_directory && self.hidden.iter().any(|hidden| is_below(hidden, path)));
        // A directory's entry may come after what is in it, but not over what is below.
        let implied = self.own.keys().any(|own| is_below(own, path));
        if taken || (is_directory && implied && self.hidden.contains(path)) {
            return;
        }
        if is_directory && implied && below.get(path).is_some_and(|n| n.kind != Kind::Directory) {
            return;
        }
        for parent in ancestors(path) {
            let fine = match self.own.get(parent) {
                Some(own) => own.kind == Kind::Directory,
                None => {
                    let hidden = self
                        .hidden
                        .iter()
                        .any(|h| h == parent || is_below(parent, h));
                    let below = below.get(parent);
                    !hidden && below.is_none_or(|node| node.kind == Kind::Directory)
                }
            };
            if !fine {
                return;
            }
        }
        let mut head = Head {
            path: path.as_bytes(),
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            mtime: node.mtime.unwrap().try_into().unwrap(),
            ..Head::default()
        };
        let mut content = &b""[..];
        match (&node.kind, link) {
            (_, Some(target)) => (head.kind, head.link) = (b'1', target.as_bytes()),
            (Kind::Directory, _) => head.kind = b'5',
            (Kind::File(bytes), _) => content = bytes,
            (Kind::Symlink(target), _) => (head.kind, head.link) = (b'2', target.as_bytes()),
            (Kind::Fifo, _) => head.kind = b'6',
        }
        let mut tar = std::mem::take(&mut self.entries);
        let mut records: Vec<(&str, &[u8])> = Vec::new();
        if let Some(value) = &node.xattr {
            records.push(("SCHILY.xattr.user.test", value));
        }
        // Not a whiteout, though its name is close to one.
        if !records.is_empty() {
            tar = tar.records(&records);
        }
        self.entries = tar.head(&head, content);
        self.own.insert(path.into(), node.clone());
        if matches!(node.kind, Kind::File(_)) {
            self.last_file = Some(path.into());
        }
    }

    fn add(&mut self, below: &Tree, op: &Op) {
        match op {
            Op::Put(path, node) => self.put(below, path, node, None),
            Op::Link(path) => {
                if let Some(target) = self.last_file.clone() {
                    let node = self.own[&target].clone();
                    self.put(below, path, &node, Some(&target));
                }
            }
            Op::Hide(path) => {
                let related = |other: &String| {
                    other == path || is_below(other, path) || is_below(path, other)
                };
                let touched = self
                    .own
                    .keys()
                    .any(|own| is_below(own, path) || is_below(path, own));
                if below.contains_key(path) && !self.hidden.iter().any(related) && !touched {
                    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
                    let mark = format!("{parent}/.wh.{name}");
                    let tar = std::mem::take(&mut self.marks);
                    self.marks = tar.file(mark.trim_start_matches('/'), b"");
                    self.hidden.insert(path.clone());
                }
            }
            Op::Opaque(path) => {
                let is_directory = |node: &Node| node.kind == Kind::Directory;
                let own = self.own.get(path).is_some_and(is_directory);
                // As every writer does: after its directory, before what else is in it.
                let filled = self.own.keys().any(|own| is_below(own, path));
                let touched = self.hidden.iter().any(|h| h == path || is_below(h, path));
                if own && !filled && !touched {
                    let tar = std::mem::take(&mut self.entries);
                    self.entries = tar.file(&format!("{path}/.wh..wh..opq"), b"");
                    // Everything in it, whatever that is by now.
                    self.hidden.insert(format!("{path}/"));
                }
            }
        }
    }

    fn apply(&self, below: &Tree) -> Tree {
        let mut tree = below.clone();
        tree.retain(|path, _| {
            !self
                .hidden
                .iter()
                .any(|hidden| match hidden.strip_suffix('/') {
                    Some(opaque) => is_below(path, opaque),
                    None => path == hidden || is_below(path, hidden),
                })
        });
        for (path, node) in &self.own {
            for parent in ancestors(path) {
                let explicit = self.own.contains_key(parent);
                if !explicit && !tree.contains_key(parent) {
                    let made = Node {
                        kind: Kind::Directory,
                        mode: 0o755,
                        uid: 0,
                        gid: 0,
                        mtime: None,
                        xattr: None,
                    };
                    tree.insert(parent.into(), made);
                }
            }
            let merges = node.kind == Kind::Directory
                && tree
                    .get(path)
                    .is_some_and(|there| there.kind == Kind::Directory);
            if !merges {
                tree.retain(|other, _| !is_below(other, path));
            }
            tree.insert(path.clone(), node.clone());
        }
        tree
    }

    fn archive(self, marks_first: bool) -> Vec<u8> {
        let (first, second) = match marks_first {
            true => (self.marks, self.entries),
            false => (self.entries, self.marks),
        };
        first.raw(&second.0).end()
    }
}

/// A writable overlay over layers, uppermost first; attached nowhere, and gone with its descriptor.
pub(crate) fn writable(layers: &[PathBuf], upper: &Path, work: &Path) -> OwnedFd {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
        .unwrap_or_else(|error| panic!("this test needs root and overlayfs: {error}"));
    for layer in layers {
        fsconfig_set_string(context.as_fd(), "lowerdir+", layer).unwrap();
    }
    fsconfig_set_string(context.as_fd(), "upperdir", upper).unwrap();
    fsconfig_set_string(context.as_fd(), "workdir", work).unwrap();
    fsconfig_create(context.as_fd()).unwrap();
    let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    fsmount(context.as_fd(), flags, attributes).unwrap()
}

/// An overlay that is attached nowhere, and gone with its descriptor.
fn overlay(layers: &[PathBuf], empty: &Path) -> OwnedFd {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
        .unwrap_or_else(|error| panic!("this test needs root and overlayfs: {error}"));
    for layer in layers.iter().rev().map(PathBuf::as_path).chain([empty]) {
        fsconfig_set_string(context.as_fd(), "lowerdir+", layer).unwrap();
    }
    fsconfig_create(context.as_fd()).unwrap();
    fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_RDONLY,
    )
    .unwrap()
}

fn see(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut directories = vec![top.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let kind = if found.is_dir() {
                directories.push(path.clone());
                Kind::Directory
            } else if found.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                Kind::Symlink(target.to_str().unwrap().into())
            } else if found.file_type().is_fifo() {
                Kind::Fifo
            } else {
                assert!(found.is_file(), "{}", path.display());
                Kind::File(fs::read(&path).unwrap())
            };
            let mut value = [0; 64];
            let plain = matches!(kind, Kind::Directory | Kind::File(_));
            let length = match plain {
                true => rustix::fs::lgetxattr(&path, "user.test", &mut value[..]).ok(),
                false => None,
            };
            let node = Node {
                kind,
                mode: found.mode() & 0o7777,
                uid: found.uid(),
                gid: found.gid(),
                mtime: Some(found.mtime()),
                xattr: length.map(|length| value[..length].to_vec()),
            };
            let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes();
            tree.insert(String::from_utf8(name.to_vec()).unwrap(), node);
        }
    }
    tree
}

fn check(layers: &[Vec<Op>], marks_first: bool) -> Result<(), TestCaseError> {
    let around = tempfile::tempdir().unwrap();
    let empty = around.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let mut model = Tree::new();
    let mut made: Vec<PathBuf> = Vec::new();
    for (number, ops) in layers.iter().enumerate() {
        let mut layer = Layer::default();
        for op in ops {
            layer.add(&model, op);
        }
        model = layer.apply(&model);
        let directory = around.path().join(number.to_string());
        fs::create_dir(&directory).unwrap();
        let below: Vec<_> = made.iter().rev().map(PathBuf::as_path).collect();
        let archive = layer.archive(marks_first);
        let unpacked = unpack(
            &archive[..],
            &directory,
            &below,
            Ids::Same,
            Limits::default(),
        );
        prop_assert!(unpacked.is_ok(), "layer {}: {:?}", number, unpacked);
        made.push(directory);
    }
    let mount = overlay(&made, &empty);
    let seen = see(Path::new(&format!("/proc/self/fd/{}", mount.as_raw_fd())));
    for (path, node) in &mut model {
        if node.mtime.is_none() {
            node.mtime = seen.get(path).and_then(|seen| seen.mtime);
        }
    }
    prop_assert_eq!(&seen, &model);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_an_overlay_shows_of_unpacked_layers_is_what_the_layers_say(
        layers in prop::collection::vec(prop::collection::vec(op(), 0..12), 1..5),
        marks_first in any::<bool>(),
    ) {
        check(&layers, marks_first)?;
    }
}

#[test]
fn a_directory_that_a_layer_leaves_out_stays_as_it_is_below() {
    let tmp = Node {
        kind: Kind::Directory,
        mode: 0o1777,
        uid: 1000,
        gid: 1000,
        mtime: Some(77),
        xattr: Some(b"kept".to_vec()),
    };
    let file = Node {
        kind: Kind::File(b"x".to_vec()),
        mode: 0o600,
        uid: 0,
        gid: 0,
        mtime: Some(1),
        xattr: None,
    };
    let layers = [
        vec![Op::Put("a".into(), tmp)],
        vec![Op::Put("a/b".into(), file)],
    ];
    check(&layers, true).unwrap();
}
