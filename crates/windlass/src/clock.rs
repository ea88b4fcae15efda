//! The time of day, as the runtime's clock moves it: a simulated clock is followed too.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use windlass_core::Timestamp;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Instant,
    wall: SystemTime,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), wall: SystemTime::now() }
    }

    /// When it was started.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn now(&self) -> Timestamp {
        let now = (self.wall + self.began.elapsed()).duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}
