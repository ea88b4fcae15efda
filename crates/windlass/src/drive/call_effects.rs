//! The effects of a call: its body with progress and retries, guardrails, enablement, the withheld output, and the
//! announced start and end.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use windlass_core::{
    decision::PersonQuestion,
    id::CallPath,
    item::OutputContent,
    journal::CallStatus,
    run::{CallReport, CallResult, GateVerdict, RunnableCall, model_text},
    tool::ToolEffect,
};

use super::Driver;
use super::call::CallExecution;
use crate::error::truncate_message;
use crate::guardrail::{GuardrailChecks, check_call_input, check_call_output};
use crate::hook::{AfterCall, HookEvent};
use crate::lock_unpoisoned;
use crate::observe::HookObservation;
use crate::redaction::{OutputVisibility, REDACTED};
use crate::run::{DriveError, application_panicked};
use crate::tasks::{AttemptEnd, BodyAttempt, BodyExit, CallStop, record_late_end, redact_error_text};
use crate::tool::{ToolError, failure_text, result_for_error, result_for_timeout};

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs the input guardrails in order. Returns `None` if the call stops first.
    pub(super) async fn run_input_guardrails(&self, work: &mut CallExecution<'_, C>) -> Option<GateVerdict> {
        let mut checks = GuardrailChecks::default();
        let verdict = check_call_input(&work.prepared.tool, &work.ctx, work.stop(), &mut checks).await;
        self.keep_verdicts(work, checks).await;
        verdict
    }

    /// Keeps the verdicts of guardrails for the settlement, and warns of one that failed.
    async fn keep_verdicts(&self, work: &mut CallExecution<'_, C>, checks: GuardrailChecks) {
        work.guardrails.extend(checks.verdicts);
        if let Some(message) = checks.warning {
            self.scope.emit_warning(message).await;
        }
    }

    /// Asks whether the tool is enabled now. If it is not, the call ends as the call of an unknown tool does.
    pub(super) async fn check_enabled(&self, work: &CallExecution<'_, C>) -> Result<GateVerdict, DriveError> {
        let ctx = work.ctx.run_context();
        let enabled = AssertUnwindSafe(work.prepared.tool.enabled.evaluate(ctx)).catch_unwind();
        if enabled.await.map_err(application_panicked)? {
            return Ok(GateVerdict::Pass);
        }
        let available = AssertUnwindSafe(work.turn.tools.enabled_names(ctx)).catch_unwind().await;
        let available = available.map_err(application_panicked)?;
        let (name, agent) = (work.prepared.tool.name(), work.turn.agent.name());
        let policy = &self.shared.config.on_unknown_tool;
        Ok(GateVerdict::End(policy.call_result(name, agent, available)))
    }

    /// Notifies the hooks of the start. Returns `None` if the call stops first. A hook that fails fails the call.
    pub(super) async fn announce_start(&self, work: &CallExecution<'_, C>) -> Option<GateVerdict> {
        let is_repeated = self.scope.with_run(|run| run.running_attempt(&work.call)) > Some(1);
        let ctx = work.ctx.clone();
        let told = self.scope.notify_hooks(&work.turn.agent, || HookEvent::CallStarted { ctx, is_repeated });
        let Some(told) = told else { return Some(GateVerdict::Pass) };
        match work.stop().unless_stopped(told).await? {
            Ok(()) => Some(GateVerdict::Pass),
            Err(error) => {
                let message = truncate_message(format!("hook `call_started` failed: {error}"));
                self.scope.emit_warning(message).await;
                // A call with invalid arguments has no body that could have failed.
                let has_body = self.scope.with_run(|run| run.has_call_started(&work.call));
                let status = if has_body { CallStatus::Failed } else { CallStatus::InvalidArguments };
                Some(GateVerdict::End(CallResult::new(status, failure_text(None))))
            }
        }
    }

    /// Keeps the output of a body where only drivers read it, then records the end of the body.
    pub(super) async fn withhold_output(
        &self,
        work: &CallExecution<'_, C>,
        result: &CallResult,
    ) -> Result<(), DriveError> {
        // A secret output is nowhere outside the process.
        let kept = match work.prepared.tool.output_visibility {
            OutputVisibility::Public => result.output.clone(),
            OutputVisibility::Secret => OutputContent::from(REDACTED),
        };
        let ended = CallResult::new(result.status.clone(), kept);
        let entry = ended.body_ended_entry(&work.call);
        self.shared.withheld.save(&self.shared.journal, work.ctx.call_path(), ended.output).await?;
        self.scope.record_entry(entry).await
    }

    /// Runs the output guardrails in order, each on the output of the previous one. Returns `None` if the call stops and
    /// they do not finish within the drain timeout.
    pub(super) async fn run_output_guardrails(
        &self,
        work: &mut CallExecution<'_, C>,
        status: CallStatus,
        output: Option<OutputContent>,
    ) -> Result<Option<CallResult>, DriveError> {
        let output = match output {
            Some(output) => output,
            None => match self.load_withheld(work.ctx.call_path()).await? {
                Some(output) => output,
                None => {
                    let result = CallResult::new(CallStatus::OutputWithheld, model_text::OUTPUT_LOST);
                    return Ok(Some(result));
                }
            },
        };
        let mut checks = GuardrailChecks::default();
        let result = CallResult::new(status, output);
        let checking = check_call_output(&work.prepared.tool, &work.ctx, result, &mut checks);
        let checked = work.stop().within_drain(self.shared.config.drain_timeout, checking).await;
        self.keep_verdicts(work, checks).await;
        Ok(checked)
    }

    /// Loads a withheld output, if it is the one whose digest the journal has.
    async fn load_withheld(&self, path: &CallPath) -> Result<Option<OutputContent>, DriveError> {
        let recorded = self.scope.with_run(|run| run.withheld_output(path.call()));
        let kept = self.shared.withheld.load(&self.shared.journal, path).await?;
        Ok(kept.filter(|output| Some(output.digest()) == recorded))
    }

    /// Notifies the hooks of a settlement. They cannot change it.
    pub(super) async fn announce_end(
        &self,
        observed: HookObservation,
        work: &CallExecution<'_, C>,
        is_start_announced: bool,
        stop: CallStop<'_>,
    ) {
        let HookObservation::CallEnded { status, output, info, .. } = observed else { return };
        if !is_start_announced && status != CallStatus::Reconciled {
            return;
        }
        let ends = status == CallStatus::Cancelled || stop.is_run_ending();
        let after_call = if ends { AfterCall::RunEnds } else { AfterCall::RunContinues };
        let ctx = work.ctx.clone();
        let event = HookEvent::CallEnded { ctx, status, output, after_call, info, is_repeated: false };
        self.scope.notify_hooks_after(&work.turn.agent, event, stop).await;
    }

    /// Runs one attempt of a call's body.
    pub(super) fn run_body<'a>(
        &'a self,
        runnable: &'a RunnableCall,
        work: &'a mut CallExecution<'_, C>,
    ) -> impl Future<Output = CallReport> + Send {
        let prepared = work.prepared.prepared_body.take();
        let work = &*work;
        let attempt = BodyAttempt {
            tool: &work.prepared.tool,
            arguments: &work.prepared.arguments,
            ctx: &work.ctx,
            layers: &self.shared.config.call_layers,
            cancel: &self.shared.cancel,
            drain_timeout: self.shared.config.drain_timeout,
            stop: work.stop(),
            starting_calls: &work.turn.starting_calls,
        }
        .run(prepared);
        async move {
            let ended = match work.ctx.progress() {
                Some(progress) => {
                    self.scope
                        .relay_progress(progress, attempt, (&work.turn.agent, &work.ctx), work.stop())
                        .boxed()
                        .await
                }
                None => attempt.await,
            };
            let AttemptEnd { exit, was_stopped, blocked, late_body } = ended;
            if let Some(blocked) = blocked {
                self.warn_of_blocking_body(blocked, work).boxed().await;
            }
            if let Some(running) = late_body {
                if matches!(exit, BodyExit::Cancelled) {
                    lock_unpoisoned(&self.shared.draining_calls).push(work.call.clone());
                }
                record_late_end(running, &self.shared.journal, work.ctx.clone(), work.prepared.tool.clone());
            }
            let tool = &work.prepared.tool;
            let mut report = match exit {
                BodyExit::Finished(Ok(output)) => {
                    return CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, output));
                }
                BodyExit::Finished(Err(error)) => {
                    self.handle_body_error(error, runnable.attempt(), work).boxed().await
                }
                BodyExit::TimedOut => match self.retry_of_timeout(runnable.attempt(), work) {
                    Some(delay) => CallReport::RetryDue(delay),
                    None => CallReport::BodyEnded(result_for_timeout(tool, &work.ctx, CallStatus::TimedOut)),
                },
                BodyExit::TimedOutStillRunning => {
                    let status = CallStatus::TimedOutStillRunning;
                    CallReport::BodyEnded(result_for_timeout(tool, &work.ctx, status))
                }
                BodyExit::Cancelled => CallReport::Stopped(self.stop_mode()),
            };
            // A call that was stopped is no failure of the run.
            if let (true, CallReport::BodyEnded(result)) = (was_stopped, &mut report) {
                result.run_failure = None;
            }
            report
        }
    }

    /// Returns the delay before a timed-out body is tried again: only bodies whose repetition has no further effect are.
    fn retry_of_timeout(&self, attempt: u32, work: &CallExecution<'_, C>) -> Option<Duration> {
        let tool = &work.prepared.tool;
        match tool.effect_of_call(work.prepared.rule_arguments()) {
            ToolEffect::Pure | ToolEffect::Idempotent => {
                tool.retry.and_then(|retry| retry.delay_after(attempt))
            }
            ToolEffect::Once => None,
        }
    }

    /// Handles the error of a body: it asks a person, is tried again, or ends the call.
    async fn handle_body_error(
        &self,
        error: ToolError,
        attempt: u32,
        work: &CallExecution<'_, C>,
    ) -> CallReport {
        let tool = &work.prepared.tool;
        let error = match error.into_question() {
            Ok(PersonQuestion { text, schema }) => {
                let text = redact_error_text(&text, tool, &work.prepared.arguments);
                return CallReport::QuestionAsked(PersonQuestion { text, schema });
            }
            Err(error) => error,
        };
        let error = error.map_message(|text| redact_error_text(text, tool, &work.prepared.arguments));
        if let Some(delay) = tool.retry.and_then(|retry| retry.delay_after(attempt))
            && !work.stop().is_stopped()
        {
            return CallReport::RetryDue(delay);
        }
        let message = format!("call `{}` failed: {error}", work.ctx.call_path());
        self.scope.emit_warning(message).await;
        CallReport::BodyEnded(result_for_error(tool, &work.ctx, &error))
    }

    /// Warns that an async body blocked the thread that polled it.
    async fn warn_of_blocking_body(&self, blocked: Duration, work: &CallExecution<'_, C>) {
        let tool = work.prepared.tool.key();
        let message = format!(
            "the async body of tool `{tool}` blocked its thread for {} ms; hint: write a blocking body as a plain `fn`, \
             which runs on a thread of its own",
            blocked.as_millis()
        );
        tracing::warn!(tool = %tool, blocked_ms = blocked.as_millis(), "an async tool body blocked its thread");
        self.scope.emit_warning(message).await;
    }
}
