//! The gate of a call: approval rule, reconciliation, permits, input guardrails, enablement and the announced start.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use windlass_core::{
    failure::RunFailure,
    journal::{CallStatus, GuardrailOutcome, GuardrailRecord, GuardrailStage},
    run::{ApprovalRequirement, CallResult, GateVerdict, ReconcileReport, model_text},
};

use super::call::CallExecution;
use super::output_text::failure_text;
use super::{DriveError, Driver};
use crate::error::truncate_message;
use crate::event::RunEventKind;
use crate::guardrail::ToolGuardrailVerdict;
use crate::hook::HookEvent;
use crate::tool::ReconcileOutcome;

/// Output for the model if a guardrail fails.
pub(super) const GUARDRAIL_FAILED: &str = "The call was stopped by a check that could not be completed.";

/// Returns the record of a guardrail's verdict.
pub(super) fn guardrail_record<E>(
    name: &str,
    stage: GuardrailStage,
    verdict: &Result<ToolGuardrailVerdict, E>,
) -> GuardrailRecord {
    let verdict = match verdict {
        Ok(ToolGuardrailVerdict::Allow) => GuardrailOutcome::Allowed,
        Ok(ToolGuardrailVerdict::RejectCall(_)) => GuardrailOutcome::Rejected,
        Ok(ToolGuardrailVerdict::ReplaceOutput(_)) => GuardrailOutcome::Replaced,
        Ok(ToolGuardrailVerdict::FailRun) => GuardrailOutcome::FailedRun,
        Err(_) => GuardrailOutcome::Failed,
    };
    GuardrailRecord { name: name.to_owned(), stage, verdict }
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Evaluates the approval rules of the call's tool.
    pub(super) async fn evaluate_approval(
        &self,
        work: &CallExecution<'_, C>,
        has_standing_approval: bool,
    ) -> ApprovalRequirement {
        let tool = &work.prepared.tool;
        let Some(arguments) = work.prepared.rule_arguments() else { return ApprovalRequirement::Required };
        match tool.each_time_approval.evaluate(work.ctx.clone(), arguments).await {
            ApprovalRequirement::NotRequired if !has_standing_approval => {
                tool.approval.evaluate(work.ctx.clone(), arguments).await
            }
            requirement => requirement,
        }
    }

    /// Asks the tool's reconcile function whether an interrupted call was executed. A function that panics does not know.
    pub(super) async fn reconcile_call(&self, work: &CallExecution<'_, C>) -> ReconcileReport {
        let Some(reconcile) = &work.prepared.tool.reconcile else { return ReconcileReport::Unknown };
        let asked = AssertUnwindSafe(async { reconcile(work.ctx.clone()).await }).catch_unwind().await;
        match asked {
            Ok(ReconcileOutcome::Executed(output)) => ReconcileReport::Executed(output),
            Ok(ReconcileOutcome::NotExecuted) => ReconcileReport::NotExecuted,
            Ok(ReconcileOutcome::Unknown) | Err(_) => ReconcileReport::Unknown,
        }
    }

    /// Waits for the permits of the tool and of the run. Returns `None` if the call stops first.
    pub(super) async fn acquire_permits(
        &self,
        work: &CallExecution<'_, C>,
    ) -> Option<Vec<OwnedSemaphorePermit>> {
        let limits = [&work.prepared.tool.concurrency_permits, &self.shared.body_permits];
        let mut permits = Vec::new();
        for limit in limits.into_iter().flatten() {
            let limit: Arc<Semaphore> = limit.clone();
            let permit = work.stop().unless_stopped(limit.acquire_owned()).await?;
            // Whoever gave the permit back may have ended the run.
            if work.stop().is_stopped() {
                return None;
            }
            permits.extend(permit.ok());
        }
        Some(permits)
    }

    /// Runs the input guardrails in order. Returns `None` if the call stops first.
    pub(super) async fn run_input_guardrails(&self, work: &mut CallExecution<'_, C>) -> Option<GateVerdict> {
        let tool = work.prepared.tool.clone();
        for guardrail in &tool.input_guardrails {
            let verdict = work.stop().unless_stopped(guardrail.check(work.ctx.clone())).await?;
            work.guardrails.push(guardrail_record(&guardrail.name, GuardrailStage::Input, &verdict));
            let blocked = match verdict {
                Ok(ToolGuardrailVerdict::Allow) => continue,
                Ok(ToolGuardrailVerdict::RejectCall(message)) => {
                    CallResult::new(CallStatus::BlockedByGuardrail, message)
                }
                Ok(ToolGuardrailVerdict::ReplaceOutput(output)) => {
                    CallResult::new(CallStatus::BlockedByGuardrail, output)
                }
                Ok(ToolGuardrailVerdict::FailRun) => {
                    let failure = RunFailure::ToolInputGuardrailTripped {
                        guardrail: guardrail.name.to_string(),
                        tool: work.prepared.tool.key().to_string(),
                        call: work.call.clone(),
                    };
                    CallResult::failing_run(CallStatus::BlockedByGuardrail, model_text::CANCELLED, failure)
                }
                Err(error) => {
                    let message = truncate_message(format!("guardrail `{}` failed: {error}", guardrail.name));
                    self.emitter.emit(RunEventKind::Warning { message }).await;
                    CallResult::new(CallStatus::BlockedByGuardrail, GUARDRAIL_FAILED)
                }
            };
            return Some(GateVerdict::End(blocked));
        }
        Some(GateVerdict::Pass)
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
        Ok(GateVerdict::End(self.unknown_tool_result(name, agent, available)))
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
}
