//! What can go wrong with images, and whose fault it is.

use std::{fmt, io, sync::Arc};

use model::Digest;
use thiserror::Error;

/// Why there is no image. One failure reaches everybody who waits for the same pull, so it can be
/// cloned.
#[derive(Clone, Debug, Error)]
pub enum ImageError {
    /// The text does not name an image.
    #[error("`{text}` does not name an image: {why}")]
    Name {
        /// The text.
        text: Box<str>,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// It is not here, and may not be fetched.
    #[error(
        "image {0} is not on this host and its pull policy is Never: run `dormouse image pull {0}`, \
         import it, or choose the policy IfNotPresent"
    )]
    NotPresent(Box<str>),
    /// The registry does not know it.
    #[error("registry {registry} has no image {name}: check the name and the tag")]
    Unknown {
        /// The registry's host.
        registry: Box<str>,
        /// What was asked for.
        name: Box<str>,
    },
    /// The registry wants to know who asks, or does not like the answer.
    #[error("registry {registry} does not let us {doing} {name}: {remedy}")]
    Unauthorized {
        /// The registry's host.
        registry: Box<str>,
        /// What was asked for.
        name: Box<str>,
        /// Read or write.
        doing: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The registry would be spoken to in clear text.
    #[error(
        "registry {registry} would be reached without TLS: only registries on loopback are, and \
         those that are named as insecure"
    )]
    Insecure {
        /// The registry's host.
        registry: Box<str>,
    },
    /// Only this host's own network can reach the registry, and a client named it.
    #[error(
        "registry {registry} is at an address of the server's own network, which its clients may \
         not choose: an administrator can allow it by `e2b.images`, or name it as insecure"
    )]
    OutOfReach {
        /// The registry's host.
        registry: Box<str>,
    },
    /// The registry did not answer, or not to the end.
    #[error("registry {registry} did not deliver: {why}")]
    Unreachable {
        /// The registry's host.
        registry: Box<str>,
        /// What was seen.
        why: Box<str>,
    },
    /// Content is not what its digest says.
    #[error("{what} is {actual}, not {expected} as its digest says: whoever served it is wrong")]
    Mismatch {
        /// Which thing.
        what: Box<str>,
        /// What it should be.
        expected: Digest,
        /// What it is.
        actual: Digest,
    },
    /// No variant of it runs here.
    #[error("{name} has no image for {wanted}, only for {offered}")]
    Platform {
        /// What was asked for.
        name: Box<str>,
        /// This host's.
        wanted: Box<str>,
        /// What there is.
        offered: Box<str>,
    },
    /// It is made in a way that is not understood.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// Which thing.
        what: Box<str>,
        /// In which way.
        why: Box<str>,
    },
    /// It is not what the format says.
    #[error("{what} is malformed: {why}")]
    Malformed {
        /// Which thing.
        what: Box<str>,
        /// In which way.
        why: Box<str>,
    },
    /// It is larger than allowed.
    #[error("{what} is more than {limit}")]
    TooLarge {
        /// Which thing.
        what: Box<str>,
        /// How much is allowed.
        limit: u64,
    },
    /// A layer holds what no layer may.
    #[error("entry `{entry}` of the layer {why}")]
    Hostile {
        /// The entry's name, as far as it can be shown.
        entry: Box<str>,
        /// What it tries.
        why: Hostile,
    },
    /// A captured layer whose image would lack what lies below.
    #[error("layer {layer} cannot become an image: {why}")]
    NoBase {
        /// The layer.
        layer: Digest,
        /// What it lies on, and what to do about it.
        why: Box<str>,
    },
    /// The registry does not take what it was sent.
    #[error("registry {registry} does not take {name}: it answered {status}{code}")]
    Rejected {
        /// The registry's host.
        registry: Box<str>,
        /// What was sent.
        name: Box<str>,
        /// Its answer.
        status: u16,
        /// The reason it gave, as one of the words that registries agreed on; may be empty.
        code: Box<str>,
    },
    /// A secret that is named and cannot be used.
    #[error("secret {name}: {why}")]
    Secret {
        /// Its name or file.
        name: Box<str>,
        /// What is wrong with it, and what to do about it.
        why: &'static str,
    },
    /// It is used.
    #[error("image {name} is used by {users}: remove that first")]
    Used {
        /// Which one.
        name: Box<str>,
        /// By whom.
        users: Box<str>,
    },
    /// No archive can hold what a sandbox has written, today or tomorrow.
    #[error("{0}")]
    Uncapturable(Box<str>),
    /// A tool that this host lacks, or that failed.
    #[error("{tool}: {why}. {remedy}")]
    Tool {
        /// Its name.
        tool: &'static str,
        /// What was seen.
        why: Box<str>,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Another process has the images open.
    #[error("another process uses {directory}: stop it, and try again")]
    Busy {
        /// Where they are.
        directory: Box<str>,
    },
    /// What is on disk is not what was written.
    #[error("{what} is damaged: {how}")]
    Damaged {
        /// Which thing.
        what: Box<str>,
        /// In which way.
        how: Box<str>,
    },
    /// A transfer was ended with the server.
    #[error("the transfer of {0} was stopped half-way: ask again, and it goes on from there")]
    Stopped(Box<str>),
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: Box<str>,
        /// What the kernel said.
        source: Arc<io::Error>,
    },
}

/// What an entry of an archive tries that none may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// A path from the root.
    Absolute,
    /// A path with `..` in it.
    Parent,
    /// An empty name, or one the kernel refuses.
    Name,
    /// Deeper than [`crate::layer::DEPTH`].
    Deep,
    /// A path through a symbolic link or a file.
    Through,
    /// A hard link to what is not in the layer.
    Link,
    /// A device node.
    Device,
    /// A kind of entry that layers do not have.
    Kind,
    /// A name that is there already.
    Duplicate,
    /// A whiteout of nothing, or one that is no plain file.
    Whiteout,
    /// A header that is not one, or numbers that are none.
    Header,
    /// Records before an entry that are malformed or too long.
    Records,
    /// An owner that no sandbox can have.
    Owner,
    /// More entries than allowed.
    Entries,
    /// More bytes than allowed.
    Bytes,
    /// The archive ends within it.
    Cut,
    /// An attribute that the filesystem does not take.
    Attribute,
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absolute => "has a path from the root",
            Self::Parent => "has `..` in its path",
            Self::Name => "has a name that is none",
            Self::Deep => "is nested too deep",
            Self::Through => "leads through a link or a file",
            Self::Link => "is a link to what is not in the layer",
            Self::Device => "is a device",
            Self::Kind => "is of a kind that layers do not have",
            Self::Duplicate => "is there twice",
            Self::Whiteout => "is a malformed whiteout",
            Self::Header => "has a malformed header",
            Self::Records => "has malformed records",
            Self::Owner => "has an owner that cannot be",
            Self::Entries => "is one more than a layer may have",
            Self::Bytes => "makes the layer larger than allowed",
            Self::Cut => "is cut off",
            Self::Attribute => "has an attribute that cannot be set",
        })
    }
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Whoever asked for the image.
    Caller,
    /// Whoever made or served it.
    Registry,
    /// This host.
    Host,
}

impl ImageError {
    /// Whether trying again may help without anybody doing anything.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Busy { .. }
            | Self::Stopped(_)
            | Self::System { .. }
            | Self::Tool { .. } => true,
            Self::Name { .. }
            | Self::NotPresent(_)
            | Self::Unknown { .. }
            | Self::Unauthorized { .. }
            | Self::Insecure { .. }
            | Self::OutOfReach { .. }
            | Self::Mismatch { .. }
            | Self::Platform { .. }
            | Self::Unsupported { .. }
            | Self::Malformed { .. }
            | Self::TooLarge { .. }
            | Self::Hostile { .. }
            | Self::Uncapturable(_)
            | Self::NoBase { .. }
            | Self::Rejected { .. }
            | Self::Secret { .. }
            | Self::Used { .. }
            | Self::Damaged { .. } => false,
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Name { .. }
            | Self::NotPresent(_)
            | Self::Unknown { .. }
            | Self::Unauthorized { .. }
            | Self::Insecure { .. }
            | Self::OutOfReach { .. }
            | Self::Uncapturable(_)
            | Self::NoBase { .. }
            | Self::Secret { .. }
            | Self::Used { .. }
            | Self::Platform { .. } => Fault::Caller,
            Self::Unreachable { .. }
            | Self::Mismatch { .. }
            | Self::Unsupported { .. }
            | Self::Malformed { .. }
            | Self::TooLarge { .. }
            | Self::Rejected { .. }
            | Self::Hostile { .. } => Fault::Registry,
            Self::Tool { .. }
            | Self::Busy { .. }
            | Self::Damaged { .. }
            | Self::Stopped(_)
            | Self::System { .. } => Fault::Host,
        }
    }

    pub(crate) fn malformed(what: impl Into<Box<str>>, why: impl fmt::Display) -> Self {
        Self::Malformed {
            what: what.into(),
            why: why.to_string().into(),
        }
    }
}

/// What the functions of this crate return.
pub type Result<T, E = ImageError> = std::result::Result<T, E>;

/// Says what was being done when a system call failed.
pub(crate) trait Doing<T> {
    /// Verb and object: "open the layer".
    fn doing(self, doing: impl AsRef<str>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, doing: impl AsRef<str>) -> Result<T> {
        self.map_err(|error| ImageError::System {
            doing: doing.as_ref().into(),
            source: Arc::new(error.into()),
        })
    }
}
