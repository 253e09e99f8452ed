//! Wall-clock time, in microseconds: the resolution of Kubernetes' `MicroTime`.

use std::{fmt, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A moment on the wall clock, in microseconds since 1970.
///
/// Deadlines are stored as these. Whether one has passed is decided by whoever holds a clock,
/// by elapsed monotonic time, so that a jump of the wall clock ends nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment this many microseconds after 1970 began.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970 began.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The moment `by` later, or the last one there is.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// The moment `by` earlier, or the first one there is.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// How long after `earlier` this is; zero if it is not after.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(t) => write!(f, "{t:.6}"),
            // Beyond the year 9999 there is no RFC 3339; such a value still has to print.
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an RFC 3339 time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a time: write it as in 2026-01-31T12:00:00.000000Z")]
pub struct InvalidTime(String);

impl FromStr for Timestamp {
    type Err = InvalidTime;
    fn from_str(s: &str) -> Result<Self, InvalidTime> {
        s.parse::<jiff::Timestamp>()
            .map(|t| Self(t.as_microsecond()))
            .map_err(|_| InvalidTime(s.to_owned()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_with_microseconds() {
        let t: Timestamp = "2026-11-15T04:37:55.000123Z".parse().unwrap();
        assert_eq!(t.to_string(), "2026-11-15T04:37:55.000123Z");
        assert_eq!("2026-11-15T05:37:55.000123+01:00".parse(), Ok(t));
        assert_eq!(
            t.plus(Duration::from_secs(1)).since(t),
            Duration::from_secs(1)
        );
        assert_eq!(t.since(t.plus(Duration::from_secs(1))), Duration::ZERO);
        assert!("yesterday".parse::<Timestamp>().is_err());
    }
}
