//! The wall clock, advanced by the runtime's clock, so that a simulated clock works too.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use windlass_core::id::Timestamp;

/// A wall clock that starts at the system time and advances with the runtime's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock {
    started_at: Instant,
    /// Time since the Unix epoch at the start.
    wall_time_at_start: Duration,
}

impl RunClock {
    pub(crate) fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_at: Instant::now(), wall_time_at_start: wall }
    }

    /// Returns the instant of the start.
    pub(crate) fn started_at(&self) -> Instant {
        self.started_at
    }

    pub(crate) fn now(&self) -> Timestamp {
        let now = self.wall_time_at_start.saturating_add(self.started_at.elapsed());
        Timestamp(now.as_secs().saturating_mul(1000).saturating_add(u64::from(now.subsec_millis())))
    }
}
