//! How a run is begun or gone on with: set it up, then await it or stream it.

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{Failure, Item, OutputContent, RunId};

use super::config::{
    Handled, InputFilter, LoopPolicy, MissingTool, ModelInput, ModelRetry, NextCall, OnDrop, RunHandlers,
};
use super::{Cancel, CancelHandle, Outcome, Paused, RunConfig, RunStream};
use crate::agent::Agent;
use crate::drive;
use crate::error::RunError;
use crate::event::{Watched, watched};
use crate::guardrail::{InputGuardrail, OutputGuardrail};
use crate::hook::Hook;
use crate::model::{ModelLayer, ModelSettings, SharedModel};
use crate::session::Session;
use crate::store::Store;
use crate::tool::{RunContext, ToolContext, ToolError};

/// A run that has not begun. Await it for its outcome, or [`RunBuilder::stream`] it.
#[must_use = "a run does nothing until it is awaited or streamed"]
pub struct RunBuilder<C = ()> {
    agent: Agent<C>,
    origin: Origin,
    context: Arc<C>,
    config: RunConfig<C>,
    cancel: Cancel,
}

/// Where a run comes from.
pub(crate) enum Origin {
    Input(Vec<Arc<Item>>),
    Paused(Box<Paused>),
    Stored(RunId),
}

impl<C: Send + Sync + 'static> RunBuilder<C> {
    pub(crate) fn fresh(agent: Agent<C>, input: Vec<Arc<Item>>, context: Arc<C>) -> Self {
        Self::new(agent, Origin::Input(input), context)
    }

    pub(crate) fn resumed(agent: Agent<C>, paused: Paused, context: Arc<C>) -> Self {
        Self::new(agent, Origin::Paused(Box::new(paused)), context)
    }

    pub(crate) fn stored(agent: Agent<C>, run: RunId, store: Arc<dyn Store>, context: Arc<C>) -> Self {
        Self::new(agent, Origin::Stored(run), context).store(store)
    }

    fn new(agent: Agent<C>, origin: Origin, context: Arc<C>) -> Self {
        Self { agent, origin, context, config: RunConfig::default(), cancel: Cancel::default() }
    }

    /// The answer is there already, and is all that is to be carried out.
    pub(crate) fn given(mut self, given: drive::Given<C>) -> Self {
        self.config.given = Some(Box::new(given));
        self
    }

    /// How many turns the run may take.
    pub fn max_turns(mut self, turns: u32) -> Self {
        self.config.max_turns = Some(turns);
        self
    }

    /// Lets the run take as many turns as it likes.
    pub fn unlimited_turns(mut self) -> Self {
        self.config.max_turns = None;
        self
    }

    /// How many calls of an answer run at once; the others wait, first come, first served.
    pub fn concurrency(mut self, limit: usize) -> Self {
        self.config.concurrency = Some(limit.max(1));
        self
    }

    /// Runs calls one after another.
    pub fn sequential(self) -> Self {
        self.concurrency(1)
    }

    /// Runs a tool's input guardrails also before a person is asked, so that nobody is asked in vain. They run
    /// again before the body in any case.
    pub fn early_guardrails(mut self) -> Self {
        self.config.early_guardrails = true;
        self
    }

    /// What happens where the model asks for a tool that is not there.
    pub fn missing_tool(mut self, policy: MissingTool) -> Self {
        self.config.missing_tool = policy;
        self
    }

    /// How long a cancelled body is waited for.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.config.drain = drain;
        self
    }

    /// The model of all agents of this run, in place of their own.
    pub fn model(mut self, model: impl Into<SharedModel>) -> Self {
        self.config.model = Some(model.into());
        self
    }

    /// Settings that beat the agents' own.
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.config.settings = Some(Box::new(settings));
        self
    }

    /// How often a model is asked again that failed in a way that asking again may mend.
    pub fn model_retry(mut self, retry: ModelRetry) -> Self {
        self.config.model_retry = retry;
        self
    }

    /// What happens where the model makes exactly the same calls turn after turn.
    pub fn loops(mut self, policy: LoopPolicy) -> Self {
        self.config.loops = policy;
        self
    }

    /// How long an approval may be waited for, before it counts as a no.
    pub fn approvals_expire_after(mut self, expiry: Duration) -> Self {
        self.config.approval_expiry = Some(expiry);
        self
    }

    /// Checks what the run is given.
    pub fn input_guardrail(mut self, guardrail: InputGuardrail<C>) -> Self {
        self.config.input_guardrails.push(guardrail);
        self
    }

    /// Checks what the run would end with.
    pub fn output_guardrail(mut self, guardrail: OutputGuardrail<C>) -> Self {
        self.config.output_guardrails.push(guardrail);
        self
    }

    /// Told of the moments of this run; not of those inside agents that it calls as tools.
    pub fn hook(mut self, hook: Hook<C>) -> Self {
        self.config.hooks.push(hook);
        self
    }

    /// Wraps every question to a model of this run. The layer given first is outermost.
    pub fn around_model(mut self, layer: impl ModelLayer) -> Self {
        self.config.model_layers.push(Arc::new(layer));
        self
    }

    /// Wraps the body of every call of this run, inside its guards and its timeout.
    pub fn around_calls<Fut>(
        mut self,
        layer: impl Fn(ToolContext<C>, NextCall) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<OutputContent, ToolError>> + Send + 'static,
    {
        self.config.call_layers.push(Arc::new(move |ctx, next| layer(ctx, next).boxed()));
        self
    }

    /// Changes what the model is shown, right before every time it is asked.
    pub fn input_filter<Fut>(
        mut self,
        filter: impl Fn(RunContext<C>, ModelInput) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = ModelInput> + Send + 'static,
    {
        let filter: InputFilter<C> = Arc::new(move |ctx, input| filter(ctx, input).boxed());
        self.config.input_filter = Some(filter);
        self
    }

    /// Asked before the run fails because its turns are used up, the model refuses, or the final answer does
    /// not fit its type: an output to end with instead, or none to fail.
    pub fn on_failure<Fut>(
        mut self,
        handler: impl Fn(RunContext<C>, Failure) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Option<Handled>> + Send + 'static,
    {
        self.config.handlers = RunHandlers::new(handler);
        self
    }

    /// The session whose history the run sees and adds to.
    pub fn session(mut self, session: &Session) -> Self {
        self.config.session = Some(session.clone());
        self
    }

    /// Where the journal is kept.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.config.store = Some(store);
        self
    }

    /// How long the store lets nobody else drive the run after the last sign of life. Short, a crashed run is
    /// taken over soon; long, a slow machine does not lose its runs.
    pub fn lease(mut self, lasting: Duration) -> Self {
        self.config.lease = lasting.max(Duration::from_millis(10));
        self
    }

    /// The run's id, in place of a new one.
    pub fn run_id(mut self, id: impl Into<RunId>) -> Self {
        self.config.run_id = Some(id.into());
        self
    }

    /// Agents that the run knows by name, besides those that it can reach.
    pub fn agents(mut self, agents: impl IntoIterator<Item = Agent<C>>) -> Self {
        self.config.agents.extend(agents);
        self
    }

    /// What the run does when its stream is dropped.
    pub fn on_drop(mut self, policy: OnDrop) -> Self {
        self.config.on_drop = policy;
        self
    }

    /// How many events wait for a slow watcher before the run does.
    pub fn event_buffer(mut self, events: usize) -> Self {
        self.config.event_buffer = events.max(1);
        self
    }

    /// Cancels the run, from anywhere.
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle { cancel: self.cancel.clone() }
    }

    /// Begins the run and watches it.
    pub fn stream(self) -> RunStream {
        let (watched, watcher) = watched(self.config.event_buffer);
        let cancel = self.cancel_handle();
        let on_drop = self.config.on_drop;
        let run = tokio::spawn(self.drive(Some(watched)));
        RunStream::new(watcher, run, cancel, on_drop)
    }

    /// The one path: whoever awaits a run and whoever streams it drive the same thing.
    fn drive(self, watched: Option<Watched>) -> BoxFuture<'static, Result<Outcome, RunError>> {
        let Self { agent, origin, context, config, cancel } = self;
        drive::run(agent, origin, context, config, cancel, watched)
    }
}

impl<C: Send + Sync + 'static> IntoFuture for RunBuilder<C> {
    type Output = Result<Outcome, RunError>;
    type IntoFuture = BoxFuture<'static, Result<Outcome, RunError>>;

    fn into_future(self) -> Self::IntoFuture {
        self.drive(None)
    }
}
