//! How the number of idle members of a pool follows demand, and the times at which it does.
//!
//! Nothing here reads a clock: a [`Calendar`] is asked about moments it is given. The rules of time
//! zones are compiled in, so that what was accepted on one machine means the same on another.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Timestamp, limits, meta::is_default};

/// How a pool follows demand, between its `minIdle` and its `maxIdle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Autoscale {
    /// Whether claims that have to wait raise what is kept idle: by as many as wait.
    pub by_queue: bool,
    /// How recent claims raise it.
    pub claim_rate: ClaimRate,
    /// Seconds between two raises.
    pub up_cooldown_seconds: u32,
    /// Seconds for which more was idle than is needed before less is kept.
    pub down_cooldown_seconds: u32,
    /// Times at which at least so many are kept idle, whatever the demand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::SCHEDULES))]
    pub schedules: Vec<Schedule>,
}

impl Default for Autoscale {
    fn default() -> Self {
        Self {
            by_queue: true,
            claim_rate: ClaimRate::default(),
            up_cooldown_seconds: 5,
            down_cooldown_seconds: 300,
            schedules: Vec::new(),
        }
    }
}

/// How recent claims raise what is kept idle: as many as come, at this rate, in `coverSeconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRate {
    /// Seconds over which claims are counted.
    pub window_seconds: u32,
    /// Seconds of claims that idle members are to last for; 0 leaves the rate out of account.
    pub cover_seconds: u32,
}

impl Default for ClaimRate {
    fn default() -> Self {
        Self {
            window_seconds: 60,
            cover_seconds: 15,
        }
    }
}

/// A time at which at least so many are kept idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// When it begins, as five fields of a crontab: minute, hour, day, month, weekday.
    #[schemars(length(max = limits::CRON))]
    pub cron: Box<str>,
    /// The time zone of those, as `Europe/Berlin`; UTC if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::TIME_ZONE))]
    pub time_zone: Option<Box<str>>,
    /// How long it lasts.
    pub duration_seconds: u32,
    /// At least this many wait to be claimed meanwhile.
    pub min_idle: u32,
}

/// What is observed of a pool that follows demand. It is remembered here, so that a new control
/// loop goes on where another ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscaleStatus {
    /// How many are kept idle now, in place of `spec.minIdle`.
    pub min_idle: u32,
    /// What last changed that.
    pub reason: AutoscaleReason,
    /// The same in a sentence.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub message: Box<str>,
    /// When it was last raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raised_at: Option<Timestamp>,
    /// Since when more has been idle than is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_since: Option<Timestamp>,
}

/// What changed how many are kept idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscaleReason {
    /// Nothing but what the pool itself asks for.
    #[default]
    Configured,
    /// Claims had to wait.
    Queue,
    /// Claims came often.
    ClaimRate,
    /// A schedule.
    Schedule,
    /// Nothing needed as many any more.
    Quiet,
}

impl AutoscaleStatus {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        is_default(self)
    }
}

/// Why a schedule cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The crontab.
    #[error("{0}")]
    Cron(String),
    /// The time zone.
    #[error("{0:?} is not a time zone")]
    TimeZone(Box<str>),
}

/// A schedule that was read.
#[derive(Clone, Debug)]
pub struct Calendar {
    begins: cronexpr::Crontab,
    lasts: Duration,
}

/// How a schedule stands at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether it holds.
    pub holds: bool,
    /// When it begins next; none if never again.
    pub next: Option<Timestamp>,
}

impl Schedule {
    /// Reads it.
    ///
    /// # Errors
    /// If the crontab or the time zone cannot be read.
    pub fn read(&self) -> Result<Calendar, ScheduleError> {
        let zone = self.time_zone.as_deref().unwrap_or("UTC");
        if zone.contains(char::is_whitespace) || jiff::tz::TimeZone::get(zone).is_err() {
            return Err(ScheduleError::TimeZone(zone.into()));
        }
        // The zone would be a sixth field there; nobody writes it twice.
        if self.cron.split_whitespace().count() != 5 {
            let told = "it has not five fields: minute, hour, day, month, weekday";
            return Err(ScheduleError::Cron(told.to_owned()));
        }
        let begins = cronexpr::parse_crontab(&format!("{} {zone}", self.cron))
            .map_err(|error| ScheduleError::Cron(error.to_string()))?;
        Ok(Calendar {
            begins,
            lasts: Duration::from_secs(self.duration_seconds.into()),
        })
    }
}

impl Calendar {
    /// How it stands at a moment.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Standing {
        // It holds if it began no longer ago than it lasts.
        let began = self.after(now.minus(self.lasts));
        Standing {
            holds: began.is_some_and(|began| began <= now),
            next: self.after(now),
        }
    }

    fn after(&self, moment: Timestamp) -> Option<Timestamp> {
        let moment = jiff::Timestamp::from_microsecond(moment.as_micros()).ok()?;
        let next = self.begins.find_next(moment).ok()?;
        Some(Timestamp::from_micros(next.timestamp().as_microsecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(cron: &str, zone: Option<&str>, hours: u32) -> Schedule {
        Schedule {
            cron: cron.into(),
            time_zone: zone.map(Into::into),
            duration_seconds: hours * 3600,
            min_idle: 1,
        }
    }

    fn at(calendar: &Calendar, moment: &str) -> (bool, String) {
        let standing = calendar.at(moment.parse().unwrap());
        (standing.holds, standing.next.unwrap().to_string())
    }

    #[test]
    fn it_holds_from_its_beginning_for_as_long_as_it_lasts() {
        let calendar = schedule("0 8 * * 1-5", None, 10).read().unwrap();
        // 2026-11-16 is a Monday.
        let monday = "2026-11-16T08:00:00.000000Z".to_owned();
        let tuesday = "2026-11-17T08:00:00.000000Z".to_owned();
        for (moment, holds, next) in [
            ("2026-11-15T12:00:00Z", false, &monday),
            ("2026-11-16T07:59:59Z", false, &monday),
            ("2026-11-16T08:00:00Z", true, &tuesday),
            ("2026-11-16T17:59:59Z", true, &tuesday),
            ("2026-11-16T18:00:00Z", false, &tuesday),
        ] {
            assert_eq!(at(&calendar, moment), (holds, next.clone()), "{moment}");
        }
    }

    #[test]
    fn it_begins_at_the_hour_of_its_time_zone_in_summer_and_winter() {
        let calendar = schedule("0 8 * * *", Some("Europe/Berlin"), 1);
        let calendar = calendar.read().unwrap();
        assert!(at(&calendar, "2026-07-01T06:30:00Z").0);
        assert!(!at(&calendar, "2026-12-01T06:30:00Z").0);
        assert!(at(&calendar, "2026-12-01T07:30:00Z").0);
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_part_that_is_wrong() {
        for cron in [
            "",
            "often",
            "0 8 * *",
            "61 8 * * *",
            "0 8 * * * UTC",
            "0 8 * * * *",
        ] {
            let error = schedule(cron, None, 1).read().unwrap_err();
            assert!(matches!(error, ScheduleError::Cron(_)), "{cron}: {error}");
        }
        for zone in ["", "Middle/Earth", "UTC UTC", "../../etc/passwd"] {
            let error = schedule("0 8 * * *", Some(zone), 1).read().unwrap_err();
            assert_eq!(error, ScheduleError::TimeZone(zone.into()));
        }
    }

    #[test]
    fn a_day_that_never_comes_never_holds() {
        let calendar = schedule("0 0 31 2 *", None, 1).read().unwrap();
        let standing = calendar.at(Timestamp::from_micros(1_794_000_000_000_000));
        assert_eq!(
            standing,
            Standing {
                holds: false,
                next: None
            }
        );
    }
}
