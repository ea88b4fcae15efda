//! Agents: instructions, a model, tools, and whom they may hand over to.

mod as_tool;
mod graph;
mod handoff;
mod output;
mod resolved;
mod toolset;

pub use handoff::{Handoff, HandoffInput};
pub use output::OutputType;
pub use resolved::{Checked, Resolved, SecretsOf, SharedReceipts};

pub(crate) use as_tool::AgentTool;
pub(crate) use graph::Graph;
pub(crate) use handoff::Target;
pub(crate) use toolset::{Found, Toolset};

use toolset::Sourced;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use windlass_core::{AgentName, RunId, TurnResult};

use crate::error::ConfigError;
use crate::guardrail::{InputGuardrail, OutputGuardrail};
use crate::hook::Hook;
use crate::model::{ModelSettings, SharedModel};
use crate::run::{IntoInput, Paused, RunBuilder};
use crate::store::Store;
use crate::tool::{IntoTool, IntoTools, RunContext, SourceRequest, SourcedTools, Tool, ToolSource};

/// An agent. It is a plain value: copies are cheap and stand for the same agent, and runs never change it.
///
/// `C` is the application's own context, which its tools, rules and hooks can see and the model cannot.
pub struct Agent<C = ()> {
    pub(crate) inner: Arc<Inner<C>>,
}

pub(crate) struct Inner<C> {
    pub(crate) name: AgentName,
    pub(crate) instructions: Instructions<C>,
    pub(crate) description: Arc<str>,
    pub(crate) model: Option<SharedModel>,
    pub(crate) settings: ModelSettings,
    pub(crate) tools: Vec<Arc<Tool<C>>>,
    pub(crate) sources: Vec<Arc<dyn ToolSource<C>>>,
    pub(crate) handoffs: Vec<Handoff<C>>,
    pub(crate) input_guardrails: Vec<InputGuardrail<C>>,
    pub(crate) output_guardrails: Vec<OutputGuardrail<C>>,
    pub(crate) hooks: Vec<Hook<C>>,
    pub(crate) tool_use: ToolUse<C>,
    pub(crate) forced_choice: ForcedChoice,
    pub(crate) output: Option<OutputType>,
    fixed_toolset: OnceLock<Result<Arc<Toolset<C>>, ConfigError>>,
    sourced: Mutex<VecDeque<Sourced<C>>>,
}

/// What the agent is told to do.
pub(crate) enum Instructions<C> {
    None,
    Text(Arc<str>),
    From(Arc<dyn Fn(RunContext<C>) -> BoxFuture<'static, String> + Send + Sync>),
}

/// What the results of a turn mean for the run.
pub enum ToolUse<C = ()> {
    /// The model sees them and goes on.
    RunAgain,
    /// The first tool's output is the run's.
    StopOnFirst,
    /// The output of the first of these tools is the run's.
    StopAt(Vec<String>),
    /// The function says: an output to end with, or none to go on.
    Judge(Judge<C>),
}

/// Says whether the results of a turn are final.
pub type Judge<C> =
    Arc<dyn Fn(RunContext<C>, Vec<TurnResult>) -> BoxFuture<'static, Option<String>> + Send + Sync>;

/// What becomes of a forced tool choice once the agent has used a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForcedChoice {
    /// It is lifted for the rest of the run, so that it cannot force a loop.
    #[default]
    Lifted,
    /// It stays.
    Kept,
}

impl<C: Send + Sync + 'static> Agent<C> {
    /// An agent with a name, which must be its own among the agents that a run can reach.
    pub fn new(name: impl Into<AgentName>) -> Self {
        Self {
            inner: Arc::new(Inner {
                name: name.into(),
                instructions: Instructions::None,
                description: "".into(),
                model: None,
                settings: ModelSettings::default(),
                tools: Vec::new(),
                sources: Vec::new(),
                handoffs: Vec::new(),
                input_guardrails: Vec::new(),
                output_guardrails: Vec::new(),
                hooks: Vec::new(),
                tool_use: ToolUse::RunAgain,
                forced_choice: ForcedChoice::Lifted,
                output: None,
                fixed_toolset: OnceLock::new(),
                sourced: Mutex::default(),
            }),
        }
    }

    fn edited(self, edit: impl FnOnce(&mut Inner<C>)) -> Self {
        let mut inner = Arc::try_unwrap(self.inner).unwrap_or_else(|shared| shared.copy());
        inner.fixed_toolset = OnceLock::new();
        inner.sourced = Mutex::default();
        edit(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// What the agent is told to do.
    #[must_use]
    pub fn instructions(self, text: impl Into<Arc<str>>) -> Self {
        self.edited(|agent| agent.instructions = Instructions::Text(text.into()))
    }

    /// What the agent is told to do, asked anew for every turn.
    #[must_use]
    pub fn instructions_from<Fut>(self, text: impl Fn(RunContext<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = String> + Send + 'static,
    {
        let text: Arc<dyn Fn(RunContext<C>) -> BoxFuture<'static, String> + Send + Sync> =
            Arc::new(move |ctx| text(ctx).boxed());
        self.edited(|agent| agent.instructions = Instructions::From(text))
    }

    /// What other agents' models are told of this one, where they may hand over to it.
    #[must_use]
    pub fn description(self, text: impl Into<Arc<str>>) -> Self {
        self.edited(|agent| agent.description = text.into())
    }

    /// The model that answers for it.
    #[must_use]
    pub fn model(self, model: impl Into<SharedModel>) -> Self {
        self.edited(|agent| agent.model = Some(model.into()))
    }

    /// How the model should answer.
    #[must_use]
    pub fn settings(self, settings: ModelSettings) -> Self {
        self.edited(|agent| agent.settings = settings)
    }

    /// Adds tools.
    #[must_use]
    pub fn tools(self, tools: impl IntoTools<C>) -> Self {
        self.edited(|agent| agent.tools.extend(tools.into_tools().into_iter().map(Arc::new)))
    }

    /// Adds one tool.
    #[must_use]
    pub fn tool(self, tool: impl IntoTool<C>) -> Self {
        self.edited(|agent| agent.tools.push(Arc::new(tool.into_tool())))
    }

    /// Adds tools that somebody else holds: the source is asked for them before every turn.
    #[must_use]
    pub fn tool_source(self, source: impl ToolSource<C>) -> Self {
        self.edited(|agent| agent.sources.push(Arc::new(source)))
    }

    /// Adds an agent that this one may pass control to.
    #[must_use]
    pub fn handoff(self, to: impl Into<Handoff<C>>) -> Self {
        self.edited(|agent| agent.handoffs.push(to.into()))
    }

    /// Checks what a run that begins with this agent is given.
    #[must_use]
    pub fn input_guardrail(self, guardrail: InputGuardrail<C>) -> Self {
        self.edited(|agent| agent.input_guardrails.push(guardrail))
    }

    /// Checks what a run would end with, where this agent ends it.
    #[must_use]
    pub fn output_guardrail(self, guardrail: OutputGuardrail<C>) -> Self {
        self.edited(|agent| agent.output_guardrails.push(guardrail))
    }

    /// Told of the moments of this agent, in every run.
    #[must_use]
    pub fn hook(self, hook: Hook<C>) -> Self {
        self.edited(|agent| agent.hooks.push(hook))
    }

    /// What the results of a turn mean for the run.
    #[must_use]
    pub fn tool_use(self, tool_use: ToolUse<C>) -> Self {
        self.edited(|agent| agent.tool_use = tool_use)
    }

    /// What becomes of a forced tool choice once the agent has used a tool.
    #[must_use]
    pub fn forced_choice(self, forced_choice: ForcedChoice) -> Self {
        self.edited(|agent| agent.forced_choice = forced_choice)
    }

    /// The final output is a `T`: the model is told its shape, and what does not fit fails the run.
    #[must_use]
    pub fn output<T: DeserializeOwned + JsonSchema>(self) -> Self {
        self.edited(|agent| agent.output = Some(OutputType::of::<T>()))
    }

    /// The agent's name.
    pub fn name(&self) -> &AgentName {
        &self.inner.name
    }

    /// Its tools.
    pub fn tool_list(&self) -> impl Iterator<Item = &Tool<C>> {
        self.inner.tools.iter().map(|tool| &**tool)
    }

    /// A run with the application's context.
    pub fn run_with(&self, input: impl IntoInput, context: impl Into<Arc<C>>) -> RunBuilder<C> {
        RunBuilder::fresh(self.clone(), input.into_input(), context.into())
    }

    /// A paused run, gone on with, with the application's context.
    pub fn resume_with(&self, paused: Paused, context: impl Into<Arc<C>>) -> RunBuilder<C> {
        RunBuilder::resumed(self.clone(), paused, context.into())
    }

    /// A run that a store has, gone on with wherever it stands, with the application's context: it paused, or
    /// the process that drove it is gone.
    pub fn recover_with(
        &self,
        run: impl Into<RunId>,
        store: Arc<dyn Store>,
        context: impl Into<Arc<C>>,
    ) -> RunBuilder<C> {
        RunBuilder::stored(self.clone(), run.into(), store, context.into())
    }

    /// The tools for a turn, where nothing depends on the run and they were worked out before.
    pub(crate) fn known_toolset(&self) -> Option<Result<Arc<Toolset<C>>, ConfigError>> {
        let known = self.inner.fixed_toolset.get().filter(|_| self.inner.sources.is_empty())?;
        self.is_fixed().then(|| known.clone())
    }

    fn is_fixed(&self) -> bool {
        self.inner.tools.iter().all(|tool| tool.enabled.fixed().is_some())
            && self.inner.handoffs.iter().all(|handoff| handoff.is_fixed())
    }

    /// The tools for a turn. Where nothing depends on the run they are worked out once.
    pub(crate) async fn toolset(
        &self,
        ctx: &RunContext<C>,
        graph: &Graph<C>,
    ) -> Result<Arc<Toolset<C>>, ConfigError> {
        let is_fixed = self.is_fixed();
        let own = match self.inner.fixed_toolset.get() {
            Some(known) if is_fixed => known.clone()?,
            _ => {
                let resolved = Toolset::resolve(self, ctx, graph).await.map(Arc::new);
                if is_fixed { self.inner.fixed_toolset.get_or_init(|| resolved).clone()? } else { resolved? }
            }
        };
        if self.inner.sources.is_empty() { Ok(own) } else { self.with_sources(own, ctx).await }
    }

    /// The agent's own tools and those of its sources, put together anew only where one of them gave another list.
    async fn with_sources(
        &self,
        own: Arc<Toolset<C>>,
        ctx: &RunContext<C>,
    ) -> Result<Arc<Toolset<C>>, ConfigError> {
        let mut taken = Cow::Borrowed(own.taken());
        let mut given: Vec<SourcedTools<C>> = Vec::with_capacity(self.inner.sources.len());
        for source in &self.inner.sources {
            if let Some(before) = given.last() {
                taken.to_mut().extend(before.tools.iter().map(|tool| tool.name().into()));
            }
            let asked = SourceRequest { ctx, taken: &taken };
            let tools = source.tools(asked).await;
            let agent = || self.name().clone();
            given.push(tools.map_err(|why| ConfigError::Source { agent: agent(), why })?);
        }
        let known = || self.inner.sourced.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known().iter().find(|sourced| sourced.is(&own, &given)) {
            return Ok(same.toolset.clone());
        }
        let toolset = Arc::new(own.with(self, &given)?);
        let mut known = known();
        if known.len() == Sourced::<C>::KEPT {
            known.pop_front();
        }
        known.push_back(Sourced { own, given, toolset: toolset.clone() });
        Ok(toolset)
    }
}

impl Agent {
    /// A run: await it for its outcome, or stream it.
    pub fn run(&self, input: impl IntoInput) -> RunBuilder {
        self.run_with(input, ())
    }

    /// A paused run, gone on with.
    pub fn resume(&self, paused: Paused) -> RunBuilder {
        self.resume_with(paused, ())
    }

    /// A run that a store has, gone on with wherever it stands: it paused, or the process that drove it is gone.
    pub fn recover(&self, run: impl Into<RunId>, store: Arc<dyn Store>) -> RunBuilder {
        self.recover_with(run, store, ())
    }
}

impl<C> Inner<C> {
    fn copy(&self) -> Self {
        Self {
            name: self.name.clone(),
            instructions: self.instructions.clone(),
            description: self.description.clone(),
            model: self.model.clone(),
            settings: self.settings.clone(),
            tools: self.tools.clone(),
            sources: self.sources.clone(),
            handoffs: self.handoffs.clone(),
            input_guardrails: self.input_guardrails.clone(),
            output_guardrails: self.output_guardrails.clone(),
            hooks: self.hooks.clone(),
            tool_use: self.tool_use.clone(),
            forced_choice: self.forced_choice,
            output: self.output.clone(),
            fixed_toolset: OnceLock::new(),
            sourced: Mutex::default(),
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

impl<C> Clone for Instructions<C> {
    fn clone(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Text(text) => Self::Text(text.clone()),
            Self::From(text) => Self::From(text.clone()),
        }
    }
}

impl<C> Instructions<C> {
    pub(crate) async fn text(&self, ctx: &RunContext<C>) -> Option<Arc<str>> {
        match self {
            Self::None => None,
            Self::Text(text) => Some(text.clone()),
            Self::From(text) => Some(text(ctx.clone()).await.into()),
        }
    }
}

impl<C> Clone for ToolUse<C> {
    fn clone(&self) -> Self {
        match self {
            Self::RunAgain => Self::RunAgain,
            Self::StopOnFirst => Self::StopOnFirst,
            Self::StopAt(names) => Self::StopAt(names.clone()),
            Self::Judge(judge) => Self::Judge(judge.clone()),
        }
    }
}

impl<C> ToolUse<C> {
    /// The results are final where the function says so.
    pub fn judge<Fut>(judge: impl Fn(RunContext<C>, Vec<TurnResult>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Option<String>> + Send + 'static,
    {
        Self::Judge(Arc::new(move |ctx, results| judge(ctx, results).boxed()))
    }
}
