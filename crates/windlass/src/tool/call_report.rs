//! The reports of bodies to the state machine: the end of an attempt without an output, and the end of a nested agent.

use std::time::Duration;

use windlass_core::{
    decision::PersonQuestion,
    failure::RunFailure,
    journal::CallStatus,
    run::{CallReport, CallResult, Run, RunEnd, RunnableCall, StopMode},
};

use super::{PreparedCall, ToolBody, ToolContext, ToolError, result_for_error, result_for_timeout};
use crate::agent::NestedAgentResult;
use crate::error::truncate_message;
use crate::run::RunExit;
use crate::tasks::{BodyFailure, CallStop, redact_error_text};

/// A call whose body ended, for its report.
pub(crate) struct EndedBody<'a, C> {
    pub(crate) prepared: &'a PreparedCall<C>,
    pub(crate) ctx: &'a ToolContext<C>,
    pub(crate) stop: CallStop<'a>,
    /// The way in which a stop of the run ends its calls.
    pub(crate) stop_mode: StopMode,
}

/// The end of a nested agent.
pub(crate) struct EndedAgent<'a> {
    pub(crate) run: &'a Run,
    pub(crate) exit: RunExit,
    /// Failure of a run that the timeout of this call ends.
    pub(crate) timeout: &'a RunFailure,
    /// True if the last agent of the nested run has output guardrails.
    pub(crate) is_guarded: bool,
}

/// A report with the warning for the operator, if there is one.
type WarnedReport = (CallReport, Option<String>);

impl<C: Send + Sync + 'static> EndedBody<'_, C> {
    /// Returns the report of an attempt without an output: it ended the call, is followed by another one, or asks a person.
    pub(crate) fn report_attempt(
        &self,
        failure: BodyFailure,
        runnable: &RunnableCall,
        was_stopped: bool,
    ) -> WarnedReport {
        let attempt = runnable.attempt();
        let (mut report, warning) = match failure {
            BodyFailure::Error(error) => self.report_error(error, attempt),
            BodyFailure::TimedOut => {
                let result = self.timeout_result(CallStatus::TimedOut);
                let delay = self.retry_delay(attempt).filter(|_| runnable.may_repeat_after_timeout());
                (ended_or_due(result, delay), None)
            }
            // Another attempt begins only after this one has ended.
            BodyFailure::TimedOutCleaningUp => (self.report_timeout(CallStatus::TimedOut), None),
            BodyFailure::TimedOutStillRunning => {
                (self.report_timeout(CallStatus::TimedOutStillRunning), None)
            }
            BodyFailure::Cancelled => (CallReport::Stopped(self.stop_mode), None),
        };
        if let (true, CallReport::BodyEnded(result)) = (was_stopped, &mut report) {
            self.excuse_stopped_call(result);
        }
        (report, warning)
    }

    fn retry_delay(&self, attempt: u32) -> Option<Duration> {
        self.prepared.tool.retry.and_then(|retry| retry.delay_after(attempt))
    }

    fn timeout_result(&self, status: CallStatus) -> CallResult {
        result_for_timeout(&self.prepared.tool, self.ctx, status)
    }

    fn report_timeout(&self, status: CallStatus) -> CallReport {
        CallReport::BodyEnded(self.timeout_result(status))
    }

    fn report_error(&self, error: ToolError, attempt: u32) -> WarnedReport {
        let tool = &self.prepared.tool;
        let redact = |text: &str| redact_error_text(text, tool, &self.prepared.arguments);
        let error = match error.into_question() {
            Ok(PersonQuestion { text, schema }) => {
                let question = PersonQuestion { text: redact(&text), schema };
                return (CallReport::QuestionAsked(question), None);
            }
            Err(error) => error.map_message(redact),
        };
        if let Some(delay) = self.retry_delay(attempt)
            && !self.stop.is_stopped()
        {
            return (ended_or_due(result_for_error(tool, self.ctx, &error), Some(delay)), None);
        }
        self.report_failure(&error, format!("call `{}` failed: {error}", self.ctx.call_path()))
    }

    /// A call that was stopped with its run is no failure of the run. If another driver goes on with the run, the body was not
    /// stopped: it had time to end, and its failure counts.
    fn excuse_stopped_call(&self, result: &mut CallResult) {
        if self.stop_mode == StopMode::EndRun {
            result.run_failure = None;
        }
    }

    fn report_failure(&self, error: &ToolError, warning: String) -> WarnedReport {
        let result = result_for_error(&self.prepared.tool, self.ctx, error);
        (CallReport::BodyEnded(result), Some(truncate_message(warning)))
    }

    /// Returns the report of a nested agent that ended or paused.
    pub(crate) fn report_agent(&self, ended: EndedAgent<'_>) -> WarnedReport {
        let report = match (ended.exit, ended.run.outcome()) {
            (RunExit::Detached, _) => CallReport::Stopped(self.stop_mode),
            (RunExit::Paused, _) | (RunExit::Ended, None) => CallReport::AgentPaused,
            (RunExit::Ended, Some(RunEnd::Finished(output))) => {
                // An earlier text has not passed the output guardrails of the agent.
                let has_other_text = output.is_empty() && !ended.is_guarded;
                let output = if has_other_text { ended.run.last_text() } else { output.clone() };
                return self.report_agent_output(ended.run, output);
            }
            // The nested run ended because this run ends.
            (RunExit::Ended, Some(RunEnd::Failed(RunFailure::OuterRunFailed { .. }))) => {
                CallReport::BodyEnded(CallResult::cancelled())
            }
            // A driver that has ended since may have recorded it.
            (RunExit::Ended, Some(RunEnd::Failed(failure))) if is_same_timeout(failure, ended.timeout) => {
                self.report_timeout(CallStatus::TimedOut)
            }
            (RunExit::Ended, Some(RunEnd::Failed(failure))) => {
                return self.report_agent_failure(format!("failed: {failure}"));
            }
            (RunExit::Ended, Some(RunEnd::Cancelled)) => CallReport::BodyEnded(CallResult::cancelled()),
        };
        (report, None)
    }

    fn report_agent_output(&self, run: &Run, output: String) -> WarnedReport {
        let extracted = match &self.prepared.tool.body {
            ToolBody::Agent(nested) if nested.has_output_function() => {
                let (agent, items) = (run.agent().clone(), run.items().to_vec());
                nested.extract_output(NestedAgentResult { agent, output, items })
            }
            ToolBody::Agent(_) | ToolBody::Function(_) => Ok(output.into()),
        };
        match extracted {
            Ok(output) => (CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, output)), None),
            Err(error) => {
                self.report_failure(&error, format!("call `{}` failed: {error}", self.ctx.call_path()))
            }
        }
    }

    /// Returns the report of a nested agent that failed or panicked. The agent is the body of the call, and a call that was
    /// stopped is no failure of the run.
    pub(crate) fn report_agent_failure(&self, reason: String) -> WarnedReport {
        let name = match &self.prepared.tool.body {
            ToolBody::Agent(nested) => nested.target.name().as_str(),
            ToolBody::Function(_) => "",
        };
        let message = truncate_message(format!("agent `{name}` {reason}"));
        let mut result = result_for_error(&self.prepared.tool, self.ctx, &ToolError::hidden(message.clone()));
        if self.stop.is_stopped() {
            self.excuse_stopped_call(&mut result);
        }
        (CallReport::BodyEnded(result), Some(message))
    }
}

/// Returns the report of an attempt with this result, which ends the call unless another attempt is due.
fn ended_or_due(result: CallResult, delay: Option<Duration>) -> CallReport {
    match delay {
        Some(delay) => CallReport::RetryDue { delay, result: Box::new(result) },
        None => CallReport::BodyEnded(result),
    }
}

/// Returns true if both are timeouts of the same call. The tool may have another timeout by now.
fn is_same_timeout(one: &RunFailure, other: &RunFailure) -> bool {
    match (one, other) {
        (
            RunFailure::ToolTimeout { tool, call, .. },
            RunFailure::ToolTimeout { tool: other_tool, call: other_call, .. },
        ) => tool == other_tool && call == other_call,
        _ => false,
    }
}
