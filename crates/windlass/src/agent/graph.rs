//! The agents that a run can reach, by name. Journals refer to agents by name, so names must be unique.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use windlass_core::{
    id::{AgentName, CallId, CallPath},
    run::{Run, RunAction, ToolNeed},
};

use super::{Agent, AgentTool, HandoffTarget};
use crate::error::ConfigError;
use crate::model::SharedModel;
use crate::receipts::KeyScopes;
use crate::redaction;
use crate::run::{TurnLimit, read_saved_arguments};
use crate::tool::ToolBody;

/// The agents that are reachable from a run's first agent.
pub(crate) struct AgentGraph<C> {
    /// Sorted by name.
    agents: Vec<Agent<C>>,
}

impl<C: Send + Sync + 'static> AgentGraph<C> {
    /// Returns true if any of the agents has hooks.
    pub(crate) fn has_hooks(&self) -> bool {
        self.agents.iter().any(|agent| !agent.inner.hooks.is_empty())
    }

    /// Returns the maximum number of turns of a run of these agents; `None` if there is none.
    pub(crate) fn turn_limit(&self, limit: TurnLimit) -> Option<u32> {
        limit.for_agents(self.agents.iter())
    }

    /// Collects `known` and every agent that is reachable from `root` through handoffs.
    pub(crate) fn new(root: &Agent<C>, known: &[Agent<C>]) -> Result<Self, ConfigError> {
        let mut agents: Vec<Agent<C>> = Vec::with_capacity(1);
        let mut queue: VecDeque<Agent<C>> = known.iter().cloned().collect();
        queue.push_front(root.clone());
        while let Some(agent) = queue.pop_front() {
            match agents.binary_search_by(|other| other.name().cmp(agent.name())) {
                Ok(place) if Arc::ptr_eq(&agents[place].inner, &agent.inner) => continue,
                Ok(_) => return Err(ConfigError::DuplicateAgent { agent: agent.name().clone() }),
                Err(place) => agents.insert(place, agent.clone()),
            }
            if let Some(error) = &agent.inner.config_error {
                return Err(error.clone());
            }
            queue.extend(agent.inner.handoffs.iter().filter_map(|handoff| match &handoff.target {
                HandoffTarget::Agent(agent) => Some(agent.clone()),
                HandoffTarget::ByName(_) => None,
            }));
        }
        Ok(Self { agents })
    }

    /// Checks that the models support the tools that are not functions, including those of nested agents.
    /// `model` is the model of the run, which overrides those of the agents.
    pub(crate) fn check_models(&self, model: Option<&SharedModel>) -> Result<(), ConfigError> {
        for agent in &self.agents {
            for tool in &agent.inner.tools {
                if let ToolBody::Agent(AgentTool { target: HandoffTarget::Agent(inner), .. }) = &tool.body {
                    Self::new(inner, &[])?.check_models(model)?;
                }
            }
            let Some(model) = model.or(agent.inner.model.as_ref()) else { continue };
            for tool in agent.inner.tools.iter().filter(|tool| !tool.is_function()) {
                model.check_tool_support(&tool.to_definition()?).map_err(|why| {
                    ConfigError::UnsupportedTool {
                        agent: agent.name().clone(),
                        tool: tool.name().to_owned(),
                        reason: why,
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Checks that the run has the scopes in which the tools share their receipts, including those of nested agents.
    pub(crate) fn check_receipt_scopes(&self, scopes: &KeyScopes) -> Result<(), ConfigError> {
        for agent in &self.agents {
            for tool in &agent.inner.tools {
                scopes.check_tool(agent.name(), tool)?;
                if let ToolBody::Agent(AgentTool { target: HandoffTarget::Agent(inner), .. }) = &tool.body {
                    Self::new(inner, &[])?.check_receipt_scopes(scopes)?;
                }
            }
        }
        Ok(())
    }

    /// Returns true if an agent of this name, which may be nested, has tools from tool sources.
    pub(crate) fn has_sourced_tools(&self, name: &AgentName) -> bool {
        self.agents.iter().any(|agent| {
            let is_sourced = agent.name() == name && !agent.inner.sources.is_empty();
            is_sourced
                || agent.inner.tools.iter().any(|tool| match &tool.body {
                    ToolBody::Agent(AgentTool { target: HandoffTarget::Agent(inner), .. }) => {
                        Self::new(inner, &[]).is_ok_and(|nested| nested.has_sourced_tools(name))
                    }
                    _ => false,
                })
        })
    }

    /// Returns the agent that a handoff or an agent as a tool refers to.
    pub(crate) fn target_agent<'a>(
        &'a self,
        target: &'a HandoffTarget<C>,
    ) -> Result<&'a Agent<C>, ConfigError> {
        match target {
            HandoffTarget::Agent(agent) => Ok(agent),
            HandoffTarget::ByName(name) => self.find_agent(name),
        }
    }

    /// Returns the agent with this name.
    pub(crate) fn find_agent(&self, name: &AgentName) -> Result<&Agent<C>, ConfigError> {
        let place = self.agents.binary_search_by(|agent| agent.name().cmp(name));
        place.map(|place| &self.agents[place]).map_err(|_| ConfigError::UnknownAgent { agent: name.clone() })
    }
}

/// The calls of a run that are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckedCalls {
    /// Those that a driver goes on with now.
    Movable,
    /// Also those that wait for a person.
    Open,
}

/// Checks that a nested agent can resume, before any call runs in it or beside it.
pub(crate) fn check_nested_run<C: Send + Sync + 'static>(
    run: &Run,
    root: &Agent<C>,
    known: &[Agent<C>],
    path: &CallPath,
) -> Result<(), ConfigError> {
    let within: Vec<CallId> = path.parent_calls().iter().chain([path.call()]).cloned().collect();
    check_calls(run, root, known, &within, CheckedCalls::Movable)
}

/// Checks that an agent can finish a run from where it is: it reaches the run's agent and has the tools of the open calls,
/// also of those that wait for a person, and their arguments fit.
pub(crate) fn check_open_run<C: Send + Sync + 'static>(
    run: &Run,
    root: &Agent<C>,
    known: &[Agent<C>],
) -> Result<(), ConfigError> {
    AgentGraph::new(root, known)?.find_agent(run.agent())?;
    check_calls(run, root, known, &[], CheckedCalls::Open)
}

fn check_calls<C: Send + Sync + 'static>(
    run: &Run,
    root: &Agent<C>,
    known: &[Agent<C>],
    within: &[CallId],
    checked: CheckedCalls,
) -> Result<(), ConfigError> {
    let pending: BTreeSet<CallId> = match checked {
        CheckedCalls::Movable if !matches!(run.next(), RunAction::AdvanceCalls) => return Ok(()),
        CheckedCalls::Movable => BTreeSet::new(),
        CheckedCalls::Open => {
            let outermost = |path: &CallPath| path.parent_calls().first().unwrap_or(path.call()).clone();
            run.pending_calls().iter().map(|call| outermost(&call.path)).collect()
        }
    };
    let graph = AgentGraph::new(root, known)?;
    let agent = graph.find_agent(run.agent())?;
    for (call, is_idle) in run.turn_calls() {
        let is_settled = is_idle && !pending.contains(&call);
        if is_settled || !matches!(run.tool_need(&call), ToolNeed::Required { .. }) {
            continue;
        }
        let path = CallPath::new(within, call.clone());
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
            let within: Vec<CallId> = within.iter().chain([&call]).cloned().collect();
            check_calls(child, graph.target_agent(&nested.target)?, known, &within, checked)?;
        }
    }
    Ok(())
}
