//! What is on this host: files, programs, limits.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use model::Uid;
use rustix::{
    fs::{XattrFlags, setxattr, statfs},
    process::{Resource, getrlimit},
};

use super::{Capability, Lack, Seen, State, own_name};
use crate::{disk::Disks, error::Doing as _, record::Place, tree};

/// A directory for trials where the data directory is or would be; gone when dropped.
#[derive(Debug)]
pub(super) struct Ground {
    path: PathBuf,
    filesystem: String,
}

const WRITABLE: &str = "Name another with --data-dir, or let root write it.";
const NOWHERE: &str = "the server has nowhere to keep sandboxes";

impl Ground {
    pub(super) fn find(data_dir: &Path) -> Result<Self, Lack> {
        let lacking = |path: &Path, error: &dyn std::fmt::Display| {
            Lack::missing(format!("{}: {error}", path.display()), NOWHERE, WRITABLE)
        };
        let absolute = std::path::absolute(data_dir).map_err(|error| lacking(data_dir, &error))?;
        let there = absolute.ancestors().find(|path| path.is_dir());
        let there = there.ok_or_else(|| lacking(&absolute, &"no such directory"))?;
        let path = there.join(format!(".dormouse-{}", own_name()));
        fs::create_dir(&path).map_err(|error| lacking(there, &error))?;
        let filesystem = statfs(&path).map_or_else(
            |error| io::Error::from(error).to_string(),
            |stat| filesystem_name(stat.f_type),
        );
        Ok(Self { path, filesystem })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Durable files, and attributes of users: programs inside keep their own notes in them.
    pub(super) fn data_directory(&self) -> Seen {
        let place = self.path.parent().unwrap_or(&self.path).display();
        let file = self.path.join("file");
        kit::durable::write_file(&file, b"x", 0o600)
            .map_err(|error| Lack::missing(format!("{place}: {error}"), NOWHERE, WRITABLE))?;
        let seen = format!("{place} is writable, on {}", self.filesystem);
        if let Err(error) = setxattr(&file, "user.dormouse", b"x", XattrFlags::empty()) {
            return Err(Lack::degraded(
                format!(
                    "{seen}, without attributes of users ({})",
                    io::Error::from(error)
                ),
                "programs inside cannot set any",
                "Mount it with user_xattr, or use ext4, xfs or btrfs.",
            ));
        }
        if self.filesystem == "tmpfs" {
            return Err(Lack::degraded(
                seen,
                "what sleeps is lost with the host's memory",
                "Name a directory on a disk with --data-dir.",
            ));
        }
        Ok(seen)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let parking = self.path.with_extension("parking");
        if let Err(error) = tree::remove(&self.path, &parking) {
            tracing::warn!(path = %self.path.display(), %error, "a trial left a directory");
        }
    }
}

impl Lack {
    /// The same once more.
    pub(super) fn again(&self) -> Self {
        Self {
            state: self.state,
            detail: self.detail.clone(),
            meaning: self.meaning,
            remedy: self.remedy.clone(),
        }
    }
}

fn filesystem_name(magic: impl TryInto<u64>) -> String {
    let magic = magic.try_into().unwrap_or_default() & 0xffff_ffff;
    match magic {
        0xef53 => "ext4".into(),
        0x5846_5342 => "xfs".into(),
        0x9123_683e => "btrfs".into(),
        0x0102_1994 => "tmpfs".into(),
        0x794c_7630 => "overlay".into(),
        0x6969 => "nfs".into(),
        0x2fc1_2fc1 => "zfs".into(),
        0xf2f5_2010 => "f2fs".into(),
        other => format!("a filesystem of type {other:#x}"),
    }
}

/// The image `base` is the host's `/usr` under a generated root.
pub(super) fn base_image() -> Seen {
    for name in ["bin", "lib"] {
        if fs::read_link(Path::new("/").join(name)).is_err() {
            return Err(Lack::missing(
                format!("/{name} is not a link into /usr"),
                "the image `base` is refused",
                "Give templates an image of their own.",
            ));
        }
    }
    Ok("/usr can be shared with sandboxes".into())
}

/// What clients expect of `base`: a program, and the package it comes from.
const PROGRAMS: [(&str, &str); 9] = [
    ("bash", "bash"),
    ("env", "coreutils"),
    ("python3", "python3"),
    ("python", "python-is-python3"),
    ("curl", "curl"),
    ("git", "git"),
    ("sudo", "sudo"),
    ("tput", "ncurses-bin"),
    ("update-ca-certificates", "ca-certificates"),
];

pub(super) fn base_programs() -> Seen {
    let is_there = |name: &str| {
        let mut directories = ["/usr/bin", "/usr/sbin"].iter().map(Path::new);
        directories.any(|directory| is_program(&directory.join(name)))
    };
    let (there, missing): (Vec<_>, Vec<_>) = PROGRAMS.iter().partition(|(name, _)| is_there(name));
    let names = |list: &[&(&str, &str)]| {
        let names: Vec<_> = list.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    };
    if missing.is_empty() {
        return Ok(names(&there));
    }
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    Err(Lack::degraded(
        format!("/usr lacks {}", names(&missing)),
        "code that runs them fails in the image `base`",
        format!("Install them: apt-get install {}", packages.join(" ")),
    ))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Where a program of the host is. Servers are often started with a short PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|path| is_program(path))
}

/// No cgroup limits disk space: it takes a filesystem that does, which is made, and goes again.
pub(super) fn disk_limits(data_dir: &Path) -> Seen {
    let ground = Ground::find(data_dir)?;
    let place = Place::new(ground.path.join("sandbox"));
    let uid = Uid::from_random(0);
    let tried = || {
        fs::create_dir(place.directory()).doing("make a sandbox's directory")?;
        let disks = Disks::open(ground.path.join("disks"))?;
        let made = disks.make(uid, &place, 16);
        let removed = disks.remove(uid, &place);
        made.and(removed)
    };
    tried()
        .map(|()| "a disk of a sandbox's own was made and limited".into())
        .map_err(|error| {
            Lack::missing(
                error,
                "a sandbox that asks for a disk limit is refused",
                "Install btrfs-progs, and let this process use loop devices and btrfs (modprobe loop btrfs)",
            )
        })
}

/// The server holds about one descriptor for each sandbox, and some for each connection.
pub(super) fn open_files() -> Seen {
    const ENOUGH: u64 = 16_384;
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if limit >= ENOUGH {
        return Ok(format!("up to {limit}"));
    }
    Err(Lack::degraded(
        format!("up to {limit}"),
        "that bounds sandboxes and connections together, and what a process inside may open",
        format!(
            "Raise the hard limit to {ENOUGH} or more: LimitNOFILE= of the unit, or ulimit -Hn"
        ),
    ))
}

/// An OCI runtime: it says its version.
pub(super) fn oci_runtime(name: &'static str) -> Seen {
    let (meaning, remedy) = match name {
        "runsc" => (
            "templates of the class Runsc are refused",
            "Put gVisor's runsc into /usr/local/bin",
        ),
        _ => (
            "templates of the class Runc are refused",
            "Install it: apt-get install runc",
        ),
    };
    let Some(path) = find_program(name) else {
        return Err(Lack::missing("not found", meaning, remedy));
    };
    let said = Command::new(&path)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    match said {
        Ok(said) if said.status.success() => {
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            let version = text.lines().next().unwrap_or_default().trim().to_owned();
            Ok(format!("{} ({version})", path.display()))
        }
        Ok(said) => {
            let detail = format!("{} does not run: {}", path.display(), said.status);
            Err(Lack::missing(detail, meaning, remedy))
        }
        Err(error) => {
            let detail = format!("{} does not run: {error}", path.display());
            Err(Lack::missing(detail, meaning, remedy))
        }
    }
}

/// Looks at the agent, or at why there is none.
#[must_use]
pub fn agent(found: Result<&Path, &str>) -> Capability {
    let meaning = "nothing can be run in a sandbox";
    let remedy = "Put dormouse-agent beside this program.";
    let seen = match found {
        Err(why) => Err(Lack::missing(why, meaning, remedy)),
        Ok(path) => match interpreter(path) {
            Ok(None) => Ok(format!("{} is static", path.display())),
            Ok(Some(interpreter)) => Err(Lack {
                state: State::Degraded,
                detail: format!("{} needs {interpreter}", path.display()),
                meaning: "it cannot start in an image without that C library",
                remedy: "Build it static: cargo build --release -p dormouse-agent --target \
                         x86_64-unknown-linux-musl"
                    .into(),
            }),
            Err(error) => {
                let detail = format!("{}: {error}", path.display());
                Err(Lack::missing(detail, meaning, remedy))
            }
        },
    };
    Capability::new("agent", true, seen)
}

/// The program that a dynamic ELF program asks for; none if it is static.
fn interpreter(path: &Path) -> io::Result<Option<String>> {
    const PROGRAM_HEADER: usize = 56;
    const INTERPRETER: usize = 3;
    let mut start = Vec::new();
    File::open(path)?.take(1 << 16).read_to_end(&mut start)?;
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "not a 64-bit program");
    let bytes = |at: usize, length: usize| {
        let end = at.checked_add(length).ok_or_else(bad)?;
        start.get(at..end).ok_or_else(bad)
    };
    let number = |at: usize, length: usize| {
        let mut wide = [0; 8];
        wide[..length].copy_from_slice(bytes(at, length)?);
        usize::try_from(u64::from_le_bytes(wide)).map_err(io::Error::other)
    };
    if bytes(0, 5)? != b"\x7fELF\x02" {
        return Err(bad());
    }
    let (first, count) = (number(32, 8)?, number(56, 2)?);
    for header in 0..count {
        let at = first + header * PROGRAM_HEADER;
        if number(at, 4)? == INTERPRETER {
            let text = bytes(number(at + 8, 8)?, number(at + 32, 8)?)?;
            let text = String::from_utf8_lossy(text);
            return Ok(Some(text.trim_end_matches('\0').to_owned()));
        }
    }
    Ok(None)
}
