//! Whom people were told of, so that they are told once.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use crate::why::Why;

/// Of how many people are told, for each reason: whoever has many addresses uses up one reason, and not
/// the others.
const MOST: usize = 256;

/// Who people were told of, and why.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<Why, BTreeSet<SocketAddr>>);

impl Told {
    /// Whether people are to be told of this one; they are then taken to be.
    pub(super) fn is_news(&mut self, who: SocketAddr, why: Why) -> bool {
        let told = self.0.entry(why).or_default();
        told.len() < MOST && told.insert(who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_strangers_leave_room_for_another_reason() {
        let mut told = Told::default();
        let at = |n: u16| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 0));
        let news = (0..2000).filter(|n| told.is_news(at(*n), Why::Handshake));
        assert_eq!(news.count(), MOST);
        assert!(told.is_news(at(1), Why::Cluster));
        assert!(!told.is_news(at(1), Why::Cluster), "once");
        assert!(told.is_news(at(2), Why::Format));
    }
}
