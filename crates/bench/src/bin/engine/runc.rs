//! `runc run` of the same root filesystem and program.

use std::{
    fs,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub(crate) struct Runc {
    bundle: PathBuf,
    next: u32,
}

pub(crate) struct Container {
    id: String,
    pub(crate) pidfd: OwnedFd,
}

impl Runc {
    /// Writes a bundle with runc's own default configuration.
    pub(crate) fn new(rootfs: &Path, bundle: &Path, program: &[&str]) -> io::Result<Self> {
        fs::create_dir_all(bundle)?;
        run(Command::new("runc").arg("spec").current_dir(bundle))?;
        let path = bundle.join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
        config["root"] = serde_json::json!({"path": rootfs, "readonly": false});
        config["process"]["args"] = serde_json::json!(program);
        config["process"]["terminal"] = false.into();
        kit::durable::write_file(&path, &serde_json::to_vec(&config)?, 0o600)?;
        Ok(Self {
            bundle: bundle.into(),
            next: 0,
        })
    }

    pub(crate) fn start(&mut self) -> io::Result<Container> {
        self.next += 1;
        let id = format!("dormouse-bench-{}-{}", std::process::id(), self.next);
        let pid_file = self.bundle.join(format!("{id}.pid"));
        run(Command::new("runc")
            .args(["run", "--detach", "--pid-file"])
            .arg(&pid_file)
            .arg("--bundle")
            .arg(&self.bundle)
            .arg(&id))?;
        let mut text = String::new();
        fs::File::open(&pid_file)?.read_to_string(&mut text)?;
        let pid = text.trim().parse().map_err(io::Error::other)?;
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Container { id, pidfd })
    }
}

impl Container {
    pub(crate) fn end(self) -> io::Result<()> {
        run(Command::new("runc").args(["delete", "--force", &self.id]))
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let missing = |error: io::Error| {
        io::Error::other(format!(
            "this benchmark compares with runc: {error}. Install it: apt-get install runc"
        ))
    };
    // To nowhere: whoever holds a pipe of ours would keep it open.
    let null = || Stdio::null();
    let status = command
        .stdin(null())
        .stdout(null())
        .stderr(Stdio::inherit());
    match status.status().map_err(missing)? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("{command:?}: {status}"))),
    }
}
