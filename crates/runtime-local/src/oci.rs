//! Sandboxes whose processes an OCI runtime starts: `runc`, or gVisor's `runsc`.
//!
//! A class changes who starts the first process, and nothing else: records, directories, user ids,
//! layers, cgroups, fences and the rules after a crash are those of every sandbox. So only the start
//! is here. Freezing, killing, finding again and removing go through the cgroup and the first
//! process, which the runtime has put where the engine's own would be.
//!
//! ```text
//! holder: user and network namespace ──▶ mounts with mapped ids
//!                                            │ attached in a mount namespace of its own
//!                                            ▼
//!                              runtime create ──▶ record made durable ──▶ runtime start
//! ```
//!
//! The runtime's `create` is cloned into a mount namespace where the root filesystem is attached:
//! the sandbox gets a copy of it, the host never sees it, and nothing is left to unmount. Its state
//! and log are in the sandbox's directory, and go with that; the runtime is not asked to delete.

mod config;
mod invoke;

use std::{
    fs,
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::PathBuf,
    sync::Arc,
};

use model::{Uid, template::RuntimeClass};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{
    child::Mount,
    engine::Engine,
    error::{Doing as _, EngineError, Result, impossible},
    kernel::trial::Trial,
    options::Step,
    probe::find_program,
    record::{Place, ProcessId},
    rootfs::Root,
    start::map_ids,
    tree,
    workload::{Process, start_time},
};
use invoke::{Attached, Call};

/// An OCI runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Runc,
    Runsc,
}

impl Kind {
    /// What starts sandboxes of a class; none where the engine does it itself.
    pub(crate) const fn of(class: RuntimeClass) -> Option<Self> {
        match class {
            RuntimeClass::Native => None,
            RuntimeClass::Runc => Some(Self::Runc),
            RuntimeClass::Runsc => Some(Self::Runsc),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Runsc => "runsc",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::Runc => "install it on the host (apt-get install runc)",
            Self::Runsc => "put gVisor's runsc into /usr/local/bin of the host",
        }
    }

    fn program(self) -> Result<PathBuf> {
        find_program(self.name()).ok_or_else(|| {
            let (name, remedy) = (self.name(), self.remedy());
            let reason =
                format!("the class {self:?} needs {name}, which this host lacks: {remedy}");
            impossible("runtimeClass", reason)
        })
    }

    /// Options of the runtime that hold for every call.
    const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Runc => &[],
            // The network namespace is the sandbox's own, so what is the host's to runsc is not the
            // host's; with its own network stack, nobody outside could reach a port inside. Cgroups
            // are joined before it starts. What is written goes to the writable layer at once: it is
            // captured there.
            Self::Runsc => &[
                "--network=host",
                "--ignore-cgroups",
                "--overlay2=none",
                "--file-access=shared",
            ],
        }
    }
}

/// Refuses a class by name whose runtime is not there.
pub(crate) fn admit(class: RuntimeClass) -> Result<()> {
    match Kind::of(class) {
        None => Ok(()),
        Some(kind) => kind.program().map(drop),
    }
}

impl Engine {
    /// As [`Engine::start`], by a runtime.
    pub(crate) fn start_by(
        &self,
        kind: Kind,
        uid: Uid,
        root: Root<'_>,
        meanwhile: impl FnOnce(i32) -> Result<()>,
    ) -> Result<Process> {
        let started = self.make_and_start(kind, uid, root, meanwhile);
        if started.is_err()
            && let Err(also) = self.cgroup(uid).kill()
        {
            tracing::warn!(%uid, error = %also, "processes of a failed start did not end");
        }
        started
    }

    fn make_and_start(
        &self,
        kind: Kind,
        uid: Uid,
        root: Root<'_>,
        meanwhile: impl FnOnce(i32) -> Result<()>,
    ) -> Result<Process> {
        let (place, record, image) = (root.place, root.record, root.image);
        let program = kind.program()?;
        let stage = invoke::stage(&[&self.data, &program])?;
        let bundle = place.bundle();
        make_bundle(place)?;
        let cgroup = self.cgroup(uid);
        let entry = cgroup.entry(kind == Kind::Runsc)?;

        // The namespaces that must be there before the runtime is. It keeps them from its start on.
        let inside = entry.as_ref().map(|entry| entry.unified.as_fd());
        let holder = Trial::with_network(inside).doing("make the sandbox's namespaces")?;
        let user_namespace = map_ids(holder.pid(), record)?;
        let mounts = self.host_mounts(root, user_namespace.as_fd())?;
        let list = self.mount_list(image);
        let targets = list.iter().filter_map(|mount| match mount {
            Mount::Received { target } => Some(*target),
            _ => None,
        });
        let config = config::Config {
            kind,
            stage: &stage,
            holder: holder.pid(),
            cgroup: &self.cgroups.path(uid),
        };
        let config = self.write_config(&config, uid, record);
        write_new(&bundle.join("config.json"), &config)?;
        let attached = Attached {
            stage: &stage,
            mounts: &mounts.handed_over,
            targets: targets.collect(),
            pierced: image.usr.as_ref().map(|_| crate::base::USR_LOCAL),
        };
        let call = Call {
            kind,
            program: &program,
            bundle: &bundle,
            entry: entry.as_ref(),
        };
        let name = uid.to_string();
        let (path, pid_file) = (invoke::text(&bundle)?, bundle.join("pid"));
        let file = invoke::text(&pid_file)?;
        let words = ["create", "--bundle", &path, "--pid-file", &file, &name];
        call.run(&words, Some(&attached))?;
        let process = self.find_process(&pid_file)?;
        drop(holder);
        let proving = mounts.let_go();
        self.options.reached(Step::Cloned);
        self.options.reached(Step::Mounted);
        meanwhile(process.id.pid)?;
        proving.wait()?;
        call.run(&["start", &name], None)?;
        self.options.reached(Step::Executed);
        Ok(process)
    }

    fn find_process(&self, pid_file: &std::path::Path) -> Result<Process> {
        let find = || {
            let text = fs::read_to_string(pid_file)?;
            let pid: i32 = text.trim().parse().map_err(io::Error::other)?;
            let raw = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
            let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
            let start_time = start_time(pid).ok_or(io::ErrorKind::NotFound)?;
            Ok::<_, io::Error>(Process {
                id: ProcessId {
                    pid,
                    start_time,
                    boot_id: self.boot_id.clone(),
                },
                pidfd: Arc::new(pidfd),
            })
        };
        find().doing("find the first process that the runtime made")
    }
}

/// The directory of what the runtime is told and keeps.
fn make_bundle(place: &Place) -> Result<()> {
    let make = || {
        // Of the last start.
        tree::remove(&place.bundle(), &place.parking())?;
        tree::ensure_directory(&place.bundle(), 0o700)?;
        tree::ensure_directory(&place.bundle().join("state"), 0o700)
    };
    make().doing("make the runtime's directory")
}

fn write_new(path: &std::path::Path, content: &serde_json::Value) -> Result<()> {
    let write = || {
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?
            .write_all(content.to_string().as_bytes())
    };
    write().doing("write the runtime's configuration")
}

/// A failure of the runtime, in its own words.
fn failed(kind: Kind, doing: &str, said: impl Into<Box<str>>) -> EngineError {
    EngineError::Oci {
        runtime: kind.name(),
        doing: doing.into(),
        said: said.into(),
    }
}
