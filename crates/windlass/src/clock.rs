//! The wall clock, advanced by the runtime's clock, so that a simulated clock works too.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use windlass_core::id::Timestamp;

/// Returns the time that this machine was suspended since it started; zero where that is not known.
#[cfg(target_os = "linux")]
pub(crate) fn time_suspended() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    // The clock of the boot counts on while the machine sleeps. Read first, it never seems to be ahead by chance.
    let since_boot = read(ClockId::Boottime);
    since_boot.saturating_sub(read(ClockId::Monotonic))
}

/// Returns the time that this machine was suspended since it started; zero where that is not known.
#[cfg(not(target_os = "linux"))]
pub(crate) fn time_suspended() -> Duration {
    Duration::ZERO
}

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

    pub(crate) fn now(&self) -> Timestamp {
        let now = self.wall_time_at_start.saturating_add(self.started_at.elapsed());
        Timestamp(now.as_secs().saturating_mul(1000).saturating_add(u64::from(now.subsec_millis())))
    }
}
