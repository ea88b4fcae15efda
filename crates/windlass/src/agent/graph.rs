//! The agents that a run can reach, by name. Saved runs speak of agents by name, so names must be unique.

use std::collections::VecDeque;
use std::sync::Arc;

use windlass_core::AgentName;

use super::{Agent, AgentTool, Target};
use crate::error::ConfigError;
use crate::model::SharedModel;
use crate::tool::ToolBody;

pub(crate) struct Graph<C> {
    /// Sorted by their names.
    agents: Vec<Agent<C>>,
}

impl<C: Send + Sync + 'static> Graph<C> {
    /// Everything that can be reached from `root`, and `known` besides.
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
            queue.extend(agent.inner.handoffs.iter().filter_map(|handoff| match &handoff.target {
                Target::Agent(agent) => Some(agent.clone()),
                Target::Named(_) => None,
            }));
        }
        Ok(Self { agents })
    }

    /// Whether the models can be offered the tools that are no functions, nested agents' included. `model` is the
    /// run's own, where it has one.
    pub(crate) fn check_models(&self, model: Option<&SharedModel>) -> Result<(), ConfigError> {
        for agent in &self.agents {
            for tool in &agent.inner.tools {
                if let ToolBody::Agent(AgentTool { target: Target::Agent(inner), .. }) = &tool.body {
                    Self::new(inner, &[])?.check_models(model)?;
                }
            }
            let Some(model) = model.or(agent.inner.model.as_ref()) else { continue };
            for tool in agent.inner.tools.iter().filter(|tool| !tool.is_function()) {
                model.supports(&tool.offer()?).map_err(|why| ConfigError::NotSupported {
                    agent: agent.name().clone(),
                    tool: tool.name().to_owned(),
                    why,
                })?;
            }
        }
        Ok(())
    }

    pub(crate) fn agent(&self, name: &AgentName) -> Result<&Agent<C>, ConfigError> {
        let place = self.agents.binary_search_by(|agent| agent.name().cmp(name));
        place.map(|place| &self.agents[place]).map_err(|_| ConfigError::UnknownAgent { agent: name.clone() })
    }
}
