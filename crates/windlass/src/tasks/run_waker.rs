//! Wake-ups of a run: a body that blocks its thread cannot keep its run from being polled by another one.
//!
//! A task that is woken on a worker of tokio's multi-thread runtime waits in a slot of that worker from which no other
//! worker takes it. A body that wakes its run (with progress, or by cancelling it) and then blocks would therefore hold
//! up the run for ever. Invariant: a run that is woken inside the poll of a body is moved to the queue of the worker,
//! from which any worker takes it.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, RuntimeFlavor};

thread_local! {
    /// True while this thread polls a body in a task of its own.
    static IS_POLLING_BODY: Cell<bool> = const { Cell::new(false) };
}

/// Marks a body in a task of its own while it is polled.
pub(crate) struct MarkedBody<F>(pub(crate) F);

/// Resets the mark, also after a panic.
struct BodyMark;

impl Drop for BodyMark {
    fn drop(&mut self) {
        IS_POLLING_BODY.set(false);
    }
}

impl<F: Future + Unpin> Future for MarkedBody<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        IS_POLLING_BODY.set(true);
        let _mark = BodyMark;
        Pin::new(&mut self.0).poll(cx)
    }
}

/// The future of a run, polled with a [`RunWaker`].
pub(crate) struct WokenRun<T> {
    run: BoxFuture<'static, T>,
    /// The waker of the task, and the waker that the run is polled with.
    wakers: Option<(Waker, Waker)>,
}

impl<T> WokenRun<T> {
    pub(crate) fn new(run: BoxFuture<'static, T>) -> Self {
        Self { run, wakers: None }
    }
}

impl<T> Future for WokenRun<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let of_task = cx.waker();
        let is_known = this.wakers.as_ref().is_some_and(|(known, _)| known.will_wake(of_task));
        if !is_known {
            let of_run = Waker::from(Arc::new(RunWaker { of_task: of_task.clone() }));
            this.wakers = Some((of_task.clone(), of_run));
        }
        match &this.wakers {
            Some((_, of_run)) => this.run.as_mut().poll(&mut Context::from_waker(of_run)),
            None => Poll::Pending,
        }
    }
}

/// A waker that moves the task of a run out of the slot of a worker whose body may block.
struct RunWaker {
    of_task: Waker,
}

impl Wake for RunWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.of_task.wake_by_ref();
        if IS_POLLING_BODY.get()
            && let Ok(runtime) = Handle::try_current()
            && runtime.runtime_flavor() == RuntimeFlavor::MultiThread
        {
            // The next task that is woken here takes the slot, and moves the run to the queue.
            runtime.spawn(async {});
        }
    }
}

/// Lets other tasks run first. Unlike tokio's own function it leaves the task in the queue of the worker, from which
/// others take it while a body blocks the worker.
pub(crate) async fn yield_to_others() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
