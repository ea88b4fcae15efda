//! The guardrails of a tool, before and after the body of a call.

use futures_util::FutureExt;
use windlass_core::{failure::RunFailure, journal::CallStatus, run::model_text};

use super::Driver;
use super::call_execution::CallExecution;
use super::call_result::CallResult;
use super::stop::unless_stopped;
use crate::error::truncate_message;
use crate::event::RunEventKind;
use crate::guardrail::ToolGuardrailVerdict;

/// Output for the model if a guardrail fails.
const GUARDRAIL_FAILED: &str = "The call was stopped by a check that could not be completed.";

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs the input guardrails, if any. Returns the result of the first one that does not allow the call.
    pub(super) async fn run_input_guardrails(&self, work: &CallExecution<'_, C>) -> Option<Box<CallResult>> {
        if work.prepared.tool.input_guardrails.is_empty() {
            return None;
        }
        self.check_input_guardrails(work).boxed().await.map(Box::new)
    }

    /// Runs the input guardrails in order.
    async fn check_input_guardrails(&self, work: &CallExecution<'_, C>) -> Option<CallResult> {
        for guardrail in &work.prepared.tool.input_guardrails {
            let Some(verdict) = unless_stopped(&work.turn.stop, guardrail.check(work.ctx.clone())).await
            else {
                return Some(CallResult::cancelled());
            };
            match verdict {
                Ok(ToolGuardrailVerdict::Allow) => {}
                Ok(ToolGuardrailVerdict::RejectCall(message)) => {
                    return Some(CallResult::new(CallStatus::BlockedByGuardrail, message));
                }
                Ok(ToolGuardrailVerdict::ReplaceOutput(output)) => {
                    return Some(CallResult::new(CallStatus::BlockedByGuardrail, output));
                }
                Ok(ToolGuardrailVerdict::FailRun) => {
                    let failure = RunFailure::ToolInputGuardrailTripped {
                        guardrail: guardrail.name.to_string(),
                        tool: work.prepared.tool.key().to_string(),
                        call: work.call.clone(),
                    };
                    return Some(CallResult::failing_run(
                        CallStatus::BlockedByGuardrail,
                        model_text::CANCELLED,
                        failure,
                    ));
                }
                Err(error) => {
                    let message = truncate_message(format!("guardrail `{}` failed: {error}", guardrail.name));
                    self.emitter.emit(RunEventKind::Warning { message }).await;
                    return Some(CallResult::new(CallStatus::BlockedByGuardrail, GUARDRAIL_FAILED));
                }
            }
        }
        None
    }

    /// Runs the output guardrails in order, each on the output of the previous one.
    pub(super) async fn run_output_guardrails(
        &self,
        work: &CallExecution<'_, C>,
        mut given: CallResult,
    ) -> CallResult {
        for guardrail in &work.prepared.tool.output_guardrails {
            let checked = guardrail.check(work.ctx.clone(), given.output.clone());
            let Some(verdict) = unless_stopped(&work.turn.stop, checked).await else {
                return CallResult::cancelled();
            };
            match verdict {
                Ok(ToolGuardrailVerdict::Allow) => {}
                Ok(ToolGuardrailVerdict::ReplaceOutput(output)) => given.output = output,
                Ok(ToolGuardrailVerdict::RejectCall(message)) => {
                    return CallResult::new(CallStatus::BlockedByGuardrail, message);
                }
                Ok(ToolGuardrailVerdict::FailRun) => {
                    let failure = RunFailure::ToolOutputGuardrailTripped {
                        guardrail: guardrail.name.to_string(),
                        tool: work.prepared.tool.key().to_string(),
                        call: work.call.clone(),
                    };
                    return CallResult::failing_run(
                        CallStatus::BlockedByGuardrail,
                        model_text::CANCELLED,
                        failure,
                    );
                }
                Err(error) => {
                    let message = truncate_message(format!("guardrail `{}` failed: {error}", guardrail.name));
                    self.emitter.emit(RunEventKind::Warning { message }).await;
                    return CallResult::new(CallStatus::BlockedByGuardrail, GUARDRAIL_FAILED);
                }
            }
        }
        given
    }
}
