//! Netlink: messages in a buffer, and the socket that carries them.
//!
//! The kernel works on a message within the call that sends it, so every answer is there when
//! that call returns: nothing here ever waits.

use std::{io, os::fd::OwnedFd};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv,
        sendto, socket_with, sockopt,
    },
};

use crate::error::{Doing as _, NetworkError, Result};

pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACK: u16 = 4;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;
const NESTED: u16 = 0x8000;

/// The largest transaction: the elements of some ten thousand sandboxes.
const LARGEST: usize = 64 << 20;

/// Messages that go to the kernel in one call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// What each message does, in the order of their numbers, which begin at one.
    doing: Vec<&'static str>,
}

impl Batch {
    /// Appends a message: `header` is what its kind begins with, `write` its attributes.
    pub(crate) fn message(
        &mut self,
        doing: &'static str,
        (kind, flags): (u16, u16),
        header: &[u8],
        write: impl FnOnce(&mut Attributes<'_>),
    ) {
        let start = self.bytes.len();
        self.doing.push(doing);
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes
            .extend_from_slice(&(flags | REQUEST).to_ne_bytes());
        self.bytes
            .extend_from_slice(&(self.doing.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(header);
        pad(&mut self.bytes);
        write(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// What the messages are, for a look at their bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn doing(&self, number: u32) -> &'static str {
        let index = (number as usize).wrapping_sub(1);
        self.doing
            .get(index)
            .copied()
            .unwrap_or("speak to the kernel")
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Attributes of a message.
pub(crate) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = (value.len() + 4) as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        pad(self.0);
    }

    /// Text with the zero at its end.
    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    /// A number as the processor has it: rtnetlink's.
    pub(crate) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// A number as the network has it: netfilter's.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(crate) fn nest(&mut self, kind: u16, write: impl FnOnce(&mut Attributes<'_>)) {
        self.nest_after(kind, &[], write);
    }

    /// A nest that begins with a structure.
    pub(crate) fn nest_after(
        &mut self,
        kind: u16,
        header: &[u8],
        write: impl FnOnce(&mut Attributes<'_>),
    ) {
        let start = self.0.len();
        self.bytes(kind | NESTED, header);
        write(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

/// A connection to a part of the kernel, in the network namespace it was made in.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// To links, addresses and routes.
    pub(crate) fn route() -> Result<Self> {
        Self::open(None)
    }

    /// To nftables.
    pub(crate) fn netfilter() -> Result<Self> {
        Self::open(Some(netlink::NETFILTER))
    }

    /// One that was made elsewhere.
    pub(crate) const fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    fn open(protocol: Option<Protocol>) -> Result<Self> {
        let open = || {
            let kind = SocketType::RAW;
            let fd = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, protocol)?;
            sockopt::set_socket_send_buffer_size_force(&fd, LARGEST)?;
            sockopt::set_socket_recv_buffer_size_force(&fd, LARGEST)?;
            Ok::<_, Errno>(fd)
        };
        Ok(Self(open().doing("open a netlink socket")?))
    }

    /// Sends messages; the first that the kernel refused is the error.
    pub(crate) fn send(&self, batch: &Batch) -> Result<()> {
        self.exchange(batch, |_, _| ())
    }

    /// Sends messages, and passes on what comes back: its kind and what follows its header.
    pub(crate) fn exchange(&self, batch: &Batch, mut each: impl FnMut(u16, &[u8])) -> Result<()> {
        let to = netlink::SocketAddrNetlink::new(0, 0);
        let last = batch.doing.len() as u32;
        sendto(&self.0, &batch.bytes, SendFlags::empty(), &to).doing(batch.doing(last))?;
        let mut failed: Option<(u32, i32)> = None;
        let mut buffer = vec![0_u8; 32 << 10];
        loop {
            let length = match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error).doing(batch.doing(last)),
            };
            for (kind, number, body) in messages(&buffer[..length]) {
                if kind != ERROR && kind != DONE {
                    each(kind, body);
                } else if let Some(code) = body.first_chunk::<4>() {
                    // A dump's end carries its outcome like an error does.
                    let code = i32::from_ne_bytes(*code);
                    if code < 0 && failed.is_none_or(|(first, _)| number < first) {
                        failed = Some((number, -code));
                    }
                }
            }
        }
        match failed {
            None => Ok(()),
            Some((number, code)) => Err(NetworkError::System {
                doing: batch.doing(number),
                source: io::Error::from_raw_os_error(code),
            }),
        }
    }
}

/// The messages in what was received: kind, number, and what follows the header.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<HEADER>()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let message = bytes.get(HEADER..length)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let number = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, number, message))
    })
}

/// The attributes in a message or a nest: kind and value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of one attribute.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, value)| (found == kind).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut batch = Batch::default();
        batch.message("first", (16, CREATE), &[7; 5], |a| {
            a.text(1, "abc");
            a.nest(2, |a| {
                a.number(3, 9);
                a.nest_after(4, &[1, 2, 3, 4], |a| a.be32(5, 1));
            });
            a.bytes(6, &[1]);
        });
        batch.message("second", (17, 0), &[], |_| ());
        let all: Vec<_> = messages(batch.bytes()).collect();
        assert_eq!(all.len(), 2);
        let (kind, number, body) = all[0];
        assert_eq!((kind, number, all[1].1), (16, 1, 2));
        let body = &body[8..];
        assert_eq!(attribute(body, 1), Some(&b"abc\0"[..]));
        let nest = attribute(body, 2).unwrap();
        assert_eq!(attribute(nest, 3), Some(&9_u32.to_ne_bytes()[..]));
        let inner = attribute(nest, 4).unwrap();
        assert_eq!(attribute(&inner[4..], 5), Some(&[0, 0, 0, 1][..]));
        assert_eq!(attribute(body, 6), Some(&[1][..]));
        assert_eq!(batch.doing(2), "second");
    }

    #[test]
    fn torn_messages_end_the_reading() {
        let mut batch = Batch::default();
        batch.message("one", (16, 0), &[], |a| a.text(1, "abcdef"));
        for cut in 0..batch.bytes().len() {
            assert_eq!(messages(&batch.bytes()[..cut]).count(), 0, "{cut}");
        }
        for cut in 0..8 {
            assert_eq!(attributes(&batch.bytes()[16..16 + cut]).count(), 0, "{cut}");
        }
    }
}
