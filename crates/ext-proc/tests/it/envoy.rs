//! The real Envoy, from the Python package that carries it.

#[path = "envoy/install.rs"]
mod install;

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::loopback::Own;

/// Where the examples listen.
const PORT: u16 = 10000;

/// An Envoy that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Envoy {
    pub(crate) address: SocketAddr,
    child: Child,
    _directory: tempfile::TempDir,
    _own: Own,
}

impl Envoy {
    /// Starts one of the examples, with these addresses in the place of its own.
    #[allow(dead_code, reason = "others start it as it is")]
    pub(crate) fn start(example: &str, gateway: SocketAddr, ext_proc: SocketAddr) -> Self {
        Self::start_with(example, gateway, ext_proc, &[])
    }

    /// The same, with something else in the place of what it says.
    pub(crate) fn start_with(
        example: &str,
        gateway: SocketAddr,
        ext_proc: SocketAddr,
        changes: &[(&str, &str)],
    ) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let text = fs::read_to_string(file.join(example)).unwrap();
        let own = Own::new();
        let address = SocketAddr::from((own.ip, PORT));
        let mut text = text.replace("address: 0.0.0.0", &format!("address: {}", own.ip));
        assert!(text.contains(&format!("port_value: {PORT}}}")));
        for (known, other) in changes {
            assert!(text.contains(known), "{known}");
            text = text.replace(known, other);
        }
        for (known, at) in [(3000, gateway), (3001, ext_proc)] {
            let known = format!("address: 127.0.0.1, port_value: {known}}}");
            assert!(text.contains(&known), "{known}");
            let there = format!("address: {}, port_value: {}}}", at.ip(), at.port());
            text = text.replace(&known, &there);
        }
        Self::run(&text, address, own)
    }

    /// Starts one with this configuration, which makes it listen there.
    fn run(configuration: &str, address: SocketAddr, own: Own) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("envoy.yaml");
        kit::durable::write_file(&file, configuration.as_bytes(), 0o600).unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(program())
            .args(["--concurrency", "1", "--log-level", "warning"])
            .args(["--disable-hot-restart", "-c"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut envoy = Self {
            address,
            child,
            _directory: directory,
            _own: own,
        };
        while TcpStream::connect(address).is_err() {
            if let Some(status) = envoy.child.try_wait().unwrap() {
                let log = fs::read_to_string(envoy._directory.path().join("log")).unwrap();
                panic!("envoy has ended: {status}\n{log}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        envoy
    }

    /// Its process.
    #[allow(dead_code, reason = "the benchmark needs it")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, installed beside what is built if it is not there.
fn program() -> PathBuf {
    let build = std::env::current_exe().unwrap();
    let is_target = |path: &&Path| path.join("CACHEDIR.TAG").exists();
    let target = build.ancestors().find(is_target).unwrap();
    install::program(target).unwrap()
}
