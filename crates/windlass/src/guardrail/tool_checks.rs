//! The guardrails of a call, in order. One that fails blocks.

use tracing::Instrument;
use windlass_core::{
    failure::RunFailure,
    journal::{CallStatus, GuardrailOutcome, GuardrailRecord, GuardrailStage},
    run::{CallResult, GateVerdict, model_text},
};

use super::{GuardrailError, ToolGuardrailVerdict};
use crate::error::truncate_message;
use crate::observe::trace_span::guardrail_span;
use crate::tasks::CallStop;
use crate::tool::{Tool, ToolContext};

/// Output for the model if a guardrail fails.
const GUARDRAIL_FAILED: &str = "The call was stopped by a check that could not be completed.";

/// The verdicts of a call's guardrails, and the warning about one that failed.
#[derive(Default)]
pub(crate) struct GuardrailChecks {
    pub(crate) verdicts: Vec<GuardrailRecord>,
    pub(crate) warning: Option<String>,
}

impl GuardrailChecks {
    fn add(
        &mut self,
        name: &str,
        stage: GuardrailStage,
        verdict: &Result<ToolGuardrailVerdict, GuardrailError>,
    ) {
        let outcome = match verdict {
            Ok(ToolGuardrailVerdict::Allow) => GuardrailOutcome::Allowed,
            Ok(ToolGuardrailVerdict::RejectCall(_)) => GuardrailOutcome::Rejected,
            Ok(ToolGuardrailVerdict::ReplaceOutput(_)) => GuardrailOutcome::Replaced,
            Ok(ToolGuardrailVerdict::FailRun) => GuardrailOutcome::FailedRun,
            Err(error) => {
                self.warning = Some(truncate_message(format!("guardrail `{name}` failed: {error}")));
                GuardrailOutcome::Failed
            }
        };
        self.verdicts.push(GuardrailRecord { name: name.to_owned(), stage, verdict: outcome });
    }
}

/// Runs the input guardrails of a call in order. Returns `None` if the call stops first.
pub(crate) async fn check_call_input<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    stop: CallStop<'_>,
    checks: &mut GuardrailChecks,
) -> Option<GateVerdict> {
    let status = CallStatus::BlockedByGuardrail;
    for guardrail in &tool.input_guardrails {
        let verdict = stop
            .unless_stopped(guardrail.check(ctx.clone()).instrument(guardrail_span(&guardrail.name, ctx)))
            .await?;
        checks.add(&guardrail.name, GuardrailStage::Input, &verdict);
        return Some(GateVerdict::End(match verdict {
            Ok(ToolGuardrailVerdict::Allow) => continue,
            Ok(ToolGuardrailVerdict::RejectCall(message)) => CallResult::new(status, message),
            Ok(ToolGuardrailVerdict::ReplaceOutput(output)) => CallResult::new(status, output),
            Ok(ToolGuardrailVerdict::FailRun) => {
                let failure = RunFailure::ToolInputGuardrailTripped {
                    guardrail: guardrail.name.to_string(),
                    tool: tool.key().to_string(),
                    call: ctx.call_path().call().clone(),
                };
                CallResult::failing_run(status, model_text::CANCELLED, failure)
            }
            Err(_) => CallResult::new(status, GUARDRAIL_FAILED),
        }));
    }
    Some(GateVerdict::Pass)
}

/// Runs the output guardrails of a call in order, each on the output of the previous one.
pub(crate) async fn check_call_output<C: Send + Sync + 'static>(
    tool: &Tool<C>,
    ctx: &ToolContext<C>,
    mut result: CallResult,
    checks: &mut GuardrailChecks,
) -> CallResult {
    // A body that ran is told apart from one that did not.
    let withheld = match result.status.is_body_result() {
        true => CallStatus::OutputWithheld,
        false => result.status.clone(),
    };
    for guardrail in &tool.output_guardrails {
        let verdict = guardrail
            .check(ctx.clone(), result.output.clone())
            .instrument(guardrail_span(&guardrail.name, ctx))
            .await;
        checks.add(&guardrail.name, GuardrailStage::Output, &verdict);
        match verdict {
            Ok(ToolGuardrailVerdict::Allow) => {}
            Ok(ToolGuardrailVerdict::ReplaceOutput(output)) => result.output = output,
            Ok(ToolGuardrailVerdict::RejectCall(message)) => return CallResult::new(withheld, message),
            Ok(ToolGuardrailVerdict::FailRun) => {
                let failure = RunFailure::ToolOutputGuardrailTripped {
                    guardrail: guardrail.name.to_string(),
                    tool: tool.key().to_string(),
                    call: ctx.call_path().call().clone(),
                };
                return CallResult::failing_run(withheld, model_text::OUTPUT_BLOCKED, failure);
            }
            Err(_) => return CallResult::new(withheld, GUARDRAIL_FAILED),
        }
    }
    result
}
