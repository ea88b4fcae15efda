//! Wall and CPU time, memory of the process, and a barrier for calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

/// A measured duration in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct BenchTiming {
    /// Wall-clock time.
    pub wall: f64,
    /// CPU time of all threads of the process.
    pub cpu: f64,
}

/// A running measurement of wall and CPU time.
pub struct BenchClock {
    wall: Instant,
    cpu: f64,
}

impl BenchClock {
    /// Starts a measurement.
    pub fn start() -> Self {
        let cpu = cpu_seconds();
        Self { wall: Instant::now(), cpu }
    }

    /// Stops the measurement and returns its duration.
    pub fn stop(self) -> BenchTiming {
        BenchTiming { wall: self.wall.elapsed().as_secs_f64(), cpu: cpu_seconds() - self.cpu }
    }
}

/// Awaits a future and returns its duration and its output.
pub async fn measure_time<T>(work: impl Future<Output = T>) -> (BenchTiming, T) {
    let clock = BenchClock::start();
    let done = work.await;
    (clock.stop(), done)
}

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Returns the resident memory of this process in KiB.
pub fn rss_kb() -> u64 {
    status_kb("VmRSS")
}

/// Returns the peak resident memory of this process in KiB.
pub fn peak_rss_kb() -> u64 {
    status_kb("VmHWM")
}

fn status_kb(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or_default()
}

/// A barrier that blocks tasks until `needed` have arrived, and records the memory at that moment.
pub struct ArrivalBarrier {
    needed: usize,
    arrived: AtomicUsize,
    is_open: AtomicBool,
    rss_kb: AtomicU64,
    opened: Notify,
}

impl ArrivalBarrier {
    /// Creates a barrier for `needed` tasks.
    pub fn new(needed: usize) -> Arc<Self> {
        Arc::new(Self {
            needed,
            arrived: AtomicUsize::new(0),
            is_open: AtomicBool::new(false),
            rss_kb: AtomicU64::new(0),
            opened: Notify::new(),
        })
    }

    /// Waits until all tasks have arrived.
    pub async fn wait(&self) {
        let mut opened = std::pin::pin!(self.opened.notified());
        opened.as_mut().enable();
        if self.is_open.load(Ordering::Acquire) {
            return;
        }
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.needed {
            self.rss_kb.store(rss_kb(), Ordering::Release);
            self.is_open.store(true, Ordering::Release);
            self.opened.notify_waiters();
            return;
        }
        opened.await;
    }

    /// Returns the resident memory in KiB at the moment in which the last task arrived.
    pub fn rss_kb(&self) -> u64 {
        self.rss_kb.load(Ordering::Acquire)
    }
}
