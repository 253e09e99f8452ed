//! Sets of IPv4 addresses as sorted ranges, for deciding before the kernel is told.

use std::{fmt, net::Ipv4Addr};

/// Addresses from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl Range {
    pub(crate) const ALL: Self = Self {
        first: 0,
        last: u32::MAX,
    };

    /// The block of `bits` leading bits that an address is in.
    pub(crate) const fn block(address: Ipv4Addr, bits: u8) -> Self {
        let mask = if bits == 0 {
            0
        } else {
            u32::MAX << (32 - bits as u32)
        };
        let first = address.to_bits() & mask;
        Self {
            first,
            last: first | !mask,
        }
    }

    pub(crate) const fn contains(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// A set of addresses: ranges in order that neither overlap nor touch.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Addresses(Vec<Range>);

impl Addresses {
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        let bits = address.to_bits();
        let after = self.0.partition_point(|range| range.first <= bits);
        after > 0 && bits <= self.0[after - 1].last
    }

    /// Whether all of `other` is in this.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        other.without(self).is_empty()
    }

    pub(crate) fn with(&self, other: &Self) -> Self {
        self.0.iter().chain(&other.0).copied().collect()
    }

    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for range in &self.0 {
            // What of this range is not yet looked at; none when nothing is left.
            let mut first = Some(range.first);
            for hole in &other.0 {
                let Some(from) = first else { break };
                if hole.last < from || hole.first > range.last {
                    continue;
                }
                if hole.first > from {
                    left.push(Range {
                        first: from,
                        last: hole.first - 1,
                    });
                }
                first = hole.last.checked_add(1).filter(|next| *next <= range.last);
            }
            if let Some(first) = first {
                left.push(Range {
                    first,
                    last: range.last,
                });
            }
        }
        Self(left)
    }
}

impl FromIterator<Range> for Addresses {
    fn from_iter<I: IntoIterator<Item = Range>>(ranges: I) -> Self {
        let mut sorted: Vec<Range> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<Range> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if range.first <= last.last.saturating_add(1) => {
                    last.last = last.last.max(range.last);
                }
                Some(_) | None => merged.push(range),
            }
        }
        Self(merged)
    }
}

impl fmt::Debug for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bits| Ipv4Addr::from_bits(bits).to_string();
        f.debug_list()
            .entries(
                self.0
                    .iter()
                    .map(|r| format!("{}-{}", text(r.first), text(r.last))),
            )
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sixteen addresses at each end of the space: enough for every way to meet.
    fn range() -> impl Strategy<Value = Range> {
        (0_u32..32, 0_u32..32).prop_map(|(a, b)| {
            let spread = |n: u32| if n < 16 { n } else { u32::MAX - 31 + n };
            let (a, b) = (spread(a), spread(b));
            Range {
                first: a.min(b),
                last: a.max(b),
            }
        })
    }

    fn some() -> impl Strategy<Value = Addresses> {
        proptest::collection::vec(range(), 0..6).prop_map(|ranges| ranges.into_iter().collect())
    }

    proptest! {
        #[test]
        fn sets_of_ranges_behave_like_sets_of_addresses(a in some(), b in some()) {
            let (with, without) = (a.with(&b), a.without(&b));
            for n in (0..32).chain(u32::MAX - 31..=u32::MAX) {
                let at = Ipv4Addr::from_bits(n);
                prop_assert_eq!(with.contains(at), a.contains(at) || b.contains(at));
                prop_assert_eq!(without.contains(at), a.contains(at) && !b.contains(at));
            }
            prop_assert!(with.covers(&a) && with.covers(&b));
            prop_assert_eq!(a.covers(&b), b.without(&a).is_empty());
            for set in [&a, &b, &with, &without] {
                for pair in set.ranges().windows(2) {
                    prop_assert!(u64::from(pair[0].last) + 1 < u64::from(pair[1].first) || set == &without);
                    prop_assert!(pair[0].last < pair[1].first);
                }
            }
        }
    }
}
