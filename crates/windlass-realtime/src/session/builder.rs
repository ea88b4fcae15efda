//! The builder of a session. Building has no side effects; starting the session has, and releases everything if
//! it fails.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass::agent::{Agent, ResolvedAgent, SharedConversation};
use windlass::core::budget::{ReachedBudget, SpendingBudget};
use windlass::core::decision::PendingCall;
use windlass::core::id::{AgentName, RunId};
use windlass::guardrail::OutputGuardrail;
use windlass::hook::Hook;
use windlass::price::PriceList;
use windlass::{
    error::{ConfigError, StoreError},
    store::{ApproverSigner, Store},
};

use super::actor::{ActorChannels, ActorConfig, SessionActor, SessionContext};
use super::connection::connect_with_timeout;
use super::events::EventFanout;
use super::handle::{RealtimeSession, SharedSession};
use crate::history::RealtimeItemKind;
use crate::journal::{RealtimeJournal, ReplayedSession};
use crate::machine::{
    AgentActivation, AgentSetup, AudioRelease, GuardrailFollowUp, PlaybackSource, RealtimeMachine,
    SessionPolicy, ToolCallMode,
};
use crate::model::{RealtimeConnectionError, RealtimeModel};
use crate::settings::{RealtimeSettings, SessionConfiguration};
use crate::sync::clamp_duration;

/// A builder for a session. Nothing happens before [`connect`](Self::connect) or [`resume`](Self::resume).
#[must_use = "a session does nothing until it is connected"]
pub struct RealtimeSessionBuilder<C = ()> {
    agent: Agent<C>,
    context: Arc<C>,
    model: Arc<dyn RealtimeModel>,
    settings: RealtimeSettings,
    session_id: RunId,
    policy: SessionPolicy,
    config: ActorConfig<C>,
    event_buffer: usize,
}

/// The treatment of an output guardrail that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardrailFailurePolicy {
    /// The failure is reported, and the other guardrails decide (fail open).
    #[default]
    Skip,
    /// The failure counts as a trip (fail closed).
    Trip,
}

/// The retry policy for a lost connection, with exponential backoff. Attempts count within a window of time, whatever
/// succeeded in between: a connection that is established and lost again and again ends the session too. Attempts in a
/// row without a configuration that the model acknowledged count however long they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectPolicy {
    /// Maximum number of connection attempts within the window, and in a row without an acknowledged configuration; with
    /// zero, the session ends at the first loss.
    pub max_attempts: u32,
    /// The window in which attempts count. A window shorter than the delays of all attempts and one second is extended to
    /// that, because attempts would leave it before they reach the maximum.
    pub window: Duration,
    /// Delay before the first attempt; it doubles with each further attempt within the window.
    pub initial_delay: Duration,
    /// Maximum delay.
    pub max_delay: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 6,
            window: Duration::from_secs(60),
            initial_delay: Duration::from_millis(200),
            max_delay: Duration::from_secs(10),
        }
    }
}

impl ReconnectPolicy {
    /// Returns the delay before the next attempt, after this number of attempts.
    pub(super) fn delay_after(&self, attempts: u32) -> Duration {
        self.initial_delay.saturating_mul(1 << attempts.min(MAX_DOUBLINGS)).min(self.max_delay)
    }

    /// Returns the window in which attempts count: it holds at least the delays of all attempts, and a second for their
    /// connections.
    pub(super) fn effective_window(&self) -> Duration {
        let doubling = self.max_attempts.min(MAX_DOUBLINGS);
        let longest = self.delay_after(MAX_DOUBLINGS).saturating_mul(self.max_attempts - doubling);
        let delays =
            (0..doubling).fold(longest, |sum, attempt| sum.saturating_add(self.delay_after(attempt)));
        self.window.max(delays.saturating_add(Duration::from_secs(1)))
    }
}

/// Number of times that the delay before an attempt doubles.
const MAX_DOUBLINGS: u32 = 16;

/// An error from starting a session. All resources of the session have been released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionStartError {
    /// The agent's configuration is invalid. No connection was made.
    #[error(transparent)]
    InvalidConfig(#[from] ConfigError),
    /// The agent's instructions and tools were not resolved in time. No connection was made.
    #[error("the agent's instructions and tools were not resolved within {0:?}")]
    ResolveTimeout(Duration),
    /// The connection failed.
    #[error("cannot connect to the model: {0}")]
    ConnectFailed(#[from] RealtimeConnectionError),
    /// The model rejected the configuration, did not acknowledge it in time, or the session ended before it was
    /// ready.
    #[error("the model did not accept the agent's configuration: {0}")]
    ConfigurationRejected(String),
    /// A budget of the session was reached before it was resumed.
    #[error("{0}")]
    BudgetReached(ReachedBudget),
    /// The session's journal cannot be read.
    #[error("the session's journal cannot be used: {0}")]
    JournalUnreadable(#[source] StoreError),
    /// There is no session to resume: the builder has no journal, or the journal has no entries of this session.
    #[error(
        "there is no session `{0}` to resume; hint: give the builder the journal that has it, or start a new session with `connect`"
    )]
    SessionNotFound(RunId),
}

impl<C: Send + Sync + 'static> RealtimeSessionBuilder<C> {
    /// Creates a builder for a session of this agent with this model and the application's context.
    pub fn with_context(agent: Agent<C>, model: impl RealtimeModel, context: impl Into<Arc<C>>) -> Self {
        Self {
            agent,
            context: context.into(),
            model: Arc::new(model),
            settings: RealtimeSettings::default(),
            session_id: RunId::from(uuid::Uuid::now_v7().to_string()),
            policy: SessionPolicy::default(),
            config: ActorConfig::default(),
            event_buffer: 4096,
        }
    }

    /// Sets the settings of the realtime model.
    pub fn settings(mut self, settings: RealtimeSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the session id; a new one by default. The ids of the runs that execute its calls are derived from
    /// it.
    pub fn session_id(mut self, id: impl Into<RunId>) -> Self {
        self.session_id = id.into();
        self
    }

    /// Sets the store of the runs that execute tool calls.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.config.store = Some(store);
        self
    }

    /// Sets the private key of the approver who decides through this session. In a store with approvers
    /// ([`Store::approvers`]) decisions without a signature are refused, rejections aside, and no approval stands for
    /// later calls of the session.
    pub fn sign_with(mut self, signer: Arc<ApproverSigner>) -> Self {
        self.config.signer = Some(signer);
        self
    }

    /// Adds an artefact to every run that executes tool calls: see [`windlass::run::RunBuilder::artefact`].
    pub fn run_artefact(mut self, name: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        self.config.run_artefacts.push((name.into(), body.into()));
        self
    }

    /// Sets the store of the session's own journal.
    pub fn journal(mut self, journal: impl RealtimeJournal) -> Self {
        self.config.journal = Some(Arc::new(journal));
        self
    }

    /// Adds agents that handoffs may name, besides those reachable from the agent.
    pub fn known_agents(mut self, agents: impl IntoIterator<Item = Agent<C>>) -> Self {
        self.config.known_agents.extend(agents);
        self
    }

    /// Adds an output guardrail that applies to every agent of the session.
    pub fn output_guardrail(mut self, guardrail: OutputGuardrail<C>) -> Self {
        self.config.guardrails.push(guardrail);
        self
    }

    /// Sets the number of characters after which the guardrails check again. The end of a response is always
    /// checked.
    pub fn guardrail_debounce(mut self, characters: usize) -> Self {
        self.policy.guardrail_debounce = characters.max(1);
        self
    }

    /// Sets the treatment of an output guardrail that fails.
    pub fn guardrail_failure_policy(mut self, policy: GuardrailFailurePolicy) -> Self {
        self.config.guardrail_failure_policy = policy;
        self
    }

    /// Sets the timeout of each guardrail in a check. One that exceeds it fails; the others count.
    pub fn guardrail_timeout(mut self, timeout: Duration) -> Self {
        self.config.guardrail_timeout = clamp_duration(timeout);
        self
    }

    /// Sets the message sent to the model after a guardrail tripped.
    pub fn guardrail_follow_up(mut self, follow_up: GuardrailFollowUp) -> Self {
        self.policy.follow_up = follow_up;
        self
    }

    /// Sets the time at which speech is released to the application.
    pub fn audio_release(mut self, release: AudioRelease) -> Self {
        self.policy.audio_release = release;
        self
    }

    /// Sets the source of the playback position.
    pub fn playback_source(mut self, source: PlaybackSource) -> Self {
        self.policy.playback_source = source;
        self
    }

    /// Sets the relation of tool calls to the conversation.
    pub fn tool_call_mode(mut self, mode: ToolCallMode) -> Self {
        self.policy.tool_call_mode = mode;
        self
    }

    /// Sets the maximum number of calls of one response that run concurrently.
    pub fn max_concurrent_calls(mut self, limit: usize) -> Self {
        self.config.max_concurrent_calls = Some(limit.max(1));
        self.policy.has_call_limit = true;
        self
    }

    /// Sets the maximum number of responses with calls without an input of the user or a request of the application; 32 by
    /// default. The calls of further responses are not made, and the session waits for the user.
    pub fn max_call_rounds(mut self, limit: u32) -> Self {
        self.policy.max_call_rounds = limit;
        self
    }

    /// Runs a tool's input guardrails before the approval as well as after it.
    pub fn pre_approval_guardrails(mut self) -> Self {
        self.config.pre_approval_guardrails = true;
        self
    }

    /// Sets the time after which an approval that nobody gave counts as rejected.
    pub fn approvals_expire_after(mut self, expiry: Duration) -> Self {
        self.config.approval_expiry = Some(clamp_duration(expiry));
        self
    }

    /// Sets the duration of this process's leases on the runs of tool calls; 30 seconds by default. A process
    /// that resumes the session after a crash waits up to this long for the runs that were in progress.
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.config.lease_duration = Some(clamp_duration(duration));
        self
    }

    /// Adds a hook for the lifecycle events of the runs that execute tool calls.
    pub fn hook(mut self, hook: Hook<C>) -> Self {
        self.config.hooks.push(hook);
        self
    }

    /// Sets the time to wait for cancelled tool bodies when the session ends.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.config.drain_timeout = clamp_duration(timeout);
        self
    }

    /// Sets the timeout of each step towards readiness: resolving an agent, connecting, the model's
    /// acknowledgement of a configuration, and appending to the journal.
    pub fn ready_timeout(mut self, timeout: Duration) -> Self {
        let timeout = clamp_duration(timeout);
        self.config.ready_timeout = timeout;
        self.policy.acknowledge_timeout = timeout;
        self
    }

    /// Sets the timeout of each of the two steps of the closing handshake; 1 second by default. Some servers never
    /// answer it.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.config.close_timeout = clamp_duration(timeout);
        self
    }

    /// Sets the timeouts of a response: the longest pause between its events, and the longest time to its
    /// start.
    pub fn response_timeouts(mut self, silence: Duration, start: Duration) -> Self {
        self.policy.response_timeouts.silence = clamp_duration(silence);
        self.policy.response_timeouts.start = clamp_duration(start);
        self
    }

    /// Sets the retry policy for a lost connection.
    pub fn reconnect_policy(mut self, policy: ReconnectPolicy) -> Self {
        self.config.reconnect_policy = ReconnectPolicy {
            max_attempts: policy.max_attempts,
            window: clamp_duration(policy.window),
            initial_delay: clamp_duration(policy.initial_delay),
            max_delay: clamp_duration(policy.max_delay),
        };
        self
    }

    /// Sets the longest time that a demanded response waits while the provider reports that the user is speaking; 10
    /// seconds by default. A response also stops waiting when the application has sent no audio for two seconds.
    pub fn speech_hold(mut self, timeout: Duration) -> Self {
        self.policy.speech_hold = clamp_duration(timeout);
        self
    }

    /// Adds an output guardrail that fails closed: if it cannot check, that counts as a trip, whatever the session's
    /// policy for failing guardrails is.
    pub fn strict_output_guardrail(mut self, guardrail: OutputGuardrail<C>) -> Self {
        self.config.strict_guardrails.insert(guardrail.name().into());
        self.output_guardrail(guardrail)
    }

    /// Sets a function that writes the text for the model if a person rejects a call without a message.
    pub fn rejection_message(
        mut self,
        write: impl Fn(&PendingCall) -> String + Send + Sync + 'static,
    ) -> Self {
        self.config.rejection_message = Some(Arc::new(write));
        self
    }

    /// Sets the budget of the session: for the responses of the model, and for the model requests of agents that calls run.
    /// Each is reserved in the session's journal before it is sent, so the budget holds when the session is resumed. Time
    /// is the time that the session is open.
    ///
    /// The session requests the responses to the user's speech itself then, and the provider does not speak after a
    /// silence by itself.
    pub fn budget(mut self, budget: SpendingBudget) -> Self {
        self.config.has_budget = !budget.is_unlimited();
        self.policy.spending.budget = Some(budget).filter(|budget| !budget.is_unlimited());
        self
    }

    /// Sets the prices of models, in place of the shipped ones.
    pub fn prices(mut self, prices: impl Into<Arc<PriceList>>) -> Self {
        let prices = prices.into();
        self.config.prices = prices.clone();
        self.policy.spending.prices = prices;
        self
    }

    /// Sets the size of each subscriber's event queue. If the queue is full, the oldest audio is dropped first.
    pub fn event_buffer(mut self, size: usize) -> Self {
        self.event_buffer = size.max(1);
        self
    }

    /// Sets the number of the user's audio chunks queued for sending. If the queue is full, the oldest chunk is
    /// dropped.
    pub fn audio_buffer(mut self, chunks: usize) -> Self {
        self.config.audio_buffer = chunks.max(1);
        self
    }

    /// Starts a new session.
    ///
    /// # Errors
    ///
    /// Returns [`SessionStartError`] if the agent could not be resolved, the connection failed, or the model
    /// rejected the configuration.
    pub async fn connect(self) -> Result<RealtimeSession<C>, SessionStartError> {
        self.start_session(ReplayedSession::default()).await
    }

    /// Resumes a session from its journal: sends the conversation to the model, continues unfinished calls, and
    /// sends undelivered outputs.
    ///
    /// # Errors
    ///
    /// Returns [`SessionStartError`] as [`connect`](Self::connect) does, and if the journal is missing,
    /// unreadable or has no such session.
    pub async fn resume(self) -> Result<RealtimeSession<C>, SessionStartError> {
        let Some(journal) = &self.config.journal else {
            return Err(SessionStartError::SessionNotFound(self.session_id));
        };
        let entries = journal.load(&self.session_id).await.map_err(SessionStartError::JournalUnreadable)?;
        let record = ReplayedSession::replay(&entries).map_err(SessionStartError::JournalUnreadable)?;
        if record.entry_count == 0 {
            return Err(SessionStartError::SessionNotFound(self.session_id));
        }
        self.start_session(record).await
    }

    async fn start_session(
        mut self,
        record: ReplayedSession,
    ) -> Result<RealtimeSession<C>, SessionStartError> {
        let timeout = self.config.ready_timeout;
        self.policy.session_id = self.session_id.clone();
        let first = match &record.agent {
            Some(name) if name != self.agent.name() => self.find_reachable_agent(name).await?,
            _ => self.agent.clone(),
        };
        let resolving =
            first.resolve_with_context(&self.session_id, self.context.clone(), &self.config.known_agents);
        let resolved = tokio::time::timeout(timeout, resolving)
            .await
            .map_err(|_| SessionStartError::ResolveTimeout(timeout))??;
        check_agent_tools(&*self.model, &resolved)?;
        self.policy.conversation_lifetime = self.model.conversation_lifetime();
        self.policy.spending.model = self.model.model_name().map(str::to_owned);
        let agent = agent_setup(0, &resolved, &self.settings, &self.config);
        let connection = connect_with_timeout(&*self.model, &agent.configuration, timeout).await?;

        let mut machine = RealtimeMachine::new(self.policy, agent, record.history.clone());
        machine.adopt_spending(&record);
        let unanswered = record.unanswered_item().cloned();
        let mut open = Vec::new();
        for calls in record.calls {
            for call in &calls.calls {
                machine.adopt_call(&calls.run, &calls.response, call);
            }
            let is_open = calls.calls.iter().any(|item| match &item.kind {
                RealtimeItemKind::Call { call, .. } => machine.history().call_output(call).is_none(),
                _ => false,
            });
            if is_open {
                open.push(calls);
            }
        }
        machine.on_resumed(record.entry_count, unanswered);

        let (requests, inbox) = mpsc::channel(1024);
        let (closed_sender, closed) = watch::channel(None);
        let shared = Arc::new(SharedSession {
            fanout: EventFanout::new(self.event_buffer),
            close_token: CancellationToken::new(),
            is_detaching: Default::default(),
            is_connected: Default::default(),
            dropped_input: Default::default(),
            input_format: self.settings.input_format(),
            output_format: self.settings.output_format(),
            store: self.config.store.clone(),
        });
        let handle = RealtimeSession::new(requests, shared.clone(), closed, self.session_id.clone());
        let (ready_sender, ready) = oneshot::channel();
        let conversation = SharedConversation::with_id(self.session_id.clone());
        let actor = SessionActor::new(
            machine,
            resolved,
            ActorChannels {
                shared,
                requests: inbox,
                close_report: closed_sender,
                ready_reply: Some(ready_sender),
            },
            self.config,
            SessionContext {
                app_context: self.context,
                model: self.model,
                settings: self.settings,
                session_id: self.session_id,
                root_agent: self.agent,
                conversation,
                next_entry_index: record.entry_count,
            },
        );
        tokio::spawn(Box::new(actor).run(connection, open));
        match ready.await {
            Ok(Ok(())) => Ok(handle),
            Ok(Err(error)) => {
                handle.close().await;
                Err(error)
            }
            Err(_) => Err(SessionStartError::ConfigurationRejected(
                "the session ended before it was ready".to_owned(),
            )),
        }
    }

    /// Returns the agent of this name that is reachable from the session's agent.
    async fn find_reachable_agent(&self, name: &AgentName) -> Result<Agent<C>, SessionStartError> {
        let root = self
            .agent
            .resolve_with_context(&self.session_id, self.context.clone(), &self.config.known_agents)
            .await?;
        let unknown = || ConfigError::UnknownAgent { agent: name.clone() };
        Ok(root.reachable_agent(name).cloned().ok_or_else(unknown)?)
    }
}

impl RealtimeSessionBuilder {
    /// Creates a builder for a session of this agent with this model.
    pub fn new(agent: Agent, model: impl RealtimeModel) -> Self {
        Self::with_context(agent, model, ())
    }
}

/// Checks that the model supports the agent's tools.
pub(super) fn check_agent_tools<C: Send + Sync + 'static>(
    model: &dyn RealtimeModel,
    resolved: &ResolvedAgent<C>,
) -> Result<(), ConfigError> {
    for tool in resolved.tools() {
        model.check_tool_support(tool).map_err(|reason| ConfigError::UnsupportedTool {
            agent: resolved.agent().name().clone(),
            tool: tool.name.to_string(),
            reason,
        })?;
    }
    Ok(())
}

/// Prepares a resolved agent for the machine. The guardrails and the budget of the session apply to every agent.
pub(super) fn agent_setup<C: Send + Sync + 'static>(
    number: u32,
    resolved: &ResolvedAgent<C>,
    settings: &RealtimeSettings,
    config: &ActorConfig<C>,
) -> AgentSetup {
    let name = resolved.agent().name().clone();
    let budget = resolved.agent().spending_budget().cloned();
    let mut settings = settings.clone();
    // A response that the provider makes by itself cannot be reserved before.
    let answers_speech =
        (config.has_budget || budget.is_some()) && settings.turn_detection.take_over_responses();
    let configuration = SessionConfiguration {
        agent: name.clone(),
        instructions: resolved.instructions().map(str::to_owned),
        tools: resolved.tools().to_vec(),
        handoffs: resolved.handoffs().to_vec(),
        model_settings: resolved.model_settings().clone(),
        realtime_settings: settings,
    };
    AgentSetup {
        activation: AgentActivation { number, name },
        configuration: Arc::new(configuration),
        has_guardrails: resolved.has_output_guardrails() || !config.guardrails.is_empty(),
        has_ordered_tools: resolved.has_ordered_tools(),
        budget,
        answers_speech,
    }
}
