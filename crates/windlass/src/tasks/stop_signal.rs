//! Stopping: the signals that end the calls of a turn, and futures that end early with them.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use windlass_core::failure::RunFailure;

use crate::lock_unpoisoned;

/// Longest drain timeout: an instant so far ahead can still be computed.
const MAX_DRAIN_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The instant up to which a run that stops waits for bodies, guardrails, hooks and progress. It begins once, with the first
/// part of the run that sees the stop, so that no stage makes the wait longer. A run inside another one stops with it.
pub(crate) struct DrainDeadline {
    timeout: Duration,
    own: OnceLock<Instant>,
    outer: Option<Arc<Self>>,
}

impl DrainDeadline {
    /// Creates the deadline of an outermost run. A timeout without a limit is that of [`MAX_DRAIN_TIMEOUT`].
    pub(crate) fn new(timeout: Duration) -> Arc<Self> {
        Arc::new(Self { timeout: timeout.min(MAX_DRAIN_TIMEOUT), own: OnceLock::new(), outer: None })
    }

    /// Creates the deadline of a run inside another one.
    pub(crate) fn nested_in(outer: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { timeout: outer.timeout, own: OnceLock::new(), outer: Some(outer.clone()) })
    }

    /// Returns the time that a stopping run waits.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the deadline of the run, which begins now unless it has begun.
    fn begin(&self) -> Instant {
        let own = *self.own.get_or_init(|| Instant::now() + self.timeout);
        self.outer.as_deref().and_then(Self::begun).map_or(own, |outer| own.min(outer))
    }

    /// Returns the earliest deadline that has begun, of this run or of one around it.
    fn begun(&self) -> Option<Instant> {
        self.own.get().copied().into_iter().chain(self.outer.as_deref().and_then(Self::begun)).min()
    }
}

/// The stop signals of a turn.
///
/// When a call fails the run, the calls after it in the model's order stop at once. Those before it run on until the
/// drain timeout has passed, because the first failure in the model's order is the one that counts.
pub(crate) struct TurnStop {
    /// Stops all calls of the turn.
    all: CancellationToken,
    /// Fires when some calls stop.
    some: CancellationToken,
    /// Position of the first call that failed the run.
    failed_at: AtomicUsize,
    /// Deadline of the calls after it.
    later_deadline: Mutex<Option<Instant>>,
    /// Deadline of all calls.
    deadline: Arc<DrainDeadline>,
}

impl TurnStop {
    /// Creates the signals of a turn. `run` stops its run, which ends by `deadline` then.
    pub(crate) fn new(run: &CancellationToken, deadline: Arc<DrainDeadline>) -> Self {
        let all = run.child_token();
        let failed_at = AtomicUsize::new(usize::MAX);
        Self { some: all.child_token(), all, failed_at, later_deadline: Mutex::default(), deadline }
    }

    /// Returns the stop signal of the call at a position in the model's order.
    pub(crate) fn of_call(&self, place: usize) -> CallStop<'_> {
        CallStop { turn: self, place }
    }

    /// Returns the token that stops all calls.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.all
    }

    /// Stops all calls.
    pub(crate) fn stop_all(&self) {
        self.all.cancel();
    }

    /// Stops the calls after the one at `place`, which failed the run.
    pub(crate) fn stop_after(&self, place: usize) {
        if self.failed_at.fetch_min(place, Ordering::Relaxed) > place {
            *lock_unpoisoned(&self.later_deadline) = Some(Instant::now() + self.deadline.timeout());
        }
        self.some.cancel();
    }

    /// Returns true if some calls stop; no other call starts then.
    pub(crate) fn is_stopping(&self) -> bool {
        self.some.is_cancelled()
    }

    /// Returns true if a call failed the run.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed_at.load(Ordering::Relaxed) != usize::MAX
    }
}

/// The stop signal of one call.
#[derive(Clone, Copy)]
pub(crate) struct CallStop<'a> {
    pub(crate) turn: &'a TurnStop,
    /// Position of the call in the model's order.
    pub(crate) place: usize,
}

/// A lazily created listener for a stop signal.
pub(crate) type StopListener<'a> = Option<WaitForCancellationFuture<'a>>;

impl<'a> CallStop<'a> {
    /// Returns true if the call stops.
    pub(crate) fn is_stopped(&self) -> bool {
        self.turn.all.is_cancelled() || self.turn.failed_at.load(Ordering::Relaxed) < self.place
    }

    /// Returns true if the run ends: the turn was cancelled, or this call or one before it failed the run.
    pub(crate) fn is_run_ending(&self) -> bool {
        self.turn.all.is_cancelled() || self.turn.failed_at.load(Ordering::Relaxed) <= self.place
    }

    /// Polls the signal. The listener is created on the first poll, because most futures are ready at once.
    pub(crate) fn poll_stop(
        &self,
        mut listening: Pin<&mut StopListener<'a>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if self.is_stopped() {
                return Poll::Ready(());
            }
            if listening.is_none() {
                // Once others have stopped, only the signal for all can stop this call.
                let token = if self.turn.is_stopping() { &self.turn.all } else { &self.turn.some };
                listening.set(Some(token.cancelled()));
            }
            if let Some(stopped) = listening.as_mut().as_pin_mut() {
                ready!(stopped.poll(cx));
            }
            listening.set(None);
        }
    }

    /// Resolves when the call stops.
    pub(crate) async fn stopped(&self) {
        let mut listening = pin!(None);
        poll_fn(|cx| self.poll_stop(listening.as_mut(), cx)).await;
    }

    /// Returns the future's result, or `None` if the call stops first. A finished result is not lost.
    pub(crate) async fn unless_stopped<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut listening = pin!(None);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_stop(listening.as_mut(), cx).map(|()| None),
        })
        .await
    }

    /// Returns the time that a stopping run waits.
    pub(crate) fn drain_timeout(&self) -> Duration {
        self.turn.deadline.timeout()
    }

    /// Returns the instant up to which a call that stops is waited for.
    pub(crate) fn drain_deadline(&self) -> Instant {
        match *lock_unpoisoned(&self.turn.later_deadline) {
            Some(deadline) if !self.turn.all.is_cancelled() => deadline,
            Some(_) | None => self.turn.deadline.begin(),
        }
    }

    /// Returns the future's result, or `None` if the call stops and its drain deadline passes first.
    pub(crate) async fn within_drain<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        match self.unless_stopped(future.as_mut()).await {
            Some(output) => Some(output),
            None => tokio::time::timeout_at(self.drain_deadline(), future).await.ok(),
        }
    }
}

/// The failure with which a run ends, if it stops its calls before the failure is recorded: the timeout of the call around
/// it has passed, or it fails for a reason that is not a call's. Its calls and its nested runs record the failure when they
/// stop, so that whoever goes on with the run after a crash ends it in the same way.
#[derive(Default)]
pub(crate) struct EndingFailure {
    own: OnceLock<RunFailure>,
    outer: Option<Arc<Self>>,
}

impl EndingFailure {
    /// Creates the failure of a run inside another one.
    pub(crate) fn nested_in(outer: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { own: OnceLock::new(), outer: Some(outer.clone()) })
    }

    /// Sets the failure of the run. The first one counts.
    pub(crate) fn set(&self, failure: &RunFailure) {
        self.own.get_or_init(|| failure.clone());
    }

    /// Returns the failure of the run around this one, if that run ends; else the run's own, if it ends.
    pub(crate) fn get(&self) -> Option<RunFailure> {
        let outer = self.outer.as_deref().and_then(Self::get);
        let outer = outer.map(|failure| RunFailure::OuterRunFailed { failure: failure.into() });
        outer.or_else(|| self.own.get().cloned())
    }
}

/// Resolves after the timeout; never, if there is none.
pub(crate) async fn sleep_or_pending(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

/// Returns the future's result, or `None` if `stop` fires first. A finished result is not lost.
pub(crate) async fn unless_stopped<F: Future>(stop: &CancellationToken, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut listening = pin!(None);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            if listening.is_none() {
                listening.set(Some(stop.cancelled()));
            }
            let stopped: Option<Pin<&mut WaitForCancellationFuture<'_>>> = listening.as_mut().as_pin_mut();
            stopped.map_or(Poll::Pending, |stopped| stopped.poll(cx)).map(|()| None)
        }
    })
    .await
}
