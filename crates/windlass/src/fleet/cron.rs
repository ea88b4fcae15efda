//! The times of a schedule, in the notation of cron. All times are in UTC.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use windlass_core::id::Timestamp;

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;
/// Number of days in which a time is looked for: the 29th of February may be eight years away.
const MAX_DAYS: u64 = 366 * 8 + 2;

/// The times of a schedule: minute, hour, day of the month, month and day of the week, in UTC.
///
/// Each field is `*`, a number, a range `1-5`, a step `*/15` or `10-40/10`, or a list of these with commas. Sunday is 0 or 7.
/// If both the day of the month and the day of the week are restricted, one of them must match, as in cron. `@hourly`,
/// `@daily`, `@weekly` and `@monthly` are allowed, too.
///
/// ```
/// use windlass::fleet::CronTimes;
///
/// let mornings: CronTimes = "30 7 * * 1-5".parse().expect("it is valid");
/// assert_eq!(mornings.to_string(), "30 7 * * 1-5");
/// assert!("61 * * * *".parse::<CronTimes>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CronTimes {
    text: String,
    minutes: u64,
    hours: u64,
    month_days: u64,
    months: u64,
    week_days: u64,
    day_rule: DayRule,
}

/// The days on which a schedule has times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DayRule {
    /// Day of the month and day of the week both match; at most one of them is restricted.
    Both,
    /// One of them matches; both are restricted.
    Either,
}

/// An invalid text of a schedule's times.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no schedule: {reason}")]
pub struct CronError {
    text: String,
    reason: String,
}

impl fmt::Display for CronTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<CronTimes> for String {
    fn from(times: CronTimes) -> Self {
        times.text
    }
}

impl TryFrom<String> for CronTimes {
    type Error = CronError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl FromStr for CronTimes {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |reason: String| CronError { text: text.to_owned(), reason };
        let fields = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            fields => fields,
        };
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let [minutes, hours, month_days, months, week_days] = fields.as_slice() else {
            return Err(wrong(format!("it has {} fields instead of five", fields.len())));
        };
        let is_restricted = |field: &str| !field.starts_with('*');
        let both_restricted = is_restricted(month_days) && is_restricted(week_days);
        let times = Self {
            text: text.trim().to_owned(),
            minutes: parse_field("minute", minutes, 0, 59).map_err(wrong)?,
            hours: parse_field("hour", hours, 0, 23).map_err(wrong)?,
            month_days: parse_field("day of the month", month_days, 1, 31).map_err(wrong)?,
            months: parse_field("month", months, 1, 12).map_err(wrong)?,
            week_days: {
                let days = parse_field("day of the week", week_days, 0, 7).map_err(wrong)?;
                // Sunday is both 0 and 7.
                days | (days >> 7 & 1)
            },
            day_rule: if both_restricted { DayRule::Either } else { DayRule::Both },
        };
        match times.next_after(Timestamp(0)) {
            Some(_) => Ok(times),
            None => Err(wrong("it has no times".to_owned())),
        }
    }
}

impl CronTimes {
    /// Returns the first time after a time; `None` if there is none in the next eight years.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        // The first whole minute after the time.
        let first = (after.0 / MINUTE_MS).checked_add(1)?;
        let first_day = first / (24 * 60);
        for day in first_day..first_day + MAX_DAYS {
            if !self.has_day(day) {
                continue;
            }
            let begin = if day == first_day { first % (24 * 60) } else { 0 };
            let minute = (begin..24 * 60)
                .find(|minute| contains(self.hours, minute / 60) && contains(self.minutes, minute % 60));
            if let Some(minute) = minute {
                return Some(Timestamp(day.checked_mul(DAY_MS)?.checked_add(minute * MINUTE_MS)?));
            }
        }
        None
    }

    fn has_day(&self, day: u64) -> bool {
        let (month, month_day) = month_and_day(day);
        // The first of January 1970 was a Thursday.
        let week_day = (day + 4) % 7;
        let (by_month, by_week) = (contains(self.month_days, month_day), contains(self.week_days, week_day));
        contains(self.months, month)
            && match self.day_rule {
                DayRule::Both => by_month && by_week,
                DayRule::Either => by_month || by_week,
            }
    }
}

fn contains(set: u64, number: u64) -> bool {
    set >> number & 1 == 1
}

/// Returns the month and the day of the month, each from 1, of a day since the first of January 1970.
fn month_and_day(day: u64) -> (u64, u64) {
    // Eras of 400 years that begin with March, so that the leap day is the last one of its year.
    let since_march = day + 719_468;
    let day_of_era = since_march % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    (if month < 10 { month + 3 } else { month - 9 }, day_of_year - (153 * month + 2) / 5 + 1)
}

/// Parses a field into the set of its numbers.
fn parse_field(name: &str, field: &str, least: u64, most: u64) -> Result<u64, String> {
    let mut set = 0;
    for part in field.split(',') {
        let wrong = || format!("`{part}` is no {name}: write * or numbers from {least} to {most}");
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse().ok().filter(|step| *step > 0).ok_or_else(wrong)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            None if range == "*" => (least, most.min(if least == 0 && most == 7 { 6 } else { most })),
            None if part.contains('/') => return Err(wrong()),
            None => number(range).map(|only| (only, only)).ok_or_else(wrong)?,
            Some((first, last)) => number(first).zip(number(last)).ok_or_else(wrong)?,
        };
        if first > last {
            return Err(wrong());
        }
        set = (first..=last)
            .step_by(usize::try_from(step).unwrap_or(usize::MAX))
            .fold(set, |set, number| set | 1 << number);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the next times after a time, in seconds.
    fn times(text: &str, after: u64, count: usize) -> Vec<u64> {
        let cron: CronTimes = text.parse().expect("it is valid");
        let next = |last: &Timestamp| cron.next_after(*last);
        let first = next(&Timestamp(after * 1_000));
        std::iter::successors(first, next).take(count).map(|time| time.0 / 1_000).collect()
    }

    #[test]
    fn times_are_those_of_cron() {
        // 2026-11-17 20:21:44 UTC, a Tuesday.
        let now = 1_794_946_904;
        let midnight = 1_794_873_600;
        assert_eq!(times("* * * * *", now, 2), [1_794_946_920, 1_794_946_980]);
        assert_eq!(times("*/15 * * * *", now, 2), [1_794_947_400, 1_794_948_300]);
        assert_eq!(times("30 7 * * 1-5", now, 4), [1, 2, 3, 6].map(|day| midnight + day * 86_400 + 27_000));
        assert_eq!(times("@daily", now, 1), [midnight + 86_400]);
        // The first Sunday and the first day of the month: one of them is enough.
        assert_eq!(times("0 0 1 * 7", now, 3), [5, 12, 14].map(|day| midnight + day * 86_400));
        assert_eq!(times("0 0 1,15 * *", now, 2), [14, 28].map(|day| midnight + day * 86_400));
        // 2028-02-29 and 2032-02-29.
        assert_eq!(times("0 12 29 2 *", now, 2), [1_835_438_400, 1_961_668_800]);
        // A time itself is not after itself.
        assert_eq!(times("0 0 * * *", midnight, 1), [midnight + 86_400]);
        assert_eq!(times("10-40/10,59 23 31 12 *", now, 5).len(), 5);
    }

    #[test]
    fn texts_that_are_no_schedule_are_refused() {
        for text in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "5-1 * * * *",
            "*/0 * * * *",
            "5/10 * * * *",
            "a * * * *",
            "0 0 31 2 *",
            "@yearly",
            "-1 * * * *",
            "99999999999999999999 * * * *",
        ] {
            assert!(text.parse::<CronTimes>().is_err(), "{text}");
        }
    }
}
