//! How many may come in: in all, of one address, and without having shown a key.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

/// What clients can hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Connections of one address; of IPv6, of one network.
    pub per_address: usize,
    /// Connections that have not shown a key yet.
    pub strangers: usize,
    /// Of these, of one address: whoever says nothing does not lock out everybody else.
    pub strangers_per_address: usize,
    /// How long one has for that, from the connect on.
    pub login_time: Duration,
    /// Keys that one connection may try.
    pub tries: usize,
    /// How long a refusal takes, at least.
    pub refusal_time: Duration,
    /// Sessions and ports at once on one connection.
    pub channels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            per_address: 64,
            strangers: 32,
            strangers_per_address: 8,
            login_time: Duration::from_secs(30),
            tries: 8,
            refusal_time: Duration::from_millis(500),
            channels: 32,
        }
    }
}

/// Who is in.
#[derive(Clone, Debug)]
pub(crate) struct Doors(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    all: usize,
    strangers: usize,
    by_address: HashMap<IpAddr, Count>,
}

/// Connections of one address.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: usize,
    strangers: usize,
}

/// A place for one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    address: IpAddr,
    is_stranger: Mutex<bool>,
}

impl Doors {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared {
            limits,
            inside: Mutex::default(),
        }))
    }

    /// Lets a connection in, as a stranger, if there is room.
    pub(crate) fn enter(&self, from: IpAddr) -> Option<Place> {
        let (limits, address) = (&self.0.limits, network(from));
        let mut inside = self.0.inside.lock();
        let of_it = inside.by_address.get(&address).copied().unwrap_or_default();
        let has_room = inside.all < limits.connections
            && inside.strangers < limits.strangers
            && of_it.all < limits.per_address
            && of_it.strangers < limits.strangers_per_address;
        if !has_room {
            return None;
        }
        inside.all += 1;
        inside.strangers += 1;
        let count = Count {
            all: of_it.all + 1,
            strangers: of_it.strangers + 1,
        };
        inside.by_address.insert(address, count);
        Some(Place {
            shared: self.0.clone(),
            address,
            is_stranger: Mutex::new(true),
        })
    }
}

impl Place {
    /// It has shown its key.
    pub(crate) fn is_known(&self) {
        if std::mem::take(&mut *self.is_stranger.lock()) {
            let mut inside = self.shared.inside.lock();
            inside.strangers -= 1;
            if let Some(of_it) = inside.by_address.get_mut(&self.address) {
                of_it.strangers -= 1;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.is_known();
        let mut inside = self.shared.inside.lock();
        inside.all -= 1;
        if let Some(of_it) = inside.by_address.get_mut(&self.address) {
            of_it.all -= 1;
            if of_it.all == 0 {
                inside.by_address.remove(&self.address);
            }
        }
    }
}

/// Who has one address of IPv6 has a whole network of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_some_in_all_of_one_address_and_of_strangers() {
        let doors = Doors::new(Limits {
            connections: 4,
            per_address: 2,
            strangers: 3,
            ..Limits::default()
        });
        let at = |text: &str| doors.enter(text.parse().unwrap());
        let first = at("192.0.2.1").unwrap();
        let second = at("192.0.2.1").unwrap();
        assert!(at("192.0.2.1").is_none(), "two of one address");
        assert!(at("::ffff:192.0.2.1").is_none(), "in whatever form");
        let third = at("2001:db8::1").unwrap();
        assert!(at("192.0.2.2").is_none(), "three strangers");
        first.is_known();
        first.is_known();
        let fourth = at("2001:db8::2").unwrap();
        assert!(at("2001:db8::3").is_none(), "one network");
        second.is_known();
        assert!(at("192.0.2.9").is_none(), "four in all");
        drop((first, second, third, fourth));
        let inside = doors.0.inside.lock();
        assert_eq!((inside.all, inside.strangers), (0, 0));
        assert!(inside.by_address.is_empty());
    }

    #[test]
    fn one_address_that_shows_no_key_leaves_room_for_others() {
        let limits = Limits::default();
        let doors = Doors::new(limits);
        let at = |text: &str| doors.enter(text.parse().unwrap());
        let mut silent: Vec<_> = std::iter::from_fn(|| at("192.0.2.1")).collect();
        assert_eq!(silent.len(), limits.strangers_per_address);
        assert!(limits.strangers_per_address <= limits.strangers / 4);
        let other = at("192.0.2.2").unwrap();
        silent[0].is_known();
        let next = at("192.0.2.1").unwrap();
        assert!(at("192.0.2.1").is_none(), "one showed its key, one came");
        drop(silent.pop());
        let last = at("192.0.2.1").unwrap();
        assert!(at("192.0.2.1").is_none(), "one left, one came");
        drop((silent, other, next, last));
        assert!(doors.0.inside.lock().by_address.is_empty());
    }
}
