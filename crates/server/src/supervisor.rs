//! What an init system is told that wants to know when a server is ready, and which process it is: the
//! protocol of systemd, one datagram to the socket that the environment names.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process,
};

/// Names the socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// This process serves. Where one has replaced another it is the one to watch from now on.
pub(crate) fn tell_ready() {
    let Some(socket) = env::var_os(SOCKET).and_then(|name| name.into_string().ok()) else {
        return;
    };
    let text = format!("READY=1\nMAINPID={}", process::id());
    if let Err(error) = tell(&socket, text.as_bytes()) {
        tracing::warn!(%error, socket, "the init system was not told that this process serves");
    }
}

fn tell(socket: &str, text: &[u8]) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(text, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_found_by_its_path_and_by_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("dormouse-test-{}", process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (listening, socket) in [
            (UnixDatagram::bind(&path), path.display().to_string()),
            (UnixDatagram::bind_addr(&abstract_name), format!("@{name}")),
        ] {
            let listening = listening.unwrap();
            tell(&socket, b"READY=1").unwrap();
            let mut heard = [0; 16];
            let length = listening.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1");
        }
    }
}
