//! A disk that fills up in the middle: what was begun is taken back, and works once there is room.

use std::{
    fs::{self, File},
    io::Write as _,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use images::{
    Commit, Compression, ImageError, Origin, Store,
    layer::{Ids, capture},
};
use model::Digest;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

use crate::{
    layout::{ARCH, Layout, noise, simple},
    pull::options,
};

/// A file system in memory, attached nowhere, and gone with its descriptor.
fn small() -> OwnedFd {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)
        .unwrap_or_else(|error| panic!("this test needs root: {error}"));
    fsconfig_set_string(context.as_fd(), "size", "6m").unwrap();
    fsconfig_create(context.as_fd()).unwrap();
    let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    fsmount(context.as_fd(), flags, attributes).unwrap()
}

/// Leaves as much room as this, and no more.
fn fill(at: &Path, room: u64) {
    let mut file = File::create(at.join("filler")).unwrap();
    let mut left = u64::MAX;
    while left > room {
        file.write_all(&[7; 4096]).unwrap();
        let found = rustix::fs::statvfs(at).unwrap();
        left = found.f_bavail * found.f_frsize;
    }
}

fn left_over(store: &Store) -> Vec<PathBuf> {
    let found = fs::read_dir(store.blobs()).unwrap();
    let paths = found.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some()).collect()
}

#[test]
fn a_capture_and_a_commit_on_a_full_disk_leave_nothing_and_work_once_there_is_room() {
    let disk = small();
    let data = PathBuf::from(format!("/proc/self/fd/{}", disk.as_raw_fd()));
    let store = Store::open(&data, options()).unwrap();
    let layout = Layout::new();
    let image = layout.image(ARCH, &simple(b"below"));
    let layout = layout.add(image, Some("a.example/base:1"));
    let base = store.import(layout.path(), None).unwrap().remove(0).image;
    let upper = tempfile::tempdir().unwrap();
    File::create(upper.path().join("large"))
        .unwrap()
        .write_all(&noise(2_000_000))
        .unwrap();
    let origin = Origin::Image {
        digest: base.digest().clone(),
    };
    let note = |digest: &Digest| store.write_note(digest, Some(&origin));
    let keep = || {
        let blobs = store.blobs();
        capture(upper.path(), Ids::Same, &blobs, "one.new", u64::MAX, note)
    };
    let is_full = |error: &ImageError| {
        let ImageError::System { source, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        assert!(error.is_retryable());
        assert_eq!(left_over(&store), Vec::<PathBuf>::new());
    };
    fill(&data, 1 << 20);
    is_full(&keep().unwrap_err());
    fs::remove_file(data.join("filler")).unwrap();
    let (layer, _) = keep().unwrap();

    let what = Commit {
        layer,
        parent: None,
        compression: Compression::Gzip,
    };
    fill(&data, 1 << 20);
    is_full(&store.commit(&what).unwrap_err());
    fs::remove_file(data.join("filler")).unwrap();
    let committed = store.commit(&what).unwrap();
    assert!(committed.size() > 2_000_000);
}
