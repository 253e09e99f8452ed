//! Moments, as protobuf's `Timestamp` and as RFC 3339.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const DAY: i64 = 86_400;

/// A moment: seconds since 1970 and the nanoseconds after them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Message)]
pub struct Timestamp {
    /// Whole seconds since 1970, negative before.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// 0 to 999,999,999, always forward.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// Writes `2026-11-15T06:19:00.5Z` with 0, 3, 6 or 9 digits after the second.
pub fn write_rfc3339(out: &mut impl fmt::Write, at: &Timestamp) -> fmt::Result {
    let (days, of_day) = (at.seconds.div_euclid(DAY), at.seconds.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    write!(
        out,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )?;
    match at.nanos {
        0 => {}
        n if n % 1_000_000 == 0 => write!(out, ".{:03}", n / 1_000_000)?,
        n if n % 1_000 == 0 => write!(out, ".{:06}", n / 1_000)?,
        n => write!(out, ".{n:09}")?,
    }
    out.write_char('Z')
}

/// Reads RFC 3339 with any offset.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let digits = |from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| part.parse().ok())?
    };
    let byte = |at: usize| text.as_bytes().get(at).copied();
    let separators = [byte(4)?, byte(7)?, byte(13)?, byte(16)?];
    if separators != *b"--::" || !matches!(byte(10)?, b'T' | b't') {
        return None;
    }
    let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let (hour, minute, second) = (digits(11, 13)?, digits(14, 16)?, digits(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if length == 0 {
            return None;
        }
        for place in 0..9 {
            let digit = fraction
                .as_bytes()
                .get(place)
                .filter(|_| place < length)
                .map_or(0, |b| i32::from(b - b'0'));
            nanos = nanos * 10 + digit;
        }
        rest = fraction.get(length..)?;
    }
    let offset = match rest.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let pair = |a: &u8, b: &u8| {
                (a.is_ascii_digit() && b.is_ascii_digit())
                    .then(|| i64::from(a - b'0') * 10 + i64::from(b - b'0'))
            };
            let seconds = pair(h1, h2)? * 3600 + pair(m1, m2)? * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    let seconds = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset;
    Some(Timestamp { seconds, nanos })
}

/// Days since 1970 to year, month and day (Hinnant's algorithm).
#[must_use]
pub const fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// The inverse of [`civil`].
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    era * 146_097 + of_era - 719_468
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(30);
        write_rfc3339(&mut text, self).map_err(serde::ser::Error::custom)?;
        to.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        parse_rfc3339(&text).ok_or_else(|| de::Error::custom("not a moment in RFC 3339"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(seconds: i64, nanos: i32) -> String {
        let mut out = String::new();
        write_rfc3339(&mut out, &Timestamp { seconds, nanos }).unwrap();
        out
    }

    #[test]
    fn known_moments_read_and_write() {
        assert_eq!(text(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(text(951_782_400, 0), "2000-02-29T00:00:00Z");
        assert_eq!(text(-1, 500_000_000), "1969-12-31T23:59:59.500Z");
        assert_eq!(text(1_794_723_540, 1_000), "2026-11-15T06:19:00.000001Z");
        assert_eq!(
            parse_rfc3339("2026-11-15T08:19:00.25+02:00"),
            Some(Timestamp {
                seconds: 1_794_723_540,
                nanos: 250_000_000
            })
        );
        for bad in [
            "",
            "2026-11-15",
            "2026-13-15T08:19:00Z",
            "2026-11-15T08:19:00",
            "x",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            seconds in -62_135_596_800_i64..253_402_300_800,
            nanos in 0..1_000_000_000_i32,
        ) {
            let at = Timestamp { seconds, nanos };
            prop_assert_eq!(parse_rfc3339(&text(seconds, nanos)), Some(at));
        }
    }
}
