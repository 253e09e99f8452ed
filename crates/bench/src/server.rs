//! A server under test, in a home of its own.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::{Result, Target, http::Api, resident_bytes, verdict};

/// A server that ends with this.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    child: Child,
    home: Option<TempDir>,
    address: String,
    key: String,
}

impl Server {
    /// A first start in an empty directory.
    pub fn start(programs: &Path, runtime: &str) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, programs, runtime)
    }

    /// A start in a home that was used before.
    pub fn start_in(home: TempDir, programs: &Path, runtime: &str) -> Result<Self> {
        let mut child = Command::new(programs.join("dormouse"))
            .args(["serve", "--runtime", runtime, "--listen", "127.0.0.1:0"])
            .args(["--e2b-listen", "127.0.0.1:0", "--log-level", "error"])
            .arg("--data-dir")
            .arg(home.path().join("data"))
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let (mut address, mut key) = (None, None);
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let value = |name: &str| {
                let (_, value) = line.split_once(name)?;
                Some(value.to_owned())
            };
            key = value("E2B_API_KEY=").or(key);
            address = value("E2B_API_URL=http://").or(address);
            if line.contains("dormouse get sandboxes") {
                break;
            }
        }
        Ok(Self {
            program: programs.join("dormouse"),
            child,
            home: Some(home),
            address: address.ok_or("the server did not say where it is")?,
            key: key.unwrap_or_default(),
        })
    }

    /// How to call it.
    #[must_use]
    pub fn api(&self) -> Api {
        Api {
            address: self.address.clone(),
            key: self.key.clone(),
        }
    }

    /// How often a sandbox has woken.
    pub fn wakes(&self, id: &str) -> Result<u64> {
        let record = self.get("sandbox", id)?;
        let woken = record["status"]["sleeps"]["woken"].as_u64();
        Ok(woken.unwrap_or_default())
    }

    /// An object, as it is served.
    pub fn get(&self, kind: &str, name: &str) -> Result<serde_json::Value> {
        let shown = self.command(&["get", kind, name, "-o", "json"])?.output()?;
        if !shown.status.success() {
            return Err(String::from_utf8_lossy(&shown.stderr).into());
        }
        Ok(serde_json::from_slice(&shown.stdout)?)
    }

    /// Creates or changes objects.
    pub fn apply(&self, text: &str) -> Result<()> {
        let home = self.home.as_ref().ok_or("it has no home")?;
        let file = home.path().join("apply.yaml");
        kit::durable::write_file(&file, text.as_bytes(), 0o600)?;
        let mut command = self.command(&["apply", "-f"])?;
        let applied = command.arg(file).output()?;
        if applied.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&applied.stderr).into())
        }
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let home = self.home.as_ref().ok_or("it has no home")?;
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("DORMOUSE_DATA_DIR", home.path().join("data"));
        Ok(command)
    }

    /// How many layers it has stored.
    pub fn layers(&self) -> Result<usize> {
        let home = self.home.as_ref().ok_or("it has no home")?;
        match std::fs::read_dir(home.path().join("data/layers/sha256")) {
            Ok(found) => Ok(found.count()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Prints the memory it takes, and holds it to what an idle one may take.
    pub fn memory(&self, name: &str) -> Result<()> {
        verdict(
            &format!("{name}, MB"),
            self.resident()?,
            Target::AtMost(64.0),
        );
        Ok(())
    }

    /// The memory it takes, in megabytes.
    pub fn resident(&self) -> Result<f64> {
        Ok(resident_bytes(self.child.id())? as f64 / f64::from(1 << 20))
    }

    /// Stops it in order, and answers its home.
    pub fn stop(mut self) -> Result<TempDir> {
        self.end()?;
        self.home.take().ok_or_else(|| "it has no home".into())
    }

    fn end(&mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.home.is_some() {
            // Nothing is left to do about one that does not end.
            let _ = self.end();
        }
    }
}

/// Where the programs under test are: beside this one.
pub fn programs() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let directory = here
        .parent()
        .ok_or("this program is nowhere")?
        .to_path_buf();
    for name in ["dormouse", "dormouse-agent"] {
        if !directory.join(name).is_file() {
            return Err(format!(
                "{name} is not in {}: cargo build --release -p dormouse -p dormouse-agent",
                directory.display()
            )
            .into());
        }
    }
    Ok(directory)
}
