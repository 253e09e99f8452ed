//! What was written over a captured layer becomes one layer with it: seen through a real overlay, the
//! one layer shows what the two did.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use images::layer::{Earlier, Ids, Written, capture_all, restore};
use proptest::prelude::*;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::layout::write;

/// Something that a sandbox does to its files.
#[derive(Clone, Debug)]
enum Act {
    MakeDirectory(String),
    Write(String, u8),
    Remove(String),
    Symlink(String),
    Link(String, String),
    Rename(String, String),
    Chmod(String, u32),
}

fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => path().prop_map(Act::MakeDirectory),
        4 => (path(), any::<u8>()).prop_map(|(path, byte)| Act::Write(path, byte)),
        4 => path().prop_map(Act::Remove),
        1 => path().prop_map(Act::Symlink),
        1 => (path(), path()).prop_map(|(from, to)| Act::Link(from, to)),
        2 => (path(), path()).prop_map(|(from, to)| Act::Rename(from, to)),
        1 => (path(), prop::sample::select(vec![0o700, 0o1777, 0o4755]))
            .prop_map(|(path, mode)| Act::Chmod(path, mode)),
    ]
}

impl Act {
    /// Does it, if it can be done: what fails changes nothing.
    fn on(&self, root: &Path) {
        let at = |path: &str| root.join(path);
        let _ = match self {
            Self::MakeDirectory(path) => fs::create_dir_all(at(path)),
            Self::Write(path, byte) => {
                let there = at(path);
                if there.parent().is_some_and(Path::is_dir) && !there.is_dir() {
                    write(&there, &[*byte]);
                }
                Ok(())
            }
            Self::Remove(path) => match at(path).symlink_metadata() {
                Ok(found) if found.is_dir() => fs::remove_dir_all(at(path)),
                Ok(_) => fs::remove_file(at(path)),
                Err(error) => Err(error),
            },
            Self::Symlink(path) => symlink("somewhere", at(path)),
            Self::Link(from, to) => fs::hard_link(at(from), at(to)),
            // Directories of a lower layer cannot be renamed, as programs know from other systems.
            Self::Rename(from, to) => fs::rename(at(from), at(to)),
            Self::Chmod(path, mode) => match at(path).symlink_metadata() {
                Ok(found) if !found.is_symlink() => {
                    fs::set_permissions(at(path), fs::Permissions::from_mode(*mode))
                }
                _ => Ok(()),
            },
        };
    }
}

/// An overlay while this is held.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(at: &Path, lowers: &[&Path], upper: Option<(&Path, &Path)>) -> Self {
        let lowers: Vec<_> = lowers
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let mut options = format!("index=off,redirect_dir=off,lowerdir={}", lowers.join(":"));
        if let Some((upper, work)) = upper {
            let (upper, work) = (upper.display(), work.display());
            options.push_str(&format!(",upperdir={upper},workdir={work}"));
        }
        let options = CString::new(options).unwrap();
        mount(
            "overlay",
            at,
            "overlay",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .expect("this test needs root to mount an overlay");
        Self(at.to_owned())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

/// Kind, mode and content of everything.
fn seen(root: &Path) -> BTreeMap<PathBuf, (String, u32)> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            let what = if found.is_dir() {
                left.push(path.clone());
                "directory".to_owned()
            } else if found.is_symlink() {
                format!("→ {}", fs::read_link(&path).unwrap().display())
            } else {
                format!("{:?}", fs::read(&path).unwrap())
            };
            let name = path.strip_prefix(root).unwrap().to_owned();
            all.insert(name, (what, found.mode() & 0o7777));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn two_layers_become_one_that_shows_the_same(
        below in prop::collection::vec(act(), 0..12),
        earlier in prop::collection::vec(act(), 0..12),
        later in prop::collection::vec(act(), 0..12),
    ) {
        let home = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = home.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (base, first, second, one) = (make("base"), make("first"), make("second"), make("one"));
        let (at, work, layers) = (make("at"), make("work"), make("layers"));
        below.iter().for_each(|act| act.on(&base));
        {
            let _overlay = Overlay::mount(&at, &[&base], Some((&first, &work)));
            earlier.iter().for_each(|act| act.on(&at));
        }
        let work = make("work2");
        let shown = {
            let _overlay = Overlay::mount(&at, &[&first, &base], Some((&second, &work)));
            later.iter().for_each(|act| act.on(&at));
            seen(&at)
        };
        let earlier = Earlier { layer: &first, image: &[&base] };
        let written = Written { upper: &second, earlier: Some(earlier), ids: Ids::Same };
        let (digest, _) = capture_all(written, &layers, "new", u64::MAX, |_| Ok(None)).unwrap();
        let archive = layers.join(digest.as_str().trim_start_matches("sha256:"));
        restore(&archive, &digest, &one, Ids::Same).unwrap();
        let _overlay = Overlay::mount(&at, &[&one, &base], None);
        prop_assert_eq!(seen(&at), shown);
    }
}
