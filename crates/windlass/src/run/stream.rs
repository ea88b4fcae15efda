//! A run seen live.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

use super::{CancelHandle, OnDrop, Outcome};
use crate::error::RunError;
use crate::event::{Event, Watcher};

/// A run seen live: its events as they come, then its outcome.
///
/// The run goes at the watcher's pace: before calls start, and before it ends, it waits until the watcher has
/// asked for the next event, and so has dealt with those before. Dropping the stream cancels the run,
/// or lets it go on, as the run was told.
#[derive(Debug)]
pub struct RunStream {
    watcher: Watcher,
    run: Option<JoinHandle<Result<Outcome, RunError>>>,
    cancel: CancelHandle,
    on_drop: OnDrop,
}

impl RunStream {
    pub(crate) fn new(
        watcher: Watcher,
        run: JoinHandle<Result<Outcome, RunError>>,
        cancel: CancelHandle,
        on_drop: OnDrop,
    ) -> Self {
        Self { watcher, run: Some(run), cancel, on_drop }
    }

    /// The next event; none when the run has ended or paused.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.watcher.poll_next(cx)).await
    }

    /// Cancels the run.
    pub fn cancel(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// What the run came to. Events that were not taken are let go.
    pub async fn outcome(mut self) -> Result<Outcome, RunError> {
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
        if self.run.is_some() && self.on_drop == OnDrop::Cancel {
            self.cancel.now();
        }
    }
}

impl futures_util::Stream for RunStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.watcher.poll_next(cx)
    }
}
