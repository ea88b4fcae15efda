//! The result of a call, and the texts for the model that the driver supplies.

use std::panic::AssertUnwindSafe;

use windlass_core::{
    failure::RunFailure, item::OutputContent, journal::CallStatus, run::model_text, tool::ToolEffect,
};

use super::Driver;
use super::call_execution::CallExecution;
use crate::tool::{
    ConflictOrder, FailureMessageFunction, OnFailure, OnTimeout, Tool, ToolContext, ToolError,
};

/// The result of a call, before it becomes the call's output.
pub(super) struct CallResult {
    pub(super) status: CallStatus,
    pub(super) output: OutputContent,
    pub(super) failure: Option<Box<RunFailure>>,
}

impl CallResult {
    pub(super) fn new(how: CallStatus, output: impl Into<OutputContent>) -> Self {
        Self { status: how, output: output.into(), failure: None }
    }

    pub(super) fn failing_run(
        how: CallStatus,
        output: impl Into<OutputContent>,
        failure: RunFailure,
    ) -> Self {
        Self { status: how, output: output.into(), failure: Some(Box::new(failure)) }
    }

    pub(super) fn cancelled() -> Self {
        Self::new(CallStatus::Cancelled, model_text::CANCELLED)
    }
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Returns the result of a plan step with side effects whose predecessor did not take effect.
    pub(super) fn blocked_by_predecessor(&self, work: &CallExecution<'_, C>) -> Option<CallResult> {
        let tool = &work.prepared.tool;
        if tool.conflict_order == ConflictOrder::Independent
            || tool.effect_of_call(work.prepared.rule_arguments()) == ToolEffect::Pure
        {
            return None;
        }
        let is_broken_off = self.with_run(|run| run.is_blocked_by_predecessor(&work.call));
        is_broken_off.then(|| CallResult::new(CallStatus::BlockedByGuardrail, model_text::PREDECESSOR_FAILED))
    }
}

/// Returns the failure text for the model, with the detail that it may see.
pub(super) fn failure_text(detail: Option<&str>) -> String {
    match detail {
        Some(detail) => format!("{} Error: {}", model_text::TOOL_FAILED, truncate_detail(detail)),
        None => model_text::TOOL_FAILED.to_owned(),
    }
}

/// Prefixes an output with a note about edited arguments, so that the model does not reason about arguments
/// that never ran.
pub(super) fn with_edit_note(edited: &str, output: OutputContent) -> OutputContent {
    let note = format!(
        "[A person changed the arguments of this call to {} before it ran.]",
        truncate_detail(edited)
    );
    match output {
        OutputContent::Text(text) => OutputContent::Text(format!("{note}\n{text}")),
        OutputContent::Parts(mut parts) => {
            parts.insert(0, windlass_core::item::ContentPart::text(note));
            OutputContent::Parts(parts)
        }
    }
}

/// Truncates a detail for the model.
pub(super) fn truncate_detail(detail: &str) -> &str {
    const MAX_DETAIL_BYTES: usize = 4096;
    &detail[..detail.floor_char_boundary(MAX_DETAIL_BYTES)]
}

/// Returns the result for a failed body.
pub(super) fn result_for_error<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    error: &ToolError,
) -> CallResult {
    match &tool.on_failure {
        OnFailure::HideError => {
            CallResult::new(CallStatus::Failed, error.to_output(failure_text(error.model_message())))
        }
        OnFailure::ShowError => {
            CallResult::new(CallStatus::Failed, error.to_output(failure_text(Some(error.message()))))
        }
        OnFailure::CustomMessage(say) => {
            CallResult::new(CallStatus::Failed, error.to_output(custom_failure_text(say, ctx, error)))
        }
        OnFailure::FailRun => {
            let failure = RunFailure::ToolFailed {
                tool: tool.key().to_string(),
                call: ctx.call_path().call().clone(),
                message: error.message().to_owned(),
            };
            CallResult::failing_run(CallStatus::Failed, failure_text(error.model_message()), failure)
        }
    }
}

/// Returns the application's text for a failure, or the default text if its function panics.
pub(super) fn custom_failure_text<C>(
    say: &FailureMessageFunction<C>,
    ctx: &ToolContext<C>,
    error: &ToolError,
) -> String {
    std::panic::catch_unwind(AssertUnwindSafe(|| say(ctx, error))).unwrap_or_else(|_| failure_text(None))
}

/// Returns the result for a timed-out call.
pub(super) fn result_for_timeout<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    how: CallStatus,
) -> CallResult {
    let seconds = tool.timeout.unwrap_or_default().as_secs_f64().to_string();
    let mut told = format!("Tool '{}' timed out after {seconds} seconds.", tool.name());
    if how == CallStatus::TimedOutStillRunning {
        told.push_str(" It could not be stopped and may still take effect.");
    }
    match tool.on_timeout {
        OnTimeout::TellModel => CallResult::new(how, told),
        OnTimeout::FailRun => {
            let call = ctx.call_path().call().clone();
            CallResult::failing_run(
                how,
                told,
                RunFailure::ToolTimeout { tool: tool.key().to_string(), call, seconds },
            )
        }
    }
}
