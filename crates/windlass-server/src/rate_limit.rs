//! Rate limits: a token bucket for each person or address, within a bounded number of buckets.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::time::Instant;

use crate::lock_unpoisoned;

/// Number of buckets that are kept. The fullest are dropped first: they limit nobody.
const MAX_BUCKETS: usize = 4096;

/// A limit of requests by key.
pub(crate) struct RateLimiter {
    per_second: f64,
    burst: f64,
    buckets: Mutex<HashMap<String, RateBucket>>,
}

#[derive(Clone, Copy)]
struct RateBucket {
    tokens: f64,
    filled_at: Instant,
}

impl RateLimiter {
    /// Creates a limit of requests per second, with a burst of twice as many.
    pub(crate) fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second.max(1));
        Self { per_second, burst: per_second * 2.0, buckets: Mutex::default() }
    }

    /// Takes a request of this key into account. Returns false if there were too many.
    pub(crate) fn admit(&self, key: &str) -> bool {
        let now = Instant::now();
        let mut buckets = lock_unpoisoned(&self.buckets);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(key) {
            let (per_second, burst) = (self.per_second, self.burst);
            buckets.retain(|_, bucket| bucket.level(now, per_second, burst) < burst);
            if buckets.len() >= MAX_BUCKETS {
                return false;
            }
        }
        let bucket =
            buckets.entry(key.to_owned()).or_insert(RateBucket { tokens: self.burst, filled_at: now });
        let tokens = bucket.level(now, self.per_second, self.burst);
        let is_admitted = tokens >= 1.0;
        *bucket = RateBucket { tokens: if is_admitted { tokens - 1.0 } else { tokens }, filled_at: now };
        is_admitted
    }
}

impl RateBucket {
    fn level(&self, now: Instant, per_second: f64, burst: f64) -> f64 {
        (self.tokens + now.duration_since(self.filled_at).as_secs_f64() * per_second).min(burst)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_admitted_and_then_the_rate() {
        let limiter = RateLimiter::new(5);
        let admitted = (0..30).filter(|_| limiter.admit("anna")).count();
        assert_eq!(admitted, 10);
        assert!(limiter.admit("ben"), "another person has a bucket of their own");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..30).filter(|_| limiter.admit("anna")).count(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn many_keys_are_bounded_and_refused_rather_than_forgotten() {
        let limiter = RateLimiter::new(1);
        for key in 0..MAX_BUCKETS {
            assert!(limiter.admit(&key.to_string()));
        }
        assert!(!limiter.admit("one more"));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(limiter.admit("one more"));
    }
}
