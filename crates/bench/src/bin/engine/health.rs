//! The agent's first answer, asked from outside.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    net::{AddressFamily, SocketType, connect, socket},
    thread::{
        LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space,
        move_into_thread_name_spaces,
    },
};

const PORT: u16 = 49983;
const TRIES: u32 = 200_000;

/// A socket in the network namespace of a process.
pub(crate) fn socket_in(process: BorrowedFd<'_>, home: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    move_into_thread_name_spaces(process, ThreadNameSpaceType::NETWORK)?;
    let made = socket(AddressFamily::INET, SocketType::STREAM, None);
    move_into_link_name_space(home, Some(LinkNameSpaceType::Network))?;
    Ok(made?)
}

/// Asks until there is an answer.
pub(crate) fn wait(make: impl Fn() -> io::Result<OwnedFd>) -> io::Result<()> {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    for _ in 0..TRIES {
        let socket = make()?;
        rustix::io::ioctl_fionbio(socket.as_fd(), false)?;
        match connect(&socket, &to) {
            Ok(()) => {
                let mut stream = TcpStream::from(socket);
                stream.write_all(b"GET /health HTTP/1.1\r\nhost: sandbox\r\n\r\n")?;
                let mut answer = [0; 12];
                stream.read_exact(&mut answer)?;
                return match &answer {
                    b"HTTP/1.1 204" => Ok(()),
                    other => Err(io::Error::other(String::from_utf8_lossy(other))),
                };
            }
            // Nothing listens yet, or the loopback interface is not up yet.
            Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NETUNREACH) => {
                std::thread::sleep(Duration::from_micros(20));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("the agent does not answer"))
}
