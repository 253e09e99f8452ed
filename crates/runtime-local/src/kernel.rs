//! System calls that no library wraps safely. All `unsafe` of this crate is below this module.

pub(crate) mod borrow;
pub(crate) mod btrfs;
pub(crate) mod clone;
pub(crate) mod exec;
pub(crate) mod idmap;
pub(crate) mod loopback;
pub(crate) mod namespace;
pub(crate) mod pidfd;
pub(crate) mod trial;
