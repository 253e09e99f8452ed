//! Reaching any port of a sandbox through its agent.
//!
//! What comes back is the socket itself, with nothing read from it that belongs to the port: programs
//! that speak first may have done so in the same packet as the agent's answer.

use std::io;

use tokio::{io::AsyncReadExt as _, io::AsyncWriteExt as _, net::TcpStream};
use wire::{
    Secret,
    envd::{DOOR_KEY_HEADER, FORWARD_PATH, FORWARD_PROTOCOL},
};

/// Longer heads are not an agent's.
const MAX_HEAD: usize = 4 * 1024;
const END: &[u8] = b"\r\n\r\n";

/// Why a port was not reached.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The way to the agent broke.
    #[error("the agent cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The agent is not that of the delivery that is meant, or is armed for nobody: the address is
    /// old.
    #[error("another sandbox has this address")]
    NotYours,
    /// Nothing listens.
    #[error("the port is not open")]
    PortClosed,
    /// Something listens, and takes no connection.
    #[error("what listens on the port does not answer")]
    Busy,
    /// Whatever answers is no agent that forwards.
    #[error("the agent is not understood: {0}")]
    Protocol(&'static str),
}

/// Makes a connection to an agent one to a port inside.
///
/// # Errors
/// If the agent does not let this one in, or nothing listens.
pub async fn forward(
    mut stream: TcpStream,
    port: u16,
    door_key: &Secret,
) -> Result<TcpStream, ForwardError> {
    let key = door_key.reveal();
    if key.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(ForwardError::Protocol("a door key must be printable ASCII"));
    }
    let request = format!(
        "GET {FORWARD_PATH}{port} HTTP/1.1\r\nhost: agent\r\nconnection: upgrade\r\n\
         upgrade: {FORWARD_PROTOCOL}\r\n{DOOR_KEY_HEADER}: {key}\r\n\r\n"
    );
    let sent = stream.write_all(request.as_bytes()).await;
    sent.map_err(ForwardError::Unreachable)?;
    let status = status(&mut stream).await?;
    match status {
        101 => Ok(stream),
        401 | 404 | 503 => Err(ForwardError::NotYours),
        502 => Err(ForwardError::PortClosed),
        504 => Err(ForwardError::Busy),
        _ => Err(ForwardError::Protocol("it answered with another status")),
    }
}

/// Reads the head of the answer, and not a byte more.
async fn status(stream: &mut TcpStream) -> Result<u16, ForwardError> {
    let mut head = Vec::new();
    let mut room = [0; 512];
    loop {
        let seen = stream.peek(&mut room).await;
        let seen = seen.map_err(ForwardError::Unreachable)?;
        if seen == 0 {
            let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(ForwardError::Unreachable(ended));
        }
        let before = head.len();
        head.extend_from_slice(&room[..seen]);
        let end = head.windows(END.len()).position(|part| part == END);
        let taken = end.map_or(seen, |end| end + END.len() - before);
        let read = stream.read_exact(&mut room[..taken]).await;
        read.map_err(ForwardError::Unreachable)?;
        if end.is_some() {
            break;
        }
        if head.len() > MAX_HEAD {
            return Err(ForwardError::Protocol("its answer is too long"));
        }
    }
    let line = head
        .strip_prefix(b"HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    let digits = line.and_then(|digits| std::str::from_utf8(digits).ok());
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or(ForwardError::Protocol("it does not speak HTTP"))
}
