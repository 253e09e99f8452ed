//! Serves files over SFTP, version 3, on a pair of byte streams: what OpenSSH's `sftp-server` does,
//! for sandboxes whose image has none.
//!
//! It runs inside, as the user who asked, so the kernel decides what may be read and written; it
//! checks nothing by itself and has no rights of its own. One request after the other, in the order
//! they came: clients send many at once and wait for none.
//!
//! | Module | What it holds |
//! |---|---|
//! | `codec` | numbers and strings of the protocol |
//! | `attributes` | what is known of a file, both ways |
//! | `handles` | what is open |
//! | `requests` | from a request to its answer |
//! | `extensions` | requests that OpenSSH added |

mod attributes;
mod codec;
mod extensions;
mod handles;
mod requests;
mod status;

use std::io::{self, ErrorKind, Read, Write};

use codec::{Reader, packet};
use requests::Session;

/// The longest packet that is taken. Clients may write that much at once, and a little more.
const LONGEST: usize = (256 << 10) + 1024;
const INIT: u8 = 1;
const VERSION: u8 = 2;
const PROTOCOL: u32 = 3;

/// Serves until the client is done.
///
/// # Errors
/// If a stream fails, or the client does not speak SFTP.
pub fn serve(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let Some(first) = read_packet(&mut input)? else {
        return Ok(());
    };
    let mut reader = Reader(&first);
    if !matches!((reader.u8(), reader.u32()), (Ok(INIT), Ok(PROTOCOL..))) {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut hello = packet(VERSION);
    hello.u32(PROTOCOL);
    for (name, version) in extensions::ADVERTISED {
        hello.string(name.as_bytes()).string(version.as_bytes());
    }
    output.write_all(&hello.finish())?;
    output.flush()?;
    let mut session = Session::default();
    while let Some(request) = read_packet(&mut input)? {
        let answer = session.answer(&request).ok_or(ErrorKind::InvalidData)?;
        output.write_all(&answer)?;
        output.flush()?;
    }
    Ok(())
}

/// The next packet without its length; none at the end.
fn read_packet(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match input.read(&mut length[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => have += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length == 0 || length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut packet = vec![0; length];
    input.read_exact(&mut packet)?;
    Ok(Some(packet))
}

#[cfg(test)]
mod tests;
