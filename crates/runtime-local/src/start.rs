//! From directories to a running first process: the server's side of the clone.

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
    time::Duration,
};

use model::Uid;
use rustix::{
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
        SocketFlags, SocketType, recv, send, sendmsg, shutdown, socketpair, sockopt,
    },
    process::{Resource, Rlimit, getrlimit, set_dumpable_behavior},
    thread::CapabilitySet,
};

use crate::{
    base::USR_LOCAL,
    child::{self, Failure, MAX_MOUNTS, Script},
    engine::Engine,
    error::{Doing as _, EngineError, Result},
    kernel::{
        borrow::{Newborn, clone_into},
        clone::Cloned,
        exec::Program,
    },
    options::Step,
    record::{ProcessId, Record},
    rootfs::{INIT, Root},
    workload::{Process, start_time},
};

/// What root inside may still do, all of it confined by namespaces. Not among them: mounting,
/// devices, networks, modules, tracing, raw sockets.
pub(crate) const KEPT: CapabilitySet = CapabilitySet::CHOWN
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
    /// when the init program runs. Its root is mounted once the writable layer is filled, and it runs
    /// once that is proven; `meanwhile` is done with its number beside. If anything fails, so does the
    /// start.
    pub(crate) fn start(
        &self,
        uid: Uid,
        root: Root<'_>,
        meanwhile: impl FnOnce(i32) -> Result<()> + Send,
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
        let (record, image) = (root.record, root.image);
        let mounts = self.mount_list(image);
        let program = self.program(uid)?;
        let doors = cgroup.doors()?;
        let script = Script {
            socket: theirs.as_fd(),
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
        let into = cgroup.open()?;
        let newborn = Newborn::expected();
        // This thread sleeps until the program runs; another one does what the child waits for.
        let (cloned, set_up) = thread::scope(|scope| {
            let beside = scope.spawn(|| {
                // Whatever goes wrong here, the thread that sleeps must wake.
                let doomed = newborn.doomed();
                let done = wait_for_child(ours.as_fd())
                    .and_then(|()| self.set_up(root, &newborn, ours.as_fd()))
                    .and_then(|()| meanwhile(newborn.pid()));
                if done.is_ok() {
                    doomed.spare();
                }
                done
            });
            let cloned = clone(into.as_fd(), &newborn, &script).doing("clone the first process");
            if cloned.is_err() {
                // What whoever waits hears; that this cannot fail is the kernel's promise.
                let _ = shutdown(&theirs, Shutdown::Both);
            }
            let set_up = beside.join().unwrap_or_else(|_| {
                Err(io::Error::other("the thread that sets it up has panicked"))
                    .doing("set the first process up")
            });
            (cloned, set_up)
        });
        let cloned = cloned?;
        // It has changed its user, which the kernel takes for a reason to let nobody look into the
        // memory that it has borrowed.
        if let Some(behavior) = self.dumpable {
            set_dumpable_behavior(behavior).doing("give the server's memory back")?;
        }
        let started = last_word(ours.as_fd()).and(set_up).and_then(|()| {
            self.options.reached(Step::Executed);
            start_time(cloned.pid)
                .ok_or(io::ErrorKind::NotFound)
                .map_err(io::Error::from)
                .doing("read when the first process started")
        });
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
                let failed = process(0);
                if let Err(also) = cgroup.kill().and_then(|()| failed.wait()) {
                    tracing::warn!(%uid, error = %also, "a failed first process did not end");
                }
                Err(error)
            }
        }
    }

    /// What a child cannot do for itself.
    fn set_up(&self, root: Root<'_>, newborn: &Newborn, socket: BorrowedFd<'_>) -> Result<()> {
        self.options.reached(Step::Cloned);
        let user_namespace = map_ids(newborn.pid(), root.record)?;
        let mounts = self.host_mounts(root, user_namespace.as_fd())?;
        hand_over(socket, &mounts.handed_over).doing("hand the mounts over")?;
        self.options.reached(Step::Mounted);
        // It sets itself up meanwhile, and waits before it executes anything.
        mounts.proving.wait()?;
        send(socket, b"!", SendFlags::NOSIGNAL)
            .doing("let the first process run")
            .map(drop)
    }

    fn program(&self, uid: Uid) -> Result<Program> {
        let text = |text: String| {
            CString::new(text)
                .map_err(io::Error::from)
                .doing("prepare the init program's arguments")
        };
        let texts = |all: Vec<String>| all.into_iter().map(text).collect::<Result<Vec<_>>>();
        let (args, env) = (texts(self.arguments())?, texts(Self::environment(uid))?);
        Ok(Program::new(INIT.into(), args, env))
    }

    /// What the first process is called with, its name included.
    pub(crate) fn arguments(&self) -> Vec<String> {
        std::iter::once(INIT.to_string_lossy().into_owned())
            .chain(self.options.init_args.iter().cloned())
            .collect()
    }

    pub(crate) fn environment(uid: Uid) -> Vec<String> {
        vec![
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
            "HOME=/root".into(),
            "LANG=C.UTF-8".into(),
            format!("DORMOUSE_UID={uid}"),
        ]
    }

    pub(crate) fn rlimits(&self) -> [(Resource, Rlimit); 3] {
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
fn clone(cgroup: BorrowedFd<'_>, newborn: &Newborn, script: &Script<'_>) -> io::Result<Cloned> {
    // SAFETY: `child::run` makes system calls on what the script holds and ends in exec or exit;
    // it allocates nothing and takes no lock.
    unsafe { clone_into(cgroup, newborn, || child::run(script)) }
}

/// Gives the process its user ids, and returns its user namespace.
pub(crate) fn map_ids(pid: i32, record: &Record) -> Result<OwnedFd> {
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

/// Sends the mounts, which is also the word to set itself up.
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

/// The first word of the child: it is there.
fn wait_for_child(socket: BorrowedFd<'_>) -> Result<()> {
    let mut word = [0];
    loop {
        return match recv(socket, &mut word, RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok((_, 0)) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            other => other.map(drop).map_err(io::Error::from),
        }
        .doing("wait for the first process");
    }
}

/// The last word of a child that could not execute its program. Asked for when it has, or has
/// ended.
fn last_word(socket: BorrowedFd<'_>) -> Result<()> {
    let mut word = [0; Failure::SIZE];
    match recv(socket, &mut word, RecvFlags::DONTWAIT) {
        Ok((_, Failure::SIZE)) => {
            let (doing, source) = Failure::read(word);
            Err(EngineError::Inside { doing, source })
        }
        // Nothing was said.
        Ok(_) | Err(_) => Ok(()),
    }
}
