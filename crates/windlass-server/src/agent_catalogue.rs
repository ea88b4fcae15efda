//! The agents of a server without their context types: names, builds and tools, for the API and the pages.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use windlass::core::id::AgentName;
use windlass::core::tool::{ToolEffect, ToolKey};
use windlass::fleet::{AgentRegistry, QueuedRun, QueuedState};

/// An agent of the server.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct AgentSummary {
    /// Name of the agent.
    pub(crate) name: String,
    /// Build of the agent.
    pub(crate) build: String,
    /// Tools of the agent and of the agents that it reaches. Those of tool sources are only known at run time.
    pub(crate) tools: Vec<ToolSummary>,
}

/// A tool of an agent.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ToolSummary {
    /// Agent that has the tool.
    pub(crate) agent: String,
    /// Name of the tool.
    pub(crate) name: String,
    /// Description for the model.
    pub(crate) description: String,
    /// Effect of a call: `pure`, `idempotent` or `once`.
    #[schemars(extend("enum" = ["pure", "idempotent", "once"]))]
    pub(crate) effect: String,
    /// JSON Schema of the arguments.
    pub(crate) arguments_schema: Value,
}

/// The agents of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentCatalogue {
    agents: BTreeMap<AgentName, AgentSummary>,
    schemas: BTreeMap<(AgentName, String), Value>,
    /// Tools whose calls no standing approval covers.
    tools_without_standing_approvals: BTreeSet<(AgentName, String)>,
}

impl AgentCatalogue {
    /// Reads the agents of a registry.
    pub(crate) fn of_registry<C: Send + Sync + 'static>(registry: &AgentRegistry<C>) -> Self {
        let mut catalogue = Self::default();
        for deployed in registry.deployed_agents() {
            let mut tools = Vec::new();
            for agent in deployed.agent().reachable_agents() {
                for tool in agent.tool_list() {
                    let schema = tool.arguments_schema().clone();
                    let key = (agent.name().clone(), tool.key().to_string());
                    if !tool.has_standing_approvals() {
                        catalogue.tools_without_standing_approvals.insert(key.clone());
                    }
                    catalogue.schemas.insert(key, schema.clone());
                    tools.push(ToolSummary {
                        agent: agent.name().as_str().to_owned(),
                        name: tool.name().to_owned(),
                        description: tool.description().to_owned(),
                        effect: effect_name(tool.declared_effect()).to_owned(),
                        arguments_schema: schema,
                    });
                }
            }
            let name = deployed.agent().name().clone();
            let build = deployed.build().to_string();
            let summary = AgentSummary { name: name.as_str().to_owned(), build, tools };
            catalogue.agents.insert(name, summary);
        }
        catalogue
    }

    /// Returns the agents, by name.
    pub(crate) fn agents(&self) -> impl Iterator<Item = (&AgentName, &AgentSummary)> {
        self.agents.iter()
    }

    /// Returns the reason for which no worker takes a queued run, as far as the server knows: it is a dead letter, or
    /// the build of its agent here has declined it.
    pub(crate) fn find_obstacle(&self, queued: &QueuedRun) -> Option<String> {
        match &queued.state {
            QueuedState::DeadLetter => {
                let reason = queued.reason.as_deref().unwrap_or("its attempts are used up");
                Some(format!("the run is a dead letter: {reason}"))
            }
            QueuedState::Ready => {
                let own = &self.agents.get(&queued.submission.agent)?.build;
                let (build, reason) = queued.declined_by.iter().find(|(build, _)| build == own)?;
                let build = build.get(..12).unwrap_or(build);
                Some(format!("no worker takes the run: build {build} of its agent has declined it: {reason}"))
            }
            _ => None,
        }
    }

    /// Returns true if the server drives this agent.
    pub(crate) fn has_agent(&self, name: &AgentName) -> bool {
        self.agents.contains_key(name)
    }

    /// Returns the schema of a tool's arguments, if it is known.
    pub(crate) fn arguments_schema(&self, agent: &AgentName, tool: &ToolKey) -> Option<&Value> {
        self.schemas.get(&(agent.clone(), tool.to_string()))
    }

    /// Returns true unless a standing approval covers no call of the tool.
    pub(crate) fn has_standing_approvals(&self, agent: &AgentName, tool: &ToolKey) -> bool {
        !self.tools_without_standing_approvals.contains(&(agent.clone(), tool.to_string()))
    }
}

/// Returns the name of an effect.
pub(crate) fn effect_name(effect: ToolEffect) -> &'static str {
    match effect {
        ToolEffect::Pure => "pure",
        ToolEffect::Idempotent => "idempotent",
        ToolEffect::Once => "once",
    }
}
