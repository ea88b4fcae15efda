//! Streams of live runs.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

use super::{CancelHandle, OnStreamDrop, RunResult};
use crate::error::RunError;
use crate::event::{EventReceiver, RunEvent};

/// A live run: its events as they come, then its result.
///
/// The watcher applies backpressure: before calls start, and before the run ends, the driver waits until the
/// watcher has asked for the next event and thereby handled those before it. Dropping the stream cancels the
/// run or lets it continue, as [`RunBuilder::on_stream_drop`](crate::run::RunBuilder::on_stream_drop) says.
#[derive(Debug)]
pub struct RunStream {
    events: EventReceiver,
    run: Option<JoinHandle<Result<RunResult, RunError>>>,
    cancel_handle: CancelHandle,
    on_stream_drop: OnStreamDrop,
}

impl RunStream {
    pub(crate) fn new(
        watcher: EventReceiver,
        run: JoinHandle<Result<RunResult, RunError>>,
        cancel: CancelHandle,
        on_drop: OnStreamDrop,
    ) -> Self {
        Self { events: watcher, run: Some(run), cancel_handle: cancel, on_stream_drop: on_drop }
    }

    /// Returns the next event, or `None` when the run has ended or paused.
    pub async fn next(&mut self) -> Option<RunEvent> {
        poll_fn(|cx| self.events.poll_next(cx)).await
    }

    /// Returns a handle that cancels the run.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel_handle.clone()
    }

    /// Waits for the result of the run. Remaining events are dropped.
    pub async fn result(mut self) -> Result<RunResult, RunError> {
        while self.next().await.is_some() {}
        let Some(run) = self.run.take() else { unreachable!("the outcome takes the stream with it") };
        match run.await {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => Err(RunError::Store(crate::error::StoreError::new(format!(
                "the runtime stopped before the run did: {error}"
            )))),
        }
    }
}

impl Drop for RunStream {
    fn drop(&mut self) {
        if self.run.is_some() && self.on_stream_drop == OnStreamDrop::CancelRun {
            self.cancel_handle.cancel();
        }
    }
}

impl futures_util::Stream for RunStream {
    type Item = RunEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<RunEvent>> {
        self.events.poll_next(cx)
    }
}
