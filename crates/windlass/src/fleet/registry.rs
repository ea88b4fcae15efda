//! The agents of a worker, by name and build.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_core::id::{AgentName, RunId};
use windlass_core::journal::AgentBuild;

use super::queue::{AgentOffer, RunSubmission};
use crate::agent::Agent;
use crate::error::ConfigError;
use crate::run::RunBuilder;

/// Configures the run of a submission, new or continued.
type RunConfigurator<C> = Arc<dyn Fn(RunBuilder<C>, &RunSubmission) -> RunBuilder<C> + Send + Sync>;
/// Creates the application's context for a run.
type ContextFactory<C> = Arc<dyn Fn(&RunSubmission) -> Arc<C> + Send + Sync>;

/// An agent that a worker drives, in one build.
pub struct DeployedAgent<C = ()> {
    pub(super) agent: Agent<C>,
    pub(super) build: AgentBuild,
    pub(super) releases: Option<BTreeSet<String>>,
    pub(super) known_agents: Vec<Agent<C>>,
    pub(super) context: ContextFactory<C>,
    pub(super) configure: RunConfigurator<C>,
}

impl<C> Clone for DeployedAgent<C> {
    fn clone(&self) -> Self {
        Self {
            agent: self.agent.clone(),
            build: self.build.clone(),
            releases: self.releases.clone(),
            known_agents: self.known_agents.clone(),
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
        let build = agent.compute_build();
        Self {
            agent,
            build,
            releases: None,
            known_agents: Vec::new(),
            context: Arc::new(context),
            configure: Arc::new(|run, _| run),
        }
    }

    /// Returns the agent.
    pub fn agent(&self) -> &Agent<C> {
        &self.agent
    }

    /// Sets the name of the release that the agent is part of. The runs that it begins record it.
    #[must_use]
    pub fn release(mut self, name: impl Into<String>) -> Self {
        self.build = self.build.with_release(Some(name.into()));
        self
    }

    /// Restricts the runs that the worker continues to those that this build or one of these releases has begun. The
    /// default is to try every run of the agent, and to decline those that lack a tool or an agent here.
    #[must_use]
    pub fn only_releases(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.releases = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Adds agents that the runs know by name, besides those that are reachable through handoffs.
    #[must_use]
    pub fn known_agents(mut self, agents: impl IntoIterator<Item = Agent<C>>) -> Self {
        self.known_agents.extend(agents);
        self
    }

    /// Returns the build of the agent.
    pub fn build(&self) -> &AgentBuild {
        &self.build
    }

    /// Checks that the worker continues runs that a build has begun.
    pub(super) fn check_release(
        &self,
        run: &RunId,
        begun_by: Option<&AgentBuild>,
    ) -> Result<(), ConfigError> {
        let (Some(releases), Some(begun_by)) = (&self.releases, begun_by) else { return Ok(()) };
        let is_listed = begun_by.release.as_ref().is_some_and(|release| releases.contains(release));
        if is_listed || *begun_by == self.build {
            return Ok(());
        }
        Err(ConfigError::OtherRelease { run: run.clone(), begun_by: begun_by.clone() })
    }

    /// Sets a function that configures every run of the agent: limits, guardrails, hooks, retries.
    #[must_use]
    pub fn configure_runs(
        mut self,
        configure: impl Fn(RunBuilder<C>) -> RunBuilder<C> + Send + Sync + 'static,
    ) -> Self {
        self.configure = Arc::new(move |run, _| configure(run));
        self
    }

    /// Sets a function that configures every run of the agent by its submission, in place of an earlier function.
    #[must_use]
    pub fn configure_submissions(
        mut self,
        configure: impl Fn(RunBuilder<C>, &RunSubmission) -> RunBuilder<C> + Send + Sync + 'static,
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

    /// Returns the agents, by name.
    pub fn deployed_agents(&self) -> impl Iterator<Item = &DeployedAgent<C>> {
        self.agents.values()
    }

    /// Returns the agents and builds that a worker with this registry can drive.
    pub fn offers(&self) -> Vec<AgentOffer> {
        self.agents
            .iter()
            .map(|(name, deployed)| AgentOffer { agent: name.clone(), build: deployed.build.to_string() })
            .collect()
    }
}

impl From<Agent> for AgentRegistry {
    fn from(agent: Agent) -> Self {
        Self::new().deploy(DeployedAgent::new(agent))
    }
}

impl<const N: usize> From<[Agent; N]> for AgentRegistry {
    fn from(agents: [Agent; N]) -> Self {
        agents.into_iter().collect()
    }
}

impl FromIterator<Agent> for AgentRegistry {
    fn from_iter<I: IntoIterator<Item = Agent>>(agents: I) -> Self {
        agents.into_iter().fold(Self::new(), |registry, agent| registry.deploy(DeployedAgent::new(agent)))
    }
}
