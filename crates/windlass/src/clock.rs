//! The time of day, as the runtime's clock moves it: a simulated clock is followed too.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use windlass_core::Timestamp;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Instant,
    /// Since the beginning of time, when it was started.
    wall: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began: Instant::now(), wall }
    }

    /// When it was started.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn now(&self) -> Timestamp {
        let now = self.wall.saturating_add(self.began.elapsed());
        Timestamp(now.as_secs().saturating_mul(1000).saturating_add(u64::from(now.subsec_millis())))
    }
}
