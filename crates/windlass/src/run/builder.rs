//! The builder of runs: it configures a new or resumed run, which is then awaited or streamed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{
    budget::SpendingBudget,
    failure::RunFailure,
    id::RunId,
    idempotency::KeyNonce,
    item::{Item, OutputContent},
};

use super::config::{
    FailureHandlers, HandledFailure, InputFilter, LoopPolicy, ModelInput, ModelRetryPolicy, NextCall,
    OnSessionBusy, OnStreamDrop, OnUnknownTool,
};
use super::{
    CancelHandle, CancelSignal, GivenResponse, PausedRun, RunConfig, RunResult, RunStream, TurnLimit,
};
use crate::agent::Agent;
use crate::context::ContextPolicy;
use crate::drive;
use crate::error::RunError;
use crate::event::{EventSender, event_channel};
use crate::guardrail::{InputGuardrail, OutputGuardrail};
use crate::hook::Hook;
use crate::model::{ModelLayer, ModelSettings, SharedModel};
use crate::price::PriceList;
use crate::session::Session;
use crate::store::{LeaseObserver, Store};
use crate::tool::{RunContext, ToolContext, ToolError};

/// A run that has not started. Await it for its result, or [`RunBuilder::stream`] it.
///
/// It is a future: `tokio::join!`, `tokio::select!` and `tokio::time::timeout` take it as it is. The run starts when
/// the future is polled for the first time; setters have no effect afterwards.
///
/// # Cancel safety
///
/// Dropping the future drops the driver in the middle of its work: a run without a store is lost, a run with a store
/// can be recovered. Use [`RunBuilder::cancel_handle`] to cancel a run and settle its calls.
#[must_use = "a run does nothing until it is awaited or streamed"]
pub struct RunBuilder<C = ()> {
    stage: RunStage<C>,
    cancel: CancelSignal,
}

/// The setup of a run before its first poll; the driver's future afterwards.
enum RunStage<C> {
    Configuring(Box<RunSetup<C>>),
    Driving(BoxFuture<'static, Result<RunResult, RunError>>),
    /// Holds the place of the stage while it changes.
    Starting,
}

/// Everything that a driver needs to start a run.
struct RunSetup<C> {
    agent: Agent<C>,
    source: RunSource,
    context: Arc<C>,
    config: RunConfig<C>,
}

/// The source of a run: new input, a paused run, or a stored run.
pub(crate) enum RunSource {
    Input(Vec<Arc<Item>>),
    Paused(Box<PausedRun>),
    Stored(RunId),
}

impl<C: Send + Sync + 'static> RunBuilder<C> {
    pub(crate) fn from_input(agent: Agent<C>, input: Vec<Arc<Item>>, context: Arc<C>) -> Self {
        Self::new(agent, RunSource::Input(input), context)
    }

    pub(crate) fn from_paused(agent: Agent<C>, paused: PausedRun, context: Arc<C>) -> Self {
        Self::new(agent, RunSource::Paused(Box::new(paused)), context)
    }

    pub(crate) fn from_store(agent: Agent<C>, run: RunId, store: Arc<dyn Store>, context: Arc<C>) -> Self {
        Self::new(agent, RunSource::Stored(run), context).store(store)
    }

    fn new(agent: Agent<C>, origin: RunSource, context: Arc<C>) -> Self {
        let setup = RunSetup { agent, source: origin, context, config: RunConfig::default() };
        Self { stage: RunStage::Configuring(Box::new(setup)), cancel: CancelSignal::default() }
    }

    fn configure(mut self, change: impl FnOnce(&mut RunConfig<C>)) -> Self {
        if let RunStage::Configuring(setup) = &mut self.stage {
            change(&mut setup.config);
        }
        self
    }

    /// True if the journal may redact or output guardrails may block text that a model of the run has written.
    pub(crate) fn may_withhold_text(&self) -> bool {
        let RunStage::Configuring(setup) = &self.stage else { return true };
        setup.config.may_withhold_text(&setup.agent)
    }

    /// Sets the model response whose calls the run executes in place of a model request.
    pub(crate) fn with_given_response(self, given: GivenResponse<C>) -> Self {
        self.configure(|config| config.given_response = Some(Box::new(given)))
    }

    /// Sets the maximum number of turns. The default is 10, or more if a tool of the agents needs more
    /// ([`Tool::default_max_turns`](crate::tool::Tool::default_max_turns)).
    pub fn max_turns(self, turns: u32) -> Self {
        self.configure(|config| config.max_turns = TurnLimit::AtMost(turns))
    }

    /// Removes the limit on the number of turns.
    pub fn unlimited_turns(self) -> Self {
        self.configure(|config| config.max_turns = TurnLimit::Unlimited)
    }

    /// Sets the budget of the run, nested agents included. It is recorded with the start of the run, and every model request
    /// is reserved in it before it is sent. A run that is resumed keeps the budget that it started with.
    pub fn budget(self, budget: SpendingBudget) -> Self {
        self.configure(|config| config.budget = Some(budget))
    }

    /// Sets the budget of the session, which the runs of the session share one after another. The session must be in the
    /// store of the run. What a run has spent that is parked counts as far as it had come when this run starts.
    pub fn session_budget(self, budget: SpendingBudget) -> Self {
        self.configure(|config| config.session_budget = Some(budget))
    }

    /// Sets the prices of models, in place of the shipped ones.
    pub fn prices(self, prices: impl Into<Arc<PriceList>>) -> Self {
        self.configure(|config| config.prices = prices.into())
    }

    /// Sets the maximum number of calls of one response that run concurrently; the others wait in order.
    pub fn max_concurrent_calls(self, limit: usize) -> Self {
        self.configure(|config| config.max_concurrent_calls = Some(limit.max(1)))
    }

    /// Runs the calls of a response one after another.
    pub fn sequential_calls(self) -> Self {
        self.max_concurrent_calls(1)
    }

    /// Runs a tool's input guardrails also before an approval is requested, so that a call that they block
    /// needs no approval. They run again before the body in any case.
    pub fn pre_approval_guardrails(self) -> Self {
        self.configure(|config| config.pre_approval_guardrails = true)
    }

    /// Sets the reaction to a call of an unknown tool.
    pub fn on_unknown_tool(self, policy: OnUnknownTool) -> Self {
        self.configure(|config| config.on_unknown_tool = policy)
    }

    /// Sets the time that the run waits for cancelled bodies to finish, of at most a year.
    pub fn drain_timeout(self, drain: Duration) -> Self {
        self.configure(|config| config.drain_timeout = drain)
    }

    /// Sets the model of all agents of this run, in place of their own.
    pub fn model(self, model: impl Into<SharedModel>) -> Self {
        self.configure(|config| config.model = Some(model.into()))
    }

    /// Sets model settings that override those of the agents.
    pub fn model_settings(self, settings: ModelSettings) -> Self {
        self.configure(|config| config.model_settings = Some(Box::new(settings)))
    }

    /// Sets the retry policy for model requests.
    pub fn model_retry(self, retry: ModelRetryPolicy) -> Self {
        self.configure(|config| config.model_retry = retry)
    }

    /// Sets the reaction to a model that makes identical calls turn after turn.
    pub fn loop_policy(self, policy: LoopPolicy) -> Self {
        self.configure(|config| config.loop_policy = policy)
    }

    /// Sets the policy that keeps the conversation within the context window of the model. It applies to the agents that
    /// the run calls as tools as well, each with its own conversation.
    pub fn context_policy(self, policy: ContextPolicy) -> Self {
        self.configure(|config| config.context_policy = policy)
    }

    /// Sets the time limit for an approval. A call whose limit has passed is rejected.
    pub fn approvals_expire_after(self, expiry: Duration) -> Self {
        self.configure(|config| config.approval_expiry = Some(expiry))
    }

    /// Adds a guardrail for the input of the run.
    pub fn input_guardrail(self, guardrail: InputGuardrail<C>) -> Self {
        self.configure(|config| config.input_guardrails.push(guardrail))
    }

    /// Adds a guardrail for the final output of the run.
    pub fn output_guardrail(self, guardrail: OutputGuardrail<C>) -> Self {
        self.configure(|config| config.output_guardrails.push(guardrail))
    }

    /// Adds a hook for the lifecycle events of this run, without those of agents that it calls as tools.
    pub fn hook(self, hook: Hook<C>) -> Self {
        self.configure(|config| config.hooks.push(hook))
    }

    /// Adds middleware around every model request of this run. The first layer is outermost.
    pub fn model_layer(self, layer: impl ModelLayer) -> Self {
        self.configure(|config| config.model_layers.push(Arc::new(layer)))
    }

    /// Adds middleware around the body of every call of this run, inside its guardrails and its timeout.
    pub fn call_layer<Fut>(
        self,
        layer: impl Fn(ToolContext<C>, NextCall) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<OutputContent, ToolError>> + Send + 'static,
    {
        self.configure(|config| config.call_layers.push(Arc::new(move |ctx, next| layer(ctx, next).boxed())))
    }

    /// Sets a filter for the model's input. It runs before every model request.
    pub fn input_filter<Fut>(
        self,
        filter: impl Fn(RunContext<C>, ModelInput) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = ModelInput> + Send + 'static,
    {
        self.configure(|config| {
            let filter: InputFilter<C> = Arc::new(move |ctx, input| filter(ctx, input).boxed());
            config.input_filter = Some(filter);
        })
    }

    /// Sets a handler that runs before the run fails because the maximum number of turns is exceeded, the model
    /// refuses, or the final output does not match its type. The handler returns a final output to finish with,
    /// or `None` to fail.
    pub fn on_failure<Fut>(
        self,
        handler: impl Fn(RunContext<C>, RunFailure) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Option<HandledFailure>> + Send + 'static,
    {
        self.configure(|config| config.failure_handlers = FailureHandlers::new(handler))
    }

    /// Sets the session. The run reads its history and appends to it. One run at a time appends to a session: a run
    /// waits for another one up to 30 s, or as [`RunBuilder::on_session_busy`] says.
    pub fn session(self, session: &Session) -> Self {
        self.configure(|config| config.session = Some(session.clone()))
    }

    /// Sets the provider's id of the response that a new run continues. The provider stores the conversation: the first
    /// request refers to that response, and each later one to the run's last response, with the items that are new. The
    /// id is in the journal, so that a resumed or recovered run continues the same conversation. A nested agent begins its
    /// own. After a filter changed the history at a handoff, the next request has the whole history instead.
    ///
    /// Only a new run has an effect; use [`ModelSettings::conversation`] for a conversation that has an id of its own.
    ///
    /// # Errors
    ///
    /// The run is refused ([`ConfigError::StoredConversation`](crate::error::ConfigError::StoredConversation)) if it has a
    /// session or output guardrails as well: the session would keep the same conversation twice, and the provider would
    /// keep an output that a guardrail blocks.
    pub fn previous_response_id(self, id: impl Into<String>) -> Self {
        self.configure(|config| config.previous_response_id = Some(id.into()))
    }

    /// Sets the name of the release that starts a new run. The journal records it with the digest of the agent: see
    /// [`AgentBuild`](windlass_core::journal::AgentBuild).
    pub fn release(self, name: impl Into<String>) -> Self {
        self.configure(|config| config.release = Some(name.into()))
    }

    /// Sets the reaction to a session to which another run is appending.
    pub fn on_session_busy(self, policy: OnSessionBusy) -> Self {
        self.configure(|config| config.on_session_busy = policy)
    }

    /// Sets the store of the journal.
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        self.configure(|config| config.store = Some(store))
    }

    /// Sets the duration of the lease. Another driver takes the run over after it has seen no renewal for this time on
    /// its own clock; it does so at once if this driver has failed, or has died on the same machine. A short lease speeds
    /// up the recovery of runs whose machine is lost; a long one protects slow machines from losing theirs.
    pub fn lease_duration(self, lasting: Duration) -> Self {
        self.configure(|config| config.lease_duration = lasting.max(Duration::from_millis(10)))
    }

    /// Sets the observer of leases. A stored run that another driver holds then fails at once with
    /// [`StoreErrorKind::LeaseHeld`](crate::error::StoreErrorKind::LeaseHeld), and a later attempt with the same observer
    /// takes it over once its lease is abandoned. Without an observer, a recovered run waits until the lease is abandoned
    /// or a renewal shows that its driver is alive, at most for the duration of the lease.
    pub fn lease_observer(self, observer: &LeaseObserver) -> Self {
        self.configure(|config| config.lease_observer = Some(observer.clone()))
    }

    /// Sets the id of the run, in place of a generated one.
    ///
    /// A stored run has a random nonce beside this id in the idempotency keys of its calls, so that no run of the same id
    /// in another store, nor a run that was forgotten, has its keys. Without a store the keys contain this id alone: choose
    /// one that no other run has, or a target that honours keys takes the calls of the second run for those of the first. A
    /// run on a session in another store is refused if the session has items of an earlier run of this id.
    pub fn run_id(self, id: impl Into<RunId>) -> Self {
        self.configure(|config| config.run_id = Some(id.into()))
    }

    /// Sets the nonce in the idempotency keys of a run that starts, in place of a random one
    /// ([`RunBuilder::run_id`]). Two runs of one id and nonce have the same keys: this is for simulations, which repeat a run
    /// exactly.
    pub fn key_nonce(self, nonce: impl Into<KeyNonce>) -> Self {
        self.configure(|config| config.key_nonce = Some(nonce.into()))
    }

    /// Adds an artefact that the driver saves with the run when it starts: see
    /// [`Store::save_artefact`](crate::store::Store::save_artefact).
    pub fn artefact(self, name: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        self.configure(|config| config.artefacts.push((name.into(), body.into())))
    }

    /// Adds agents that the run knows by name, besides those that are reachable through handoffs.
    pub fn known_agents(self, agents: impl IntoIterator<Item = Agent<C>>) -> Self {
        self.configure(|config| config.known_agents.extend(agents))
    }

    /// Sets the reaction of the run to a dropped stream.
    pub fn on_stream_drop(self, policy: OnStreamDrop) -> Self {
        self.configure(|config| config.on_stream_drop = policy)
    }

    /// Sets the number of events that are buffered for a slow watcher. Then backpressure pauses the run.
    pub fn event_buffer_size(self, events: usize) -> Self {
        self.configure(|config| config.event_buffer_size = events.max(1))
    }

    /// Returns a handle that cancels the run from anywhere.
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle { signal: self.cancel.clone() }
    }

    /// Starts the run and returns the stream of its events.
    pub fn stream(mut self) -> RunStream {
        let cancel = self.cancel_handle();
        let (event_buffer_size, on_drop) = match &self.stage {
            RunStage::Configuring(setup) => (setup.config.event_buffer_size, setup.config.on_stream_drop),
            RunStage::Driving(_) | RunStage::Starting => (1, OnStreamDrop::CancelRun),
        };
        let (sender, receiver) = event_channel(event_buffer_size);
        self.start(Some(sender));
        RunStream::new(receiver, tokio::spawn(self), cancel, on_drop)
    }

    /// Creates the driver's future unless it exists already. Awaited and streamed runs share this path.
    fn start(&mut self, events: Option<EventSender>) {
        self.stage = match std::mem::replace(&mut self.stage, RunStage::Starting) {
            RunStage::Configuring(setup) => {
                let RunSetup { agent, source, context, config } = *setup;
                let cancel = self.cancel.clone();
                RunStage::Driving(drive::run_agent(agent, source, context, config, cancel, events))
            }
            stage @ (RunStage::Driving(_) | RunStage::Starting) => stage,
        };
    }
}

impl<C: Send + Sync + 'static> Future for RunBuilder<C> {
    type Output = Result<RunResult, RunError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.start(None);
        match &mut self.stage {
            RunStage::Driving(driving) => driving.as_mut().poll(cx),
            RunStage::Configuring(_) | RunStage::Starting => Poll::Pending,
        }
    }
}
