//! Sockets inside a sandbox's network namespace, for whoever dials its ports.
//!
//! A socket belongs to the namespace it was made in, for good: it can be connected from any thread
//! afterwards, and reaches what listens on the sandbox's loopback. Making one takes a thread there
//! and back, which is a few microseconds and needs no thread of its own.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Weak,
};

pub(crate) use ::runtime::Family;
use ::runtime::{RuntimeError, connect};
use model::Uid;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    thread::{
        LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space,
        move_into_thread_name_spaces,
    },
};
use tokio::net::TcpStream;

use crate::{
    engine::Engine,
    error::{Doing as _, EngineError, Result},
    workload::Process,
};

/// The server's own network namespace, to come back to.
#[derive(Debug)]
pub(crate) struct Home(OwnedFd);

impl Home {
    /// Notes where this thread is.
    pub(crate) fn here() -> Result<Self> {
        let file =
            File::open("/proc/thread-self/ns/net").doing("open the own network namespace")?;
        Ok(Self(file.into()))
    }

    /// A netlink socket for the links and routes of the namespace that a process is in.
    pub(crate) fn netlink_in(&self, pid: i32) -> Result<OwnedFd> {
        let namespace = File::open(format!("/proc/{pid}/ns/net"));
        let namespace = namespace.doing("open the sandbox's network namespace")?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .doing("enter the sandbox's network namespace")?;
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None);
        self.come_back();
        socket.doing("make a socket in the sandbox")
    }

    /// Brings this thread back. One that stays in a sandbox's namespace would do the next
    /// tenant's work there: that must not happen, whatever it costs.
    fn come_back(&self) {
        let back = move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network));
        if let Err(error) = back {
            eprintln!(
                "a thread could not leave a sandbox's network namespace: {}",
                io::Error::from(error)
            );
            std::process::abort();
        }
    }
}

impl Engine {
    /// A TCP socket inside, not connected and not blocking.
    pub(crate) fn socket(&self, uid: Uid, family: Family) -> Result<OwnedFd, EngineError> {
        let slot = self.slot(uid).ok_or(RuntimeError::Absent(uid))?;
        let process = {
            let seen = slot.seen.lock();
            let workload = seen.as_ref().ok_or(RuntimeError::Absent(uid))?;
            let process = workload.process.as_ref();
            process.ok_or(RuntimeError::Absent(uid))?.clone()
        };
        self.socket_of(uid, &process, family)
    }

    /// The same, for a call that knows the sandbox's first process.
    pub(crate) fn socket_of(
        &self,
        uid: Uid,
        process: &Process,
        family: Family,
    ) -> Result<OwnedFd, EngineError> {
        match move_into_thread_name_spaces(process.pidfd.as_fd(), ThreadNameSpaceType::NETWORK) {
            Ok(()) => {}
            // It has ended, and nobody has looked since.
            Err(Errno::SRCH) => return Err(RuntimeError::Absent(uid).into()),
            Err(error) => return Err(error).doing("enter the sandbox's network namespace"),
        }
        let family = match family {
            Family::V4 => AddressFamily::INET,
            Family::V6 => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None);
        self.home.come_back();
        socket.doing("make a socket in the sandbox")
    }
}

/// Connects to a port on a sandbox's loopback. An engine that is gone is not kept by who waits for a
/// sandbox of it.
pub(crate) fn dial(
    engine: &Weak<Engine>,
    uid: Uid,
    port: u16,
) -> impl Future<Output = io::Result<TcpStream>> + use<> {
    let engine = engine.upgrade().ok_or(io::ErrorKind::NotConnected);
    let socket = engine
        .map_err(io::Error::from)
        .and_then(|engine| engine.socket(uid, Family::V4).map_err(io::Error::other));
    async move { connect(socket?, port).await }
}
