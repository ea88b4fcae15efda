//! Preparation of calls: tool lookup before a plan, and restoring of calls that an earlier driver planned.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use windlass_core::{
    id::{CallId, CallPath},
    item::{Item, ToolCall},
    journal::CallStatus,
    plan::ToolLookup,
    run::{ApplyError, CallResult},
};

use super::call::ResolvedCall;
use super::{DriveError, Driver};
use crate::agent::{Agent, ResolvedToolset, ToolsetEntry, check_nested_run};
use crate::error::ConfigError;
use crate::redaction;
use crate::tool::{
    PreparedCall, RawArguments, ToolBody, read_arguments, read_saved_arguments, truncate_detail,
};

/// Output for the model if the secret arguments of a call were lost with the process.
const SECRETS_LOST: &str = "The secret arguments of this call were not kept. Ask for them again.";

/// Returns the lookup of an unknown tool.
pub(super) fn unknown_tool<C>(call: &ToolCall) -> (ToolLookup, Option<PreparedCall<C>>) {
    (ToolLookup::UnknownTool { message: format!("Tool '{}' not found.", call.name) }, None)
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Looks up the tools of all calls of a response, before any of them runs.
    pub(super) async fn look_up_tools(
        &self,
        items: &[Arc<Item>],
        agent: &Agent<C>,
        tools: &ResolvedToolset<C>,
    ) -> Result<VecDeque<(ToolLookup, Option<PreparedCall<C>>)>, DriveError> {
        let mut lookups = VecDeque::with_capacity(items.len());
        let ctx = self.run_context(agent.name());
        for item in items {
            let Item::Call(call) = &**item else { continue };
            let found = match tools.find_entry(call) {
                // It may have been switched off while the model thought.
                ToolsetEntry::Tool(tool)
                    if tool.enabled.static_value() != Some(true)
                        && !self.unless_stopped(tool.enabled.evaluate(&ctx)).boxed().await? =>
                {
                    ToolsetEntry::NotFound
                }
                ToolsetEntry::Handoff(handoff)
                    if !handoff.is_static()
                        && !self.unless_stopped(handoff.enabled.evaluate(&ctx)).boxed().await? =>
                {
                    ToolsetEntry::NotFound
                }
                found => found,
            };
            lookups.push_back(match found {
                ToolsetEntry::Tool(tool) => {
                    let path = || CallPath::new(&self.parent_calls, call.id.clone());
                    self.shared.recorder.secrets.mark_call(&tool, call, path);
                    let raw = RawArguments::InItem(item.clone());
                    let (found, ready) = read_arguments(&tool, agent.name(), &call.arguments, raw);
                    (ToolLookup::Tool(found), Some(ready))
                }
                ToolsetEntry::Handoff(handoff) => {
                    (ToolLookup::Handoff { to: handoff.target_name().clone() }, None)
                }
                ToolsetEntry::NotFound => {
                    let available = self.unless_stopped(tools.enabled_names(&ctx)).boxed().await?;
                    (self.shared.config.on_unknown_tool.lookup(&call.name, available), None)
                }
            });
        }
        Ok(lookups)
    }

    /// Restores the tool and the arguments of a call that an earlier driver planned.
    pub(super) fn restore_call(
        &self,
        call: &CallId,
        agent: &Agent<C>,
        tools: &ResolvedToolset<C>,
    ) -> Result<ResolvedCall<C>, DriveError> {
        let (key, raw, edited) = self.with_run(|run| {
            let raw = run.call_arguments(call).map(str::to_owned);
            (run.tool_of_call(call).cloned(), raw, run.edited_arguments(call))
        });
        let edited = edited.as_deref();
        let path = || CallPath::new(&self.parent_calls, call.clone());
        let (Some(key), Some(raw)) = (key, raw) else {
            return Err(self.invalid_entry_error(&ApplyError::UnknownCall(call.clone())));
        };
        let gone =
            || ConfigError::ToolRemoved { tool: key.to_string(), agent: agent.name().clone(), call: path() };
        let Some(tool) = tools.find_tool(&key) else {
            if agent.tool_list().any(|tool| tool.matches_key(&key)) {
                let policy = &self.shared.config.on_unknown_tool;
                let result = policy.call_result(key.name(), agent.name(), tools.callable_names());
                return match result.run_failure {
                    Some(failure) => Err(DriveError::RunFailed(failure)),
                    None => Ok(ResolvedCall::Unavailable(result)),
                };
            }
            return Err(gone().into());
        };
        if edited.is_none()
            && !tool.secret_arguments.is_empty()
            && redaction::is_redacted(&raw, &tool.secret_arguments)
        {
            let result = CallResult::new(CallStatus::Failed, SECRETS_LOST);
            return Ok(ResolvedCall::Unavailable(result));
        }
        let ready = match (
            self.with_run(|run| read_saved_arguments(run, call, edited, &tool, path())),
            edited,
        ) {
            // Nobody but the tool could have told the person, and they cannot decide again.
            (Err(ConfigError::ArgumentsNoLongerValid { problems, .. }), Some(edited)) => {
                let shown = redaction::redact_arguments(edited, &tool.secret_arguments);
                let shown = truncate_detail(shown.as_deref().unwrap_or(edited));
                let text = format!(
                    "A person changed the arguments of this call to {shown}, which cannot be used: {problems}"
                );
                let result = CallResult::new(CallStatus::InvalidArguments, text);
                return Ok(ResolvedCall::Unavailable(result));
            }
            (ready, _) => ready?,
        };
        let inside = self.with_run(|run| run.nested_run(call).cloned());
        if let (Some(child), ToolBody::Agent(nested)) = (inside, &tool.body) {
            let agent = self.resolve_nested_agent(nested)?;
            check_nested_run(&child, &agent, &self.shared.config.known_agents, &path())?;
        }
        Ok(ResolvedCall::WithTool(ready))
    }

    /// Restores a call as [`Driver::restore_call`] does, without validating its arguments.
    pub(super) fn restore_unchecked_call(
        &self,
        call: &CallId,
        tools: &ResolvedToolset<C>,
    ) -> Option<PreparedCall<C>> {
        self.with_run(|run| {
            let raw = run.call_arguments(call)?;
            let tool = tools.find_tool(run.tool_of_call(call)?)?;
            Some(read_arguments(&tool, run.agent(), raw, RawArguments::Text(raw.into())).1)
        })
    }
}
