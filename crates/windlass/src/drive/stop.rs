//! Waiting with cancellation: futures that end early when the turn is stopped.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// A lazily created listener for the stop token.
pub(super) type StopListener<'a> = Option<WaitForCancellationFuture<'a>>;

/// Returns the future's result, or `None` if the turn is stopped first. A finished result is not lost.
pub(super) async fn unless_stopped<F: Future>(stop: &CancellationToken, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut listening = pin!(None);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => poll_stop(stop, listening.as_mut(), cx).map(|()| None),
    })
    .await
}

/// Waits as [`unless_stopped`] does for something that another call releases when it ends. Returns `None` if
/// that call ended the turn.
pub(super) async fn wait_unless_stopped<F: Future>(stop: &CancellationToken, future: F) -> Option<F::Output> {
    unless_stopped(stop, future).await.filter(|_| !stop.is_cancelled())
}

/// Polls the stop token. The listener is created on the first poll, because most futures are ready at once.
pub(super) fn poll_stop<'a>(
    stop: &'a CancellationToken,
    mut listening: Pin<&mut StopListener<'a>>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if listening.is_none() {
        listening.set(Some(stop.cancelled()));
    }
    listening.as_pin_mut().map_or(Poll::Pending, |stopped| stopped.poll(cx))
}
