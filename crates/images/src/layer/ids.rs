//! Ids inside a sandbox, and what they are on the host.

/// How many ids a sandbox has.
pub const COUNT: u32 = 65_536;

/// Where the ids of an archive are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// As they are: for layers that many sandboxes share, each through a mapped mount.
    Same,
    /// From this one of the host on: for the writable layer of one sandbox.
    From(u32),
}

impl Ids {
    /// The id on the host of an id inside.
    #[must_use]
    pub const fn outside(self, inside: u32) -> Option<u32> {
        match self {
            Self::Same => Some(inside),
            Self::From(first) if inside < COUNT => first.checked_add(inside),
            Self::From(_) => None,
        }
    }

    /// The id inside of an id on the host.
    #[must_use]
    pub const fn inside(self, outside: u32) -> Option<u32> {
        match self {
            Self::Same => Some(outside),
            Self::From(first) => match outside.checked_sub(first) {
                Some(inside) if inside < COUNT => Some(inside),
                Some(_) | None => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_the_range_have_no_place_inside() {
        let ids = Ids::From(1 << 20);
        assert_eq!(ids.inside((1 << 20) + 5), Some(5));
        assert_eq!(ids.inside(0), None);
        assert_eq!(ids.inside((1 << 20) + COUNT), None);
        assert_eq!(ids.outside(COUNT), None);
        assert_eq!(Ids::Same.outside(COUNT), Some(COUNT));
    }
}
