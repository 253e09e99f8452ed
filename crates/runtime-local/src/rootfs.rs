//! What a root filesystem is made of: layers, and what is mounted into them.

use std::{
    ffi::CStr,
    fs,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use images::{Origin, Pinned};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    mount::MountAttrFlags,
};

use crate::{
    child::{MAX_MOUNTS, Mount},
    engine::Engine,
    error::{Doing as _, Result},
    kernel::idmap::attribute,
    mounts,
    record::{Place, Record},
    restore::{Filling, Proving},
};

/// Where the engine's own files are inside.
pub(crate) const INIT: &CStr = c"/run/dormouse/init";

const SAFE: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
const KERNEL: MountAttrFlags = SAFE.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// An image: its layers, uppermost first, and whether it needs the host's programs.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) layers: Vec<PathBuf>,
    /// The host's programs, mounted at `/usr`.
    pub(crate) usr: Option<PathBuf>,
    /// What it is, for the sandbox's record.
    pub(crate) origin: Origin,
    /// Keeps it on disk until that record does.
    #[expect(dead_code, reason = "held, not read")]
    pub(crate) pinned: Option<Arc<Pinned>>,
}

/// What one sandbox's root is made of.
#[derive(Debug)]
pub(crate) struct Root<'a> {
    pub(crate) place: &'a Place,
    pub(crate) record: &'a Record,
    pub(crate) image: &'a Image,
    /// Nothing is mounted over the writable layer before it is filled.
    pub(crate) filling: Filling<'a>,
}

/// What the server mounts for a first process.
#[derive(Debug)]
pub(crate) struct HostMounts<'a> {
    /// In the order of [`Engine::mount_list`].
    pub(crate) handed_over: Vec<OwnedFd>,
    /// The overlay has its own copies. To let go of a mount the kernel waits for every processor,
    /// so that is left for when the first process is on its way.
    _layers: Vec<OwnedFd>,
    /// Nothing may run over them before this is waited for.
    pub(crate) proving: Proving<'a>,
}

impl<'a> HostMounts<'a> {
    /// Lets go of them: the sandbox has its own by now.
    pub(crate) fn let_go(self) -> Proving<'a> {
        self.proving
    }
}

impl Engine {
    /// Makes the mounts that need the rights of the host. The overlay is the last of them: it waits
    /// until its writable layer is filled.
    pub(crate) fn host_mounts<'a>(
        &self,
        root: Root<'a>,
        user_namespace: BorrowedFd<'_>,
    ) -> Result<HostMounts<'a>> {
        let Root {
            place,
            record,
            image,
            filling,
        } = root;
        let lowers = image
            .layers
            .iter()
            .chain([self.bases.mount_points()])
            .map(|layer| mounts::mapped(layer, user_namespace, 0))
            .collect::<Result<Vec<_>>>()?;
        let mut all = Vec::with_capacity(MAX_MOUNTS);
        if let Some(usr) = &image.usr {
            let suid = if record.sudo { 0 } else { attribute::NO_SUID };
            let attributes = attribute::READ_ONLY | attribute::NO_DEV | suid;
            all.push(mounts::mapped(usr, user_namespace, attributes)?);
        }
        all.push(mounts::devices(record.range())?);
        all.push(mounts::mapped(
            &place.inside(),
            user_namespace,
            mounts::OURS | attribute::NO_EXEC,
        )?);
        all.push(mounts::mapped(
            &self.options.init,
            user_namespace,
            mounts::OURS,
        )?);
        let exit = attribute::NO_SUID | attribute::NO_DEV | attribute::NO_EXEC;
        all.push(mounts::mapped(&place.exit_file(), user_namespace, exit)?);
        let open = |path: PathBuf| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(CWD, &path, flags, Mode::empty()).doing(format!("open {}", path.display()))
        };
        let (upper, work) = (open(place.upper())?, open(place.work())?);
        let proving = filling.wait()?;
        all.insert(0, mounts::overlay(&lowers, upper.as_fd(), work.as_fd())?);
        Ok(HostMounts {
            handed_over: all,
            _layers: lowers,
            proving,
        })
    }

    /// What the first process mounts, in order.
    pub(crate) fn mount_list(&self, image: &Image) -> Vec<Mount<'_>> {
        let mut list = Vec::with_capacity(32);
        let received: &[&CStr] = &[
            c"dev",
            c"run/dormouse",
            c"run/dormouse/init",
            c"run/dormouse/exit",
        ];
        list.extend(image.usr.iter().map(|_| Mount::Received { target: c"usr" }));
        list.extend(received.iter().map(|target| Mount::Received { target }));
        list.extend([
            Mount::Fresh {
                kind: c"proc",
                options: &[],
                attributes: KERNEL,
                target: c"proc",
            },
            Mount::Fresh {
                kind: c"sysfs",
                options: &[],
                attributes: KERNEL.union(MountAttrFlags::MOUNT_ATTR_RDONLY),
                target: c"sys",
            },
            Mount::Fresh {
                kind: c"devpts",
                options: &[
                    (c"newinstance", None),
                    (c"ptmxmode", Some(c"0666")),
                    (c"mode", Some(c"0620")),
                    (c"gid", Some(c"5")),
                ],
                attributes: SAFE
                    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
                    .difference(MountAttrFlags::MOUNT_ATTR_NODEV),
                target: c"dev/pts",
            },
            Mount::Fresh {
                kind: c"tmpfs",
                options: &[(c"mode", Some(c"1777")), (c"size", Some(c"64m"))],
                attributes: KERNEL,
                target: c"dev/shm",
            },
            Mount::Fresh {
                kind: c"mqueue",
                options: &[],
                attributes: KERNEL,
                target: c"dev/mqueue",
            },
        ]);
        let files = &self.kernel_files;
        let hidden = |target: &&'static CStr| Mount::InPlaceOf {
            target,
            file: c"dev/null",
        };
        list.extend(files.hidden_files.iter().map(hidden));
        let hidden = |target: &&'static CStr| Mount::HiddenDirectory { target };
        list.extend(files.hidden_directories.iter().map(hidden));
        let read_only = |target: &&'static CStr| Mount::ReadOnly { target };
        list.extend(files.read_only.iter().map(read_only));
        list.push(Mount::InPlaceOf {
            target: c"proc/sys/kernel/random/boot_id",
            file: c"run/dormouse/boot_id",
        });
        list
    }
}

/// Files of the kernel that tell too much or can be written, as far as this kernel has them.
#[derive(Debug)]
pub(crate) struct KernelFiles {
    hidden_files: Vec<&'static CStr>,
    hidden_directories: Vec<&'static CStr>,
    read_only: Vec<&'static CStr>,
}

pub(crate) const HIDDEN: &[&CStr] = &[
    c"proc/acpi",
    c"proc/asound",
    c"proc/config.gz",
    c"proc/interrupts",
    c"proc/kallsyms",
    c"proc/kcore",
    c"proc/keys",
    c"proc/key-users",
    c"proc/kmsg",
    c"proc/kpagecgroup",
    c"proc/kpagecount",
    c"proc/kpageflags",
    c"proc/latency_stats",
    c"proc/modules",
    c"proc/pressure",
    c"proc/sched_debug",
    c"proc/scsi",
    c"proc/slabinfo",
    c"proc/sysrq-trigger",
    c"proc/timer_list",
    c"proc/timer_stats",
    c"proc/vmallocinfo",
    c"sys/devices/virtual/powercap",
    c"sys/firmware",
    c"sys/fs/bpf",
    c"sys/fs/selinux",
    c"sys/kernel/debug",
    c"sys/kernel/security",
    c"sys/kernel/tracing",
    c"sys/module",
];
pub(crate) const READ_ONLY: &[&CStr] = &[c"proc/bus", c"proc/fs", c"proc/irq", c"proc/sys"];

impl KernelFiles {
    /// Looks at what this kernel has.
    pub(crate) fn detect() -> Self {
        let kind = |path: &CStr| {
            let path = PathBuf::from("/").join(path.to_string_lossy().as_ref());
            fs::symlink_metadata(path).ok().map(|m| m.is_dir())
        };
        let those = |list: &[&'static CStr], directory| {
            let fits = |path: &&'static CStr| kind(path) == Some(directory);
            list.iter().copied().filter(fits).collect()
        };
        Self {
            hidden_files: those(HIDDEN, false),
            hidden_directories: those(HIDDEN, true),
            read_only: those(READ_ONLY, true),
        }
    }
}
