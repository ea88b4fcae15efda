//! What calls find: their tool, and their arguments as the body will take them.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::Value;
use windlass_core::{
    BodyKind, Call, CallId, CallPath, Failure, FoundTool, How, Item, Lookup, Misbehaviour, Next, Run, Step,
    Unfit, call_digest,
};

use super::secret::{self, Marked, Visibility};
use super::told::shortened;
use super::{Driver, Halt};
use crate::agent::{Agent, Found, Graph, Target, Toolset};
use crate::error::ConfigError;
use crate::run::MissingTool;
use crate::tool::{Prepared, RawArguments, Tool, ToolBody, checked_value, freeze};

/// A call with its tool and its arguments.
pub(super) struct Ready<C> {
    pub(super) tool: Arc<Tool<C>>,
    /// Canonical, or as the model wrote them where they are not JSON.
    pub(super) arguments: Arc<str>,
    pub(super) raw: RawArguments,
    /// The body with its arguments; absent for agents, and for arguments that cannot be used.
    pub(super) prepared: Option<Box<dyn Prepared<C>>>,
    /// The arguments of an agent.
    pub(super) value: Option<Box<Value>>,
    /// What a person put in place of the model's arguments, as it may be shown.
    pub(super) edited: Option<Arc<str>>,
}

impl<C> Ready<C> {
    /// The arguments, for rules to look at.
    pub(super) fn shown(&self) -> Option<&(dyn Any + Send + Sync)> {
        match (&self.prepared, &self.value) {
            (Some(prepared), _) => Some(prepared.arguments()),
            (None, Some(value)) => Some(&**value),
            (None, None) => None,
        }
    }
}

/// What a saved call finds.
pub(super) enum Again<C> {
    Ready(Ready<C>),
    /// It cannot run any more: the model is told.
    Gone {
        how: How,
        text: String,
    },
}

/// What the model is told of arguments that cannot be used and cannot be quoted.
const NOT_SHOWN: &str =
    "`arguments` do not fit the tool's schema; what is wrong is not shown, because some are secret";

/// What the model is told of a call whose secret arguments did not outlast its process.
const SECRET_GONE: &str = "The secret arguments of this call were not kept. Ask for them again.";

/// A call that nothing was looked up for.
pub(super) fn nothing<C>(call: &Call) -> (Lookup, Option<Ready<C>>) {
    (Lookup::Missing { text: format!("Tool '{}' not found.", call.name) }, None)
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Looks up every call of an answer, before any of them does anything.
    pub(super) async fn look_up(
        &self,
        items: &[Arc<Item>],
        agent: &Agent<C>,
        tools: &Toolset<C>,
    ) -> Result<VecDeque<(Lookup, Option<Ready<C>>)>, Halt> {
        let mut lookups = VecDeque::with_capacity(items.len());
        let ctx = self.context(agent.name());
        for item in items {
            let Item::Call(call) = &**item else { continue };
            let found = match tools.find(call) {
                // It may have been switched off while the model thought.
                Found::Tool(tool)
                    if tool.enabled.fixed() != Some(true)
                        && !self.unless_stopped(tool.enabled.ask(&ctx)).boxed().await? =>
                {
                    Found::Nothing
                }
                found => found,
            };
            lookups.push_back(match found {
                Found::Tool(tool) => {
                    self.mark_secrets(&tool, call);
                    let (found, ready) = read(&tool, &call.arguments, RawArguments::Of(item.clone()));
                    (Lookup::Tool(found), Some(ready))
                }
                Found::Handoff(handoff) => (Lookup::Handoff { to: handoff.agent().clone() }, None),
                Found::Nothing => (self.missing(&call.name, tools.names()), None),
            });
        }
        Ok(lookups)
    }

    /// Remembers what of a call must not be written down, before anything is.
    fn mark_secrets(&self, tool: &Tool<C>, call: &Call) {
        if tool.secret_arguments.is_empty() && tool.output_visibility == Visibility::Open {
            return;
        }
        let arguments = match tool.secret_arguments.as_slice() {
            [] => None,
            fields => secret::without(&call.arguments, fields),
        };
        self.shared.secrets.mark(
            CallPath::new(&self.path, call.id.clone()),
            Marked { arguments, output: tool.output_visibility },
        );
    }

    fn missing(&self, name: &str, offered: Vec<String>) -> Lookup {
        match &self.shared.config.missing_tool {
            MissingTool::Fail => Lookup::Fatal { offered },
            MissingTool::Say(text) => Lookup::Missing { text: text(name, &offered) },
            MissingTool::Tell => {
                let there = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
                Lookup::Missing { text: format!("Tool '{name}' not found. The tools are: {there}.") }
            }
        }
    }

    /// A call's tool and arguments, for calls of an answer that an earlier driver had.
    pub(super) fn again(
        &self,
        call: &CallId,
        edited: Option<&str>,
        agent: &Agent<C>,
        tools: &Toolset<C>,
    ) -> Result<Again<C>, Halt> {
        let (key, raw) =
            self.locked(|run| (run.tool_of(call).cloned(), run.arguments(call).map(str::to_owned)));
        let path = || CallPath::new(&self.path, call.clone());
        let (Some(key), Some(raw)) = (key, raw) else {
            return Err(self.broken(&windlass_core::Illegal::NoSuchCall(call.clone())));
        };
        let gone =
            || ConfigError::ToolGone { tool: key.to_string(), agent: agent.name().clone(), call: path() };
        let Some(tool) = tools.tool(&key) else {
            if agent.tool_list().any(|tool| tool.answers_to(&key)) {
                return self.switched_off(key.name(), agent, tools);
            }
            return Err(gone().into());
        };
        if edited.is_none()
            && !tool.secret_arguments.is_empty()
            && secret::is_without(&raw, &tool.secret_arguments)
        {
            return Ok(Again::Gone { how: How::Failed, text: SECRET_GONE.to_owned() });
        }
        let ready = match (self.locked(|run| read_again(run, call, edited, &tool, path())), edited) {
            // Nobody but the tool could have told the person, and they cannot decide again.
            (Err(ConfigError::ArgumentsGone { problems, .. }), Some(edited)) => {
                let shown = secret::without(edited, &tool.secret_arguments);
                let shown = shortened(shown.as_deref().unwrap_or(edited));
                let text = format!(
                    "A person changed the arguments of this call to {shown}, which cannot be used: {problems}"
                );
                return Ok(Again::Gone { how: How::Invalid, text });
            }
            (ready, _) => ready?,
        };
        let inside = self.locked(|run| run.child(call).cloned());
        if let (Some(child), ToolBody::Agent(nested)) = (inside, &tool.body) {
            let agent = self.nested_agent(nested)?;
            check_inside(&child, &agent, &self.shared.config.agents, &path())?;
        }
        Ok(Again::Ready(ready))
    }

    fn switched_off(&self, name: &str, agent: &Agent<C>, tools: &Toolset<C>) -> Result<Again<C>, Halt> {
        match self.missing(name, tools.names()) {
            Lookup::Missing { text } => Ok(Again::Gone { how: How::Missing, text }),
            Lookup::Fatal { offered } => {
                let (name, agent) = (name.to_owned(), agent.name().clone());
                let missing = Misbehaviour::MissingTool { name, agent, offered };
                Err(Failure::Misbehaviour(missing).into())
            }
            Lookup::Tool(_) | Lookup::Handoff { .. } => {
                Ok(Again::Gone { how: How::Missing, text: String::new() })
            }
        }
    }

    /// As [`Driver::again`], for arguments that are known not to be usable.
    pub(super) fn again_unread(&self, call: &CallId, tools: &Toolset<C>) -> Option<Ready<C>> {
        self.locked(|run| {
            let raw = run.arguments(call)?;
            Some(read(&tools.tool(run.tool_of(call)?)?, raw, RawArguments::Text(raw.into())).1)
        })
    }
}

/// Whether an agent inside a call still has what it needs to go on: it is found out before anything runs, there or
/// beside it.
fn check_inside<C: Send + Sync + 'static>(
    run: &Run,
    root: &Agent<C>,
    known: &[Agent<C>],
    path: &CallPath,
) -> Result<(), ConfigError> {
    let Next::Calls(steps) = run.next() else { return Ok(()) };
    let graph = Graph::new(root, known)?;
    let agent = graph.agent(run.agent())?;
    let within: Vec<CallId> = path.within().iter().chain([path.call()]).cloned().collect();
    for step in steps.iter().filter(|step| matches!(step, Step::Gate(_) | Step::Run(_) | Step::Doubt(_))) {
        let path = CallPath::new(&within, step.call().clone());
        let key = run.tool_of(step.call());
        let found = key.and_then(|key| agent.inner.tools.iter().find(|tool| tool.answers_to(key)));
        let Some(tool) = found else {
            // What sources have is known only when the agent goes on, which asks them before anything runs there.
            if !agent.inner.sources.is_empty() {
                continue;
            }
            let tool = key.map(ToString::to_string).unwrap_or_default();
            return Err(ConfigError::ToolGone { tool, agent: agent.name().clone(), call: path });
        };
        let raw = run.arguments(step.call()).unwrap_or_default();
        if step.edited().is_none() && !secret::is_without(raw, &tool.secret_arguments) {
            read_again(run, step.call(), None, tool, path.clone())?;
        }
        if let (Some(child), ToolBody::Agent(nested)) = (run.child(step.call()), &tool.body) {
            let root = match &nested.target {
                Target::Agent(agent) => agent,
                Target::Named(name) => graph.agent(name)?,
            };
            check_inside(child, root, known, &path)?;
        }
    }
    Ok(())
}

/// Reads the arguments of a saved call: those that it was planned with, or those that a person put in their place.
fn read_again<C: Send + Sync + 'static>(
    run: &Run,
    call: &CallId,
    edited: Option<&str>,
    tool: &Arc<Tool<C>>,
    path: CallPath,
) -> Result<Ready<C>, ConfigError> {
    let raw = run.arguments(call).unwrap_or_default();
    let (found, mut ready) = read(tool, edited.unwrap_or(raw), RawArguments::Text(raw.into()));
    let name = || tool.key().to_string();
    let arguments = found.arguments.map_err(|unfit| ConfigError::ArgumentsGone {
        tool: name(),
        call: path.clone(),
        problems: unfit.problems,
    })?;
    if edited.is_some() {
        ready.edited = Some(arguments);
    } else if run.seen().get(call) != Some(&call_digest(tool.key(), &arguments)) {
        return Err(ConfigError::ArgumentsChanged { tool: name(), call: path });
    }
    Ok(ready)
}

/// Reads a call's arguments as its tool takes them.
fn read<C: Send + Sync + 'static>(
    tool: &Arc<Tool<C>>,
    written: &str,
    raw: RawArguments,
) -> (FoundTool, Ready<C>) {
    let frozen = freeze(written, |frozen| Arc::<str>::from(frozen));
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
            value = Some(Box::new(checked_value(&frozen, &agent.shape)?));
            Ok(None)
        }
    });
    let conflict = match (&tool.conflict, &prepared) {
        // Where the rule fails, calls of its tool keep their order, for they may well conflict.
        (Some(key), Ok(Some(prepared))) => {
            let asked = std::panic::catch_unwind(AssertUnwindSafe(|| key(prepared.arguments())));
            asked.unwrap_or_else(|_| Some(tool.key().to_string()))
        }
        _ => None,
    };
    let shown = prepared.as_ref().ok().and_then(Option::as_ref).map(|prepared| prepared.arguments());
    let effect = tool.effect_of(shown);
    let (arguments, prepared) = match prepared {
        // What a decision is bound to is written down, so it is of what may be.
        Ok(prepared) => {
            let open = match tool.secret_arguments.as_slice() {
                [] => None,
                fields => secret::without(&text, fields).map(Into::into),
            };
            (Ok(open.unwrap_or_else(|| text.clone())), prepared)
        }
        Err(problems) => {
            // What is wrong with arguments quotes them, which secrets must not be.
            let is_open = tool.secret_arguments.is_empty();
            let problems = if is_open { problems } else { NOT_SHOWN.to_owned() };
            (Err(Unfit { problems, frozen: is_frozen.then(|| text.clone()) }), None)
        }
    };
    let found = FoundTool {
        key: tool.key().clone(),
        body: match &tool.body {
            ToolBody::Function(_) => BodyKind::Function,
            ToolBody::Agent(_) => BodyKind::Agent,
        },
        effect,
        gate: tool.gate(),
        conflict,
        receipt: arguments.is_ok().then(|| tool.receipt(&text)).flatten(),
        arguments,
    };
    let ready = Ready { tool: tool.clone(), arguments: text, raw, prepared, value, edited: None };
    (found, ready)
}
