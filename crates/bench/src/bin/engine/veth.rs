//! A pair of virtual interfaces, one end inside: what a network costs at least.
#![expect(unsafe_code, reason = "netlink and interface flags are C structures")]

use std::{
    io, mem,
    os::fd::{AsFd as _, AsRawFd as _},
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const IFLA_NET_NS_PID: u16 = 19;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

/// Makes a pair: `name` here and up, `eth0` in the network namespace of a process.
pub(crate) fn give(name: &str, pid: u32) -> io::Result<()> {
    let mut peer = link_header(0);
    attribute(&mut peer, IFLA_IFNAME, b"eth0\0");
    attribute(&mut peer, IFLA_NET_NS_PID, &pid.to_ne_bytes());
    let mut data = Vec::new();
    attribute(&mut data, VETH_INFO_PEER, &peer);
    let mut info = Vec::new();
    attribute(&mut info, IFLA_INFO_KIND, b"veth");
    attribute(&mut info, IFLA_INFO_DATA, &data);
    let mut body = link_header(libc::IFF_UP as u32);
    attribute(&mut body, IFLA_IFNAME, format!("{name}\0").as_bytes());
    attribute(&mut body, IFLA_LINKINFO, &info);

    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Protocol zero is the one for routes and links.
        None,
    )?;
    send(socket.as_fd(), &message, SendFlags::empty())?;
    let mut answer = [0_u8; 512];
    recv(socket.as_fd(), &mut answer, RecvFlags::empty())?;
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// An `ifinfomsg`.
fn link_header(flags: u32) -> Vec<u8> {
    let mut header = vec![0; 16];
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend((4 + value.len() as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Brings `lo` up. Called between a clone and a program: no allocation.
pub(crate) fn loopback_up() -> bool {
    let kind = SocketType::DGRAM;
    let Ok(socket) = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None) else {
        return false;
    };
    // SAFETY: plain data, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request lives across the call.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) == 0 }
}
