//! Progress reports of a call's body, on their way to watchers and hooks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use serde_json::Value;

/// Number of reports that wait for watchers and hooks. If there are more, the oldest are dropped, so that the last one is
/// never lost.
const MAX_WAITING_REPORTS: usize = 1024;

/// The reports of one call.
#[derive(Debug, Default)]
pub(crate) struct ProgressQueue {
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    reports: VecDeque<Value>,
    waker: Option<Waker>,
}

impl ProgressQueue {
    /// Adds a report. It may come from any thread.
    pub(crate) fn push(&self, report: Value) {
        let mut state = self.lock();
        if state.reports.len() == MAX_WAITING_REPORTS {
            state.reports.pop_front();
        }
        state.reports.push_back(report);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Takes the oldest report, if there is one.
    pub(crate) fn try_next(&self) -> Option<Value> {
        self.lock().reports.pop_front()
    }

    /// Waits for the next report.
    pub(crate) async fn next(&self) -> Value {
        poll_fn(|cx| {
            let mut state = self.lock();
            match state.reports.pop_front() {
                Some(report) => Poll::Ready(report),
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
