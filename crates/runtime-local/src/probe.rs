//! What this host can do, for `dormouse doctor` and for a server that starts.
//!
//! A capability is probed by doing it, in a directory, a cgroup and namespaces that are gone
//! afterwards. Versions are not asked: distributions carry features back, and containers and
//! policies take them away.
//!
//! | Module | What it tries |
//! |---|---|
//! | `kernel` | namespaces, mounts, cgroups, filters: without any of them there is no sandbox |
//! | `host` | files, programs and limits: without them there is less |

mod connected;
mod host;
mod kernel;

use std::{borrow::Cow, fmt, path::Path};

use serde::Serialize;

pub use host::agent;
pub(crate) use host::find_program;

/// One thing that sandboxes need or can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// Its name.
    pub name: &'static str,
    /// Whether this host has it.
    pub state: State,
    /// Whether no sandbox can run without it.
    pub essential: bool,
    /// What was seen.
    pub detail: String,
    /// What it means that it is not there whole; empty where it is.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub meaning: &'static str,
    /// What to do about that; empty where there is nothing to do.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub remedy: Cow<'static, str>,
}

/// Whether a host has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All of it.
    Ok,
    /// Some of it.
    Degraded,
    /// Nothing that could be used.
    Missing,
}

impl State {
    /// As it is shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One line: state, name, what was seen, what it means, what to do.
impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<8}  {:<22}  {}", self.state, self.name, self.detail)?;
        if !self.meaning.is_empty() {
            write!(f, ": {}", self.meaning)?;
        }
        if !self.remedy.is_empty() {
            write!(f, ". {}", self.remedy)?;
        }
        Ok(())
    }
}

impl Capability {
    /// Whether sandboxes cannot run because of it.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.essential && self.state == State::Missing
    }

    fn new(name: &'static str, essential: bool, seen: Seen) -> Self {
        let (state, detail, meaning, remedy) = match seen {
            Ok(detail) => (State::Ok, detail, "", "".into()),
            Err(lack) => (lack.state, lack.detail, lack.meaning, lack.remedy),
        };
        Self {
            name,
            state,
            essential,
            detail,
            meaning,
            remedy,
        }
    }
}

/// What a probe saw.
type Seen = Result<String, Lack>;

/// What a probe did not find.
#[derive(Debug)]
struct Lack {
    state: State,
    detail: String,
    meaning: &'static str,
    remedy: Cow<'static, str>,
}

impl Lack {
    fn missing(
        detail: impl fmt::Display,
        meaning: &'static str,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            state: State::Missing,
            detail: detail.to_string(),
            meaning,
            remedy: remedy.into(),
        }
    }

    fn degraded(
        detail: impl fmt::Display,
        meaning: &'static str,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            state: State::Degraded,
            ..Self::missing(detail, meaning, remedy)
        }
    }
}

/// A name that nobody else has who probes this host: containers may share its cgroups or a directory.
fn own_name() -> String {
    format!("probe-{}", kit::unique::name())
}

/// Tries what every sandbox needs; the data directory need not be there yet.
#[must_use]
pub fn probe_essential(data_dir: &Path) -> Vec<Capability> {
    let essential = |name, seen| Capability::new(name, true, seen);
    let ground = host::Ground::find(data_dir);
    let mut all = vec![
        essential("privileges", kernel::privileges()),
        essential("user namespaces", kernel::user_namespaces()),
        essential("other namespaces", kernel::other_namespaces()),
        essential("cgroup limits", kernel::cgroup_limits()),
        essential("clone into a cgroup", kernel::cgroup_clone()),
        essential("freeze and kill", kernel::cgroup_freeze()),
        essential("seccomp", kernel::seccomp()),
        essential("pairs of links", connected::links()),
        essential("packet filter", connected::rules()),
        essential("packet forwarding", connected::forwarding()),
    ];
    match &ground {
        Err(lack) => all.push(essential("data directory", Err(lack.again()))),
        Ok(ground) => all.extend([
            essential("data directory", ground.data_directory()),
            essential("idmapped mounts", kernel::idmapped_mounts(ground.path())),
            essential("overlayfs", kernel::overlay(ground.path())),
        ]),
    }
    all
}

/// Tries what some sandboxes can use.
#[must_use]
pub fn probe_optional(data_dir: &Path) -> Vec<Capability> {
    let optional = |name, seen| Capability::new(name, false, seen);
    vec![
        optional("base image", host::base_image()),
        optional("programs of base", host::base_programs()),
        optional("disk limits", host::disk_limits(data_dir)),
        optional("open files", host::open_files()),
        optional("runc", host::oci_runtime("runc")),
        optional("runsc", host::oci_runtime("runsc")),
    ]
}
