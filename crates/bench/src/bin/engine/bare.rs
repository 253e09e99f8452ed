//! The least that an isolated process under limits costs on this host: cgroups, six namespaces, an
//! overlay, a veth, the program. No user namespace, no filter, nothing hidden, nothing durable.
#![expect(
    unsafe_code,
    reason = "a clone and what its child does before the program are plain system calls"
)]

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    mem,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use crate::veth;

/// Where the bare containers of one run are.
pub(crate) struct Host {
    rootfs: PathBuf,
    data: PathBuf,
    /// One for each hierarchy that limits need; the unified one first.
    cgroups: Vec<PathBuf>,
    next: u32,
}

/// A process that was started.
pub(crate) struct Bare {
    pub(crate) pidfd: OwnedFd,
    directory: PathBuf,
    cgroups: Vec<PathBuf>,
}

const NAMESPACES: i32 = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

impl Host {
    pub(crate) fn new(rootfs: &Path, data: &Path) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut cgroups = Vec::new();
        for line in mounts.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            let has = |c: &str| fields[3].split(',').any(|option| option == c);
            let at = PathBuf::from(fields[1]).join("dormouse-bench");
            match fields[2] {
                "cgroup2" => cgroups.insert(0, at),
                "cgroup" if has("pids") || has("memory") || has("cpu") => cgroups.push(at),
                _ => {}
            }
        }
        for cgroup in &cgroups {
            fs::create_dir_all(cgroup)?;
        }
        fs::create_dir_all(data)?;
        Ok(Self {
            rootfs: rootfs.into(),
            data: data.into(),
            cgroups,
            next: 0,
        })
    }

    /// Starts a program of the root filesystem, with a veth of its own if asked for.
    pub(crate) fn start(&mut self, with_veth: bool, program: &[&str]) -> io::Result<Bare> {
        self.next += 1;
        let directory = self.data.join(self.next.to_string());
        fs::create_dir(&directory)?;
        for name in ["upper", "work", "root"] {
            fs::create_dir(directory.join(name))?;
        }
        let mut joins = Vec::new();
        let mut cgroups = Vec::new();
        for parent in &self.cgroups {
            let cgroup = parent.join(self.next.to_string());
            fs::create_dir(&cgroup)?;
            if let Ok(mut pids) = write_only(&cgroup.join("pids.max")) {
                pids.write_all(b"4096")?;
            }
            if !cgroups.is_empty() {
                joins.push(write_only(&cgroup.join("tasks"))?);
            }
            cgroups.push(cgroup);
        }
        let into = File::open(&cgroups[0])?;
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let root = text(&directory.join("root"))?;
        let options = CString::new(format!(
            "lowerdir={},upperdir={},workdir={}",
            self.rootfs.display(),
            directory.join("upper").display(),
            directory.join("work").display()
        ))?;
        let argv: Vec<_> = program
            .iter()
            .map(|arg| CString::new(*arg))
            .collect::<Result<_, _>>()?;
        let mut pointers: Vec<_> = argv.iter().map(|arg| arg.as_ptr()).collect();
        pointers.push(std::ptr::null());

        let mut pidfd: i32 = -1;
        // SAFETY: plain integers, for which zero is a valid value.
        let mut args: libc::clone_args = unsafe { mem::zeroed() };
        args.flags = NAMESPACES as u64 | libc::CLONE_PIDFD as u64 | CLONE_INTO_CGROUP;
        args.pidfd = (&raw mut pidfd) as u64;
        args.exit_signal = libc::SIGCHLD as u64;
        args.cgroup = into.as_raw_fd() as u64;
        // SAFETY: `args` lives across the call; the child has a copy of this stack and makes
        // system calls only.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
        match pid {
            0 => {
                let null = std::ptr::null();
                let none = c"none".as_ptr();
                // SAFETY: all text was made before the clone and ends with a zero.
                unsafe {
                    for join in &joins {
                        libc::write(join.as_raw_fd(), c"0".as_ptr().cast(), 1);
                    }
                    let private = libc::MS_REC | libc::MS_PRIVATE;
                    let (root, proc) = (root.as_ptr(), c"proc".as_ptr());
                    let done = libc::mount(none, c"/".as_ptr(), null, private, null.cast()) == 0
                        && libc::mount(none, root, c"overlay".as_ptr(), 0, options.as_ptr().cast())
                            == 0
                        && libc::chdir(root) == 0
                        && libc::mount(none, proc, proc, 0, null.cast()) == 0
                        && libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) == 0
                        && libc::umount2(c".".as_ptr(), libc::MNT_DETACH) == 0
                        && libc::sethostname(c"sandbox".as_ptr(), 7) == 0
                        && veth::loopback_up();
                    if done {
                        libc::execve(pointers[0], pointers.as_ptr(), [null].as_ptr());
                    }
                    libc::_exit(127);
                }
            }
            -1 => return Err(io::Error::last_os_error()),
            _ => {}
        }
        if with_veth {
            let pid = u32::try_from(pid).map_err(io::Error::other)?;
            veth::give(&format!("bench{}", self.next), pid)?;
        }
        Ok(Bare {
            // SAFETY: the kernel has stored a new descriptor here that nobody else owns.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
            directory,
            cgroups,
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for cgroup in &self.cgroups {
            // Whatever is still in there was reported before.
            let _ = fs::remove_dir(cgroup);
        }
    }
}

impl Bare {
    /// Kills everything and removes it.
    pub(crate) fn end(self) -> io::Result<()> {
        write_only(&self.cgroups[0].join("cgroup.kill"))?.write_all(b"1")?;
        // SAFETY: the structure is filled in by the call.
        unsafe {
            let mut info = mem::zeroed();
            let pidfd = self.pidfd.as_raw_fd() as u32;
            libc::waitid(libc::P_PIDFD, pidfd, &raw mut info, libc::WEXITED);
        }
        for cgroup in &self.cgroups {
            while let Err(error) = fs::remove_dir(cgroup) {
                if error.kind() != io::ErrorKind::ResourceBusy {
                    return Err(error);
                }
                std::thread::yield_now();
            }
        }
        fs::remove_dir_all(self.directory)
    }
}

fn write_only(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}
