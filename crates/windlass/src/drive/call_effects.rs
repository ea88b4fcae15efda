//! The effects of a call: its body with progress and retries, guardrails, enablement, the withheld output, and the
//! announced start and end.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use windlass_core::{
    item::OutputContent,
    journal::CallStatus,
    run::{CallReport, CallResult, GateVerdict, RunnableCall, model_text},
};

use super::Driver;
use super::call::CallExecution;
use crate::error::truncate_message;
use crate::guardrail::{GuardrailChecks, check_call_input, check_call_output};
use crate::hook::{AfterCall, HookEvent};
use crate::lock_unpoisoned;
use crate::observe::HookObservation;
use crate::run::{DriveError, panic_failure};
use crate::tasks::{BodyAttempt, BodyExit, BodyFailure, blocking_body_warning, record_late_end};
use crate::tool::{EndedBody, failure_text};

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs the input guardrails in order. Returns `None` if the call stops first. Of verdicts before and after an approval,
    /// the later ones count.
    pub(super) async fn run_input_guardrails(&self, work: &mut CallExecution<'_, C>) -> Option<GateVerdict> {
        work.guardrails.clear();
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

    /// Asks whether the tool is enabled now. If it is not, the call ends as the call of an unknown tool does. A rule that
    /// panics fails the run.
    pub(super) async fn check_enabled(&self, work: &CallExecution<'_, C>) -> GateVerdict {
        let (tool, ctx) = (&work.prepared.tool, work.ctx.run_context());
        let available = async {
            match tool.enabled.evaluate(ctx).await {
                true => None,
                false => Some(work.turn.tools.enabled_names(ctx).await),
            }
        };
        GateVerdict::End(match AssertUnwindSafe(available).catch_unwind().await {
            Ok(None) => return GateVerdict::Pass,
            Ok(Some(available)) => {
                let policy = &self.shared.config.on_unknown_tool;
                policy.call_result(tool.name(), work.turn.agent.name(), available)
            }
            Err(panic) => {
                let status = CallStatus::BlockedByGuardrail;
                CallResult::failing_run(status, model_text::CANCELLED, panic_failure(panic))
            }
        })
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
        // Secrets are nowhere outside the process.
        let path = work.ctx.call_path();
        let secrets = &self.shared.recorder.secrets;
        let kept = secrets.redact_kept_output(path.parent_calls(), path.call(), result.output.clone());
        let ended = CallResult::new(result.status.clone(), kept);
        let entry = ended.body_ended_entry(&work.call);
        self.shared.withheld.save(&self.shared.journal, path, ended.output).await?;
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
            None => {
                let recorded = self.scope.with_run(|run| run.withheld_output(&work.call));
                let kept = self.shared.withheld.load(&self.shared.journal, work.ctx.call_path()).await?;
                match kept.filter(|output| Some(output.digest()) == recorded) {
                    Some(output) => output,
                    None => {
                        let result = CallResult::new(CallStatus::OutputWithheld, model_text::OUTPUT_LOST);
                        return Ok(Some(result));
                    }
                }
            }
        };
        let mut checks = GuardrailChecks::default();
        let result = CallResult::new(status, output);
        let checking = check_call_output(&work.prepared.tool, &work.ctx, result, &mut checks);
        let checked = work.stop().within_drain(checking).await;
        self.keep_verdicts(work, checks).await;
        Ok(checked)
    }

    /// Notifies the hooks of a settlement. They cannot change it.
    pub(super) async fn announce_end(
        &self,
        observed: HookObservation,
        work: &CallExecution<'_, C>,
        is_start_announced: bool,
    ) {
        let HookObservation::CallEnded { status, output, info, .. } = observed else { return };
        if !is_start_announced && status != CallStatus::Reconciled {
            return;
        }
        let after_call = AfterCall::of_call(&status, work.stop().is_run_ending());
        let ctx = work.ctx.clone();
        let event = HookEvent::CallEnded { ctx, status, output, after_call, info, is_repeated: false };
        self.scope.notify_hooks_after(&work.turn.agent, event, work.stop()).await;
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
            stop: work.stop(),
            starting_calls: &work.turn.starting_calls,
        }
        .run(prepared);
        async move {
            let ended = match work.ctx.progress() {
                Some(progress) => {
                    let observers = (&work.turn.agent, &work.ctx);
                    self.scope.relay_progress(progress, attempt, observers, work.stop()).boxed().await
                }
                None => attempt.await,
            };
            if let Some(blocked) = ended.blocked {
                let tool = work.prepared.tool.key();
                tracing::warn!(%tool, blocked_ms = blocked.as_millis(), "an async tool body blocked its thread");
                self.scope.emit_warning(blocking_body_warning(tool, blocked)).boxed().await;
            }
            if let Some(running) = ended.late_body {
                if matches!(ended.exit, BodyExit::Failed(BodyFailure::Cancelled)) {
                    lock_unpoisoned(&self.shared.draining_calls).push(work.ctx.call_path().clone());
                }
                let (ctx, tool) = (work.ctx.clone(), work.prepared.tool.clone());
                let mask = self.shared.recorder.secrets.mask();
                record_late_end(running, &self.shared.journal, ctx, tool, mask);
            }
            let failure = match ended.exit {
                BodyExit::Returned(output) => {
                    return CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, output));
                }
                BodyExit::Failed(failure) => failure,
            };
            let (report, warning) =
                self.ended_body(work).report_attempt(failure, runnable, ended.was_stopped);
            if let Some(warning) = warning {
                self.scope.emit_warning(warning).boxed().await;
            }
            report
        }
    }

    /// Returns a call whose body ended, for its report.
    pub(super) fn ended_body<'a>(&self, work: &'a CallExecution<'_, C>) -> EndedBody<'a, C> {
        let (prepared, ctx) = (&work.prepared, &work.ctx);
        EndedBody { prepared, ctx, stop: work.stop(), stop_mode: self.stop_mode() }
    }
}
