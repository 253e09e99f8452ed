//! Mounts that are attached nowhere: made by the server with the rights of the host, handed to a
//! sandbox's first process, which attaches them in its own mount namespace.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, Uid, chmodat, chownat, makedev, mkdirat, mknodat,
        symlinkat,
    },
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, open_tree,
    },
};

use crate::{
    error::{Doing as _, Result},
    kernel::idmap::{attribute, set_attributes},
    ranges::Range,
};

/// A copy of the mount of a directory or file, not of what is mounted below it. Its ids are
/// mapped by the user namespace.
pub(crate) fn mapped(
    path: &Path,
    user_namespace: BorrowedFd<'_>,
    attributes: u64,
) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount =
        open_tree(CWD, path, flags).doing(format!("clone the mount of {}", path.display()))?;
    set_attributes(mount.as_fd(), attributes, Some(user_namespace))
        .doing(format!("map the ids of {}", path.display()))?;
    Ok(mount)
}

/// An overlay. Made in the initial user namespace, so that it keeps its notes in `trusted`
/// attributes; in any other one, removing a directory of a lower layer fails.
pub(crate) fn overlay(
    lowers: &[OwnedFd],
    upper: BorrowedFd<'_>,
    work: BorrowedFd<'_>,
) -> Result<OwnedFd> {
    let context =
        fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).doing("open the overlay filesystem")?;
    let set = |key: &str, value: &str| {
        fsconfig_set_string(context.as_fd(), key, value).doing(format!("set {key} of the overlay"))
    };
    // Names of descriptors: they are short, they need no escaping, and they are all that a
    // sandbox sees of its layers in its list of mounts.
    let by_number = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
    for lower in lowers {
        set("lowerdir+", &by_number(lower.as_fd()))?;
    }
    set("upperdir", &by_number(upper))?;
    set("workdir", &by_number(work))?;
    // What a layer's archive can hold: no renames by reference, no metadata without data.
    set("redirect_dir", "nofollow")?;
    set("metacopy", "off")?;
    set("index", "off")?;
    set("xino", "off")?;
    fsconfig_create(context.as_fd()).doing("make the overlay")?;
    fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NODEV,
    )
    .doing("mount the overlay")
}

/// Devices that every sandbox has: name, major and minor number.
const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];
const LINKS: [(&CStr, &CStr); 5] = [
    (c"fd", c"/proc/self/fd"),
    (c"stdin", c"/proc/self/fd/0"),
    (c"stdout", c"/proc/self/fd/1"),
    (c"stderr", c"/proc/self/fd/2"),
    (c"ptmx", c"pts/ptmx"),
];

/// A `/dev` of six devices. The server makes the nodes: nobody in a user namespace can.
pub(crate) fn devices(range: Range) -> Result<OwnedFd> {
    let owner = range.first().to_string();
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).doing("open a tmpfs")?;
    let options = [
        ("size", "1m"),
        ("nr_inodes", "1024"),
        ("mode", "755"),
        ("uid", &*owner),
        ("gid", &*owner),
    ];
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), key, value).doing("set up /dev")?;
    }
    fsconfig_create(context.as_fd()).doing("make /dev")?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount =
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).doing("mount /dev")?;
    fill_devices(mount.as_fd(), range).doing("fill /dev")?;
    Ok(mount)
}

fn fill_devices(dev: BorrowedFd<'_>, range: Range) -> rustix::io::Result<()> {
    let owner = |name: &CStr| {
        let (uid, gid) = (Uid::from_raw(range.first()), Gid::from_raw(range.first()));
        chownat(dev, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    };
    for (name, major, minor) in DEVICES {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(
            dev,
            name,
            FileType::CharacterDevice,
            mode,
            makedev(major, minor),
        )?;
        // The mode above was cut by the server's umask.
        chmodat(dev, name, mode, AtFlags::empty())?;
        owner(name)?;
    }
    for (name, target) in LINKS {
        symlinkat(target, dev, name)?;
        owner(name)?;
    }
    // A runtime gives what it mounts there the mode of the mount point.
    for (name, mode) in [(c"pts", 0o755), (c"shm", 0o1777), (c"mqueue", 0o755)] {
        let mode = Mode::from_raw_mode(mode);
        mkdirat(dev, name, mode)?;
        chmodat(dev, name, mode, AtFlags::empty())?;
        owner(name)?;
    }
    Ok(())
}

/// A filesystem of the calling process's own namespaces. Called by the child: no allocation.
pub(crate) fn fresh(
    kind: &CStr,
    options: &[(&CStr, Option<&CStr>)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value {
            Some(value) => fsconfig_set_string(context.as_fd(), *key, *value)?,
            None => fsconfig_set_flag(context.as_fd(), *key)?,
        }
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

/// Attributes of what the engine itself puts into a sandbox.
pub(crate) const OURS: u64 = attribute::READ_ONLY | attribute::NO_SUID | attribute::NO_DEV;
