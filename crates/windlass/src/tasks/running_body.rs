//! Placement of tool bodies: every body has a task or a thread of its own, unless its tool opted into running inline.
//!
//! Invariant: a body that blocks its thread holds up no run, sibling call or cancellation on a runtime with more than
//! one thread, unless its author declared it [`BodyPlacement::Inline`].

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::task::{JoinError, JoinHandle, unconstrained};
use tokio::time::Instant;

use super::run_waker::MarkedBody;
use crate::guardrail::panic_message;
use crate::run::CancelSignal;
use crate::tool::{BodyPlacement, BodyResult};

/// Shortest poll of an async body that the driver warns about: the body blocked its thread.
const BLOCKING_POLL: Duration = Duration::from_millis(100);

/// Longest poll at which an inline body stays inline: about ten times the cost of moving it to another thread.
const MAX_INLINE_POLL: Duration = Duration::from_micros(100);

/// The blocking polls of one tool's async bodies.
#[derive(Debug, Default)]
pub(crate) struct PollMonitor {
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

/// A running body. It is aborted when dropped.
pub(crate) struct RunningBody(BodyTask);

/// The place where a body runs.
enum BodyTask {
    /// Inline in the task that awaits it.
    Inline(TimedBody),
    /// In a task of its own, or on a blocking thread.
    Spawned(JoinHandle<BodyResult>),
    /// No longer running.
    Finished,
}

/// The reason why a body has no result.
pub(crate) enum BodyJoinError {
    Panicked(String),
    Dropped,
}

impl RunningBody {
    /// Starts an async body in its place. A body whose run is cancelled before its first poll does not begin.
    pub(crate) fn start_async(
        monitor: &Arc<PollMonitor>,
        cancel: &CancelSignal,
        body: BoxFuture<'static, BodyResult>,
        placement: BodyPlacement,
    ) -> Self {
        let timed = TimedBody { body, monitor: monitor.clone(), cancel: cancel.clone(), last_poll: None };
        Self(match placement {
            BodyPlacement::OwnTask => BodyTask::Spawned(tokio::spawn(MarkedBody(timed))),
            BodyPlacement::Inline => BodyTask::Inline(timed),
        })
    }

    /// Starts a blocking body on its own thread.
    pub(crate) fn start_blocking(body: Box<dyn FnOnce() -> BodyResult + Send>) -> Self {
        Self(BodyTask::Spawned(tokio::task::spawn_blocking(body)))
    }

    /// Returns true if the body is inline and has not been polled.
    pub(crate) fn is_inline_unpolled(&self) -> bool {
        matches!(&self.0, BodyTask::Inline(TimedBody { last_poll: None, .. }))
    }

    /// Moves an inline body to a task of its own.
    pub(crate) fn move_to_task(&mut self) {
        self.0 = match std::mem::replace(&mut self.0, BodyTask::Finished) {
            BodyTask::Inline(timed) => BodyTask::Spawned(tokio::spawn(MarkedBody(timed))),
            there => there,
        };
    }

    /// Aborts the body at its next await. A blocking body continues.
    pub(crate) fn abort(&self) {
        if let BodyTask::Spawned(task) = &self.0 {
            task.abort();
        }
    }
}

impl Future for RunningBody {
    type Output = Result<BodyResult, BodyJoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let BodyTask::Inline(timed) = &mut self.0 {
            match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *timed).poll(cx))) {
                Ok(Poll::Ready(result)) => return Poll::Ready(Ok(result)),
                Ok(Poll::Pending) if timed.last_poll.is_some_and(|took| took <= MAX_INLINE_POLL) => {
                    return Poll::Pending;
                }
                Ok(Poll::Pending) => self.move_to_task(),
                Err(panic) => return Poll::Ready(Err(BodyJoinError::Panicked(panic_message(&*panic)))),
            }
        }
        match &mut self.0 {
            // The driver yields by itself; the cooperative budget would only make some of these polls useless.
            BodyTask::Spawned(task) => pin!(unconstrained(task)).poll(cx).map_err(BodyJoinError::from),
            BodyTask::Inline(_) | BodyTask::Finished => Poll::Pending,
        }
    }
}

impl Drop for RunningBody {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.0, BodyTask::Finished) {
            // A panic in the destructor of a body does not reach the run.
            BodyTask::Inline(timed) => drop(catch_unwind(AssertUnwindSafe(|| drop(timed)))),
            BodyTask::Spawned(task) => task.abort(),
            BodyTask::Finished => {}
        }
    }
}

impl From<JoinError> for BodyJoinError {
    fn from(error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => Self::Panicked(panic_message(&*panic)),
            Err(_) => Self::Dropped,
        }
    }
}

/// A body whose polls are timed.
struct TimedBody {
    body: BoxFuture<'static, BodyResult>,
    monitor: Arc<PollMonitor>,
    cancel: CancelSignal,
    /// Duration of the last poll.
    last_poll: Option<Duration>,
}

impl Future for TimedBody {
    type Output = BodyResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BodyResult> {
        // The driver of a cancelled run aborts the body, which is not polled again until then.
        if self.last_poll.is_none() && self.cancel.is_cancelled() {
            return Poll::Pending;
        }
        let start = Instant::now();
        let polled = self.body.as_mut().poll(cx);
        let took = start.elapsed();
        self.last_poll = Some(took);
        self.monitor.record_poll(took);
        polled
    }
}
