//! From directories to a running first process: the server's side of the clone.

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use model::Uid;
use rustix::{
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recv, sendmsg, socketpair, sockopt,
    },
    process::{Resource, Rlimit, getrlimit},
    thread::CapabilitySet,
};

use crate::{
    base::USR_LOCAL,
    child::{self, Failure, MAX_MOUNTS, Script},
    engine::Engine,
    error::{Doing as _, EngineError, Result},
    kernel::{clone::Cloned, exec::Program},
    options::Step,
    record::{Place, ProcessId, Record},
    rootfs::{INIT, Image},
    workload::{Process, start_time},
};

/// What root inside may still do, all of it confined by namespaces. Not among them: mounting,
/// devices, networks, modules, tracing, raw sockets.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE);

/// How long the first process may take to set itself up.
const PATIENCE: Duration = Duration::from_secs(30);

impl Engine {
    /// Starts the first process of a sandbox whose directories and cgroups are there, and returns
    /// when the init program runs. `meanwhile` is done while the process sets itself up; if it
    /// fails, so does the start.
    pub(crate) fn start(
        &self,
        uid: Uid,
        place: &Place,
        record: &Record,
        image: &Image,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<Process> {
        let cgroup = self.cgroup(uid);
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .doing("connect to the first process")?;
        sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(PATIENCE))
            .doing("connect to the first process")?;
        let mounts = self.mount_list(image);
        let program = self.program(uid)?;
        let doors = cgroup.doors()?;
        let script = Script {
            socket: theirs.as_raw_fd(),
            doors: &doors,
            attach_at: &self.attach_at,
            mounts: &mounts,
            pierced: image.usr.as_ref().map(|_| USR_LOCAL),
            hostname: b"sandbox",
            rlimits: &self.rlimits(),
            keep: KEPT,
            no_new_privs: !record.sudo,
            filter: self.filter.program(),
            program: &program,
        };
        let cloned = clone(cgroup.open()?.as_fd(), &script).doing("clone the first process")?;
        drop((theirs, doors));
        let set_up = || {
            self.options.reached(Step::Cloned);
            let user_namespace = map_ids(cloned.pid, record)?;
            let mounts = self.host_mounts(place, record, image, user_namespace.as_fd())?;
            hand_over(ours.as_fd(), &mounts.handed_over).doing("hand the mounts over")?;
            drop(mounts);
            self.options.reached(Step::Mounted);
            meanwhile()?;
            wait_for_exec(ours.as_fd())?;
            self.options.reached(Step::Executed);
            start_time(cloned.pid)
                .ok_or(io::ErrorKind::NotFound)
                .map_err(io::Error::from)
                .doing("read when the first process started")
        };
        let started = set_up();
        let process = |start_time| Process {
            id: ProcessId {
                pid: cloned.pid,
                start_time,
                boot_id: self.boot_id.clone(),
            },
            pidfd: Arc::new(cloned.pidfd),
        };
        match started {
            Ok(start_time) => Ok(process(start_time)),
            Err(error) => {
                // It ends by itself when its connection closes, unless it is stuck.
                let failed = process(0);
                if let Err(also) = cgroup.kill().and_then(|()| failed.wait()) {
                    tracing::warn!(%uid, error = %also, "a failed first process did not end");
                }
                Err(error)
            }
        }
    }

    fn program(&self, uid: Uid) -> Result<Program> {
        let text = |text: String| {
            CString::new(text)
                .map_err(io::Error::from)
                .doing("prepare the init program's arguments")
        };
        let args = std::iter::once(INIT.to_string_lossy().into_owned())
            .chain(self.options.init_args.iter().cloned())
            .map(text)
            .collect::<Result<Vec<_>>>()?;
        let env = [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
            "HOME=/root".into(),
            "LANG=C.UTF-8".into(),
            format!("DORMOUSE_UID={uid}"),
        ]
        .map(text)
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
        Ok(Program::new(INIT.into(), args, env))
    }

    fn rlimits(&self) -> [(Resource, Rlimit); 3] {
        let at_most = |resource, wanted: u64| {
            // The server may lack the right to raise a limit.
            let hard = getrlimit(resource).maximum.unwrap_or(u64::MAX);
            let limit = Some(wanted.min(hard));
            (
                resource,
                Rlimit {
                    current: limit,
                    maximum: limit,
                },
            )
        };
        [
            at_most(Resource::Nofile, self.options.limits.open_files),
            // A core would be written by the pattern of the host.
            at_most(Resource::Core, 0),
            at_most(Resource::Memlock, 8 << 20),
        ]
    }
}

#[expect(
    unsafe_code,
    reason = "the child's script keeps the promise that a clone asks for"
)]
fn clone(cgroup: BorrowedFd<'_>, script: &Script<'_>) -> io::Result<Cloned> {
    // SAFETY: `child::run` makes system calls on what the script holds and ends in exec or exit;
    // it allocates nothing and takes no lock.
    unsafe { crate::kernel::clone::clone_into(cgroup, || child::run(script)) }
}

/// Gives the process its user ids, and returns its user namespace.
fn map_ids(pid: i32, record: &Record) -> Result<OwnedFd> {
    use io::Write as _;
    let map = record.range().map();
    for file in ["uid_map", "gid_map"] {
        let path = format!("/proc/{pid}/{file}");
        let write = || {
            fs::OpenOptions::new()
                .write(true)
                .open(&path)?
                .write_all(map.as_bytes())
        };
        write().doing(format!("write {file} of the first process"))?;
    }
    let namespace = File::open(format!("/proc/{pid}/ns/user"));
    Ok(namespace.doing("open the user namespace")?.into())
}

/// Sends the mounts, which is also the word to go on.
fn hand_over(socket: BorrowedFd<'_>, mounts: &[OwnedFd]) -> rustix::io::Result<()> {
    let fds: Vec<_> = mounts.iter().map(|mount| mount.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MOUNTS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(rustix::io::Errno::NOBUFS);
    }
    sendmsg(
        socket,
        &[IoSlice::new(b"!")],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// The connection closes by itself when the init program is executed; before that it carries the
/// report of a failure.
fn wait_for_exec(socket: BorrowedFd<'_>) -> Result<()> {
    let mut report = [0; Failure::SIZE];
    loop {
        match recv(socket, &mut report, RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok((_, 0)) => return Ok(()),
            Ok(_) => {
                let (doing, source) = Failure::read(report);
                return Err(EngineError::Inside { doing, source });
            }
            Err(error) => return Err(error).doing("wait for the init program to run"),
        }
    }
}
