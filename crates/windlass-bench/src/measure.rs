//! Clocks, memory, and a place where calls wait for each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

/// How long something took, in seconds: by the wall, and of the processor, all threads together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    /// By the wall.
    pub wall: f64,
    /// Of the processor.
    pub cpu: f64,
}

/// A clock that runs.
pub struct Clock {
    wall: Instant,
    cpu: f64,
}

impl Clock {
    /// Starts one.
    pub fn start() -> Self {
        let cpu = cpu_now();
        Self { wall: Instant::now(), cpu }
    }

    /// What it shows.
    pub fn stop(self) -> Timing {
        Timing { wall: self.wall.elapsed().as_secs_f64(), cpu: cpu_now() - self.cpu }
    }
}

/// What something gave, and how long it took.
pub async fn timed<T>(work: impl Future<Output = T>) -> (Timing, T) {
    let clock = Clock::start();
    let done = work.await;
    (clock.stop(), done)
}

fn cpu_now() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The memory of this process now, in KiB.
pub fn rss_kb() -> u64 {
    status_kb("VmRSS")
}

/// The most memory that this process has had, in KiB.
pub fn peak_rss_kb() -> u64 {
    status_kb("VmHWM")
}

fn status_kb(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or_default()
}

/// Holds everybody until so many have come, looks at the memory in that moment, and lets all go.
pub struct Gate {
    needed: usize,
    here: AtomicUsize,
    is_open: AtomicBool,
    rss_kb: AtomicU64,
    opened: Notify,
}

impl Gate {
    /// A gate that opens for `needed`.
    pub fn new(needed: usize) -> Arc<Self> {
        Arc::new(Self {
            needed,
            here: AtomicUsize::new(0),
            is_open: AtomicBool::new(false),
            rss_kb: AtomicU64::new(0),
            opened: Notify::new(),
        })
    }

    /// Waits for the others.
    pub async fn wait(&self) {
        let mut opened = std::pin::pin!(self.opened.notified());
        opened.as_mut().enable();
        if self.is_open.load(Ordering::Acquire) {
            return;
        }
        if self.here.fetch_add(1, Ordering::AcqRel) + 1 == self.needed {
            self.rss_kb.store(rss_kb(), Ordering::Release);
            self.is_open.store(true, Ordering::Release);
            self.opened.notify_waiters();
            return;
        }
        opened.await;
    }

    /// The memory in the moment in which the last one came, in KiB.
    pub fn rss_kb(&self) -> u64 {
        self.rss_kb.load(Ordering::Acquire)
    }
}
