//! The effects of a call before and after its body: approval rule, reconciliation, permits, guardrails, enablement, the
//! withheld output, its limit, and the announced start and end.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use windlass_core::{
    id::CallPath,
    item::OutputContent,
    journal::CallStatus,
    run::{CallResult, GateVerdict, model_text},
};

use super::call::CallExecution;
use super::{DriveError, Driver};
use crate::agent::Agent;
use crate::error::truncate_message;
use crate::event::RunEventKind;
use crate::guardrail::{GuardrailChecks, check_call_input, check_call_output};
use crate::hook::{AfterCall, HookEvent};
use crate::observe::HookObservation;
use crate::redaction::{OutputVisibility, REDACTED};
use crate::tasks::CallStop;
use crate::tool::failure_text;

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
            self.emitter.emit(RunEventKind::Warning { message }).await;
        }
    }

    /// Asks whether the tool is enabled now. If it is not, the call ends as the call of an unknown tool does.
    pub(super) async fn check_enabled(&self, work: &CallExecution<'_, C>) -> Result<GateVerdict, DriveError> {
        let ctx = work.ctx.run_context();
        let enabled = AssertUnwindSafe(work.prepared.tool.enabled.evaluate(ctx)).catch_unwind();
        if enabled.await.map_err(super::application_panicked)? {
            return Ok(GateVerdict::Pass);
        }
        let available = AssertUnwindSafe(work.turn.tools.enabled_names(ctx)).catch_unwind().await;
        let available = available.map_err(super::application_panicked)?;
        let (name, agent) = (work.prepared.tool.name(), work.turn.agent.name());
        let policy = &self.shared.config.on_unknown_tool;
        Ok(GateVerdict::End(policy.call_result(name, agent, available)))
    }

    /// Notifies the hooks of the start. Returns `None` if the call stops first. A hook that fails fails the call.
    pub(super) async fn announce_start(&self, work: &CallExecution<'_, C>) -> Option<GateVerdict> {
        let is_repeated = self.with_run(|run| run.running_attempt(&work.call)) > Some(1);
        let ctx = work.ctx.clone();
        let told = self.notify_hooks(&work.turn.agent, || HookEvent::CallStarted { ctx, is_repeated });
        let Some(told) = told else { return Some(GateVerdict::Pass) };
        match work.stop().unless_stopped(told).await? {
            Ok(()) => Some(GateVerdict::Pass),
            Err(error) => {
                let message = truncate_message(format!("hook `call_started` failed: {error}"));
                self.emitter.emit(RunEventKind::Warning { message }).await;
                // A call with invalid arguments has no body that could have failed.
                let has_body = self.with_run(|run| run.has_call_started(&work.call));
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
        self.record_entry(entry).await
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
        let recorded = self.with_run(|run| run.withheld_output(path.call()));
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
        self.notify_hooks_after(&work.turn.agent, event, stop).await;
    }

    /// Notifies the hooks of an event that they cannot change. One that fails or does not return leads to a warning.
    pub(super) async fn notify_hooks_after(&self, agent: &Agent<C>, event: HookEvent<C>, stop: CallStop<'_>) {
        let name = event.name();
        let Some(notified) = self.notify_hooks(agent, || event) else { return };
        let message = match stop.within_drain(self.shared.config.drain_timeout, notified).await {
            Some(notified) => {
                notified.err().map(|error| truncate_message(format!("hook `{name}` failed: {error}")))
            }
            None => Some(format!("hook `{name}` did not come back")),
        };
        if let Some(message) = message {
            self.emitter.emit(RunEventKind::Warning { message }).await;
        }
    }
}
