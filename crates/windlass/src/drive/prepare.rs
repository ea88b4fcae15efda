//! Preparation of calls: tool lookup, and arguments in the form that the body takes.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::FutureExt;
use windlass_core::{
    canonical::Digest,
    failure::RunFailure,
    id::{AgentName, CallId, CallPath},
    item::{Item, ToolCall},
    journal::CallStatus,
    plan::{
        BodyKind, CallDisposition, InvalidArguments, ModelProtocolError, ResolvedTool, ToolLookup,
        call_digest,
    },
    run::{CallResult, Run, RunAction},
};

use super::call::ResolvedCall;
use super::output_text::{failure_text, truncate_detail};
use super::{DriveError, Driver};
use crate::agent::{Agent, AgentGraph, HandoffTarget, ResolvedToolset, ToolsetEntry};
use crate::error::ConfigError;
use crate::redaction::{self, CallSecrets, OutputVisibility};
use crate::run::OnUnknownTool;
use crate::tool::{PreparedBody, RawArguments, Tool, ToolBody, canonicalize_arguments};

/// A call with its tool and its arguments.
pub(super) struct PreparedCall<C> {
    pub(super) tool: Arc<Tool<C>>,
    /// Canonical arguments, or the model's text if it is not JSON.
    pub(super) arguments: Arc<str>,
    pub(super) raw_arguments: RawArguments,
    /// Body with its arguments; absent for nested agents and for invalid arguments.
    pub(super) prepared_body: Option<Box<dyn PreparedBody<C>>>,
    /// Arguments of a nested agent.
    pub(super) agent_arguments: Option<Box<dyn Any + Send + Sync>>,
    /// Arguments that a person edited, without secrets.
    pub(super) edited_arguments: Option<Arc<str>>,
    /// Digest of the receipt that answers identical calls, if the tool has receipts.
    pub(super) receipt_digest: Option<Digest>,
}

impl<C> PreparedCall<C> {
    /// Returns the parsed arguments for approval and effect rules.
    pub(super) fn rule_arguments(&self) -> Option<&(dyn Any + Send + Sync)> {
        match (&self.prepared_body, &self.agent_arguments) {
            (Some(prepared), _) => Some(prepared.arguments()),
            (None, Some(value)) => Some(&**value),
            (None, None) => None,
        }
    }
}

/// Output for the model if arguments are invalid and contain secrets.
const PROBLEMS_WITHHELD: &str =
    "`arguments` do not fit the tool's schema; what is wrong is not shown, because some are secret";

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
                    self.mark_secrets(&tool, call);
                    let raw = RawArguments::InItem(item.clone());
                    let (found, ready) = read_arguments(&tool, agent.name(), &call.arguments, raw);
                    (ToolLookup::Tool(found), Some(ready))
                }
                ToolsetEntry::Handoff(handoff) => {
                    (ToolLookup::Handoff { to: handoff.target_name().clone() }, None)
                }
                ToolsetEntry::NotFound => {
                    let available = self.unless_stopped(tools.enabled_names(&ctx)).boxed().await?;
                    (self.unknown_tool_lookup(&call.name, available), None)
                }
            });
        }
        Ok(lookups)
    }

    /// Registers the secrets of a call before anything is persisted.
    fn mark_secrets(&self, tool: &Tool<C>, call: &ToolCall) {
        if tool.secret_arguments.is_empty() && tool.output_visibility == OutputVisibility::Public {
            return;
        }
        let arguments = match tool.secret_arguments.as_slice() {
            [] => None,
            fields => redaction::redact_arguments(&call.arguments, fields),
        };
        self.shared.secrets.mark_call(
            CallPath::new(&self.parent_calls, call.id.clone()),
            CallSecrets { redacted_arguments: arguments, output_visibility: tool.output_visibility },
        );
    }

    fn unknown_tool_lookup(&self, name: &str, offered: Vec<String>) -> ToolLookup {
        match &self.shared.config.on_unknown_tool {
            OnUnknownTool::FailRun => ToolLookup::UnknownToolFatal { available_tools: offered },
            OnUnknownTool::CustomMessage(text) => {
                // A message that panics is replaced by the default one.
                let message = catch_unwind(AssertUnwindSafe(|| text(name, &offered)));
                ToolLookup::UnknownTool {
                    message: message.unwrap_or_else(|_| unknown_tool_message(name, &offered)),
                }
            }
            OnUnknownTool::TellModel => {
                ToolLookup::UnknownTool { message: unknown_tool_message(name, &offered) }
            }
        }
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
            return Err(self.invalid_entry_error(&windlass_core::run::ApplyError::UnknownCall(call.clone())));
        };
        let gone =
            || ConfigError::ToolRemoved { tool: key.to_string(), agent: agent.name().clone(), call: path() };
        let Some(tool) = tools.find_tool(&key) else {
            if agent.tool_list().any(|tool| tool.matches_key(&key)) {
                return self.restore_disabled_call(key.name(), agent, tools);
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

    fn restore_disabled_call(
        &self,
        name: &str,
        agent: &Agent<C>,
        tools: &ResolvedToolset<C>,
    ) -> Result<ResolvedCall<C>, DriveError> {
        let result = self.unknown_tool_result(name, agent.name(), tools.callable_names());
        match result.run_failure {
            Some(failure) => Err(DriveError::RunFailed(failure)),
            None => Ok(ResolvedCall::Unavailable(result)),
        }
    }

    /// Returns the result of a call whose tool is not enabled any more: that of a call of an unknown tool.
    pub(super) fn unknown_tool_result(
        &self,
        name: &str,
        agent: &AgentName,
        available_tools: Vec<String>,
    ) -> CallResult {
        let status = CallStatus::UnknownTool;
        match self.unknown_tool_lookup(name, available_tools) {
            ToolLookup::UnknownTool { message } => CallResult::new(status, message),
            ToolLookup::UnknownToolFatal { available_tools } => {
                let (name, agent) = (name.to_owned(), agent.clone());
                let missing = ModelProtocolError::UnknownTool { name, agent, available_tools };
                let output = failure_text(Some(&missing.to_string()));
                CallResult::failing_run(status, output, RunFailure::ModelProtocolError(missing))
            }
            ToolLookup::Tool(_) | ToolLookup::Handoff { .. } => CallResult::cancelled(),
        }
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

/// Returns the default message about a tool that is not available.
fn unknown_tool_message(name: &str, offered: &[String]) -> String {
    let there = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
    format!("Tool '{name}' not found. The tools are: {there}.")
}

/// Checks that a nested agent can resume, before any call runs in it or beside it.
fn check_nested_run<C: Send + Sync + 'static>(
    run: &Run,
    root: &Agent<C>,
    known: &[Agent<C>],
    path: &CallPath,
) -> Result<(), ConfigError> {
    if !matches!(run.next(), RunAction::AdvanceCalls) {
        return Ok(());
    }
    let graph = AgentGraph::new(root, known)?;
    let agent = graph.find_agent(run.agent())?;
    let within: Vec<CallId> = path.parent_calls().iter().chain([path.call()]).cloned().collect();
    let needs_tool = |call: &CallId| {
        matches!(run.call_disposition(call), Some(CallDisposition::Execute { .. }))
            && !run.is_output_known(call)
    };
    for (call, is_idle) in run.turn_calls() {
        if is_idle || !needs_tool(&call) {
            continue;
        }
        let path = CallPath::new(&within, call.clone());
        let key = run.tool_of_call(&call);
        let found = key.and_then(|key| agent.inner.tools.iter().find(|tool| tool.matches_key(key)));
        let Some(tool) = found else {
            // What sources have is known only when the agent goes on, which asks them before anything runs there.
            if !agent.inner.sources.is_empty() {
                continue;
            }
            let tool = key.map(ToString::to_string).unwrap_or_default();
            return Err(ConfigError::ToolRemoved { tool, agent: agent.name().clone(), call: path });
        };
        let raw = run.call_arguments(&call).unwrap_or_default();
        if run.edited_arguments(&call).is_none() && !redaction::is_redacted(raw, &tool.secret_arguments) {
            read_saved_arguments(run, &call, None, tool, path.clone())?;
        }
        if let (Some(child), ToolBody::Agent(nested)) = (run.nested_run(&call), &tool.body) {
            let root = match &nested.target {
                HandoffTarget::Agent(agent) => agent,
                HandoffTarget::ByName(name) => graph.find_agent(name)?,
            };
            check_nested_run(child, root, known, &path)?;
        }
    }
    Ok(())
}

/// Reads the arguments of a saved call: the planned ones, or those that a person edited.
fn read_saved_arguments<C: Send + Sync + 'static>(
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

/// Parses and validates a call's arguments for its tool.
fn read_arguments<C: Send + Sync + 'static>(
    tool: &Arc<Tool<C>>,
    agent: &AgentName,
    written: &str,
    raw: RawArguments,
) -> (ResolvedTool, PreparedCall<C>) {
    let frozen = canonicalize_arguments(written, |frozen| Arc::<str>::from(frozen));
    let text: Arc<str> = match &frozen {
        Ok(frozen) => frozen.clone(),
        Err(_) => written.into(),
    };
    // Some providers write nothing for nothing, which is not the same call as `{}`.
    let is_frozen = frozen.is_ok() && !written.trim().is_empty();
    let mut value = None;
    let prepared = frozen.and_then(|frozen| match &tool.body {
        ToolBody::Function(body) => body.prepare(&frozen).map(Some),
        ToolBody::Agent(agent) => {
            value = Some(agent.parse_arguments(&frozen)?);
            Ok(None)
        }
    });
    let shown = match (&prepared, &value) {
        (Ok(Some(prepared)), _) => Some(prepared.arguments()),
        (_, Some(value)) => Some(&**value),
        (_, None) => None,
    };
    let conflict = match (&tool.conflict_rule, shown) {
        // Where the rule fails, calls of its tool keep their order, for they may well conflict.
        (Some(key), Some(arguments)) => {
            let asked = catch_unwind(AssertUnwindSafe(|| key(arguments)));
            asked.unwrap_or_else(|_| Some(tool.key().to_string()))
        }
        _ => None,
    };
    let effect = tool.effect_of_call(shown);
    let (arguments, prepared) = match prepared {
        // What a decision is bound to is written down, so it is of what may be.
        Ok(prepared) => {
            let open = match tool.secret_arguments.as_slice() {
                [] => None,
                fields => redaction::redact_arguments(&text, fields).map(Into::into),
            };
            (Ok(open.unwrap_or_else(|| text.clone())), prepared)
        }
        Err(problems) => {
            // What is wrong with arguments quotes them, which secrets must not be.
            let is_open = tool.secret_arguments.is_empty();
            let problems = if is_open { problems } else { PROBLEMS_WITHHELD.to_owned() };
            (Err(InvalidArguments { problems, canonical_arguments: is_frozen.then(|| text.clone()) }), None)
        }
    };
    let has_receipt = arguments.is_ok() && tool.shares_receipts();
    let receipt_digest = has_receipt.then(|| tool.operation_digest(agent, &text));
    let found = ResolvedTool {
        key: tool.key().clone(),
        body: match &tool.body {
            ToolBody::Function(_) => BodyKind::Function,
            ToolBody::Agent(_) => BodyKind::Agent,
        },
        effect,
        approval_policy: tool.approval_policy(),
        conflict_key: conflict,
        arguments,
    };
    let ready = PreparedCall {
        tool: tool.clone(),
        arguments: text,
        raw_arguments: raw,
        prepared_body: prepared,
        agent_arguments: value,
        edited_arguments: None,
        receipt_digest,
    };
    (found, ready)
}
