//! The configuration of a run.

use std::future::Future;
use std::sync::Arc;
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

use crate::agent::{Agent, ResolvedToolset};
use crate::context::ContextPolicy;
use crate::guardrail::{InputGuardrail, OutputGuardrail};
use crate::hook::Hook;
use crate::model::{ModelLayer, ModelResponse, ModelSettings, SharedModel};
use crate::price::PriceList;
use crate::receipts::{LateConflictKeys, ReceiptCache};
use crate::run::TurnLimit;
use crate::secret_mask::SecretMask;
use crate::session::Session;
use crate::store::{DEFAULT_LEASE_DURATION, LeaseObserver, Store};
use crate::tool::{RunContext, ToolContext, ToolError};

/// Default time that a run waits for its session.
const DEFAULT_SESSION_WAIT: Duration = Duration::from_secs(30);
/// Default time that a run waits for cancelled bodies.
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_millis(250);
/// Default number of events that are buffered for a slow watcher.
const DEFAULT_EVENT_BUFFER: usize = 256;

/// A response that replaces a request to the model.
pub(crate) struct GivenResponse<C> {
    /// Response, if the run has not accepted it yet.
    pub(crate) response: Option<ModelResponse>,
    /// Tools that the model was offered.
    pub(crate) tools: Arc<ResolvedToolset<C>>,
    /// Receipts shared with other runs of the same conversation.
    pub(crate) receipt_cache: Arc<ReceiptCache>,
    /// Conflict keys of late bodies, shared in the same way.
    pub(crate) late_keys: Arc<LateConflictKeys>,
    /// Values of secret arguments in other runs of the same conversation.
    pub(crate) mask: SecretMask,
    /// The conversation, if it has an id.
    pub(crate) conversation: Option<RunId>,
}

pub(crate) struct RunConfig<C> {
    pub(crate) given_response: Option<Box<GivenResponse<C>>>,
    pub(crate) run_id: Option<RunId>,
    /// Nonce in place of a random one.
    pub(crate) key_nonce: Option<KeyNonce>,
    /// The response that a new run continues.
    pub(crate) previous_response_id: Option<String>,
    /// Name of the release that starts a new run.
    pub(crate) release: Option<String>,
    pub(crate) max_turns: TurnLimit,
    pub(crate) max_concurrent_calls: Option<usize>,
    pub(crate) pre_approval_guardrails: bool,
    pub(crate) on_unknown_tool: OnUnknownTool,
    pub(crate) drain_timeout: Duration,
    pub(crate) model: Option<SharedModel>,
    /// Overrides the settings of the agents.
    pub(crate) model_settings: Option<Box<ModelSettings>>,
    pub(crate) model_retry: ModelRetryPolicy,
    pub(crate) loop_policy: LoopPolicy,
    pub(crate) context_policy: ContextPolicy,
    pub(crate) approval_expiry: Option<Duration>,
    pub(crate) budget: Option<SpendingBudget>,
    pub(crate) session_budget: Option<SpendingBudget>,
    pub(crate) prices: Arc<PriceList>,
    pub(crate) input_guardrails: Vec<InputGuardrail<C>>,
    pub(crate) output_guardrails: Vec<OutputGuardrail<C>>,
    pub(crate) hooks: Vec<Hook<C>>,
    pub(crate) model_layers: Vec<Arc<dyn ModelLayer>>,
    pub(crate) call_layers: Vec<CallLayer<C>>,
    pub(crate) input_filter: Option<InputFilter<C>>,
    pub(crate) failure_handlers: FailureHandlers<C>,
    pub(crate) session: Option<Session>,
    pub(crate) on_session_busy: OnSessionBusy,
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) lease_duration: Duration,
    pub(crate) lease_observer: Option<LeaseObserver>,
    /// Artefacts that the driver saves when it starts.
    pub(crate) artefacts: Vec<(String, Vec<u8>)>,
    pub(crate) known_agents: Vec<Agent<C>>,
    pub(crate) on_stream_drop: OnStreamDrop,
    pub(crate) event_buffer_size: usize,
}

impl<C: Send + Sync + 'static> RunConfig<C> {
    /// Returns true if the journal may redact or output guardrails may block text that a model of the run has written.
    /// `agent` starts the run.
    pub(crate) fn may_withhold_text(&self, agent: &Agent<C>) -> bool {
        let mut agents = self.known_agents.iter().chain([agent]);
        !self.output_guardrails.is_empty()
            || agents.any(|agent| agent.reachable_agents().iter().any(Agent::may_withhold_text))
    }

    /// Returns true if the deltas of the run are for followers in other processes, and asks for a look at them.
    pub(crate) fn relays_deltas(&self, agent: &Agent<C>) -> bool {
        let Some(store) = &self.store else { return false };
        let Some(deltas) = store.deltas().filter(|_| !self.may_withhold_text(agent)) else { return false };
        deltas.followers().request_look(store);
        true
    }
}

impl<C> Default for RunConfig<C> {
    fn default() -> Self {
        Self {
            given_response: None,
            run_id: None,
            key_nonce: None,
            previous_response_id: None,
            release: None,
            max_turns: TurnLimit::ByTools,
            max_concurrent_calls: None,
            pre_approval_guardrails: false,
            on_unknown_tool: OnUnknownTool::default(),
            drain_timeout: DEFAULT_DRAIN_TIMEOUT,
            model: None,
            model_settings: None,
            model_retry: ModelRetryPolicy::default(),
            loop_policy: LoopPolicy::default(),
            context_policy: ContextPolicy::default(),
            approval_expiry: None,
            budget: None,
            session_budget: None,
            prices: PriceList::shipped(),
            input_guardrails: Vec::new(),
            output_guardrails: Vec::new(),
            hooks: Vec::new(),
            model_layers: Vec::new(),
            call_layers: Vec::new(),
            input_filter: None,
            failure_handlers: FailureHandlers::default(),
            session: None,
            on_session_busy: OnSessionBusy::default(),
            store: None,
            lease_duration: DEFAULT_LEASE_DURATION,
            lease_observer: None,
            artefacts: Vec::new(),
            known_agents: Vec::new(),
            on_stream_drop: OnStreamDrop::default(),
            event_buffer_size: DEFAULT_EVENT_BUFFER,
        }
    }
}

/// The reaction of a run to a session to which another run is appending.
///
/// A run holds its session while a driver works on it, and not while it is parked: a paused run blocks no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSessionBusy {
    /// The run waits until the session is free, and fails after this time. Nothing has happened then.
    Wait(Duration),
    /// The run fails at once. Nothing has happened then.
    Refuse,
}

impl Default for OnSessionBusy {
    fn default() -> Self {
        Self::Wait(DEFAULT_SESSION_WAIT)
    }
}

/// The reaction to a call of a tool that does not exist or is not enabled.
#[derive(Clone, Default)]
pub enum OnUnknownTool {
    /// The model receives an error with the names of the available tools. Other calls run.
    #[default]
    TellModel,
    /// The model receives the text that this function returns for the name of the tool and the names of the
    /// available tools.
    CustomMessage(Arc<dyn Fn(&str, &[String]) -> String + Send + Sync>),
    /// The run fails before any call of the response starts.
    FailRun,
}

impl OnUnknownTool {
    /// Creates the reaction from a function that returns the text for the model.
    pub fn custom_message(text: impl Fn(&str, &[String]) -> String + Send + Sync + 'static) -> Self {
        Self::CustomMessage(Arc::new(text))
    }
}

/// The retry policy for model requests that fail with a retryable error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelRetryPolicy {
    /// Maximum number of attempts, including the first.
    pub max_attempts: u32,
    /// Delay before the second attempt; it doubles with every further attempt. A delay that the provider names
    /// has precedence.
    pub base_delay: Duration,
    /// Maximum delay, unless the provider names one.
    pub max_delay: Duration,
    /// Maximum delay that the provider may name. If it asks for a longer one, the request is not retried.
    pub max_provider_delay: Duration,
    /// The reaction when no retry is left.
    pub when_exhausted: RetriesExhausted,
}

impl Default for ModelRetryPolicy {
    fn default() -> Self {
        Self {
            // About two minutes.
            max_attempts: 10,
            base_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(30),
            max_provider_delay: Duration::from_secs(30),
            when_exhausted: RetriesExhausted::default(),
        }
    }
}

/// The reaction to a provider that is away: a retry could help, but none is left, or the provider asks for a longer delay
/// than the policy allows. An error that no retry mends fails the run in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetriesExhausted {
    /// A run with a store is left, as by [`Leave`](Self::Leave): the store has what is done, and a later driver goes on. A
    /// run without one fails.
    #[default]
    LeaveIfStored,
    /// The run fails.
    Fail,
    /// The driver leaves the run, as [`CancelHandle::detach`](super::CancelHandle::detach) does: its result is
    /// [`RunResult::Detached`](super::RunResult::Detached), and a later driver goes on.
    Leave,
}

/// The reaction to a model that makes identical calls turn after turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopPolicy {
    /// Number of identical turns after which watchers get a warning.
    pub warn_after: u32,
    /// Number of identical turns after which the run fails.
    pub fail_after: u32,
}

impl LoopPolicy {
    /// Returns the warning about a turn that was repeated this often, if it is due.
    pub(crate) fn check(&self, repetitions: u32) -> Result<Option<String>, RunFailure> {
        if repetitions >= self.fail_after {
            return Err(RunFailure::LoopDetected { repetitions });
        }
        let warning = || format!("the model has made the same calls {repetitions} times in a row");
        Ok((repetitions >= self.warn_after).then(warning))
    }
}

impl Default for LoopPolicy {
    fn default() -> Self {
        Self { warn_after: 3, fail_after: 25 }
    }
}

/// The reaction of a run to a dropped stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStreamDrop {
    /// The run is cancelled and settles.
    #[default]
    CancelRun,
    /// The run continues to its end.
    ContinueRun,
}

/// The input of a model request.
pub struct ModelInput {
    /// The instructions.
    pub instructions: Option<Arc<str>>,
    /// The conversation.
    pub items: Vec<Arc<Item>>,
}

/// A function that changes the input of a model request. The history is not affected.
pub type InputFilter<C> =
    Arc<dyn Fn(RunContext<C>, ModelInput) -> BoxFuture<'static, ModelInput> + Send + Sync>;

/// The result of a failure handler: a final output in place of a failure.
#[derive(Clone, Debug, PartialEq)]
pub struct HandledFailure {
    /// The final output.
    pub final_output: String,
    /// True if the output is added to the history, as a message of the agent.
    pub include_in_history: bool,
}

type FailureHandlerFunction<C> =
    Arc<dyn Fn(RunContext<C>, RunFailure) -> BoxFuture<'static, Option<HandledFailure>> + Send + Sync>;

/// Handlers that replace a failure of the run by a final output, if the maximum number of turns is exceeded,
/// the model refuses, or the output does not match its type.
pub struct FailureHandlers<C> {
    pub(crate) on_failure: Option<FailureHandlerFunction<C>>,
}

impl<C> Default for FailureHandlers<C> {
    fn default() -> Self {
        Self { on_failure: None }
    }
}

impl<C> FailureHandlers<C> {
    pub(crate) fn new<Fut>(handler: impl Fn(RunContext<C>, RunFailure) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Option<HandledFailure>> + Send + 'static,
    {
        Self { on_failure: Some(Arc::new(move |ctx, failure| handler(ctx, failure).boxed())) }
    }
}

/// Middleware around the body of every call: after the guardrails and inside the timeout.
pub type CallLayer<C> = Arc<
    dyn Fn(ToolContext<C>, NextCall) -> BoxFuture<'static, Result<OutputContent, ToolError>> + Send + Sync,
>;

/// The remaining layers and the body of a call, from the point of view of a layer.
pub struct NextCall(pub(crate) BoxFuture<'static, Result<OutputContent, ToolError>>);

impl NextCall {
    /// Runs the remaining layers and the body.
    pub async fn run(self) -> Result<OutputContent, ToolError> {
        self.0.await
    }
}
