//! Placement of bodies: inline in the run's task while the bodies of their tool are quick, otherwise in a task
//! of their own.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::task::{JoinError, JoinHandle, unconstrained};
use tokio::time::Instant;

use crate::guardrail::panic_message;
use crate::tool::BodyResult;

/// Longest poll that counts as quick: about ten times the cost of moving a body to another thread.
const MAX_QUICK_POLL: Duration = Duration::from_micros(100);

/// Number of consecutive quick polls after which the bodies of a tool run inline.
const QUICK_POLLS_REQUIRED: u32 = 4;

/// The poll latency of one tool's bodies.
#[derive(Debug, Default)]
pub(crate) struct PollLatency {
    /// Number of consecutive quick polls.
    quick_polls: AtomicU32,
}

impl PollLatency {
    fn is_known_quick(&self) -> bool {
        self.quick_polls.load(Ordering::Relaxed) >= QUICK_POLLS_REQUIRED
    }

    fn record_poll(&self, pace: PollTime) {
        match pace {
            PollTime::Long => self.quick_polls.store(0, Ordering::Relaxed),
            // Two at once may count as one: it is only trusted later for it.
            PollTime::Short => {
                let quick = self.quick_polls.load(Ordering::Relaxed);
                if quick < QUICK_POLLS_REQUIRED {
                    self.quick_polls.store(quick + 1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The duration class of one poll.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PollTime {
    Short,
    Long,
}

/// The deadline of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyDeadline {
    Unbounded,
    /// The deadline must hold, so the body must not run in the run's task.
    Bounded,
}

/// A running body. It is aborted when dropped.
pub(super) struct RunningBody(BodyTask);

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
pub(super) enum BodyJoinError {
    Panicked(String),
    Dropped,
}

impl RunningBody {
    /// Starts an async body: inline if its tool is known to be quick and there is no deadline.
    pub(super) fn start_async(
        pace: &Arc<PollLatency>,
        body: BoxFuture<'static, BodyResult>,
        deadline: BodyDeadline,
    ) -> Self {
        let timed = TimedBody { body, poll_latency: pace.clone(), last_poll: None };
        Self(match deadline {
            BodyDeadline::Unbounded if pace.is_known_quick() => BodyTask::Inline(timed),
            BodyDeadline::Unbounded | BodyDeadline::Bounded => BodyTask::Spawned(tokio::spawn(timed)),
        })
    }

    /// Starts a blocking body on its own thread.
    pub(super) fn start_blocking(body: Box<dyn FnOnce() -> BodyResult + Send>) -> Self {
        Self(BodyTask::Spawned(tokio::task::spawn_blocking(body)))
    }

    /// Returns true if the body is inline and has not been polled.
    pub(super) fn is_inline_unpolled(&self) -> bool {
        matches!(&self.0, BodyTask::Inline(TimedBody { last_poll: None, .. }))
    }

    /// Moves an inline body to a task of its own.
    pub(super) fn move_to_task(&mut self) {
        self.0 = match std::mem::replace(&mut self.0, BodyTask::Finished) {
            BodyTask::Inline(timed) => BodyTask::Spawned(tokio::spawn(timed)),
            there => there,
        };
    }

    /// Aborts the body at its next await. A blocking body continues.
    pub(super) fn abort(&self) {
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
                Ok(Poll::Pending) if timed.last_poll == Some(PollTime::Short) => return Poll::Pending,
                Ok(Poll::Pending) => self.move_to_task(),
                Err(panic) => return Poll::Ready(Err(BodyJoinError::Panicked(panic_message(&*panic)))),
            }
        }
        match &mut self.0 {
            // Of many tasks that one waits for, the runtime has some asked in vain. The driver has strides for that.
            BodyTask::Spawned(task) => pin!(unconstrained(task)).poll(cx).map_err(BodyJoinError::from),
            BodyTask::Inline(_) | BodyTask::Finished => Poll::Pending,
        }
    }
}

impl Drop for RunningBody {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.0, BodyTask::Finished) {
            // What a body does when it is dropped is its own affair, and so is its panic.
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
    poll_latency: Arc<PollLatency>,
    /// Duration class of the last poll.
    last_poll: Option<PollTime>,
}

impl Future for TimedBody {
    type Output = BodyResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BodyResult> {
        let began = Instant::now();
        let polled = self.body.as_mut().poll(cx);
        let took = if began.elapsed() > MAX_QUICK_POLL { PollTime::Long } else { PollTime::Short };
        self.last_poll = Some(took);
        self.poll_latency.record_poll(took);
        polled
    }
}
