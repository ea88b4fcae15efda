//! Where a body runs: in the task of its run as long as the bodies of its tool are quick, else in one of its own.

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

use crate::guardrail::panic_text;
use crate::tool::BodyResult;

/// How long a body may keep the thread before others have to be spared it: some ten times what it costs to hand it
/// to another thread.
const QUICK: Duration = Duration::from_micros(100);

/// How often in a row a tool's bodies have to give the thread back quickly before the task of a run takes them in.
const TRUSTED: u32 = 4;

/// How long the bodies of one tool keep the thread that they are given.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// How often it was given back quickly since it last was not.
    quick: AtomicU32,
}

impl Pace {
    fn is_trusted(&self) -> bool {
        self.quick.load(Ordering::Relaxed) >= TRUSTED
    }

    fn saw(&self, pace: Took) {
        match pace {
            Took::Long => self.quick.store(0, Ordering::Relaxed),
            // Two at once may count as one: it is only trusted later for it.
            Took::Little => {
                let quick = self.quick.load(Ordering::Relaxed);
                if quick < TRUSTED {
                    self.quick.store(quick + 1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// How long a body kept its thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Took {
    Little,
    Long,
}

/// Whether the wait for a body has an end of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deadline {
    None,
    /// It must hold, so nothing that could keep the run's task may be in it.
    Some,
}

/// A body that runs. It does not outlive the wait for it.
pub(super) struct Running(Place);

enum Place {
    /// In the task that waits for it.
    Here(Timed),
    /// In a task of its own, or on a thread.
    There(JoinHandle<BodyResult>),
    /// Nowhere any more.
    Over,
}

/// Why a body has no result.
pub(super) enum Gone {
    Panicked(String),
    Dropped,
}

impl Running {
    /// Runs an async body: in this task where its tool has earned it, and no deadline hangs on it.
    pub(super) fn on(pace: &Arc<Pace>, body: BoxFuture<'static, BodyResult>, deadline: Deadline) -> Self {
        let timed = Timed { body, pace: pace.clone(), last: None };
        Self(match deadline {
            Deadline::None if pace.is_trusted() => Place::Here(timed),
            Deadline::None | Deadline::Some => Place::There(tokio::spawn(timed)),
        })
    }

    /// Runs a body that blocks, on a thread of its own.
    pub(super) fn blocking(body: Box<dyn FnOnce() -> BodyResult + Send>) -> Self {
        Self(Place::There(tokio::task::spawn_blocking(body)))
    }

    /// Whether it is in this task, and nothing of it has run yet.
    pub(super) fn is_new_here(&self) -> bool {
        matches!(&self.0, Place::Here(Timed { last: None, .. }))
    }

    /// Gives it a task of its own, if it has none.
    pub(super) fn move_out(&mut self) {
        self.0 = match std::mem::replace(&mut self.0, Place::Over) {
            Place::Here(timed) => Place::There(tokio::spawn(timed)),
            there => there,
        };
    }

    /// Stops it where it next waits. What blocks goes on.
    pub(super) fn abort(&self) {
        if let Place::There(task) = &self.0 {
            task.abort();
        }
    }
}

impl Future for Running {
    type Output = Result<BodyResult, Gone>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Place::Here(timed) = &mut self.0 {
            match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *timed).poll(cx))) {
                Ok(Poll::Ready(result)) => return Poll::Ready(Ok(result)),
                Ok(Poll::Pending) if timed.last == Some(Took::Little) => return Poll::Pending,
                Ok(Poll::Pending) => self.move_out(),
                Err(panic) => return Poll::Ready(Err(Gone::Panicked(panic_text(&*panic)))),
            }
        }
        match &mut self.0 {
            // Of many tasks that one waits for, the runtime has some asked in vain. The driver has strides for that.
            Place::There(task) => pin!(unconstrained(task)).poll(cx).map_err(Gone::from),
            Place::Here(_) | Place::Over => Poll::Pending,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.0, Place::Over) {
            // What a body does when it is dropped is its own affair, and so is its panic.
            Place::Here(timed) => drop(catch_unwind(AssertUnwindSafe(|| drop(timed)))),
            Place::There(task) => task.abort(),
            Place::Over => {}
        }
    }
}

impl From<JoinError> for Gone {
    fn from(error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => Self::Panicked(panic_text(&*panic)),
            Err(_) => Self::Dropped,
        }
    }
}

/// A body that is timed whenever it has the thread.
struct Timed {
    body: BoxFuture<'static, BodyResult>,
    pace: Arc<Pace>,
    /// How long it had the thread when it last did.
    last: Option<Took>,
}

impl Future for Timed {
    type Output = BodyResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BodyResult> {
        let began = Instant::now();
        let polled = self.body.as_mut().poll(cx);
        let took = if began.elapsed() > QUICK { Took::Long } else { Took::Little };
        self.last = Some(took);
        self.pace.saw(took);
        polled
    }
}
