//! Why a link ended, or never came to be.

/// Why a link ended. Some are faults of the other side, and told to people once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Why {
    /// It could not be dialled.
    #[error("it cannot be reached")]
    Unreachable,
    /// It does not hold the peer key, or shows no certificate.
    #[error("it does not hold the peer key of this installation")]
    Handshake,
    /// It did not end its handshake in time.
    #[error("it did not end its handshake in time")]
    Stalled,
    /// It began too many handshakes at once.
    #[error("too many handshakes come from its address")]
    Crowd,
    /// It holds the key, and does not speak this protocol.
    #[error("it does not speak the mesh protocol")]
    Protocol,
    /// It speaks another format.
    #[error("it speaks another format of the mesh protocol: is it another version?")]
    Format,
    /// It belongs to another installation.
    #[error("it belongs to another installation: do two of them share a peer key?")]
    Cluster,
    /// It sent what cannot be read.
    #[error("it sent what cannot be read")]
    Garbage,
    /// It announced a frame that is too long.
    #[error("it announced a frame that is too long")]
    TooLong,
    /// The link ended in the middle of a frame.
    #[error("the link ended in the middle of a frame")]
    Truncated,
    /// A frame came again, or one is missing.
    #[error("a frame came twice, out of its order, or not at all")]
    Sequence,
    /// It sent something that does not belong there.
    #[error("it sent a frame that does not belong there")]
    Unexpected,
    /// It has said nothing for too long.
    #[error("it said nothing for too long")]
    Silent,
    /// It does not take what it is sent.
    #[error("it does not take what it is sent")]
    Slow,
    /// There are too many links.
    #[error("there are too many links")]
    TooMany,
    /// It is this process itself.
    #[error("it is this process")]
    Myself,
    /// There is another link to the same process.
    #[error("there is another link to the same process")]
    Double,
    /// Its other side closed it, or it broke.
    #[error("it was closed")]
    Closed,
    /// This process leaves.
    #[error("this process leaves")]
    Leaving,
}

impl Why {
    /// Whether the other side did something it should not.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        match self {
            Self::Handshake
            | Self::Stalled
            | Self::Crowd
            | Self::Protocol
            | Self::Format
            | Self::Cluster
            | Self::Garbage
            | Self::TooLong
            | Self::Truncated
            | Self::Sequence
            | Self::Unexpected
            | Self::TooMany => true,
            Self::Unreachable
            | Self::Silent
            | Self::Slow
            | Self::Myself
            | Self::Double
            | Self::Closed
            | Self::Leaving => false,
        }
    }

    /// The word for it in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Handshake => "handshake",
            Self::Stalled => "stalled",
            Self::Crowd => "crowd",
            Self::Protocol => "protocol",
            Self::Format => "format",
            Self::Cluster => "cluster",
            Self::Garbage => "garbage",
            Self::TooLong => "too_long",
            Self::Truncated => "truncated",
            Self::Sequence => "sequence",
            Self::Unexpected => "unexpected",
            Self::Silent => "silent",
            Self::Slow => "slow",
            Self::TooMany => "too_many",
            Self::Myself => "myself",
            Self::Double => "double",
            Self::Closed => "closed",
            Self::Leaving => "leaving",
        }
    }
}
