//! Who is in a handshake: so many, and of those a few from one place.
//!
//! Whoever reaches the port can begin a handshake and say nothing, without the key. Those of one place do
//! not keep the others out.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

/// How many from one place. Peers on one host, or behind one address, begin theirs at once.
const FROM_ONE: usize = 32;

/// Handshakes that are under way, by where they come from.
#[derive(Debug, Default)]
pub(super) struct Doorway(Mutex<HashMap<IpAddr, usize>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Shaking {
    doorway: Arc<Doorway>,
    place: IpAddr,
}

impl Doorway {
    /// Lets one in, unless there are too many from there.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Shaking> {
        let place = place(from);
        let mut here = self.0.lock();
        let count = here.entry(place).or_default();
        if *count >= FROM_ONE {
            return None;
        }
        *count += 1;
        let doorway = Arc::clone(self);
        Some(Shaking { doorway, place })
    }
}

impl Drop for Shaking {
    fn drop(&mut self) {
        let mut here = self.doorway.0.lock();
        if let Some(count) = here.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                here.remove(&self.place);
            }
        }
    }
}

/// Who has one IPv6 address has all of its network.
fn place(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_one_place_keep_nobody_else_out_and_make_room_when_they_go() {
        let doorway = Arc::new(Doorway::default());
        let enter = |from: &str| doorway.enter(from.parse().unwrap());
        let mut inside: Vec<Shaking> = Vec::new();
        for at in 0..FROM_ONE {
            inside.extend(enter(&format!("fd00::{at:x}")));
        }
        assert_eq!(inside.len(), FROM_ONE);
        assert!(enter("fd00::ffff").is_none());
        assert!(enter("fd00:0:0:1::1").is_some());
        assert!(enter("10.0.0.1").is_some());
        inside.pop();
        assert!(enter("fd00::ffff").is_some());
        inside.clear();
        assert!(doorway.0.lock().is_empty());
    }
}
