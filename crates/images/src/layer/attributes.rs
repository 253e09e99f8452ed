//! Extended attributes that hold user ids, from the ids of the host to those inside and back.

use super::Ids;

/// Which way ids are translated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// From the host's to the sandbox's.
    Inward(Ids),
    /// From the sandbox's to the host's.
    Outward(Ids),
}

impl Way {
    fn id(self, id: u32) -> Option<u32> {
        match self {
            Self::Inward(ids) => ids.inside(id),
            Self::Outward(ids) => ids.outside(id),
        }
    }
}

/// File capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Whether an attribute is part of a layer. Notes of the overlay and labels of the host's security
/// modules are not.
pub(super) fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == CAPABILITY || is_acl(name)
}

fn is_acl(name: &[u8]) -> bool {
    name == b"system.posix_acl_access" || name == b"system.posix_acl_default"
}

/// The value of an attribute on the other side; none if it cannot be there.
pub(super) fn translate(name: &[u8], value: Vec<u8>, way: Way) -> Option<Vec<u8>> {
    if name == CAPABILITY {
        translate_capability(value, way)
    } else if is_acl(name) {
        translate_acl(value, way)
    } else {
        Some(value)
    }
}

const VERSION_MASK: u32 = 0xff00_0000;
const VERSION_2: u32 = 0x0200_0000;
const VERSION_3: u32 = 0x0300_0000;

/// Version 2 is for the root of the host, version 3 names whose root: inside, a layer's are 2.
fn translate_capability(mut value: Vec<u8>, way: Way) -> Option<Vec<u8>> {
    let word = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
    let magic = word(value.get(..4)?)?;
    let with_version = |version: u32| ((magic & !VERSION_MASK) | version).to_le_bytes();
    match (way, magic & VERSION_MASK) {
        // Through a mapped mount, the host's root is the sandbox's.
        (Way::Outward(Ids::Same), VERSION_2) if value.len() == 20 => Some(value),
        (Way::Inward(ids), VERSION_3) => {
            let root = word(value.get(20..24)?)?;
            // Those of another root mean nothing here.
            ids.inside(root).filter(|inside| *inside == 0)?;
            value.truncate(20);
            value[..4].copy_from_slice(&with_version(VERSION_2));
            Some(value)
        }
        (Way::Outward(Ids::From(first)), VERSION_2) => {
            value.truncate(20);
            value[..4].copy_from_slice(&with_version(VERSION_3));
            value.extend(first.to_le_bytes());
            Some(value)
        }
        // Capabilities towards the host itself: no sandbox can have written them.
        (Way::Inward(_), _) | (Way::Outward(_), _) => None,
    }
}

/// A version, then entries of tag, permissions and id.
fn translate_acl(mut value: Vec<u8>, way: Way) -> Option<Vec<u8>> {
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    let entries = value.get_mut(4..)?;
    for entry in entries.chunks_exact_mut(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if tag == USER || tag == GROUP {
            let id = u32::from_le_bytes(entry[4..].try_into().ok()?);
            entry[4..].copy_from_slice(&way.id(id)?.to_le_bytes());
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_change_their_root_there_and_back() {
        let ids = Ids::From(1 << 20);
        let mut outside = (VERSION_3 | 1).to_le_bytes().to_vec();
        outside.extend([7; 16]);
        outside.extend((1_u32 << 20).to_le_bytes());
        let inside = translate(CAPABILITY, outside.clone(), Way::Inward(ids)).unwrap();
        assert_eq!(inside.len(), 20);
        assert_eq!(inside[..4], (VERSION_2 | 1).to_le_bytes());
        assert_eq!(
            translate(CAPABILITY, inside, Way::Outward(ids)),
            Some(outside)
        );
    }

    #[test]
    fn capabilities_towards_the_host_are_dropped() {
        let ids = Ids::From(1 << 20);
        let mut value = VERSION_2.to_le_bytes().to_vec();
        value.extend([7; 16]);
        assert_eq!(translate(CAPABILITY, value, Way::Inward(ids)), None);
        assert_eq!(translate(CAPABILITY, vec![1, 2], Way::Outward(ids)), None);
    }

    #[test]
    fn lists_of_users_change_their_ids() {
        let ids = Ids::From(1 << 20);
        let mut value = 2_u32.to_le_bytes().to_vec();
        let mut entry = |tag: u16, id: u32| {
            value.extend(tag.to_le_bytes());
            value.extend(6_u16.to_le_bytes());
            value.extend(id.to_le_bytes());
        };
        entry(0x01, u32::MAX);
        entry(0x02, (1 << 20) + 1000);
        let name = b"system.posix_acl_access";
        let inside = translate(name, value.clone(), Way::Inward(ids)).unwrap();
        assert_eq!(inside[16..20], 1000_u32.to_le_bytes());
        assert_eq!(translate(name, inside, Way::Outward(ids)), Some(value));
    }
}
