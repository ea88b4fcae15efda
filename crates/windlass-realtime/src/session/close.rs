//! How a session ends: everything that it holds is given back, within a bound.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use windlass::Outcome;
use windlass::core::CallId;

use super::actor::{Actor, Ends};
use super::handle::Shared;
use super::runs::Notice;
use crate::event::{CloseReason, LiveEvent};
use crate::history::History;
use crate::journal::LiveEntry;
use crate::metrics::SessionMetrics;

/// What a session came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CloseReport {
    /// Why it ended.
    pub reason: CloseReason,
    /// What was said, as far as it was heard.
    pub history: History,
    /// How it went.
    pub metrics: SessionMetrics,
    /// Calls that were stopped, or never started.
    pub stopped: Vec<CallId>,
    /// Calls that were stopped inside a body that must not happen twice: it may have taken effect.
    pub in_doubt: Vec<CallId>,
    /// Calls whose bodies were still running when the wait for them ended.
    pub draining: Vec<CallId>,
    /// Calls that wait for a person.
    pub held: Vec<CallId>,
    /// What went wrong while saying goodbye. The connection is gone in any case.
    pub goodbye: Option<String>,
}

impl Default for CloseReason {
    fn default() -> Self {
        Self::Lost("the session's runtime was stopped".to_owned())
    }
}

/// How much longer than their own bound runs are waited for.
const GRACE: Duration = Duration::from_millis(500);
/// How long a goodbye may take. Some servers never answer it.
const GOODBYE: Duration = Duration::from_secs(1);

impl<C: Send + Sync + 'static> Actor<C> {
    /// Ends everything, in this order: no more requests, calls, the connection, the journal, the watchers.
    pub(super) async fn shut(&mut self) {
        self.ends.inbox.close();
        // A body that blocks its thread cannot be stopped, and is not waited for longer than others.
        let _ = timeout(self.plan.drain + GRACE, self.checks.shutdown()).await;
        let _ = timeout(self.plan.drain + GRACE, self.resolving.shutdown()).await;
        let asked = match self.ends.shared.leaving.load(Ordering::Relaxed) {
            true => CloseReason::Left,
            false => CloseReason::Closed,
        };
        let mut report = CloseReport { reason: self.end.take().unwrap_or(asked), ..CloseReport::default() };
        // What cannot be written down here any more is left to whoever goes on with the session.
        let is_left = matches!(report.reason, CloseReason::Left | CloseReason::Journal(_));
        self.settle_runs(is_left, &mut report).await;
        if let Some(outbox) = self.outbox.take() {
            report.goodbye =
                outbox.close(GOODBYE.min(self.plan.patience)).await.err().map(|lost| lost.message);
        }
        if !is_left {
            self.write_down(vec![LiveEntry::Closed]).await;
        }
        report.history = self.machine.history().clone();
        report.metrics = self.metrics();
        let last = LiveEvent::Closed(report.reason.clone());
        self.ends.closed.send_replace(Some(Arc::new(report)));
        self.ends.shared.fanout.end(&last);
    }

    /// Stops what runs, and says what became of it.
    async fn settle_runs(&mut self, is_left: bool, report: &mut CloseReport) {
        for live in self.runs.values() {
            match is_left {
                true => live.cancel.hand_over(),
                false => live.cancel.now(),
            }
        }
        let until = Instant::now() + self.plan.drain + GRACE;
        while self.runs.values().any(|live| live.is_running) {
            let Ok(Some(notice)) = tokio::time::timeout_at(until, self.notices.recv()).await else { break };
            match notice {
                Notice::Ended { run, outcome } => {
                    match *outcome {
                        Ok(Outcome::Cancelled(cancelled)) => {
                            report.stopped.extend(cancelled.settlement.stopped);
                            report.in_doubt.extend(cancelled.settlement.in_doubt);
                            report.draining.extend(cancelled.settlement.draining);
                        }
                        Ok(Outcome::Paused(paused) | Outcome::HandedOver(paused)) => {
                            report.held.extend(paused.pending().iter().map(|one| one.call().clone()));
                        }
                        Ok(Outcome::Finished(_)) | Err(_) => {}
                    }
                    self.runs.remove(&run);
                }
                // Started and settled calls are told of to the end.
                notice @ Notice::Event { .. } => self.notice(notice),
                Notice::Expired { .. } | Notice::Posted { .. } | Notice::Again { .. } => {}
            }
        }
        for live in self.runs.values().filter_map(|live| live.paused.as_ref()) {
            report.held.extend(live.pending().iter().map(|pending| pending.call().clone()));
        }
        self.forwarders.shutdown().await;
    }
}

/// Whatever becomes of the session's task, nobody waits for it in vain.
pub(super) struct EndGuard {
    shared: Arc<Shared>,
    closed: watch::Sender<Option<Arc<CloseReport>>>,
}

impl EndGuard {
    pub(super) fn new<C>(ends: &Ends<C>) -> Self {
        Self { shared: ends.shared.clone(), closed: ends.closed.clone() }
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let is_new = self.closed.send_if_modified(|report| {
            let is_new = report.is_none();
            if is_new {
                let reason = CloseReason::Lost("the session's task was stopped".to_owned());
                *report = Some(Arc::new(CloseReport { reason, ..CloseReport::default() }));
            }
            is_new
        });
        if is_new {
            let reason = CloseReason::Lost("the session's task was stopped".to_owned());
            self.shared.fanout.end(&LiveEvent::Closed(reason));
        }
    }
}
