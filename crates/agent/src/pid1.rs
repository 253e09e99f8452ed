//! What the first process owes the others: orphans are reaped, signals are passed on.
//!
//! The kernel gives pid 1 no signal that it does not ask for, so it asks for those that mean
//! something. TERM and INT ask the sandbox to end: everyone gets them, and is given a moment.

use std::{io, sync::Arc, time::Duration};

use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};

use crate::server::Agent;

/// How long the programs have after TERM.
const GRACE: Duration = Duration::from_secs(5);

/// Starts to behave as the first process, if this is to be it; always ends on TERM and INT.
pub(crate) fn start(agent: &Arc<Agent>) -> io::Result<()> {
    if agent.children.reaps_all() && !rustix::process::getpid().is_init() {
        // Under somebody else's pid 1, orphans come here all the same.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    for (kind, passed) in [
        (SignalKind::hangup(), Signal::HUP),
        (SignalKind::quit(), Signal::QUIT),
        (SignalKind::user_defined1(), Signal::USR1),
        (SignalKind::user_defined2(), Signal::USR2),
    ] {
        if !agent.children.reaps_all() {
            break;
        }
        let mut signals = signal(kind)?;
        let agent = Arc::clone(agent);
        let tasks = agent.tasks.clone();
        tasks.spawn(async move {
            while signals.recv().await.is_some() {
                pass_on(&agent, passed);
            }
        });
    }
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let agent = Arc::clone(agent);
    let tasks = agent.tasks.clone();
    tasks.spawn(async move {
        let asked = tokio::select! {
            _ = term.recv() => Signal::TERM,
            _ = int.recv() => Signal::INT,
        };
        if agent.children.reaps_all() {
            pass_on(&agent, asked);
            let gone = async {
                while !is_alone(&agent) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(GRACE, gone).await.ok();
        }
        agent.tasks.stopping().cancel();
    });
    Ok(())
}

fn pass_on(agent: &Agent, passed: Signal) {
    if rustix::process::getpid().is_init() {
        // The "group" of pid 1 is written -1: everyone in this pid namespace but its first process.
        rustix::process::kill_process_group(Pid::INIT, passed).ok();
    } else {
        agent.children.signal_all(passed);
    }
}

/// Whether nobody is left who could make use of a moment more. With the first process the kernel
/// ends everyone else, known here or not.
fn is_alone(agent: &Agent) -> bool {
    if rustix::process::getpid().is_init() {
        rustix::process::test_kill_process_group(Pid::INIT).is_err()
    } else {
        agent.children.is_empty()
    }
}
