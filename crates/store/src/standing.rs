//! Whose word a record is, where others can write it, too.

/// How a record of a sandbox stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Our processes wrote what it says of its delivery.
    Ours,
    /// They say that they made it, and may have said so of another one of its name that is gone.
    Made,
    /// They did, and somebody has changed these fields since. The record is as it was.
    Altered(Vec<String>),
    /// Nobody of ours has written it. It is without these fields, which it had.
    Unproven(Vec<String>),
}
