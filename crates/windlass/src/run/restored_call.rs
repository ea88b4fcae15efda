//! Calls that a driver is about to work on, and those of them that an earlier driver planned: paired with their tool and
//! their arguments again.

use std::sync::Arc;

use windlass_core::{
    id::{CallId, CallPath},
    journal::CallStatus,
    plan::call_digest,
    run::{ApplyError, CallResult, Run, model_text::truncate_detail},
};

use super::{DriveError, OnUnknownTool, RunScope};
use crate::agent::{Agent, ResolvedToolset};
use crate::error::ConfigError;
use crate::lost_secrets::{SecretQuestionBody, restore_from_answers};
use crate::redaction;
use crate::tool::{PreparedCall, RawArguments, Tool, ToolBody, read_arguments};

/// Output for the model if the secret arguments of an agent's call were lost with the process.
const SECRETS_LOST: &str = "The secret arguments of this call were not kept. Ask for them again.";

/// A call that a driver is about to work on.
pub(crate) enum ResolvedCall<C> {
    /// The call with its tool and its arguments.
    WithTool(PreparedCall<C>),
    /// The call needs no tool: its output is known.
    WithoutTool,
    /// The call cannot run any more and ends with this result.
    Unavailable(CallResult),
}

impl<C> From<Option<PreparedCall<C>>> for ResolvedCall<C> {
    fn from(prepared: Option<PreparedCall<C>>) -> Self {
        prepared.map_or(Self::WithoutTool, Self::WithTool)
    }
}

impl<C: Send + Sync + 'static> RunScope<C> {
    /// Restores the tool and the arguments of a call that an earlier driver planned. A tool that was removed, and arguments
    /// that do not fit any more, are errors before any call runs.
    pub(crate) fn restore_call(
        &self,
        call: &CallId,
        agent: &Agent<C>,
        tools: &ResolvedToolset<C>,
        on_unknown_tool: &OnUnknownTool,
    ) -> Result<ResolvedCall<C>, DriveError> {
        let (key, raw, edited, has_started) = self.with_run(|run| {
            let raw = run.call_arguments(call).map(str::to_owned);
            (run.tool_of_call(call).cloned(), raw, run.edited_arguments(call), run.has_call_started(call))
        });
        let (Some(key), Some(raw)) = (key, raw) else {
            return Err(self.invalid_entry_error(&ApplyError::UnknownCall(call.clone())));
        };
        // A tool that is disabled by now still knows whether it was executed, and an agent goes on.
        let listed = || agent.find_listed_tool(&key).filter(|_| has_started);
        let Some(tool) = tools.find_tool(&key).or_else(listed) else {
            if !agent.tool_list().any(|tool| tool.matches_key(&key)) {
                let (tool, agent) = (key.to_string(), agent.name().clone());
                return Err(ConfigError::ToolRemoved { tool, agent, call: self.call_path(call) }.into());
            }
            let result = on_unknown_tool.call_result(key.name(), agent.name(), tools.callable_names());
            return match result.run_failure {
                Some(failure) => Err(DriveError::RunFailed(failure)),
                None => Ok(ResolvedCall::Unavailable(result)),
            };
        };
        self.recorder.secrets.mark_restored_call(&tool, self.call_path(call));
        let shown = edited.clone().unwrap_or_else(|| raw.as_str().into());
        // A nested run has its input and a withheld output its text, so neither ends because of lost or changed arguments.
        let goes_on =
            self.with_run(|run| run.nested_run(call).is_some() || run.has_withheld_body_result(call));
        let unchecked = |shown: &str| {
            let raw = RawArguments::Text(raw.as_str().into());
            let prepared = self.with_run(|run| read_arguments(&tool, run.agent(), shown, raw).1);
            ResolvedCall::WithTool(prepared)
        };
        let (edited, is_given_again) = match with_secrets(&tool, &raw, edited.as_deref()) {
            Some(edited) => (edited, false),
            None => {
                let answers = self.with_run(|run| run.answered_questions(call).to_vec());
                match restore_from_answers(&answers, &shown, &tool.secret_arguments) {
                    Some(restored) => (Some(restored), true),
                    None if goes_on => return Ok(unchecked(&shown)),
                    None => return Ok(ask_for_secrets(&tool, &raw, &shown)),
                }
            }
        };
        if let (Some(edited), [_, ..]) = (&edited, tool.secret_arguments.as_slice()) {
            self.recorder.secrets.mask_values(edited, &tool.secret_arguments);
        }
        let path = self.call_path(call);
        let read = self.with_run(|run| read_saved_arguments(run, call, edited.as_deref(), &tool, path));
        match (read, edited) {
            (Err(_), edited) if goes_on => Ok(unchecked(edited.as_deref().unwrap_or(&shown))),
            (Err(ConfigError::ArgumentsNoLongerValid { .. }), _) if is_given_again => {
                Ok(ask_for_secrets(&tool, &raw, &shown))
            }
            // Nobody but the tool could have told the person, and they cannot decide again.
            (Err(ConfigError::ArgumentsNoLongerValid { problems, .. }), Some(edited)) => {
                let shown = redaction::redact_arguments(&edited, &tool.secret_arguments);
                let shown = truncate_detail(shown.as_deref().unwrap_or(&edited));
                let text = format!(
                    "A person changed the arguments of this call to {shown}, which cannot be used: {problems}"
                );
                Ok(ResolvedCall::Unavailable(CallResult::new(CallStatus::InvalidArguments, text)))
            }
            (read, _) => {
                let mut prepared = read?;
                if is_given_again {
                    // Nobody changed the arguments.
                    prepared.edited_arguments = None;
                }
                Ok(ResolvedCall::WithTool(prepared))
            }
        }
    }

    /// Restores a call as [`RunScope::restore_call`] does, without validating its arguments.
    pub(crate) fn restore_unchecked_call(
        &self,
        call: &CallId,
        tools: &ResolvedToolset<C>,
    ) -> Option<PreparedCall<C>> {
        self.with_run(|run| {
            let raw = run.call_arguments(call)?;
            let tool = tools.find_tool(run.tool_of_call(call)?)?;
            self.recorder.secrets.mark_restored_call(&tool, self.call_path(call));
            Some(read_arguments(&tool, run.agent(), raw, RawArguments::Text(raw.into())).1)
        })
    }
}

/// Returns a call that asks a person for the secret arguments that were lost. Its tool is not called with placeholders.
fn ask_for_secrets<C: Send + Sync + 'static>(tool: &Arc<Tool<C>>, raw: &str, shown: &str) -> ResolvedCall<C> {
    if matches!(tool.body, ToolBody::Agent(_)) {
        return ResolvedCall::Unavailable(CallResult::new(CallStatus::Failed, SECRETS_LOST));
    }
    let body = SecretQuestionBody::new(shown, &tool.secret_arguments);
    ResolvedCall::WithTool(PreparedCall {
        tool: tool.clone(),
        arguments: shown.into(),
        raw_arguments: RawArguments::Text(raw.into()),
        prepared_body: Some(Box::new(body)),
        agent_arguments: None,
        edited_arguments: None,
        receipt_digest: None,
        conflict_key: None,
        lacks_secrets: true,
    })
}

/// Reads the arguments of a saved call: the planned ones, or those that a person edited.
pub(crate) fn read_saved_arguments<C: Send + Sync + 'static>(
    run: &Run,
    call: &CallId,
    edited: Option<&str>,
    tool: &Arc<Tool<C>>,
    path: CallPath,
) -> Result<PreparedCall<C>, ConfigError> {
    let raw = run.call_arguments(call).unwrap_or_default();
    let (found, mut ready) =
        read_arguments(tool, run.agent(), edited.unwrap_or(raw), RawArguments::Text(raw.into()));
    let name = || tool.key().to_string();
    let arguments = found.arguments.map_err(|unfit| ConfigError::ArgumentsNoLongerValid {
        tool: name(),
        call: path.clone(),
        problems: unfit.problems,
    })?;
    if edited.is_some() {
        ready.edited_arguments = Some(arguments);
    } else if run.call_digests().get(call) != Some(&call_digest(tool.key(), &arguments)) {
        return Err(ConfigError::ArgumentsChanged { tool: name(), call: path });
    }
    Ok(ready)
}

/// Returns the edited arguments of a call, if there are any, with their secrets. A person who edits a call sees a
/// placeholder for each secret, and leaves it where it is. Returns `None` if the secrets of the call were lost with its
/// process.
fn with_secrets<C>(tool: &Tool<C>, raw: &str, edited: Option<&str>) -> Option<Option<String>> {
    let secrets = &tool.secret_arguments;
    match edited {
        None if !secrets.is_empty() && redaction::is_redacted(raw, secrets) => None,
        None => Some(None),
        Some(edited) if redaction::is_redacted(edited, secrets) => {
            redaction::restore_secrets(edited, raw, secrets).map(Some)
        }
        Some(edited) => Some(Some(edited.to_owned())),
    }
}
