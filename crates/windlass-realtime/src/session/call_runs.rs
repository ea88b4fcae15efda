//! Execution of a response's tool calls by a run, with the same planner, guardrails, approvals, journal and
//! receipts as any other run.

use std::sync::Arc;

use tokio::time::Instant;
use windlass::core::id::{CallId, CallPath, RunId};
use windlass::model::ModelResponse;
use windlass::run::CancelHandle;
use windlass::store::PostedDecision;
use windlass::{
    core::failure::RunFailure,
    core::item::Item,
    error::{RunError, StoreErrorKind},
    event::RunEventKind,
    run::{ModelRetryPolicy, PausedRun, RetriesExhausted, RunBuilder, RunRecord, RunResult},
};

use super::actor::SessionActor;
use super::decisions::{DecisionPost, RunQuestions, StoreWatcher};
use crate::event::{AgentChangeCause, CloseReason, RealtimeError, RealtimeEvent};
use crate::id::ResponseId;
use crate::journal::CallBatchRecord;
use crate::machine::{CallBatch, CallBatchStatus};

/// The output of a call whose run could not be completed here, as the model sees it.
const RESULT_UNKNOWN_TEXT: &str = "It is not known what became of this call.";
/// Number of attempts of a model request of an agent inside a call.
const NESTED_MODEL_ATTEMPTS: u32 = 3;
/// The output of a call that could not be planned, as the model sees it.
const CALL_NOT_PLANNED_TEXT: &str =
    "This call was not made, because the answer that it was part of could not be carried out.";

/// A run that executes the calls of one response.
pub(super) struct CallBatchRun {
    pub(super) activation: u32,
    pub(super) response: ResponseId,
    pub(super) calls: Vec<CallId>,
    pub(super) cancel: CancelHandle,
    /// Present while the run waits for a person.
    pub(super) paused: Option<PausedRun>,
    pub(super) is_running: bool,
    pub(super) questions: RunQuestions,
    /// Present while the run waits for a person in a store, where another driver may go on with it.
    pub(super) paused_run_watcher: Option<StoreWatcher>,
    /// Present if another driver had the run, whose lease may still be valid: recovery is retried until the deadline.
    pub(super) recovery: Option<RunRecovery>,
}

/// A run that another driver had, and the deadline of its recovery.
#[derive(Clone)]
pub(super) struct RunRecovery {
    pub(super) origin: RecoveryOrigin,
    pub(super) deadline: Instant,
}

/// The driver that had a run before its recovery.
#[derive(Clone)]
pub(super) enum RecoveryOrigin {
    /// An earlier process of this session.
    EarlierProcess(CallBatchRecord),
    /// Another driver that has gone on with a run of this process, for example a command of an operator.
    OtherDriver,
}

/// A notice from or about a run.
pub(super) enum RunNotice {
    RunEvent {
        run: RunId,
        kind: RunEventKind,
    },
    RunEnded {
        run: RunId,
        outcome: Box<Result<RunResult, RunError>>,
    },
    /// The approval of a call expired.
    ApprovalExpired {
        run: RunId,
    },
    /// Decisions were posted to the store.
    DecisionsPosted {
        run: RunId,
        decisions: Vec<PostedDecision>,
    },
    /// A call inside a nested agent has started or has its output.
    NestedCallAdvanced {
        run: RunId,
        call: CallPath,
    },
    /// A decision of this session was posted to the store, or could not be.
    DecisionPosted(Box<DecisionPost>),
    /// Another driver wrote records to a run that had paused after `record_count` records.
    PausedRunAdvanced {
        run: RunId,
        record_count: u64,
    },
    /// The recovery of a run is due again.
    RecoveryDue {
        run: RunId,
    },
}

impl<C: Send + Sync + 'static> SessionActor<C> {
    /// Executes calls. The run evaluates the rules of tools and handoffs again, because they may have changed since the
    /// model was offered them.
    pub(super) fn execute_batch(&mut self, batch: CallBatch) {
        let Some(resolved) = self.resolved_agents.get(&batch.agent.number).cloned() else {
            let message = format!("agent `{}` is no longer known", batch.agent.name);
            let ids = batch.calls.iter().filter_map(call_id).collect();
            return self.fail_calls(&batch.run, &batch.response, ids, message);
        };
        let CallBatch { run, response, agent, input, calls, usage } = batch;
        let ids: Vec<CallId> = calls.iter().filter_map(call_id).collect();
        let items = calls.into_iter().map(Arc::new).collect();
        let answer = ModelResponse {
            items,
            usage,
            response_id: Some(response.to_string()),
            ..ModelResponse::default()
        };
        let input = input.into_iter().map(Arc::new).collect();
        let builder = resolved.execute_calls(input, answer, &self.context.conversation).run_id(run.clone());
        let builder = match &self.config.store {
            Some(store) => builder.store(store.clone()),
            None => builder,
        };
        let artefacts = self.config.run_artefacts.iter().cloned();
        let builder = artefacts.fold(builder, |builder, (name, body)| builder.artefact(name, body));
        self.start_run(run, agent.number, response, ids, builder, None);
    }

    /// Starts a run and forwards its events to the actor.
    pub(super) fn start_run(
        &mut self,
        run: RunId,
        agent: u32,
        response: ResponseId,
        calls: Vec<CallId>,
        builder: RunBuilder<C>,
        recovery: Option<RunRecovery>,
    ) {
        // Finished tasks are removed, so that the set does not grow.
        while self.background_tasks.try_join_next().is_some() {}
        // A conversation does not wait for an agent whose provider is away: its call fails, and the model says so.
        let retry = ModelRetryPolicy {
            max_attempts: NESTED_MODEL_ATTEMPTS,
            when_exhausted: RetriesExhausted::Fail,
            ..ModelRetryPolicy::default()
        };
        let mut builder =
            builder.drain_timeout(self.config.drain_timeout).event_buffer_size(64).model_retry(retry);
        if let Some(lease) = self.config.lease_duration {
            builder = builder.lease_duration(lease);
        }
        if let Some(limit) = self.config.max_concurrent_calls {
            builder = builder.max_concurrent_calls(limit);
        }
        if self.config.pre_approval_guardrails {
            builder = builder.pre_approval_guardrails();
        }
        if let Some(expiry) = self.config.approval_expiry {
            builder = builder.approvals_expire_after(expiry);
        }
        for hook in &self.config.hooks {
            builder = builder.hook(hook.clone());
        }
        if let Some(layer) = &self.budgeted_requests {
            builder = builder.prices(layer.prices.clone()).model_layer(layer.clone());
        }
        let mut stream = builder.stream();
        let cancel = stream.cancel_handle();
        let questions = self.runs.remove(&run).map(|before| before.questions).unwrap_or_default();
        self.runs.insert(
            run.clone(),
            CallBatchRun {
                activation: agent,
                response,
                calls,
                cancel,
                paused: None,
                is_running: true,
                questions,
                paused_run_watcher: None,
                recovery,
            },
        );
        let notify = self.notice_sender.clone();
        self.background_tasks.spawn(async move {
            while let Some(event) = stream.next().await {
                // The session's own recovery reports what an earlier process left open, except calls that start anew.
                if event.is_repeated && !matches!(event.kind, RunEventKind::CallStarted { .. }) {
                    continue;
                }
                // Events of nested agents are left to the journal, except held calls, which are reported at
                // every depth, and the ends of these holds.
                let run = run.clone();
                let notice = match event.kind {
                    kind if event.path.is_empty() => RunNotice::RunEvent { run, kind },
                    kind @ RunEventKind::CallHeld(_) => RunNotice::RunEvent { run, kind },
                    RunEventKind::CallStarted { call, .. } | RunEventKind::CallSettled { call, .. } => {
                        RunNotice::NestedCallAdvanced { run, call: CallPath::new(&event.path, call) }
                    }
                    _ => continue,
                };
                if notify.send(notice).await.is_err() {
                    return;
                }
            }
            let outcome = Box::new(stream.result().await);
            let _ = notify.send(RunNotice::RunEnded { run, outcome }).await;
        });
    }

    pub(super) fn fail_calls(
        &mut self,
        run: &RunId,
        response: &ResponseId,
        calls: Vec<CallId>,
        message: String,
    ) {
        self.fail_calls_with(run, response, calls, message, RESULT_UNKNOWN_TEXT);
    }

    /// Completes the calls of a run without their results. `output` is the text for the model, `message` the
    /// error for the subscribers.
    pub(super) fn fail_calls_with(
        &mut self,
        run: &RunId,
        response: &ResponseId,
        calls: Vec<CallId>,
        message: String,
        output: &str,
    ) {
        self.emit_event(RealtimeEvent::Error(RealtimeError::CallsFailed {
            response: response.clone(),
            message,
        }));
        if self.is_budget_question(run) {
            return self.end_budget_question(run, 0, "the question could not be asked");
        }
        let outputs = calls.into_iter().map(|call| (call, output.to_owned())).collect();
        let now = self.elapsed();
        self.machine.advance_to(now).on_outputs(run, outputs, CallBatchStatus::Finished);
    }

    pub(super) fn on_run_notice(&mut self, notice: RunNotice) {
        match notice {
            RunNotice::RunEvent { run, kind } => self.on_run_event(&run, kind),
            RunNotice::RunEnded { run, outcome } => self.on_run_ended(&run, *outcome),
            RunNotice::ApprovalExpired { run } => {
                let is_waiting = self.runs.get(&run).is_some_and(|live| live.paused.is_some());
                if is_waiting {
                    self.resume_run(&run);
                }
            }
            RunNotice::DecisionsPosted { run, decisions: posted } => self.on_decisions_posted(&run, posted),
            RunNotice::DecisionPosted(post) => self.on_decision_posted(*post),
            RunNotice::NestedCallAdvanced { run, call } => {
                self.release_call(&run, &call);
            }
            RunNotice::PausedRunAdvanced { run, record_count } => {
                self.on_paused_run_advanced(&run, record_count)
            }
            RunNotice::RecoveryDue { .. } => {}
        }
    }

    fn on_run_event(&mut self, run: &RunId, kind: RunEventKind) {
        if !self.runs.contains_key(run) {
            return;
        }
        if let RunEventKind::CallStarted { call, .. } | RunEventKind::CallSettled { call, .. } = &kind {
            self.release_call(run, &call.clone().into());
        }
        if self.is_budget_question(run) && !matches!(kind, RunEventKind::CallHeld(_)) {
            return;
        }
        let Some(live) = self.runs.get(run) else { return };
        let Some(agent) =
            self.resolved_agents.get(&live.activation).map(|agent| agent.agent().name().clone())
        else {
            return;
        };
        match kind {
            RunEventKind::CallHeld(pending) => self.report_held_call(run, *pending),
            RunEventKind::CallStarted { call, tool } => {
                self.emit_event(RealtimeEvent::CallStarted { call, tool, agent })
            }
            RunEventKind::CallProgress { call, progress } => {
                self.emit_event(RealtimeEvent::CallProgress { call, progress })
            }
            RunEventKind::CallSettled { call, status, output, info } => {
                // The model gets a redacted output as a whole when the run pauses or ends.
                if !info.is_output_redacted {
                    let (now, text) = (self.elapsed(), output.text().into_owned());
                    self.machine.advance_to(now).on_call_settled(run, &call, text);
                }
                self.emit_event(RealtimeEvent::CallSettled { call, status, output, agent });
            }
            RunEventKind::Warning { message } => tracing::warn!(%run, message, "a run reported a warning"),
            _ => {}
        }
    }

    /// Handles the result of a run: sends outputs, starts a handoff, waits for a person, or ends the session.
    fn on_run_ended(&mut self, run: &RunId, outcome: Result<RunResult, RunError>) {
        let now = self.elapsed();
        match outcome {
            Ok(RunResult::Paused(paused)) if self.is_budget_question(run) => self.on_run_paused(run, paused),
            Ok(RunResult::Finished(_) | RunResult::Cancelled(_)) | Err(RunError::Failed(_))
                if self.is_budget_question(run) =>
            {
                self.on_question_answered(run, outcome)
            }
            Ok(RunResult::Paused(paused)) => {
                let outputs = call_outputs(&paused.record().run_items());
                self.machine.advance_to(now).on_outputs(run, outputs, CallBatchStatus::WaitingForDecision);
                self.on_run_paused(run, paused);
            }
            Ok(RunResult::Finished(finished)) => {
                let items = finished.record.run_items();
                self.record_standing_decisions(run, &finished.record);
                let Some(live) = self.remove_run(run) else { return };
                self.machine.advance_to(now).on_outputs(run, call_outputs(&items), CallBatchStatus::Finished);
                let handoff = items.iter().find_map(|produced| match &*produced.item {
                    Item::Handoff(handoff) => Some(handoff.clone()),
                    _ => None,
                });
                if let Some(handoff) = handoff {
                    let from = self.resolved_agents.get(&live.activation);
                    match from.and_then(|from| from.reachable_agent(&handoff.to)).cloned() {
                        Some(agent) => {
                            self.start_agent_change(agent, AgentChangeCause::Handoff(handoff.call), None)
                        }
                        None => {
                            let message = "the handoff's target agent does not exist".to_owned();
                            self.machine.fail_handoff(&handoff.call, &handoff.to, message);
                        }
                    }
                }
            }
            // The session itself cancels and leaves its runs only when it ends.
            Ok(RunResult::Cancelled(cancelled)) => {
                let message = "another process has cancelled the run".to_owned();
                self.end_broken_run(run, &cancelled.record, message);
            }
            Ok(RunResult::Detached(_)) => {
                self.follow_other_driver(run, "another process has taken the run over")
            }
            Err(RunError::Failed(failed)) => {
                let ended = self.end_broken_run(run, &failed.record, failed.failure.to_string());
                let Some(CallBatchRun { recovery, .. }) = ended else { return };
                // The calls have failed, but nothing here asked for the end of the session.
                let is_survivable = matches!(
                    failed.failure,
                    RunFailure::ModelProtocolError(_) | RunFailure::ApplicationPanicked { .. }
                ) || recovery
                    .is_some_and(|recovery| matches!(recovery.origin, RecoveryOrigin::OtherDriver));
                if !is_survivable {
                    self.close_reason.get_or_insert(CloseReason::CallFailed(failed.failure));
                }
            }
            Err(RunError::Store(error))
                if error.kind() == StoreErrorKind::LeaseHeld && self.schedule_recovery_retry(run) => {}
            Err(RunError::Store(error)) if is_driven_elsewhere(error.kind()) => {
                self.follow_other_driver(run, &error.to_string());
            }
            Err(error) => self.fail_run(run, error.to_string()),
        }
    }

    /// Completes the calls of a run that ended without executing all of them, and returns the run.
    fn end_broken_run(&mut self, run: &RunId, record: &RunRecord, message: String) -> Option<CallBatchRun> {
        self.record_standing_decisions(run, record);
        let live = self.remove_run(run)?;
        let mut given = call_outputs(&record.run_items());
        for call in &live.calls {
            if !given.iter().any(|(known, _)| known == call) {
                given.push((call.clone(), CALL_NOT_PLANNED_TEXT.to_owned()));
            }
        }
        let response = live.response.clone();
        self.emit_event(RealtimeEvent::Error(RealtimeError::CallsFailed { response, message }));
        let now = self.elapsed();
        self.machine.advance_to(now).on_outputs(run, given, CallBatchStatus::Finished);
        Some(live)
    }

    /// Completes the calls of a run whose results cannot be known.
    pub(super) fn fail_run(&mut self, run: &RunId, message: String) {
        let Some(live) = self.remove_run(run) else { return };
        self.fail_calls(run, &live.response, live.calls, message);
    }

    /// Resumes a paused run with its decisions.
    pub(super) fn resume_run(&mut self, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let Some(paused) = live.paused.take() else { return };
        let Some(resolved) = self.resolved_agents.get(&live.activation).cloned() else { return };
        let (agent, response, calls) = (live.activation, live.response.clone(), live.calls.clone());
        let builder = resolved.resume_calls(paused, &self.context.conversation);
        let builder = match &self.config.store {
            Some(store) => builder.store(store.clone()),
            None => builder,
        };
        self.start_run(run.clone(), agent, response, calls, builder, None);
    }
}

/// Returns true if an error of the store says that another driver has the run, or had it meanwhile.
fn is_driven_elsewhere(kind: StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::LeaseHeld | StoreErrorKind::Fenced | StoreErrorKind::Stale)
}

/// Returns the outputs among a run's items, in the model's order. The output of a handoff is added when the new
/// agent is current.
pub(super) fn call_outputs(items: &[windlass::core::run::RunItem]) -> Vec<(CallId, String)> {
    let output = |produced: &windlass::core::run::RunItem| match &*produced.item {
        Item::Output(output) => Some((output.call.clone(), output.content.text().into_owned())),
        _ => None,
    };
    items.iter().filter_map(output).collect()
}

pub(super) fn call_id(item: &Item) -> Option<CallId> {
    match item {
        Item::Call(call) => Some(call.id.clone()),
        _ => None,
    }
}
