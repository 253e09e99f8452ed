//! What to wait for. A condition is a predicate over what is at a key now; any closure will do.

use model::{Uid, Version};

use crate::Identified;

/// The object was read at this version or a later one. Not fulfilled by its absence: combine with
/// [`gone`] where the object may be removed meanwhile.
pub fn version_at_least<T: Identified>(version: Version) -> impl Fn(Option<&T>) -> bool {
    move |value| value.is_some_and(|value| value.version() >= version)
}

/// That one is no longer there; another of the same name may be.
pub fn gone<T: Identified>(uid: Uid) -> impl Fn(Option<&T>) -> bool {
    move |value| value.is_none_or(|value| value.uid() != uid)
}

/// There is one, and it satisfies this.
pub fn present<T>(predicate: impl Fn(&T) -> bool) -> impl Fn(Option<&T>) -> bool {
    move |value| value.is_some_and(&predicate)
}

/// Both hold.
pub fn both<T>(
    a: impl Fn(Option<&T>) -> bool,
    b: impl Fn(Option<&T>) -> bool,
) -> impl Fn(Option<&T>) -> bool {
    move |value| a(value) && b(value)
}

/// One of the two holds.
pub fn either<T>(
    a: impl Fn(Option<&T>) -> bool,
    b: impl Fn(Option<&T>) -> bool,
) -> impl Fn(Option<&T>) -> bool {
    move |value| a(value) || b(value)
}

/// It does not hold.
pub fn not<T>(a: impl Fn(Option<&T>) -> bool) -> impl Fn(Option<&T>) -> bool {
    move |value| !a(value)
}
