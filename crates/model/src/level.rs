//! How bad a line of a log is.

use serde::{Deserialize, Serialize};

/// How bad a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// For those who look for a defect.
    Debug,
    /// All is well.
    Info,
    /// Something is odd, or was said on standard error.
    Warn,
    /// It has failed.
    Error,
}

impl Level {
    /// The word for it on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    /// The level of this name.
    #[must_use]
    pub fn read(name: &str) -> Option<Self> {
        [Self::Debug, Self::Info, Self::Warn, Self::Error]
            .into_iter()
            .find(|level| level.as_str() == name)
    }
}
