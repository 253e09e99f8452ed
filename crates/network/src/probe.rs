//! What this host can do for the network, without changing anything of it.

use std::fs;

use crate::{
    netlink::{Batch, CREATE, EXCLUSIVE, Socket},
    network::FORWARDING,
    nft::Transaction,
};

/// Whether pairs of links can be made: the kernel is asked for one in a namespace that no process
/// is in, and says whether it knows the kind before it looks for the namespace.
///
/// # Errors
/// With what the kernel said.
pub fn links() -> Result<String, String> {
    let socket = Socket::route().map_err(|error| error.to_string())?;
    let mut batch = Batch::default();
    crate::link::try_kind(&mut batch, CREATE | EXCLUSIVE);
    match socket.send(&batch) {
        Ok(()) => Err("a link was made that should not be".into()),
        Err(crate::NetworkError::System { source, .. })
            if source.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
        {
            Ok("pairs of links can be made".into())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Whether nftables takes a transaction.
///
/// # Errors
/// With what the kernel said.
pub fn rules() -> Result<String, String> {
    let socket = Socket::netfilter().map_err(|error| error.to_string())?;
    // Removing what is not there changes nothing, and only a kernel that is new enough can.
    let mut t = Transaction::new("dormouse-probe");
    t.destroy_table();
    t.commit(&socket).map_err(|error| error.to_string())?;
    Ok("transactions are taken".into())
}

/// Whether packets are passed on, or could be.
///
/// # Errors
/// With what stands in the way.
pub fn forwarding() -> Result<String, String> {
    let now = fs::read_to_string(FORWARDING).map_err(|error| error.to_string())?;
    if now.trim() != "0" {
        return Ok("on".into());
    }
    match fs::OpenOptions::new().write(true).open(FORWARDING) {
        Ok(_) => Ok("off, turned on with the first sandbox".into()),
        Err(error) => Err(format!("off, and cannot be turned on: {error}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_host_can_connect_sandboxes() {
        for seen in [super::links(), super::rules(), super::forwarding()] {
            assert!(seen.is_ok(), "{seen:?}");
        }
    }
}
