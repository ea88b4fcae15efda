//! The watch over the polls of async bodies: a body that blocks its thread is named, also while it does not return.
//!
//! A body that holds the only thread of its runtime holds everything that could look at it there. A thread of its own
//! therefore watches the polls that are under way. It starts with the first poll and ends when there are none.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use windlass_core::tool::ToolKey;

use crate::event::{EventEmitter, RunEventKind};
use crate::lock_unpoisoned;

/// Shortest poll of an async body that the driver warns about when it returns.
const BLOCKING_POLL: Duration = Duration::from_millis(100);

/// Duration of a poll after which it is reported although it has not returned.
const UNFINISHED_POLL: Duration = Duration::from_secs(2);

/// Interval at which the watch looks at the polls under way.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Number of looks without a poll under way after which the watch ends.
const MAX_IDLE_LOOKS: u32 = 40;

const HINT: &str = "hint: write a blocking body as a plain `fn`, which runs on a thread of its own";

/// Returns the warning about an async body that blocked the thread that polled it.
pub(crate) fn blocking_body_warning(tool: &ToolKey, blocked: Duration) -> String {
    format!("the async body of tool `{tool}` blocked its thread for {} ms; {HINT}", blocked.as_millis())
}

/// The blocking polls of one tool's async bodies.
#[derive(Debug, Default)]
pub(crate) struct PollMonitor {
    /// The tool, once one of its bodies was polled.
    tool: OnceLock<ToolKey>,
    /// Longest blocking poll since the last warning, in milliseconds; zero if there was none.
    longest_blocking_ms: AtomicU64,
}

impl PollMonitor {
    fn record_poll(&self, took: Duration) {
        if took >= BLOCKING_POLL {
            let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            self.longest_blocking_ms.fetch_max(took, Ordering::Relaxed);
        }
    }

    /// Returns the longest blocking poll since the last call, if there was one.
    pub(crate) fn take_blocking_poll(&self) -> Option<Duration> {
        if self.longest_blocking_ms.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(Duration::from_millis(self.longest_blocking_ms.swap(0, Ordering::Relaxed)))
    }
}

/// A body whose polls are watched.
pub(super) struct WatchedBody {
    monitor: Arc<PollMonitor>,
    /// The watcher of the run, as long as the turn of the call lasts.
    events: Weak<EventEmitter>,
}

/// A poll under way.
struct PollUnderWay {
    body: Arc<WatchedBody>,
    began: Instant,
    is_reported: bool,
}

/// The polls under way of one thread: a body that drives a run may poll bodies of that run.
#[derive(Default)]
struct ThreadPolls(Mutex<Vec<PollUnderWay>>);

/// The polls of all threads.
struct PollWatch {
    threads: Mutex<Vec<Weak<ThreadPolls>>>,
    is_running: AtomicBool,
}

static WATCH: PollWatch = PollWatch { threads: Mutex::new(Vec::new()), is_running: AtomicBool::new(false) };

thread_local! {
    static OWN_POLLS: OnceCell<Arc<ThreadPolls>> = const { OnceCell::new() };
}

/// Ends the watch over a poll, also after a panic.
struct WatchedPoll(Arc<ThreadPolls>);

impl Drop for WatchedPoll {
    fn drop(&mut self) {
        lock_unpoisoned(&self.0.0).pop();
    }
}

impl WatchedBody {
    pub(super) fn new(tool: &ToolKey, monitor: &Arc<PollMonitor>, events: &Arc<EventEmitter>) -> Arc<Self> {
        monitor.tool.get_or_init(|| tool.clone());
        Arc::new(Self { monitor: monitor.clone(), events: Arc::downgrade(events) })
    }

    pub(super) fn record_poll(&self, took: Duration) {
        self.monitor.record_poll(took);
    }

    /// Calls `poll`, which is watched until it returns.
    pub(super) fn watch_poll<T>(self: &Arc<Self>, poll: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let under_way = PollUnderWay { body: self.clone(), began, is_reported: false };
        let _watched = OWN_POLLS.with(|own| {
            let polls = own.get_or_init(|| WATCH.add_thread()).clone();
            lock_unpoisoned(&polls.0).push(under_way);
            WatchedPoll(polls)
        });
        WATCH.ensure_running();
        poll()
    }

    fn report(&self, held: Duration) {
        let Some(tool) = self.monitor.tool.get() else { return };
        let held_ms = held.as_millis();
        tracing::warn!(%tool, held_ms, "an async tool body holds its thread and does not return");
        if let Some(events) = self.events.upgrade() {
            let message = format!(
                "the async body of tool `{tool}` holds its thread for {held_ms} ms and has not returned; {HINT}"
            );
            // A watcher whose buffer is full is not waited for.
            drop(events.emit(RunEventKind::Warning { message }));
        }
    }
}

impl PollWatch {
    fn add_thread(&self) -> Arc<ThreadPolls> {
        let polls = Arc::<ThreadPolls>::default();
        let mut threads = lock_unpoisoned(&self.threads);
        threads.retain(|thread| thread.strong_count() > 0);
        threads.push(Arc::downgrade(&polls));
        polls
    }

    fn ensure_running(&'static self) {
        if self.is_running.load(Ordering::SeqCst) || self.is_running.swap(true, Ordering::SeqCst) {
            return;
        }
        let watch = std::thread::Builder::new().name("windlass-polls".to_owned());
        if let Err(error) = watch.spawn(|| self.run()) {
            tracing::warn!(%error, "bodies that block their thread are not watched");
        }
    }

    fn run(&self) {
        let mut idle_looks = 0;
        loop {
            std::thread::sleep(WATCH_INTERVAL);
            idle_looks = if self.look() { 0 } else { idle_looks + 1 };
            if idle_looks < MAX_IDLE_LOOKS {
                continue;
            }
            self.is_running.store(false, Ordering::SeqCst);
            // A poll that began before that relied on this thread.
            if !self.look() || self.is_running.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Reports the polls that hold their threads for too long. Returns true if a poll is under way.
    fn look(&self) -> bool {
        let threads: Vec<Arc<ThreadPolls>> =
            lock_unpoisoned(&self.threads).iter().filter_map(Weak::upgrade).collect();
        let mut is_any_under_way = false;
        for thread in threads {
            let mut polls = lock_unpoisoned(&thread.0);
            // It holds the thread, not those around it.
            let Some(innermost) = polls.last_mut() else { continue };
            is_any_under_way = true;
            let held = innermost.began.elapsed();
            if held >= UNFINISHED_POLL && !innermost.is_reported {
                innermost.is_reported = true;
                let body = innermost.body.clone();
                drop(polls);
                body.report(held);
            }
        }
        is_any_under_way
    }
}
