//! Planning: turns a model response into planned calls and their dispositions before any of them runs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::call_map::CallMap;
use crate::canonical::Digest;
use crate::canonical::canonical_text;
use crate::id::{AgentName, CallId};
use crate::item::{Item, ToolCall};
use crate::provenance::ContentSources;
use crate::run::{Run, RunItemKind};
use crate::tool::{ApprovalPolicy, ToolEffect, ToolKey};

/// The result of looking up a call's name among the tools resolved for this turn.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolLookup {
    /// A tool, with its parsed arguments.
    Tool(ResolvedTool),
    /// A handoff to another agent.
    Handoff {
        /// The agent's name.
        to: AgentName,
    },
    /// No such tool; the model receives the message as the call's output.
    UnknownTool {
        /// The message for the model.
        message: String,
    },
    /// No such tool, and the run is configured to fail.
    UnknownToolFatal {
        /// Names of the tools that are available.
        available_tools: Vec<String>,
    },
}

/// A tool that a call resolved to.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedTool {
    /// The tool's identity.
    pub key: ToolKey,
    /// The kind of the tool's body.
    pub body: BodyKind,
    /// The tool's declared effect.
    pub effect: ToolEffect,
    /// The tool's approval policy.
    pub approval_policy: ApprovalPolicy,
    /// Conflict key; calls with the same key run one after another in the model's order.
    pub conflict_key: Option<String>,
    /// Sources of the text of the tool's outputs outside the conversation.
    pub sources: ContentSources,
    /// The canonical arguments, or the reason why they are invalid.
    pub arguments: Result<Arc<str>, InvalidArguments>,
}

/// Arguments that do not satisfy the tool's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidArguments {
    /// All schema violations, with their paths.
    pub problems: String,
    /// The arguments in canonical form, if they are valid JSON.
    pub canonical_arguments: Option<Arc<str>>,
}

impl From<String> for InvalidArguments {
    fn from(problems: String) -> Self {
        Self { problems, canonical_arguments: None }
    }
}

/// The kind of body that a tool call executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyKind {
    /// A function of the application.
    #[default]
    Function,
    /// Another agent, with a nested run.
    Agent,
}

impl BodyKind {
    pub(crate) fn is_function(&self) -> bool {
        *self == Self::Function
    }
}

/// A call of a model response together with its disposition.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCall {
    /// The call's id.
    pub call: CallId,
    /// The tool's identity.
    pub key: ToolKey,
    /// Digest of the tool's identity and the canonical arguments, to which decisions are bound.
    pub digest: Digest,
    /// The disposition of the call.
    pub disposition: CallDisposition,
    /// Earlier call of the same response that must settle first because it has the same conflict key.
    pub predecessor: Option<CallId>,
}

/// The disposition that the planner assigned to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallDisposition {
    /// The call executes a body.
    Execute {
        /// The kind of body.
        body: BodyKind,
        /// The tool's declared effect.
        effect: ToolEffect,
        /// The tool's approval policy.
        approval_policy: ApprovalPolicy,
        /// Sources of the text of the tool's outputs outside the conversation.
        sources: ContentSources,
    },
    /// The arguments are invalid; the model receives the violations, and the body does not run.
    InvalidArguments {
        /// All schema violations, with their paths.
        problems: String,
    },
    /// The agent has no such tool; the model receives the message.
    UnknownTool {
        /// The message for the model.
        message: String,
    },
    /// The call hands control to another agent after the turn's other calls have settled.
    Handoff {
        /// The agent that takes over.
        to: AgentName,
    },
    /// The call is a second handoff in one response; the model is told that it was ignored.
    SurplusHandoff,
}

/// A violation of the tool-call protocol by the model. No call of the response has run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelProtocolError {
    /// A call has no id.
    #[error("the model called `{name}` without a call id")]
    EmptyCallId {
        /// Name of the tool that the model called.
        name: String,
    },
    /// A call id was already used for a different call.
    #[error("the model used call id `{call}` again for another call of `{name}`")]
    ReusedCallId {
        /// The reused call id.
        call: CallId,
        /// Name of the tool that the model called.
        name: String,
    },
    /// The agent has no such tool.
    #[error(
        "the model called `{name}`, which is not a tool of agent `{agent}` (it has: {})",
        join_names(available_tools)
    )]
    UnknownTool {
        /// Name of the tool that the model called.
        name: String,
        /// The current agent.
        agent: AgentName,
        /// Names of the tools that are available.
        available_tools: Vec<String>,
    },
}

impl ModelProtocolError {
    /// Returns true if the response itself is well-formed, so that response hooks are still invoked for it.
    pub fn is_response_readable(&self) -> bool {
        matches!(self, Self::UnknownTool { .. })
    }
}

/// A model response with its planned calls; duplicate calls are removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponsePlan {
    /// The items that are appended to the history.
    pub items: Vec<Arc<Item>>,
    /// The planned calls, in the model's order.
    pub calls: Vec<PlannedCall>,
    /// Number of calls that were dropped because they repeat a call that already has its output.
    pub duplicate_calls: u32,
    /// Sources outside the conversation of the text that the model could read when it proposed the calls; empty if it
    /// proposed none.
    pub context_sources: ContentSources,
}

impl ResponsePlan {
    fn has_call(&self, id: &CallId) -> bool {
        self.calls.iter().any(|planned| planned.call == *id)
    }
}

/// Plans a model response. `run` has the calls of earlier responses; `lookup` resolves a call to a tool.
///
/// A call that repeats an earlier one of the same agent, id included, is dropped, because it has its output. A call of an
/// unknown tool gets its message in any case, under an id of its own if its id is taken.
///
/// # Errors
///
/// Returns [`ModelProtocolError`] if a call has no id, reuses the id of a different call, of a call of another agent or of
/// a handoff, or names an unknown tool and the run is configured to fail for it.
pub fn plan_response(
    items: Vec<Arc<Item>>,
    agent: &AgentName,
    run: &Run,
    mut lookup: impl FnMut(&ToolCall) -> ToolLookup,
) -> Result<ResponsePlan, ModelProtocolError> {
    let count = items.iter().filter(|item| matches!(***item, Item::Call(_))).count();
    let mut plan = ResponsePlan {
        items: Vec::with_capacity(items.len()),
        calls: Vec::with_capacity(count),
        duplicate_calls: 0,
        context_sources: ContentSources::NONE,
    };
    let mut fresh: CallMap<Digest> = CallMap::default();
    fresh.reserve(count);
    let mut last_of_conflict: BTreeMap<String, CallId> = BTreeMap::new();
    let mut has_handoff = false;
    // A reused call id takes precedence over an unknown tool, so all calls are examined before an unknown tool
    // is reported.
    let mut missing: Option<ModelProtocolError> = None;
    for item in items {
        let Item::Call(call) = &*item else {
            plan.items.push(item);
            continue;
        };
        if call.id.as_str().is_empty() {
            return Err(ModelProtocolError::EmptyCallId { name: call.name.clone() });
        }
        let found = lookup(call);
        let key = match &found {
            ToolLookup::Tool(tool) => tool.key.clone(),
            ToolLookup::Handoff { .. }
            | ToolLookup::UnknownTool { .. }
            | ToolLookup::UnknownToolFatal { .. } => ToolKey::for_call(call),
        };
        let digest = match &found {
            ToolLookup::Tool(ResolvedTool {
                arguments: Ok(arguments) | Err(InvalidArguments { canonical_arguments: Some(arguments), .. }),
                ..
            }) => call_digest(&key, arguments),
            _ => call_digest(&key, &canonical_or_verbatim(&call.arguments)),
        };
        let repetition = match fresh.get(&call.id) {
            Some(earlier) if *earlier == digest => Repetition::Duplicate,
            Some(_) => Repetition::OtherCall,
            None => compare_with_earlier(run, call, agent, &digest, &found),
        };
        let mut id = call.id.clone();
        match repetition {
            Repetition::NewCall => {}
            Repetition::OtherCall => {
                return Err(ModelProtocolError::ReusedCallId {
                    call: call.id.clone(),
                    name: call.name.clone(),
                });
            }
            // A duplicate call is answered by the output of the first. Reasoning items directly before it are
            // removed too, because providers reject reasoning that no other item follows.
            Repetition::Duplicate => {
                while plan.items.last().is_some_and(|last| matches!(**last, Item::Reasoning(_))) {
                    plan.items.pop();
                }
                plan.duplicate_calls += 1;
                continue;
            }
            Repetition::OfUnknownTool => {
                id = unused_call_id(run, &call.id, |id| fresh.contains(id) || plan.has_call(id));
            }
        }
        fresh.insert(call.id.clone(), digest);
        let mut after = None;
        let work = match found {
            ToolLookup::Tool(tool) => {
                if let Some(conflict) = tool.conflict_key {
                    after = last_of_conflict.insert(conflict, call.id.clone());
                }
                match tool.arguments {
                    Ok(_) => CallDisposition::Execute {
                        body: tool.body,
                        effect: tool.effect,
                        approval_policy: tool.approval_policy,
                        sources: tool.sources,
                    },
                    Err(InvalidArguments { problems, .. }) => CallDisposition::InvalidArguments { problems },
                }
            }
            ToolLookup::Handoff { .. } if has_handoff => CallDisposition::SurplusHandoff,
            ToolLookup::Handoff { to } => {
                has_handoff = true;
                CallDisposition::Handoff { to }
            }
            ToolLookup::UnknownTool { message: text } => CallDisposition::UnknownTool { message: text },
            ToolLookup::UnknownToolFatal { available_tools: offered } => {
                let (name, agent) = (call.name.clone(), agent.clone());
                missing.get_or_insert(ModelProtocolError::UnknownTool {
                    name,
                    agent,
                    available_tools: offered,
                });
                continue;
            }
        };
        let item = match id == call.id {
            true => item,
            false => Arc::new(Item::Call(ToolCall { id: id.clone(), ..call.clone() })),
        };
        plan.calls.push(PlannedCall { call: id, key, digest, disposition: work, predecessor: after });
        plan.items.push(item);
    }
    match missing {
        Some(missing) => Err(missing),
        None => {
            if !plan.calls.is_empty() {
                plan.context_sources = run.context_sources().with(ContentSources::of_items(&plan.items));
            }
            Ok(plan)
        }
    }
}

/// The relation of a call to earlier calls with its id.
enum Repetition {
    /// The id is new.
    NewCall,
    /// The same call has its output.
    Duplicate,
    /// The same call was made before, and its tool is missing now.
    OfUnknownTool,
    /// The id stands for another call.
    OtherCall,
}

/// Compares a call with the call of an earlier response that has its id.
fn compare_with_earlier(
    run: &Run,
    call: &ToolCall,
    agent: &AgentName,
    digest: &Digest,
    found: &ToolLookup,
) -> Repetition {
    let Some(earlier) = run.call_digests().get(&call.id) else { return Repetition::NewCall };
    let made = run.call_item(&call.id);
    match found {
        ToolLookup::UnknownTool { .. } | ToolLookup::UnknownToolFatal { .. } => {
            // A tool that is gone has no identity to compare, so what the model wrote counts.
            let is_same_text = |made: &ToolCall| {
                (&made.name, &made.namespace) == (&call.name, &call.namespace)
                    && canonical_or_verbatim(&made.arguments) == canonical_or_verbatim(&call.arguments)
            };
            let is_same = earlier == digest
                || made.is_some_and(|made| matches!(&*made.item, Item::Call(made) if is_same_text(made)));
            if is_same { Repetition::OfUnknownTool } else { Repetition::OtherCall }
        }
        // Another agent's tool is another tool. A handoff that has been carried out cannot answer for the next one.
        ToolLookup::Tool(_)
            if earlier == digest
                && made.is_some_and(|made| made.agent == *agent && made.kind == RunItemKind::ToolCall) =>
        {
            Repetition::Duplicate
        }
        ToolLookup::Tool(_) | ToolLookup::Handoff { .. } => Repetition::OtherCall,
    }
}

/// Returns an id for a call whose own id is taken: a history has one output for each id.
fn unused_call_id(run: &Run, taken: &CallId, is_taken: impl Fn(&CallId) -> bool) -> CallId {
    let mut number = 2;
    loop {
        let id = CallId::new(format!("{taken}~{number}"));
        if !run.call_digests().contains(&id) && !is_taken(&id) {
            return id;
        }
        number += 1;
    }
}

/// Returns the digest of a tool's identity and canonical arguments, to which decisions are bound.
pub fn call_digest(key: &ToolKey, arguments: &str) -> Digest {
    Digest::of_parts(&[&key.to_text(), arguments])
}

fn canonical_or_verbatim(arguments: &str) -> Cow<'_, str> {
    canonical_text(arguments).unwrap_or(Cow::Borrowed(arguments))
}

fn join_names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
