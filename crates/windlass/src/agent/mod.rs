//! Agents: instructions, a model, tools and handoffs.

mod as_tool;
mod build;
mod deferred;
mod graph;
mod handoff;
mod output;
mod resolved;
mod toolset;

pub use as_tool::NestedAgentResult;
pub use deferred::{DeferredSource, SEARCH_TOOL};
pub use handoff::{Handoff, HandoffInput};
pub use output::OutputType;
pub use resolved::{CallRedaction, GuardrailResult, ResolvedAgent, SharedConversation};

pub(crate) use as_tool::AgentTool;
pub(crate) use deferred::LoadedTools;
pub(crate) use graph::{AgentGraph, check_nested_run, check_open_run};
pub(crate) use handoff::HandoffTarget;
pub(crate) use toolset::{ResolvedToolset, ToolsetEntry};

use toolset::SourcedToolset;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use windlass_core::journal::AgentBuild;
use windlass_core::{
    budget::SpendingBudget,
    id::{AgentName, RunId},
    journal::ToolUsePolicyKind,
    run::SettledCall,
    tool::ToolKey,
};

use crate::error::ConfigError;
use crate::guardrail::{InputGuardrail, OutputGuardrail};
use crate::hook::Hook;
use crate::model::{ModelSettings, SharedModel};
use crate::redaction::OutputVisibility;
use crate::run::{IntoInput, PausedRun, RunBuilder};
use crate::store::Store;
use crate::tool::{
    IntoTool, IntoTools, RunContext, SourcedTools, Tool, ToolBody, ToolSource, ToolSourceRequest,
};

/// Default number of times that the model is asked to correct a final output.
const DEFAULT_OUTPUT_CORRECTIONS: u32 = 2;

/// An agent: instructions, a model, tools and handoffs. Runs never change it, and clones are cheap and share
/// the same agent.
///
/// `C` is the application's own context. Tools, rules and hooks can access it; the model never sees it.
pub struct Agent<C = ()> {
    pub(crate) inner: Arc<AgentInner<C>>,
}

pub(crate) struct AgentInner<C> {
    pub(crate) name: AgentName,
    pub(crate) instructions: InstructionSource<C>,
    pub(crate) handoff_description: Arc<str>,
    pub(crate) model: Option<SharedModel>,
    pub(crate) model_settings: ModelSettings,
    pub(crate) tools: Vec<Arc<Tool<C>>>,
    pub(crate) sources: Vec<Arc<dyn ToolSource<C>>>,
    pub(crate) handoffs: Vec<Handoff<C>>,
    pub(crate) input_guardrails: Vec<InputGuardrail<C>>,
    pub(crate) output_guardrails: Vec<OutputGuardrail<C>>,
    pub(crate) hooks: Vec<Hook<C>>,
    pub(crate) tool_use_policy: ToolUsePolicy<C>,
    pub(crate) tool_choice_reset: ToolChoiceReset,
    pub(crate) max_concurrent_calls: Option<usize>,
    pub(crate) output_type: Option<OutputType>,
    pub(crate) max_output_corrections: u32,
    pub(crate) budget: Option<SpendingBudget>,
    /// The first problem of the agent's tools, handoffs and output type.
    pub(crate) config_error: Option<ConfigError>,
    static_toolset: OnceLock<Result<Arc<ResolvedToolset<C>>, ConfigError>>,
    sourced_toolsets: Mutex<VecDeque<SourcedToolset<C>>>,
    build: OnceLock<AgentBuild>,
}

/// The source of an agent's instructions.
pub(crate) enum InstructionSource<C> {
    None,
    Text(Arc<str>),
    Dynamic(Arc<dyn Fn(RunContext<C>) -> BoxFuture<'static, String> + Send + Sync>),
}

/// The policy that decides if the results of a turn's tool calls end the run.
pub enum ToolUsePolicy<C = ()> {
    /// The model receives the results and continues.
    RunModelAgain,
    /// The output of the first tool call becomes the final output.
    StopOnFirstTool,
    /// The output of the first call of one of these tools becomes the final output.
    StopAtTools(Vec<String>),
    /// The function returns the final output, or `None` to continue with the model.
    CustomFunction(FinalOutputFunction<C>),
}

impl<C> ToolUsePolicy<C> {
    /// Returns the policy as it is recorded with a response.
    pub(crate) fn kind(&self) -> ToolUsePolicyKind {
        match self {
            Self::RunModelAgain => ToolUsePolicyKind::RunModelAgain,
            Self::StopOnFirstTool => ToolUsePolicyKind::StopOnFirstTool,
            Self::StopAtTools(names) => ToolUsePolicyKind::StopAtTools(names.clone()),
            Self::CustomFunction(_) => ToolUsePolicyKind::CustomFunction,
        }
    }
}

/// A function that decides if the results of a turn are final: it returns the final output, or `None` to
/// continue.
pub type FinalOutputFunction<C> =
    Arc<dyn Fn(RunContext<C>, Vec<SettledCall>) -> BoxFuture<'static, Option<String>> + Send + Sync>;

/// The time at which a forced tool choice is reset to automatic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoiceReset {
    /// The choice is reset for the rest of the run once the agent has used a tool, so that it cannot force an
    /// endless loop.
    #[default]
    AfterToolUse,
    /// The choice stays forced.
    Never,
}

impl<C: Send + Sync + 'static> Agent<C> {
    /// Creates an agent. The name must be unique among the agents that a run can reach.
    pub fn new(name: impl Into<AgentName>) -> Self {
        Self {
            inner: Arc::new(AgentInner {
                name: name.into(),
                instructions: InstructionSource::None,
                handoff_description: "".into(),
                model: None,
                model_settings: ModelSettings::default(),
                tools: Vec::new(),
                sources: Vec::new(),
                handoffs: Vec::new(),
                input_guardrails: Vec::new(),
                output_guardrails: Vec::new(),
                hooks: Vec::new(),
                tool_use_policy: ToolUsePolicy::RunModelAgain,
                tool_choice_reset: ToolChoiceReset::AfterToolUse,
                max_concurrent_calls: None,
                output_type: None,
                max_output_corrections: DEFAULT_OUTPUT_CORRECTIONS,
                budget: None,
                config_error: None,
                static_toolset: OnceLock::new(),
                sourced_toolsets: Mutex::default(),
                build: OnceLock::new(),
            }),
        }
    }

    /// Returns the build of the agent, which the journals of its runs record.
    ///
    /// The digest covers the agent and every agent that it can reach: their names, the definitions of their tools without
    /// descriptions, their handoffs and their output types. Reworded instructions or descriptions make no new build. The
    /// tools of tool sources are not covered, because they are only known at run time.
    pub fn compute_build(&self) -> AgentBuild {
        self.inner.build.get_or_init(|| AgentBuild::new(build::agent_digest(self))).clone()
    }

    /// Applies a change to a copy of the agent and drops what was computed of it.
    fn modify(self, edit: impl FnOnce(&mut AgentInner<C>)) -> Self {
        let mut inner = Arc::try_unwrap(self.inner).unwrap_or_else(|shared| shared.clone_without_caches());
        inner.static_toolset = OnceLock::new();
        inner.sourced_toolsets = Mutex::default();
        inner.build = OnceLock::new();
        edit(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// Sets the instructions.
    #[must_use]
    pub fn instructions(self, text: impl Into<Arc<str>>) -> Self {
        self.modify(|agent| agent.instructions = InstructionSource::Text(text.into()))
    }

    /// Sets a function that computes the instructions before every turn.
    #[must_use]
    pub fn dynamic_instructions<Fut>(
        self,
        text: impl Fn(RunContext<C>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = String> + Send + 'static,
    {
        let text: Arc<dyn Fn(RunContext<C>) -> BoxFuture<'static, String> + Send + Sync> =
            Arc::new(move |ctx| text(ctx).boxed());
        self.modify(|agent| agent.instructions = InstructionSource::Dynamic(text))
    }

    /// Sets the description of this agent that other agents' models see in their handoff tools.
    #[must_use]
    pub fn handoff_description(self, text: impl Into<Arc<str>>) -> Self {
        self.modify(|agent| agent.handoff_description = text.into())
    }

    /// Sets the model.
    #[must_use]
    pub fn model(self, model: impl Into<SharedModel>) -> Self {
        self.modify(|agent| agent.model = Some(model.into()))
    }

    /// Sets the model settings.
    #[must_use]
    pub fn model_settings(self, settings: ModelSettings) -> Self {
        self.modify(|agent| agent.model_settings = settings)
    }

    /// Adds tools.
    #[must_use]
    pub fn tools(self, tools: impl IntoTools<C>) -> Self {
        self.modify(|agent| tools.into_tools().into_iter().for_each(|tool| agent.add_tool(tool)))
    }

    /// Adds one tool.
    #[must_use]
    pub fn tool(self, tool: impl IntoTool<C>) -> Self {
        self.modify(|agent| agent.add_tool(tool.into_tool()))
    }

    /// Adds a source of tools. The source is queried before every turn.
    #[must_use]
    pub fn tool_source(self, source: impl ToolSource<C>) -> Self {
        self.modify(|agent| agent.sources.push(Arc::new(source)))
    }

    /// Adds a handoff to another agent.
    #[must_use]
    pub fn handoff(self, to: impl Into<Handoff<C>>) -> Self {
        self.modify(|agent| {
            let handoff = to.into();
            agent.note_error(handoff.offered_parameters().err());
            agent.handoffs.push(handoff);
        })
    }

    /// Adds a guardrail for the input of runs that start with this agent.
    #[must_use]
    pub fn input_guardrail(self, guardrail: InputGuardrail<C>) -> Self {
        self.modify(|agent| agent.input_guardrails.push(guardrail))
    }

    /// Adds a guardrail for the final output of runs that end with this agent.
    #[must_use]
    pub fn output_guardrail(self, guardrail: OutputGuardrail<C>) -> Self {
        self.modify(|agent| agent.output_guardrails.push(guardrail))
    }

    /// Adds a hook for the lifecycle events of this agent, in every run.
    #[must_use]
    pub fn hook(self, hook: Hook<C>) -> Self {
        self.modify(|agent| agent.hooks.push(hook))
    }

    /// Sets the policy that decides if the results of a turn's tool calls end the run.
    #[must_use]
    pub fn tool_use_policy(self, tool_use: ToolUsePolicy<C>) -> Self {
        self.modify(|agent| agent.tool_use_policy = tool_use)
    }

    /// Sets the maximum number of the agent's calls that run concurrently. A limit of the run applies too.
    #[must_use]
    pub fn max_concurrent_calls(self, limit: usize) -> Self {
        self.modify(|agent| agent.max_concurrent_calls = Some(limit.max(1)))
    }

    /// Runs the agent's calls one after another, in the model's order.
    #[must_use]
    pub fn sequential_calls(self) -> Self {
        self.max_concurrent_calls(1)
    }

    /// Sets the time at which a forced tool choice is reset.
    #[must_use]
    pub fn tool_choice_reset(self, forced_choice: ToolChoiceReset) -> Self {
        self.modify(|agent| agent.tool_choice_reset = forced_choice)
    }

    /// Sets the type of the final output. The model receives the type's JSON Schema. If its output does not match, it is
    /// told why and asked again ([`Agent::max_output_corrections`]); then the run fails.
    #[must_use]
    pub fn output_type<T: DeserializeOwned + JsonSchema>(self) -> Self {
        self.modify(|agent| {
            let output = OutputType::of::<T>();
            let agent_name = agent.name.clone();
            let error = output.schema.as_ref().err().cloned();
            agent
                .note_error(error.map(|why| ConfigError::OutputNotStrict { agent: agent_name, reason: why }));
            agent.output_type = Some(output);
        })
    }

    /// Sets how often in a run the model is asked to correct a final output that does not match its type. The default
    /// is 2; with 0 the run fails at once. Each correction is a turn.
    #[must_use]
    pub fn max_output_corrections(self, times: u32) -> Self {
        self.modify(|agent| agent.max_output_corrections = times)
    }

    /// Sets the budget of the agent in a run: for its own model requests, wherever in the run it makes them, and for those
    /// of the agents that it calls.
    #[must_use]
    pub fn budget(self, budget: SpendingBudget) -> Self {
        self.modify(|agent| agent.budget = Some(budget).filter(|budget| !budget.is_unlimited()))
    }

    /// Returns the budget of the agent.
    pub fn spending_budget(&self) -> Option<&SpendingBudget> {
        self.inner.budget.as_ref()
    }

    /// Checks the agent and the agents that it reaches: the schemas of tools, handoffs and outputs, names of agents, and
    /// tools that a model does not support. A run checks the same before anything is recorded; a test or the start of a
    /// program can check it earlier.
    ///
    /// # Errors
    ///
    /// Returns the first problem, with the tool and the place in its schema.
    pub fn check(&self) -> Result<(), ConfigError> {
        AgentGraph::new(self, &[])?.check_models(None)
    }

    /// Returns the agent's name.
    pub fn name(&self) -> &AgentName {
        &self.inner.name
    }

    /// Returns the agent's own tools, without those of its sources.
    pub fn tool_list(&self) -> impl Iterator<Item = &Tool<C>> {
        self.inner.tools.iter().map(|tool| &**tool)
    }

    /// Returns the tool that a key names, enabled or not.
    pub(crate) fn find_listed_tool(&self, key: &ToolKey) -> Option<Arc<Tool<C>>> {
        self.inner.tools.iter().find(|tool| tool.matches_key(key)).cloned()
    }

    /// Returns this agent and those that it reaches through handoffs and agents as tools, each once.
    pub fn reachable_agents(&self) -> Vec<Self> {
        let mut found = vec![self.clone()];
        let mut place = 0;
        while let Some(agent) = found.get(place).cloned() {
            place += 1;
            let handoffs = agent.inner.handoffs.iter().map(|handoff| &handoff.target);
            let tools = agent.inner.tools.iter().filter_map(|tool| match &tool.body {
                ToolBody::Agent(nested) => Some(&nested.target),
                _ => None,
            });
            for target in handoffs.chain(tools) {
                if let HandoffTarget::Agent(target) = target
                    && !found.iter().any(|known| Arc::ptr_eq(&known.inner, &target.inner))
                {
                    found.push(target.clone());
                }
            }
        }
        found
    }

    /// True if the journal may redact or the output guardrails may block text that the model has written: text of this
    /// agent alone.
    pub(crate) fn may_withhold_text(&self) -> bool {
        let is_secret = |tool: &Arc<Tool<C>>| {
            !tool.secret_arguments.is_empty() || tool.output_visibility == OutputVisibility::Secret
        };
        self.has_output_guardrails()
            || self.inner.tools.iter().any(is_secret)
            || self.inner.sources.iter().any(|source| source.may_have_secrets())
    }

    /// Builds a run with the application's context.
    pub fn run_with_context(&self, input: impl IntoInput, context: impl Into<Arc<C>>) -> RunBuilder<C> {
        RunBuilder::from_input(self.clone(), input.into_input(), context.into())
    }

    /// Builds the continuation of a paused run, with the application's context.
    pub fn resume_with_context(&self, paused: PausedRun, context: impl Into<Arc<C>>) -> RunBuilder<C> {
        RunBuilder::from_paused(self.clone(), paused, context.into())
    }

    /// Builds the continuation of a stored run from its last record, with the application's context. The run
    /// may be paused, or its driver may have crashed.
    pub fn recover_with_context(
        &self,
        run: impl Into<RunId>,
        store: Arc<dyn Store>,
        context: impl Into<Arc<C>>,
    ) -> RunBuilder<C> {
        RunBuilder::from_store(self.clone(), run.into(), store, context.into())
    }

    /// Returns the cached toolset, if it does not depend on the run and was resolved before.
    pub(crate) fn cached_toolset(&self) -> Option<Result<Arc<ResolvedToolset<C>>, ConfigError>> {
        let known = self.inner.static_toolset.get().filter(|_| self.inner.sources.is_empty())?;
        self.has_static_toolset().then(|| known.clone())
    }

    /// True if no tool or handoff is enabled by a rule.
    fn has_static_toolset(&self) -> bool {
        self.inner.tools.iter().all(|tool| tool.enabled.static_value().is_some())
            && self.inner.handoffs.iter().all(|handoff| handoff.is_static())
    }

    /// True if guardrails check the agent's final output.
    pub(crate) fn has_output_guardrails(&self) -> bool {
        !self.inner.output_guardrails.is_empty()
    }

    /// Resolves the tools for a turn. A toolset that does not depend on the run is resolved once and cached.
    pub(crate) async fn resolve_toolset(
        &self,
        ctx: &RunContext<C>,
        graph: &AgentGraph<C>,
    ) -> Result<Arc<ResolvedToolset<C>>, ConfigError> {
        let is_fixed = self.has_static_toolset();
        let own = match self.inner.static_toolset.get() {
            Some(known) if is_fixed => known.clone()?,
            _ => {
                let resolved = ResolvedToolset::resolve(self, ctx, graph).await.map(Arc::new);
                if is_fixed { self.inner.static_toolset.get_or_init(|| resolved).clone()? } else { resolved? }
            }
        };
        if self.inner.sources.is_empty() { Ok(own) } else { self.resolve_sourced_toolset(own, ctx).await }
    }

    /// Combines the agent's own tools with those of its sources. The combination is cached and rebuilt only if
    /// a source returns a different list.
    async fn resolve_sourced_toolset(
        &self,
        own: Arc<ResolvedToolset<C>>,
        ctx: &RunContext<C>,
    ) -> Result<Arc<ResolvedToolset<C>>, ConfigError> {
        let mut taken = Cow::Borrowed(own.taken_names());
        let mut given: Vec<SourcedTools<C>> = Vec::with_capacity(self.inner.sources.len());
        for source in &self.inner.sources {
            if let Some(before) = given.last() {
                taken.to_mut().extend(before.tools.iter().map(|tool| tool.name().into()));
            }
            let asked = ToolSourceRequest { ctx, taken_names: &taken };
            let tools = source.list_tools(asked).await;
            let agent = || self.name().clone();
            given.push(tools.map_err(|why| ConfigError::ToolSourceFailed { agent: agent(), reason: why })?);
        }
        // A tool that a source can switch off is asked about in every turn.
        let is_fixed = |tool: &Arc<Tool<C>>| tool.enabled.static_value().is_some();
        if !given.iter().all(|source| source.tools.iter().all(is_fixed)) {
            return Ok(Arc::new(own.with_sourced_tools(self, ctx, &given).await?));
        }
        let known = || self.inner.sourced_toolsets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known().iter().find(|sourced| sourced.is_built_from(&own, &given)) {
            return Ok(same.toolset.clone());
        }
        let toolset = Arc::new(own.with_sourced_tools(self, ctx, &given).await?);
        let mut known = known();
        if known.len() == SourcedToolset::<C>::MAX_CACHED {
            known.pop_front();
        }
        known.push_back(SourcedToolset { own_tools: own, source_lists: given, toolset: toolset.clone() });
        Ok(toolset)
    }
}

impl Agent {
    /// Builds a run. Await it for its result, or stream it.
    pub fn run(&self, input: impl IntoInput) -> RunBuilder {
        self.run_with_context(input, ())
    }

    /// Builds the continuation of a paused run.
    pub fn resume(&self, paused: PausedRun) -> RunBuilder {
        self.resume_with_context(paused, ())
    }

    /// Builds the continuation of a stored run from its last record. The run may be paused, or its driver may
    /// have crashed.
    pub fn recover(&self, run: impl Into<RunId>, store: Arc<dyn Store>) -> RunBuilder {
        self.recover_with_context(run, store, ())
    }
}

impl<C: Send + Sync + 'static> AgentInner<C> {
    fn add_tool(&mut self, tool: Tool<C>) {
        self.note_error(tool.to_definition().err());
        self.tools.push(Arc::new(tool));
    }

    /// Keeps the first problem for the check of the agent.
    fn note_error(&mut self, error: Option<ConfigError>) {
        if self.config_error.is_none() {
            self.config_error = error;
        }
    }
}

impl<C> AgentInner<C> {
    fn clone_without_caches(&self) -> Self {
        Self {
            name: self.name.clone(),
            instructions: self.instructions.clone(),
            handoff_description: self.handoff_description.clone(),
            model: self.model.clone(),
            model_settings: self.model_settings.clone(),
            tools: self.tools.clone(),
            sources: self.sources.clone(),
            handoffs: self.handoffs.clone(),
            input_guardrails: self.input_guardrails.clone(),
            output_guardrails: self.output_guardrails.clone(),
            hooks: self.hooks.clone(),
            tool_use_policy: self.tool_use_policy.clone(),
            tool_choice_reset: self.tool_choice_reset,
            max_concurrent_calls: self.max_concurrent_calls,
            output_type: self.output_type.clone(),
            max_output_corrections: self.max_output_corrections,
            budget: self.budget.clone(),
            config_error: self.config_error.clone(),
            static_toolset: OnceLock::new(),
            sourced_toolsets: Mutex::default(),
            build: OnceLock::new(),
        }
    }
}

impl<C> Clone for Agent<C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<C> fmt::Debug for Agent<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Agent({})", self.inner.name)
    }
}

impl<C> Clone for InstructionSource<C> {
    fn clone(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Text(text) => Self::Text(text.clone()),
            Self::Dynamic(text) => Self::Dynamic(text.clone()),
        }
    }
}

impl<C> InstructionSource<C> {
    /// Returns the instructions for a turn.
    pub(crate) async fn resolve_text(&self, ctx: &RunContext<C>) -> Option<Arc<str>> {
        match self {
            Self::None => None,
            Self::Text(text) => Some(text.clone()),
            Self::Dynamic(text) => Some(text(ctx.clone()).await.into()),
        }
    }
}

impl<C> Clone for ToolUsePolicy<C> {
    fn clone(&self) -> Self {
        match self {
            Self::RunModelAgain => Self::RunModelAgain,
            Self::StopOnFirstTool => Self::StopOnFirstTool,
            Self::StopAtTools(names) => Self::StopAtTools(names.clone()),
            Self::CustomFunction(judge) => Self::CustomFunction(judge.clone()),
        }
    }
}

impl<C> ToolUsePolicy<C> {
    /// Creates a policy from an async function that returns the final output, or `None` to continue.
    pub fn custom_function<Fut>(
        judge: impl Fn(RunContext<C>, Vec<SettledCall>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Option<String>> + Send + 'static,
    {
        Self::CustomFunction(Arc::new(move |ctx, results| judge(ctx, results).boxed()))
    }
}
