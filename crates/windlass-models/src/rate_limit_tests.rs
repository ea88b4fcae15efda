use std::time::Duration;

use hyper::header::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use super::RateLimit;

#[tokio::test(start_paused = true)]
async fn no_minute_has_more_requests_than_the_limit() {
    let limit = RateLimit::new().requests_per_minute(3);
    let mut times = Vec::new();
    let start = Instant::now();
    for _ in 0..10 {
        limit.acquire(1).await;
        times.push(start.elapsed());
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    for window in times.windows(4) {
        assert!(window[3] - window[0] >= Duration::from_secs(60), "{times:?}");
    }
    assert!(times[9] <= Duration::from_secs(190), "and nobody waits for longer than that takes: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_counted_and_estimates_put_right() {
    let limit = RateLimit::new().tokens_per_minute(100);
    let start = Instant::now();
    limit.acquire(40).await;
    limit.record_actual_tokens(40, 90);
    limit.acquire(20).await;
    assert!(start.elapsed() >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_larger_than_the_limit_goes_alone() {
    let limit = RateLimit::new().tokens_per_minute(100);
    let start = Instant::now();
    limit.acquire(1000).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    limit.acquire(1000).await;
    assert!(start.elapsed() >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn clones_share_one_account_and_heed_the_provider() {
    let limit = RateLimit::new();
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("7"));
    limit.clone().observe_rejection(&headers);
    let start = Instant::now();
    limit.acquire(1).await;
    assert_eq!(start.elapsed().as_secs(), 7);

    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-remaining-requests", HeaderValue::from_static("0"));
    headers.insert("x-ratelimit-reset-requests", HeaderValue::from_static("3s"));
    limit.observe_success(&headers);
    limit.acquire(1).await;
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn counts_of_any_size_are_spent() {
    let limit = RateLimit::new().requests_per_minute(1);
    for _ in 0..2 {
        limit.record_actual_tokens(0, u64::MAX);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    limit.acquire(1).await;
    let start = Instant::now();
    limit.acquire(1).await;
    assert!(start.elapsed() > Duration::ZERO);
}
