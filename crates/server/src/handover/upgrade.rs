//! A server that is told to start the one that replaces it, by SIGUSR2: the program that lies where
//! its own lay when it started, with the same arguments and environment. So an init system need know
//! nothing of two processes.

use std::{
    env,
    ffi::OsString,
    path::PathBuf,
    process::{Child, Command},
    thread,
};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The flag by which a server takes over.
const TAKE_OVER: &str = "--take-over";

/// The way to the next version.
#[derive(Debug)]
pub(crate) struct Upgrade {
    asked: Signal,
    /// By its name: what lies there later is the next version.
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Upgrade {
    /// As this process was started.
    ///
    /// # Errors
    /// If the process cannot find itself.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let own = env::args_os().skip(1).filter(|word| word != TAKE_OVER);
        Ok(Self {
            asked: signal(SignalKind::user_defined2()).context("listen for SIGUSR2")?,
            program: env::current_exe().context("find this program")?,
            arguments: own.chain([TAKE_OVER.into()]).collect(),
        })
    }

    /// Waits until it is wanted.
    pub(crate) async fn wanted(&mut self) {
        self.asked.recv().await;
    }

    /// Starts the next version. If that cannot take over, this one goes on.
    pub(crate) fn start(&self) {
        let program = self.program.display();
        match Command::new(&self.program).args(&self.arguments).spawn() {
            Ok(next) => {
                tracing::info!(%program, pid = next.id(), "the next version is started");
                watch(next);
            }
            Err(error) => {
                tracing::error!(%error, %program, "the next version cannot be started");
            }
        }
    }
}

/// Says how it ended, if that is before this process does.
fn watch(mut next: Child) {
    let watching = thread::Builder::new().name("next-version".into());
    let started = watching.spawn(move || match next.wait() {
        Ok(status) => tracing::error!(%status, "the next version has ended: it says why above"),
        Err(error) => tracing::error!(%error, "the next version cannot be watched"),
    });
    if let Err(error) = started {
        tracing::warn!(%error, "nobody watches the next version");
    }
}
