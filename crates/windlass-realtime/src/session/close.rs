//! The end of a session. Invariant: all resources of the session are released within a bounded time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use windlass::core::id::{CallId, RunId};
use windlass::error::RunError;
use windlass::run::{CancelledRun, RunResult};

use super::actor::{ActorChannels, SessionActor};
use super::call_runs::{RunNotice, call_outputs};
use super::handle::SharedSession;
use crate::event::{CloseReason, RealtimeEvent};
use crate::history::RealtimeHistory;
use crate::journal::RealtimeEntry;
use crate::machine::{CallBatchStatus, SessionEffect};
use crate::metrics::SessionMetrics;

/// A report on a closed session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CloseReport {
    /// The reason for the end.
    pub reason: CloseReason,
    /// The conversation, up to the part the user heard.
    pub history: RealtimeHistory,
    /// The totals of the session.
    pub metrics: SessionMetrics,
    /// Calls that were cancelled or never started. Handoffs whose agent did not become current are among them.
    pub stopped: Vec<CallId>,
    /// Calls that were cancelled inside a body that must not run twice, or whose run was lost; the effect may have
    /// happened.
    pub in_doubt: Vec<CallId>,
    /// Calls that had not settled when the drain timeout elapsed.
    pub draining: Vec<CallId>,
    /// Calls that wait for a person's decision.
    pub awaiting_decision: Vec<CallId>,
    /// The error of the closing handshake, if any. The connection is closed in any case.
    pub close_error: Option<String>,
}

impl Default for CloseReason {
    fn default() -> Self {
        Self::ConnectionLost("the session's runtime was stopped".to_owned())
    }
}

/// Time to wait for runs beyond their drain timeout.
const SETTLE_GRACE: Duration = Duration::from_millis(500);

/// The treatment of the runs that are open when the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenRunPolicy {
    /// The runs are cancelled.
    Cancel,
    /// The runs are left to the process that resumes the session.
    Detach,
}

impl<C: Send + Sync + 'static> SessionActor<C> {
    /// Ends the session, in this order: stops requests, settles calls, closes the connection, the journal, and
    /// the subscribers' streams.
    pub(super) async fn shut_down(&mut self) {
        self.channels.requests.close();
        // A body that blocks its thread cannot be aborted; the wait for it is bounded.
        let _ = timeout(self.config.drain_timeout.saturating_add(SETTLE_GRACE), self.check_tasks.shutdown())
            .await;
        let _ =
            timeout(self.config.drain_timeout.saturating_add(SETTLE_GRACE), self.resolve_tasks.shutdown())
                .await;
        let requested = match self.channels.shared.is_detaching.load(Ordering::Relaxed) {
            true => CloseReason::Detached,
            false => CloseReason::Closed,
        };
        let mut report =
            CloseReport { reason: self.close_reason.take().unwrap_or(requested), ..CloseReport::default() };
        let policy = match report.reason {
            // Calls that can no longer be journalled are left to the process that resumes the session.
            CloseReason::Detached | CloseReason::JournalFailed(_) => OpenRunPolicy::Detach,
            CloseReason::Closed
            | CloseReason::ClosedByProvider
            | CloseReason::ConnectionLost(_)
            | CloseReason::ConfigurationRejected(_)
            | CloseReason::BudgetReached(_)
            | CloseReason::CallFailed(_) => OpenRunPolicy::Cancel,
        };
        self.settle_runs(policy, &mut report).await;
        if !matches!(report.reason, CloseReason::JournalFailed(_)) {
            self.record_end(policy, &mut report).await;
        }
        if let Some(outbox) = self.outbox.take() {
            let limit = self.config.close_timeout;
            report.close_error = outbox.close(limit).await.err().map(|lost| lost.message);
            // The handshake is complete when the server has answered the close frame. A connection that is closed
            // with unread data would be reset, and the server would never see the close frame.
            if report.close_error.is_none() && self.wait_close_reply(limit).await.is_err() {
                report.close_error = Some("the server did not answer the close frame in time".to_owned());
            }
        }
        self.model_events = None;
        if policy == OpenRunPolicy::Cancel {
            self.append_journal(vec![RealtimeEntry::Closed]).await;
        }
        report.history = self.machine.history().clone();
        report.metrics = self.metrics();
        let last = RealtimeEvent::Closed(report.reason.clone());
        self.channels.close_report.send_replace(Some(Arc::new(report)));
        self.channels.shared.fanout.close(&last);
    }

    /// Records the outputs that settled while the session ended, in the history, the journal and the events.
    async fn record_end(&mut self, policy: OpenRunPolicy, report: &mut CloseReport) {
        let now = self.elapsed();
        let machine = self.machine.advance_to(now);
        if policy == OpenRunPolicy::Cancel {
            report.stopped.extend(machine.end_open_work());
        }
        let mut entries = Vec::new();
        let mut events = Vec::new();
        for effect in machine.take_last_effects() {
            match effect {
                SessionEffect::AppendJournal(entry) => entries.push(entry),
                SessionEffect::EmitEvent(event) => events.push(event),
                _ => {}
            }
        }
        self.append_journal(entries).await;
        events.into_iter().for_each(|event| self.emit_event(event));
    }

    /// Discards the model's last events until it has answered the close frame.
    async fn wait_close_reply(&mut self, limit: Duration) -> Result<(), tokio::time::error::Elapsed> {
        let Some(events) = &mut self.model_events else { return Ok(()) };
        timeout(limit, async { while let Some(Ok(_)) = events.next().await {} }).await
    }

    /// Cancels or detaches the runs and adds their results to the report.
    async fn settle_runs(&mut self, policy: OpenRunPolicy, report: &mut CloseReport) {
        for live in self.runs.values() {
            match policy {
                OpenRunPolicy::Detach => live.cancel.detach(),
                OpenRunPolicy::Cancel => live.cancel.cancel(),
            }
        }
        // Requests that wait for the budget wait in vain.
        self.drop_waiting_requests();
        let until = Instant::now() + self.config.drain_timeout.saturating_add(SETTLE_GRACE);
        while self.runs.values().any(|live| live.is_running) {
            let Ok(Some(notice)) = tokio::time::timeout_at(until, self.notices.recv()).await else { break };
            match notice {
                RunNotice::RunEnded { run, outcome } => {
                    self.take_last_outputs(&run, &outcome);
                    match *outcome {
                        Ok(RunResult::Cancelled(cancelled)) => {
                            if is_unplanned(&cancelled) {
                                self.machine.forget_batch(&run);
                            }
                            report.stopped.extend(cancelled.settlement.stopped);
                            report.in_doubt.extend(cancelled.settlement.in_doubt);
                            report.draining.extend(cancelled.settlement.draining);
                        }
                        Ok(RunResult::Paused(paused) | RunResult::Detached(paused)) => {
                            report
                                .awaiting_decision
                                .extend(paused.pending_calls().iter().map(|one| one.call().clone()));
                        }
                        Ok(RunResult::Finished(_)) | Err(RunError::Failed(_)) => {}
                        // The store or the lease of the run was lost.
                        Err(_) => {
                            let calls = self.runs.get(&run).map(|live| live.calls.as_slice());
                            report.in_doubt.extend(self.machine.open_calls(calls.unwrap_or_default()));
                        }
                    }
                    self.runs.remove(&run);
                }
                // Call events are still delivered while the runs settle.
                notice @ RunNotice::RunEvent { .. } => self.on_run_notice(notice),
                RunNotice::DecisionPosted(post) => post.report_result(),
                RunNotice::ApprovalExpired { .. }
                | RunNotice::DecisionsPosted { .. }
                | RunNotice::NestedCallAdvanced { .. }
                | RunNotice::PausedRunAdvanced { .. }
                | RunNotice::RecoveryDue { .. } => {}
            }
        }
        for live in self.runs.values() {
            match &live.paused {
                Some(paused) => {
                    let pending = paused.pending_calls();
                    report.awaiting_decision.extend(pending.iter().map(|pending| pending.call().clone()));
                }
                None if live.is_running => report.draining.extend(self.machine.open_calls(&live.calls)),
                // The lease of an earlier process has not expired.
                None => report.in_doubt.extend(self.machine.open_calls(&live.calls)),
            }
        }
        self.background_tasks.shutdown().await;
    }

    /// Takes the outputs of a run that ended while the session ends. Its events lack those that are redacted.
    fn take_last_outputs(&mut self, run: &RunId, outcome: &Result<RunResult, RunError>) {
        let (items, status) = match outcome {
            Ok(RunResult::Finished(finished)) => (finished.record.run_items(), CallBatchStatus::Finished),
            Ok(unfinished) => (unfinished.record().run_items(), CallBatchStatus::WaitingForDecision),
            Err(RunError::Failed(failed)) => (failed.record.run_items(), CallBatchStatus::Finished),
            Err(_) => return,
        };
        let now = self.elapsed();
        self.machine.advance_to(now).on_outputs(run, call_outputs(&items), status);
    }
}

/// Returns true if a run was cancelled before it planned its calls: nothing of them has happened, and the session gives them
/// their outputs.
fn is_unplanned(cancelled: &CancelledRun) -> bool {
    let settled = &cancelled.settlement;
    let has_settled =
        !settled.stopped.is_empty() || !settled.in_doubt.is_empty() || !settled.draining.is_empty();
    !has_settled && call_outputs(&cancelled.record.run_items()).is_empty()
}

/// A guard that publishes a report even if the session's task panics or is aborted, so that nobody waits for
/// ever.
pub(super) struct SessionEndGuard {
    shared: Arc<SharedSession>,
    close_report: watch::Sender<Option<Arc<CloseReport>>>,
}

impl SessionEndGuard {
    pub(super) fn new<C>(channels: &ActorChannels<C>) -> Self {
        Self { shared: channels.shared.clone(), close_report: channels.close_report.clone() }
    }
}

impl Drop for SessionEndGuard {
    fn drop(&mut self) {
        let reason = CloseReason::ConnectionLost("the session's task was stopped".to_owned());
        let is_new = self.close_report.send_if_modified(|report| {
            let is_new = report.is_none();
            if is_new {
                let reason = reason.clone();
                *report = Some(Arc::new(CloseReport { reason, ..CloseReport::default() }));
            }
            is_new
        });
        if is_new {
            self.shared.fanout.close(&RealtimeEvent::Closed(reason));
        }
    }
}
