//! The results and texts for failures, timeouts and invalid arguments, by the policies of the tool.

use std::panic::AssertUnwindSafe;

use windlass_core::{
    failure::RunFailure,
    item::OutputContent,
    journal::CallStatus,
    run::{CallResult, model_text},
};

use super::{FailureMessageFunction, OnFailure, OnTimeout, Tool, ToolContext, ToolError, ToolTimeout};

/// Returns the failure text for the model, with the detail that it may see.
pub(crate) fn failure_text(detail: Option<&str>) -> String {
    model_text::with_detail(model_text::TOOL_FAILED, detail)
}

/// Returns the failure text of an error. It never invites the model to repeat a call that may have taken effect.
fn error_text(error: &ToolError, detail: Option<&str>) -> String {
    let start = if error.is_effect_unknown() { model_text::EFFECT_UNKNOWN } else { model_text::TOOL_FAILED };
    model_text::with_detail(start, detail)
}

/// Returns the result of a call with invalid arguments, by the tool's failure policy.
pub(crate) fn invalid_arguments_result<C>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    problems: &str,
) -> CallResult {
    let status = CallStatus::InvalidArguments;
    match &tool.on_failure {
        OnFailure::HideError | OnFailure::ShowError => CallResult::new(status, failure_text(Some(problems))),
        OnFailure::CustomMessage(say) => {
            CallResult::new(status, custom_failure_text(say, ctx, &ToolError::visible(problems)))
        }
        OnFailure::FailRun => {
            let failure = RunFailure::InvalidArguments {
                tool: tool.key.to_string(),
                call: ctx.call_path().call().clone(),
                problems: problems.to_owned(),
            };
            CallResult::failing_run(status, failure_text(Some(problems)), failure)
        }
    }
}

/// Prefixes an output with a note about edited arguments, so that the model does not reason about arguments
/// that never ran.
pub(crate) fn with_edit_note(edited: &str, output: OutputContent) -> OutputContent {
    model_text::with_edit_note(model_text::truncate_detail(edited), output)
}

/// Returns the result for a failed body.
pub(crate) fn result_for_error<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    error: &ToolError,
) -> CallResult {
    match &tool.on_failure {
        OnFailure::HideError => {
            CallResult::new(CallStatus::Failed, error.to_output(error_text(error, error.model_message())))
        }
        OnFailure::ShowError => {
            CallResult::new(CallStatus::Failed, error.to_output(error_text(error, Some(error.message()))))
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
            CallResult::failing_run(CallStatus::Failed, error_text(error, error.model_message()), failure)
        }
    }
}

/// Returns the application's text for a failure, or the default text if its function panics.
fn custom_failure_text<C>(
    say: &FailureMessageFunction<C>,
    ctx: &ToolContext<C>,
    error: &ToolError,
) -> String {
    std::panic::catch_unwind(AssertUnwindSafe(|| say(ctx, error))).unwrap_or_else(|_| error_text(error, None))
}

/// Returns the failure of a run that the timeout of a call ends.
pub(crate) fn tool_timeout_failure<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
) -> RunFailure {
    let call = ctx.call_path().call().clone();
    RunFailure::ToolTimeout { tool: tool.key().to_string(), call, seconds: timeout_seconds(tool) }
}

/// Returns the timeout in seconds, rounded, so that a duration made from a fraction reads as it was written.
fn timeout_seconds<C>(tool: &Tool<C>) -> String {
    ((tool.timeout.unwrap_or_default().as_secs_f64() * 1e6).round() / 1e6).to_string()
}

/// Returns the result for a timed-out call.
pub(crate) fn result_for_timeout<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    how: CallStatus,
) -> CallResult {
    let seconds = timeout_seconds(tool);
    let default_text = || format!("Tool '{}' timed out after {seconds} seconds.", tool.name());
    let is_still_running = how == CallStatus::TimedOutStillRunning;
    let mut told = match &tool.on_timeout {
        OnTimeout::TellModel | OnTimeout::FailRun => default_text(),
        OnTimeout::CustomMessage(say) => {
            let timeout = ToolTimeout { timeout: tool.timeout.unwrap_or_default(), is_still_running };
            std::panic::catch_unwind(AssertUnwindSafe(|| say(ctx, &timeout)))
                .unwrap_or_else(|_| default_text())
        }
    };
    if is_still_running {
        told.push_str(" It could not be stopped and may still take effect.");
    }
    match &tool.on_timeout {
        OnTimeout::TellModel | OnTimeout::CustomMessage(_) => CallResult::new(how, told),
        OnTimeout::FailRun => CallResult::failing_run(how, told, tool_timeout_failure(tool, ctx)),
    }
}
