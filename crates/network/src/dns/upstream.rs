//! Whom the host asks for names, and asking them.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use kit::Entropy;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::{Instant, timeout},
};

use super::message::Question;

/// How long one server may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many are asked, one after the other.
const TRIES: usize = 3;
/// The largest answer by datagram.
const LARGEST: usize = 4096;
/// How long the host's choice is taken for granted.
const FRESH: Duration = Duration::from_secs(5);
const HOSTS_CHOICE: &str = "/etc/resolv.conf";

/// How a question came, and how it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Datagram,
    Connection,
}

/// Servers to ask.
#[derive(Debug)]
pub(super) struct Upstreams {
    configured: Vec<SocketAddr>,
    read: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
    entropy: Entropy,
}

impl Upstreams {
    pub(super) fn new(configured: Vec<SocketAddr>) -> Self {
        Self {
            configured,
            read: Mutex::default(),
            entropy: Entropy::from_os(),
        }
    }

    fn servers(&self) -> Vec<SocketAddr> {
        if !self.configured.is_empty() {
            return self.configured.clone();
        }
        let mut read = self.read.lock();
        let now = Instant::now();
        match &*read {
            Some((at, servers)) if now.duration_since(*at) < FRESH => servers.clone(),
            Some(_) | None => {
                let text = fs::read_to_string(HOSTS_CHOICE).unwrap_or_default();
                let servers = parse(&text);
                *read = Some((now, servers.clone()));
                servers
            }
        }
    }

    /// The first answer to a question, with the identifier of the question.
    pub(super) async fn ask(&self, question: &Question<'_>, way: Way) -> Option<Vec<u8>> {
        for server in self.servers().into_iter().take(TRIES) {
            let asked = timeout(PATIENCE, self.ask_one(server, question, way)).await;
            if let Ok(Ok(mut answer)) = asked {
                answer[..2].copy_from_slice(&question.bytes[..2]);
                return Some(answer);
            }
        }
        None
    }

    /// From a port of its own and with an identifier of its own, which an answer from elsewhere
    /// would have to guess.
    async fn ask_one(
        &self,
        server: SocketAddr,
        question: &Question<'_>,
        way: Way,
    ) -> io::Result<Vec<u8>> {
        let id = (self.entropy.u64() as u16).to_be_bytes();
        let mut bytes = question.bytes.to_vec();
        bytes[..2].copy_from_slice(&id);
        match way {
            Way::Datagram => {
                let own = match server {
                    SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                    SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                };
                let socket = UdpSocket::bind((own, 0)).await?;
                socket.connect(server).await?;
                socket.send(&bytes).await?;
                let mut answer = vec![0; LARGEST];
                loop {
                    let length = socket.recv(&mut answer).await?;
                    // One that says it was cut makes the asker come again by a connection.
                    if question.is_answered_by(&answer[..length], id) {
                        answer.truncate(length);
                        return Ok(answer);
                    }
                }
            }
            Way::Connection => {
                let mut stream = TcpStream::connect(server).await?;
                let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
                let mut whole = length.to_be_bytes().to_vec();
                whole.extend_from_slice(&bytes);
                stream.write_all(&whole).await?;
                let length = usize::from(stream.read_u16().await?);
                let mut answer = vec![0; length];
                stream.read_exact(&mut answer).await?;
                if question.is_answered_by(&answer, id) {
                    Ok(answer)
                } else {
                    Err(io::ErrorKind::InvalidData.into())
                }
            }
        }
    }
}

/// The servers that a `resolv.conf` names.
fn parse(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = (words.next()? == "nameserver").then(|| words.next())??;
        // The link that an address of version 6 is on may follow it.
        let address = address.split('%').next()?;
        Some(SocketAddr::new(address.parse().ok()?, 53))
    };
    text.lines().filter_map(server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_servers_are_read() {
        let text = "# comment\nsearch a.b\nnameserver 127.0.0.53\nnameserver ::1 # local\nnameserver x\n nameserver 9.9.9.9\n";
        let found: Vec<String> = parse(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["127.0.0.53:53", "[::1]:53", "9.9.9.9:53"]);
    }
}
