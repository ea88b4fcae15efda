//! Retry advice for a failed request, from the kind of failure, the provider's headers and the replay safety.

use std::time::Duration;

use hyper::header::HeaderMap;
use windlass::model::{ModelErrorKind, RetryAdvice};

use windlass_net::ReplaySafety;

/// The stage that a request reached before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureStage {
    /// The provider rejected the request with an error status.
    Refused,
    /// The request was sent; the provider may have processed it.
    Sent,
}

/// Returns whether a retry may help and is safe, and after which delay.
pub(crate) fn retry_advice(
    kind: ModelErrorKind,
    headers: &HeaderMap,
    stage: FailureStage,
    replay: ReplaySafety,
) -> RetryAdvice {
    let again = || retry_after(headers).map_or(RetryAdvice::Safe, RetryAdvice::After);
    let should_retry = headers.get("x-should-retry").and_then(|value| value.to_str().ok());
    match (should_retry, kind) {
        (Some("false"), _) => RetryAdvice::Never,
        (Some("true"), _) => again(),
        (_, ModelErrorKind::Unreachable) => RetryAdvice::Safe,
        // Rejected for lack of capacity, before the request was processed.
        (_, ModelErrorKind::RateLimited | ModelErrorKind::Overloaded) if stage == FailureStage::Refused => {
            again()
        }
        (
            _,
            ModelErrorKind::RateLimited
            | ModelErrorKind::Overloaded
            | ModelErrorKind::ServerError
            | ModelErrorKind::TimedOut
            | ModelErrorKind::ConnectionLost,
        ) if replay == ReplaySafety::Safe => again(),
        _ => RetryAdvice::Never,
    }
}

/// Adds the delay that the body of an error names to the advice to retry; a header is more specific.
pub(crate) fn delay_retry(advice: RetryAdvice, delay: Option<Duration>) -> RetryAdvice {
    match (advice, delay) {
        (RetryAdvice::Safe, Some(delay)) => RetryAdvice::After(delay),
        (advice, _) => advice,
    }
}

/// Returns the delay that the provider asks for in `retry-after-ms` or `retry-after` (seconds or an HTTP date).
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let milliseconds =
        headers.get("retry-after-ms").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    match milliseconds {
        Some(milliseconds) => {
            let seconds: f64 = milliseconds;
            Duration::try_from_secs_f64(if seconds < 0.0 { 0.0 } else { seconds / 1000.0 }).ok()
        }
        None => windlass_net::retry_after(headers),
    }
}

/// Parses a duration in the format of OpenAI's headers: `20ms`, `1s`, `6m0s`, `1h2m3.5s`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
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
