//! What can be chosen about the engine.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

/// Choices that hold for every sandbox of one engine.
#[derive(Clone)]
pub struct Options {
    /// The program that is PID 1 of every sandbox. It is mounted read-only into it, so it should
    /// be static: an image need not have a C library.
    pub init: PathBuf,
    /// Arguments of the first process, after its name.
    pub init_args: Vec<String>,
    /// Where the first process listens, if it is the agent: then it is told a delivery's settings
    /// there. Without, they are a file in `/run/dormouse`.
    pub agent_port: Option<u16>,
    /// Directories that can be named as an image, besides `base`. What a sandbox asks for is
    /// looked up here, so that no path of the host can be asked for.
    pub images: BTreeMap<String, PathBuf>,
    /// How all other images are had: registries, credentials, sizes.
    pub image_store: images::Options,
    /// Limits where a sandbox asks for none.
    pub limits: Limits,
    /// How long a template's commands may take to bring a sandbox up.
    pub startup_timeout: Duration,
    /// The largest snapshot of a writable layer.
    pub max_layer_bytes: u64,
    /// The first user id on the host that sandboxes may use; each gets 65,536 of them.
    pub first_uid: u32,
    /// How many sandboxes can have user ids at once.
    pub ranges: u32,
    /// Below this directory of each cgroup hierarchy.
    pub cgroup_parent: String,
    /// How sandboxes reach the outside; without, they have loopback only.
    pub network: Option<network::Options>,
    /// Content of `/etc/resolv.conf` in `base`; empty means the network's name server.
    pub resolv_conf: String,
    /// Called at each step of making and removing a sandbox, so that tests can die there.
    #[doc(hidden)]
    pub on_step: Option<StepHook>,
}

/// See [`Options::on_step`].
#[doc(hidden)]
pub type StepHook = Arc<dyn Fn(Step) + Send + Sync>;

/// Limits of one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Processes and threads.
    pub pids: u32,
    /// Memory in MiB; none means the host's.
    pub memory_mib: Option<u32>,
    /// Thousandths of a processor; none means the host's.
    pub cpu_millis: Option<u32>,
    /// Open files of one process.
    pub open_files: u64,
}

/// Steps of making and removing a sandbox, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The note that it is being made is written.
    Noted,
    /// Its directories are there.
    Directories,
    /// Its cgroups are there.
    Cgroups,
    /// Its first process exists and waits.
    Cloned,
    /// Its mounts are made and handed over.
    Mounted,
    /// Its first process runs the init program.
    Executed,
    /// The note that it is made is written.
    Made,
    /// The note that it is being removed is written.
    Removing,
    /// Its processes are gone.
    Killed,
    /// Its cgroups are gone.
    Ungrouped,
    /// Its writable layer is gone.
    Emptied,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 11] = [
        Self::Noted,
        Self::Directories,
        Self::Cgroups,
        Self::Cloned,
        Self::Mounted,
        Self::Executed,
        Self::Made,
        Self::Removing,
        Self::Killed,
        Self::Ungrouped,
        Self::Emptied,
    ];

    const fn failpoint(self) -> failpoints::Step {
        match self {
            Self::Noted => failpoints::Step::Noted,
            Self::Directories => failpoints::Step::Directories,
            Self::Cgroups => failpoints::Step::Cgroups,
            Self::Cloned => failpoints::Step::Cloned,
            Self::Mounted => failpoints::Step::Mounted,
            Self::Executed => failpoints::Step::Executed,
            Self::Made => failpoints::Step::Made,
            Self::Removing => failpoints::Step::Removing,
            Self::Killed => failpoints::Step::Killed,
            Self::Ungrouped => failpoints::Step::Ungrouped,
            Self::Emptied => failpoints::Step::Emptied,
        }
    }
}

impl Options {
    /// The usual choices, with this program as PID 1.
    #[must_use]
    pub fn new(init: impl Into<PathBuf>) -> Self {
        Self {
            init: init.into(),
            init_args: Vec::new(),
            agent_port: None,
            images: BTreeMap::new(),
            image_store: images::Options::default(),
            limits: Limits::default(),
            startup_timeout: Duration::from_secs(120),
            max_layer_bytes: 64 << 30,
            first_uid: 0x2000_0000,
            ranges: 0x4000,
            cgroup_parent: "dormouse".into(),
            network: Some(network::Options::default()),
            resolv_conf: String::new(),
            on_step: None,
        }
    }

    /// The usual choices, with this agent as PID 1.
    #[must_use]
    pub fn agent(program: impl Into<PathBuf>) -> Self {
        Self {
            init_args: vec!["--pid1".into(), "--sealed".into()],
            agent_port: Some(wire::envd::PORT),
            ..Self::new(program)
        }
    }

    pub(crate) fn reached(&self, step: Step) {
        if let Some(hook) = &self.on_step {
            hook(step);
        }
        failpoints::reached(step.failpoint());
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pids: 4096,
            memory_mib: None,
            cpu_millis: None,
            open_files: 16_384,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("init", &self.init)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
