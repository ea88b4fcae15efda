//! The output of a call: withheld, checked by the output guardrails, cut to its limit, and announced.

use windlass_core::{
    failure::RunFailure,
    id::CallPath,
    item::OutputContent,
    journal::{CallStatus, GuardrailRecord, GuardrailStage},
    run::{CallResult, model_text},
    tool::ToolKey,
};

use super::call::CallExecution;
use super::gate::{GUARDRAIL_FAILED, guardrail_record};
use super::stop::CallStop;
use super::{DriveError, Driver};
use crate::agent::Agent;
use crate::artefact::READ_OUTPUT_TOOL;
use crate::error::truncate_message;
use crate::event::RunEventKind;
use crate::guardrail::ToolGuardrailVerdict;
use crate::hook::{AfterCall, HookEvent};
use crate::observe::HookObservation;
use crate::redaction::{OutputVisibility, REDACTED};

impl<C: Send + Sync + 'static> Driver<C> {
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
        let drain = self.shared.config.drain_timeout;
        let mut verdicts = Vec::new();
        let checking = self.check_output(work, CallResult::new(status, output), &mut verdicts);
        let checked = work.stop().within_drain(drain, checking).await;
        work.guardrails.append(&mut verdicts);
        Ok(checked)
    }

    async fn check_output(
        &self,
        work: &CallExecution<'_, C>,
        mut result: CallResult,
        verdicts: &mut Vec<GuardrailRecord>,
    ) -> CallResult {
        // A body that ran is told apart from one that did not.
        let withheld = match result.status.is_body_result() {
            true => CallStatus::OutputWithheld,
            false => result.status.clone(),
        };
        for guardrail in &work.prepared.tool.output_guardrails {
            let verdict = guardrail.check(work.ctx.clone(), result.output.clone()).await;
            verdicts.push(guardrail_record(&guardrail.name, GuardrailStage::Output, &verdict));
            match verdict {
                Ok(ToolGuardrailVerdict::Allow) => {}
                Ok(ToolGuardrailVerdict::ReplaceOutput(output)) => result.output = output,
                Ok(ToolGuardrailVerdict::RejectCall(message)) => return CallResult::new(withheld, message),
                Ok(ToolGuardrailVerdict::FailRun) => {
                    let failure = RunFailure::ToolOutputGuardrailTripped {
                        guardrail: guardrail.name.to_string(),
                        tool: work.prepared.tool.key().to_string(),
                        call: work.call.clone(),
                    };
                    return CallResult::failing_run(withheld, model_text::OUTPUT_BLOCKED, failure);
                }
                Err(error) => {
                    let message = truncate_message(format!("guardrail `{}` failed: {error}", guardrail.name));
                    self.emitter.emit(RunEventKind::Warning { message }).await;
                    return CallResult::new(withheld, GUARDRAIL_FAILED);
                }
            }
        }
        result
    }

    /// Loads a withheld output, if it is the one whose digest the journal has.
    async fn load_withheld(&self, path: &CallPath) -> Result<Option<OutputContent>, DriveError> {
        let recorded = self.with_run(|run| run.withheld_output(path.call()));
        let kept = self.shared.withheld.load(&self.shared.journal, path).await?;
        Ok(kept.filter(|output| Some(output.digest()) == recorded))
    }

    /// Truncates text to the tool's output limit, adds a note, and stores the full text.
    pub(super) async fn truncate_to_budget(
        &self,
        work: &CallExecution<'_, C>,
        mut result: CallResult,
    ) -> Result<CallResult, DriveError> {
        let budget = work.prepared.tool.max_output_bytes;
        if let OutputContent::Text(output) = &mut result.output
            && output.len() > budget
        {
            let is_kept = work.prepared.tool.output_visibility == OutputVisibility::Public;
            let (whole, shown) = (output.len(), output.floor_char_boundary(budget));
            let name = work.ctx.call_path().to_string();
            if is_kept {
                self.shared.artefacts.save(&name, output.as_bytes()).await?;
            }
            output.truncate(shown);
            let mut note = format!("\n[cut: {shown} of {whole} bytes are shown");
            if is_kept && work.turn.tools.find_tool(&ToolKey::bare(READ_OUTPUT_TOOL)).is_some() {
                note.push_str(&format!(
                    "; `{READ_OUTPUT_TOOL}` reads on with {{\"call\": \"{name}\", \"from\": {shown}}}"
                ));
            }
            output.push_str(&note);
            output.push(']');
        }
        Ok(result)
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
