//! The agents that a run can reach, by name. Journals refer to agents by name, so names must be unique.

use std::collections::VecDeque;
use std::sync::Arc;

use windlass_core::id::AgentName;

use super::{Agent, AgentTool, HandoffTarget};
use crate::error::ConfigError;
use crate::model::SharedModel;
use crate::receipts::KeyScopes;
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

    /// Returns the agent with this name.
    pub(crate) fn find_agent(&self, name: &AgentName) -> Result<&Agent<C>, ConfigError> {
        let place = self.agents.binary_search_by(|agent| agent.name().cmp(name));
        place.map(|place| &self.agents[place]).map_err(|_| ConfigError::UnknownAgent { agent: name.clone() })
    }
}
