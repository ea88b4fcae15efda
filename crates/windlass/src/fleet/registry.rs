//! The agents of a worker, by name and build.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_core::id::AgentName;

use super::agent_build::AgentBuild;
use super::queue::{AgentOffer, RunSubmission};
use crate::agent::Agent;
use crate::run::RunBuilder;

/// Configures the run of a submission, new or continued.
type RunConfigurator<C> = Arc<dyn Fn(RunBuilder<C>) -> RunBuilder<C> + Send + Sync>;
/// Creates the application's context for a run.
type ContextFactory<C> = Arc<dyn Fn(&RunSubmission) -> Arc<C> + Send + Sync>;

/// An agent that a worker drives, in one build.
pub struct DeployedAgent<C = ()> {
    pub(super) agent: Agent<C>,
    pub(super) build: AgentBuild,
    pub(super) context: ContextFactory<C>,
    pub(super) configure: RunConfigurator<C>,
}

impl<C> Clone for DeployedAgent<C> {
    fn clone(&self) -> Self {
        Self {
            agent: self.agent.clone(),
            build: self.build.clone(),
            context: self.context.clone(),
            configure: self.configure.clone(),
        }
    }
}

impl DeployedAgent {
    /// Deploys an agent that needs no context.
    pub fn new(agent: Agent) -> Self {
        Self::with_context(agent, |_| Arc::new(()))
    }
}

impl<C: Send + Sync + 'static> DeployedAgent<C> {
    /// Deploys an agent with a function that creates the application's context for each run.
    pub fn with_context(
        agent: Agent<C>,
        context: impl Fn(&RunSubmission) -> Arc<C> + Send + Sync + 'static,
    ) -> Self {
        let build = AgentBuild::of_agent(&agent);
        Self { agent, build, context: Arc::new(context), configure: Arc::new(|run| run) }
    }

    /// Sets the build, in place of the computed one.
    #[must_use]
    pub fn build(mut self, build: AgentBuild) -> Self {
        self.build = build;
        self
    }

    /// Sets a function that configures every run of the agent: limits, guardrails, hooks, retries.
    #[must_use]
    pub fn configure_runs(
        mut self,
        configure: impl Fn(RunBuilder<C>) -> RunBuilder<C> + Send + Sync + 'static,
    ) -> Self {
        self.configure = Arc::new(configure);
        self
    }
}

/// The agents of a worker, by name.
pub struct AgentRegistry<C = ()> {
    agents: BTreeMap<AgentName, DeployedAgent<C>>,
}

impl<C> Default for AgentRegistry<C> {
    fn default() -> Self {
        Self { agents: BTreeMap::new() }
    }
}

impl<C: Send + Sync + 'static> AgentRegistry<C> {
    /// Creates a registry without agents.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an agent, in place of an earlier one of the same name.
    #[must_use]
    pub fn deploy(mut self, deployed: DeployedAgent<C>) -> Self {
        self.agents.insert(deployed.agent.name().clone(), deployed);
        self
    }

    /// Returns the agent of this name.
    pub fn find_agent(&self, name: &AgentName) -> Option<&DeployedAgent<C>> {
        self.agents.get(name)
    }

    /// Returns the agents and builds that a worker with this registry can drive.
    pub fn offers(&self) -> Vec<AgentOffer> {
        self.agents
            .iter()
            .map(|(name, deployed)| AgentOffer {
                agent: name.clone(),
                build: deployed.build.as_str().to_owned(),
            })
            .collect()
    }
}
