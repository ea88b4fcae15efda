//! The delay that a server asks for before a request is repeated.

use std::time::{Duration, SystemTime};

use hyper::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

/// Returns the delay that the `Retry-After` header of a response asks for, in seconds or as a date; `None` without one
/// that can be read. A date is compared with the server's own clock if the response has a `Date`.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(if seconds < 0.0 { 0.0 } else { seconds }).ok();
    }
    let date = |name: HeaderName| httpdate::parse_http_date(headers.get(name)?.to_str().ok()?.trim()).ok();
    let now = date(DATE).unwrap_or_else(SystemTime::now);
    Some(date(RETRY_AFTER)?.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn delay(value: &str, date: Option<&str>) -> Option<Duration> {
        let pair = |name, value: &str| (name, HeaderValue::from_str(value).expect("a header"));
        retry_after(
            &[pair(RETRY_AFTER, value)].into_iter().chain(date.map(|date| pair(DATE, date))).collect(),
        )
    }

    #[test]
    fn delays_are_read_in_every_form() {
        let now = Some("Wed, 21 Oct 2015 07:28:00 GMT");
        assert_eq!(delay("2", None), Some(Duration::from_secs(2)));
        assert_eq!(delay(" 0.5 ", now), Some(Duration::from_millis(500)));
        assert_eq!(delay("-3", None), Some(Duration::ZERO));
        assert_eq!(delay("Wed, 21 Oct 2015 07:28:09 GMT", now), Some(Duration::from_secs(9)));
        assert_eq!(delay("Wednesday, 21-Oct-15 07:30:00 GMT", now), Some(Duration::from_secs(120)));
        assert_eq!(delay("Wed Oct 21 08:28:00 2015", now), Some(Duration::from_secs(3600)));
        assert_eq!(delay("Wed, 21 Oct 2015 07:27:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(delay("Thu, 01 Jan 1970 00:00:00 GMT", None), Some(Duration::ZERO));
        for nonsense in ["soon", "inf", "NaN", "1e999", "", "Wed, 21 Oct 9223372036854775807 07:28:00 GMT"] {
            assert_eq!(delay(nonsense, now), None, "{nonsense}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
