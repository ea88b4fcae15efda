use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use windlass::model::{ModelErrorKind, RetryAdvice};

use super::{FailureStage, parse_duration, retry_advice, retry_after};
use windlass_net::ReplaySafety;

fn header_map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    pairs.iter().map(pair).collect()
}

#[test]
fn waits_are_read_in_every_form() {
    assert_eq!(retry_after(&header_map(&[("retry-after", "2")])), Some(Duration::from_secs(2)));
    assert_eq!(retry_after(&header_map(&[("retry-after", "0.5")])), Some(Duration::from_millis(500)));
    assert_eq!(
        retry_after(&header_map(&[("retry-after", "9"), ("retry-after-ms", "250")])),
        Some(Duration::from_millis(250))
    );
    let dates = [("retry-after", "Wed, 21 Oct 2015 07:28:09 GMT"), ("date", "Wed, 21 Oct 2015 07:28:00 GMT")];
    assert_eq!(retry_after(&header_map(&dates)), Some(Duration::from_secs(9)));
    assert_eq!(retry_after(&header_map(&[("retry-after", "-3")])), Some(Duration::ZERO));
    for nonsense in ["soon", "inf", "NaN", "1e999", ""] {
        assert_eq!(retry_after(&header_map(&[("retry-after", nonsense)])), None, "{nonsense}");
    }
    assert_eq!(retry_after(&header_map(&[])), None);
}

#[test]
fn spans_are_read() {
    assert_eq!(parse_duration("6m0s"), Some(Duration::from_secs(360)));
    assert_eq!(parse_duration("20ms"), Some(Duration::from_millis(20)));
    assert_eq!(parse_duration("1h2m3s"), Some(Duration::from_secs(3723)));
    assert_eq!(parse_duration("3 weeks"), None);
}

#[test]
fn what_may_have_moved_a_conversation_on_is_not_sent_again() {
    use ModelErrorKind::{
        ConnectionLost, InvalidRequest, Overloaded, RateLimited, ServerError, TimedOut, Unreachable,
    };
    let none = header_map(&[]);
    for kind in [ServerError, TimedOut, ConnectionLost] {
        assert_eq!(retry_advice(kind, &none, FailureStage::Sent, ReplaySafety::Safe), RetryAdvice::Safe);
        assert_eq!(retry_advice(kind, &none, FailureStage::Sent, ReplaySafety::Unsafe), RetryAdvice::Never);
    }
    for kind in [RateLimited, Overloaded] {
        assert_eq!(retry_advice(kind, &none, FailureStage::Refused, ReplaySafety::Unsafe), RetryAdvice::Safe);
        assert_eq!(retry_advice(kind, &none, FailureStage::Sent, ReplaySafety::Unsafe), RetryAdvice::Never);
    }
    assert_eq!(retry_advice(Unreachable, &none, FailureStage::Sent, ReplaySafety::Unsafe), RetryAdvice::Safe);
    assert_eq!(
        retry_advice(InvalidRequest, &none, FailureStage::Refused, ReplaySafety::Safe),
        RetryAdvice::Never
    );
}

#[test]
fn the_provider_has_the_last_word() {
    let no = header_map(&[("x-should-retry", "false")]);
    assert_eq!(
        retry_advice(ModelErrorKind::RateLimited, &no, FailureStage::Refused, ReplaySafety::Safe),
        RetryAdvice::Never
    );
    let yes = header_map(&[("x-should-retry", "true"), ("retry-after", "1")]);
    let after = RetryAdvice::After(Duration::from_secs(1));
    assert_eq!(
        retry_advice(ModelErrorKind::ServerError, &yes, FailureStage::Refused, ReplaySafety::Unsafe),
        after
    );
}

#[test]
fn dates_that_no_calendar_has_are_ignored() {
    for date in [
        "Wed, 21 Oct 9223372036854775807 07:28:00 GMT",
        "Wed, 9223372036854775807 Oct 2015 07:28:00 GMT",
        "Wed, 21 Jan -9223372036854775808 07:28:00 GMT",
        "Wed, 21 Oct 2015 9223372036854775807:28:00 GMT",
        "Wed, 21 Oct 2015 07:28:9223372036854775807 GMT",
    ] {
        assert_eq!(retry_after(&header_map(&[("retry-after", date)])), None, "{date}");
    }
}
