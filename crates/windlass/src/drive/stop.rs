//! Waiting for something, unless the turn is stopped first.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// Listens for a stop, from when somebody has to wait.
pub(super) type Listening<'a> = Option<WaitForCancellationFuture<'a>>;

/// The future's result, or none where the turn is stopped first. What has finished is not lost to a stop.
pub(super) async fn unless_stopped<F: Future>(stop: &CancellationToken, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut listening = pin!(None);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => poll_stop(stop, listening.as_mut(), cx).map(|()| None),
    })
    .await
}

/// As [`unless_stopped`], for what another call gives up when it ends: if it ended the turn, it is of no use.
pub(super) async fn waited_for<F: Future>(stop: &CancellationToken, future: F) -> Option<F::Output> {
    unless_stopped(stop, future).await.filter(|_| !stop.is_cancelled())
}

/// Whether there is a stop. Most futures are there at once, and need nobody who listens for one.
pub(super) fn poll_stop<'a>(
    stop: &'a CancellationToken,
    mut listening: Pin<&mut Listening<'a>>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if listening.is_none() {
        listening.set(Some(stop.cancelled()));
    }
    listening.as_pin_mut().map_or(Poll::Pending, |stopped| stopped.poll(cx))
}
