//! Whether a request may be sent again, and when: by what the provider says.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{HeaderMap, RETRY_AFTER};
use windlass::model::{ModelErrorKind, RetryAdvice};

use crate::http::Replay;

/// How far a request came before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The provider refused it with a status.
    Refused,
    /// It was sent, and may have been worked on.
    Sent,
}

/// Whether asking again may help, and is safe.
pub(crate) fn advice(kind: ModelErrorKind, headers: &HeaderMap, stage: Stage, replay: Replay) -> RetryAdvice {
    let again = || wait(headers).map_or(RetryAdvice::Safe, RetryAdvice::After);
    let told = headers.get("x-should-retry").and_then(|value| value.to_str().ok());
    match (told, kind) {
        (Some("false"), _) => RetryAdvice::Never,
        (Some("true"), _) => again(),
        (_, ModelErrorKind::Unreachable) => RetryAdvice::Safe,
        // Refused for want of room, before any of it was looked at.
        (_, ModelErrorKind::RateLimited | ModelErrorKind::Overloaded) if stage == Stage::Refused => again(),
        (
            _,
            ModelErrorKind::RateLimited
            | ModelErrorKind::Overloaded
            | ModelErrorKind::Server
            | ModelErrorKind::TimedOut
            | ModelErrorKind::CutShort
            | ModelErrorKind::Unreadable,
        ) if replay == Replay::Safe => again(),
        _ => RetryAdvice::Never,
    }
}

/// The wait that the provider names: in milliseconds, in seconds, or as a date.
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| -> Option<f64> { headers.get(name)?.to_str().ok()?.trim().parse().ok() };
    let seconds = match (number("retry-after-ms"), number("retry-after")) {
        (Some(milliseconds), _) => milliseconds / 1000.0,
        (None, Some(seconds)) => seconds,
        (None, None) => {
            let until = http_date(headers.get(RETRY_AFTER)?.to_str().ok()?)?;
            // By the provider's own clock, where it tells the time.
            let now = headers.get("date").and_then(|date| http_date(date.to_str().ok()?));
            let now = now.or_else(|| Some(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs()))?;
            return Some(Duration::from_secs(until.saturating_sub(now)));
        }
    };
    Duration::try_from_secs_f64(if seconds < 0.0 { 0.0 } else { seconds }).ok()
}

/// Seconds since 1970 of a date such as `Wed, 21 Oct 2015 07:28:00 GMT`.
fn http_date(text: &str) -> Option<u64> {
    let mut words = text.split_once(", ")?.1.split([' ', ':']);
    let mut number = || words.next()?.parse::<i64>().ok();
    let day = number()?;
    let month = words.next()?;
    let month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        .iter()
        .position(|name| *name == month)? as i64
        + 1;
    let mut number = || words.next()?.parse::<i64>().ok();
    let (year, hour, minute, second) = (number()?, number()?, number()?, number()?);
    // Years begin in March here, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()
}

/// A span as OpenAI writes it in its headers: `20ms`, `1s`, `6m0s`, `1h2m3.5s`.
pub(crate) fn span(text: &str) -> Option<Duration> {
    let mut seconds = 0.0;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| end + at);
        seconds += number
            * match &rest[end..unit_end] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86_400.0,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
#[path = "retry_tests.rs"]
mod tests;
