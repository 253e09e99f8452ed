//! How much memory a role may take.

use std::{fmt, str::FromStr};

/// What every role asks for, whatever it may take: a limit below it is refused by an API server.
pub(crate) const REQUESTED: Memory = Memory { mebibytes: 256 };

/// An amount of memory, in whole mebibytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Memory {
    mebibytes: u32,
}

/// What is no limit for a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// It is no amount.
    #[error("`{0}` is not an amount of memory, as 512Mi or 8Gi")]
    Unreadable(String),
    /// A role would be given less than it asks for.
    #[error("{given} is too little: a role asks for {REQUESTED}")]
    TooLittle {
        /// What was given.
        given: Memory,
    },
}

impl Memory {
    const PER_GIBIBYTE: u32 = 1024;

    pub(crate) const fn gibibytes(number: u32) -> Self {
        Self {
            mebibytes: number * Self::PER_GIBIBYTE,
        }
    }
}

impl FromStr for Memory {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Self, MemoryError> {
        let number = |unit| text.strip_suffix(unit)?.parse::<u32>().ok();
        let mebibytes = number("Mi").or_else(|| number("Gi")?.checked_mul(Self::PER_GIBIBYTE));
        let given = mebibytes
            .map(|mebibytes| Self { mebibytes })
            .ok_or_else(|| MemoryError::Unreadable(text.to_owned()))?;
        match given < REQUESTED {
            true => Err(MemoryError::TooLittle { given }),
            false => Ok(given),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mebibytes.is_multiple_of(Self::PER_GIBIBYTE) {
            true => write!(f, "{}Gi", self.mebibytes / Self::PER_GIBIBYTE),
            false => write!(f, "{}Mi", self.mebibytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written_as_kubernetes_does() {
        for (given, written) in [("8Gi", "8Gi"), ("2048Mi", "2Gi"), ("256Mi", "256Mi")] {
            let memory: Memory = given.parse().expect(given);
            assert_eq!(memory.to_string(), written);
        }
    }

    #[test]
    fn what_is_no_amount_or_less_than_is_asked_for_is_refused() {
        for text in ["", "8", "8G", "Gi", "-1Gi", "1.5Gi", "9999999Gi"] {
            let unreadable = MemoryError::Unreadable(text.to_owned());
            assert_eq!(text.parse::<Memory>(), Err(unreadable));
        }
        let refused = "255Mi".parse::<Memory>().expect_err("too little");
        assert_eq!(
            refused.to_string(),
            "255Mi is too little: a role asks for 256Mi"
        );
    }
}
