//! How a session is set up. Setting it up does nothing; entering it does, and cleans up where it fails.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass::agent::{Agent, Resolved, SharedReceipts};
use windlass::core::RunId;
use windlass::guardrail::OutputGuardrail;
use windlass::hook::Hook;
use windlass::{ConfigError, Store, StoreError};

use super::actor::{Actor, Plan};
use super::events::Fanout;
use super::handle::{LiveSession, Shared};
use crate::event::LiveEvent;
use crate::history::{History, LiveItemKind};
use crate::journal::{LiveEntry, LiveJournal, LiveRecord};
use crate::machine::{AgentKey, AudioRelease, FollowUp, Machine, PlaybackSource, Rules, ToolMode};
use crate::model::{ConnectError, RealtimeModel};
use crate::settings::{Configuration, LiveSettings};

/// A session that has not begun. Nothing happens before [`Realtime::connect`] or [`Realtime::resume`].
#[must_use = "a session does nothing until it is connected"]
pub struct Realtime<C = ()> {
    agent: Agent<C>,
    context: Arc<C>,
    model: Arc<dyn RealtimeModel>,
    settings: LiveSettings,
    session: RunId,
    rules: Rules,
    plan: Plan<C>,
    event_buffer: usize,
}

/// What a guardrail that fails counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnGuardrailFailure {
    /// It is told of, and the others count.
    #[default]
    Skip,
    /// It counts as one that objects.
    Trip,
}

/// How a lost connection is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// How many times it is tried; none means that the session ends.
    pub attempts: u32,
    /// How long to wait before the first; each further wait is twice as long.
    pub base: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self { attempts: 6, base: Duration::from_millis(200), longest: Duration::from_secs(10) }
    }
}

/// Why a session could not be entered. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnterError {
    /// The agent is not set up in a way that can be used. Nothing was connected.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The instructions and tools of the agent were not there in time. Nothing was connected.
    #[error("the instructions and tools of the agent were not there within {0:?}")]
    Slow(Duration),
    /// There was no connection.
    #[error("no connection: {0}")]
    Connect(#[from] ConnectError),
    /// The model did not take the configuration.
    #[error("the model did not take the agent's configuration: {0}")]
    Refused(String),
    /// The journal cannot be used.
    #[error("the session's journal cannot be used: {0}")]
    Journal(#[source] StoreError),
    /// There is nothing to resume.
    #[error("there is no session `{0}` in the journal; hint: `connect` begins one")]
    NothingToResume(RunId),
}

impl<C: Send + Sync + 'static> Realtime<C> {
    /// A session of this agent with this model, and the application's context.
    pub fn with(agent: Agent<C>, model: impl RealtimeModel, context: impl Into<Arc<C>>) -> Self {
        Self {
            agent,
            context: context.into(),
            model: Arc::new(model),
            settings: LiveSettings::default(),
            session: RunId::from(uuid::Uuid::now_v7().to_string()),
            rules: Rules::default(),
            plan: Plan::default(),
            event_buffer: 4096,
        }
    }

    /// How the model listens, speaks and takes turns.
    pub fn settings(mut self, settings: LiveSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The session's name, in place of a new one. Runs that carry out its calls are named after it.
    pub fn session_id(mut self, id: impl Into<RunId>) -> Self {
        self.session = id.into();
        self
    }

    /// Where runs that carry out calls are kept.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.plan.store = Some(store);
        self
    }

    /// Where the session's own journal is kept.
    pub fn journal(mut self, journal: impl LiveJournal) -> Self {
        self.plan.journal = Some(Arc::new(journal));
        self
    }

    /// Agents that handoffs name, besides those that can be reached.
    pub fn agents(mut self, agents: impl IntoIterator<Item = Agent<C>>) -> Self {
        self.plan.known.extend(agents);
        self
    }

    /// Checks what the model says, whichever agent is current.
    pub fn output_guardrail(mut self, guardrail: OutputGuardrail<C>) -> Self {
        self.plan.guardrails.push(guardrail);
        self
    }

    /// After how many letters guardrails look again; at the end of an answer they look in any case.
    pub fn debounce(mut self, letters: usize) -> Self {
        self.rules.debounce = letters.max(1);
        self
    }

    /// What a guardrail that fails counts as.
    pub fn on_guardrail_failure(mut self, policy: OnGuardrailFailure) -> Self {
        self.plan.on_guardrail_failure = policy;
        self
    }

    /// How long a guardrail may take.
    pub fn guardrail_timeout(mut self, timeout: Duration) -> Self {
        self.plan.guardrail_timeout = timeout;
        self
    }

    /// What the model is told after a guardrail tripped.
    pub fn follow_up(mut self, follow_up: FollowUp) -> Self {
        self.rules.follow_up = follow_up;
        self
    }

    /// When speech reaches the application.
    pub fn audio_release(mut self, release: AudioRelease) -> Self {
        self.rules.release = release;
        self
    }

    /// How it is known what the user has heard.
    pub fn playback(mut self, source: PlaybackSource) -> Self {
        self.rules.playback = source;
        self
    }

    /// Whether calls run beside the conversation or in line with it.
    pub fn tools(mut self, mode: ToolMode) -> Self {
        self.rules.tools = mode;
        self
    }

    /// How many calls of one answer run at once.
    pub fn concurrency(mut self, limit: usize) -> Self {
        self.plan.concurrency = Some(limit.max(1));
        self
    }

    /// Runs a tool's input guardrails also before a person is asked.
    pub fn early_guardrails(mut self) -> Self {
        self.plan.early_guardrails = true;
        self
    }

    /// How long an approval may be waited for, before it counts as a no.
    pub fn approvals_expire_after(mut self, expiry: Duration) -> Self {
        self.plan.approval_expiry = Some(expiry);
        self
    }

    /// How long this process owns the runs of calls without a sign of life. One that resumes the session after a crash
    /// waits so long for those that were under way. Thirty seconds, unless this says otherwise.
    pub fn lease(mut self, lasting: Duration) -> Self {
        self.plan.lease = Some(lasting);
        self
    }

    /// Told of the moments of the runs that carry out calls.
    pub fn hook(mut self, hook: Hook<C>) -> Self {
        self.plan.hooks.push(hook);
        self
    }

    /// How long bodies that are stopped are waited for when the session ends.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.plan.drain = drain;
        self
    }

    /// How long connecting, resolving an agent, or saying goodbye may take.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.plan.patience = patience;
        self.rules.acknowledge = patience;
        self
    }

    /// How long the model may be silent in the middle of an answer, and how long it may take to begin one.
    pub fn silence(mut self, silence: Duration, begin: Duration) -> Self {
        self.rules.patience.silence = silence;
        self.rules.patience.begin = begin;
        self
    }

    /// How a lost connection is made again.
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.plan.reconnect = reconnect;
        self
    }

    /// How many events wait for a slow watcher before the oldest speech is left out.
    pub fn event_buffer(mut self, events: usize) -> Self {
        self.event_buffer = events.max(1);
        self
    }

    /// How many pieces of the user's audio wait for a slow connection before the oldest are left out.
    pub fn audio_buffer(mut self, pieces: usize) -> Self {
        self.plan.audio_buffer = pieces.max(1);
        self
    }

    /// Begins a session.
    pub async fn connect(self) -> Result<LiveSession<C>, EnterError> {
        self.enter(LiveRecord::default()).await
    }

    /// Goes on with a session that its journal has: the model is told what was said, calls that were open are gone on
    /// with, and what had not been delivered is.
    pub async fn resume(self) -> Result<LiveSession<C>, EnterError> {
        let Some(journal) = &self.plan.journal else {
            return Err(EnterError::NothingToResume(self.session));
        };
        let entries = journal.load(&self.session).await.map_err(EnterError::Journal)?;
        let record = LiveRecord::replay(&entries).map_err(EnterError::Journal)?;
        if record.entries == 0 {
            return Err(EnterError::NothingToResume(self.session));
        }
        self.enter(record).await
    }

    async fn enter(mut self, record: LiveRecord) -> Result<LiveSession<C>, EnterError> {
        let patience = self.plan.patience;
        self.rules.session = self.session.clone();
        let first = match &record.agent {
            Some(name) if name != self.agent.name() => self.named(name).await?,
            _ => self.agent.clone(),
        };
        let resolving = first.resolve_with(&self.session, self.context.clone(), &self.plan.known);
        let resolved =
            tokio::time::timeout(patience, resolving).await.map_err(|_| EnterError::Slow(patience))??;
        supported(&*self.model, &resolved)?;
        let configuration = Arc::new(configuration(&resolved, &self.settings));
        let is_checked = resolved.is_checked() || !self.plan.guardrails.is_empty();
        let connecting = tokio::time::timeout(patience, self.model.connect(&configuration)).await;
        let connection =
            connecting.unwrap_or_else(|_| Err(ConnectError::new("it took too long to connect")))?;

        let agent = AgentKey { number: 0, name: resolved.agent().name().clone() };
        let history = History::new(record.history.items().to_vec());
        let mut machine = Machine::new(self.rules, agent.clone(), configuration, is_checked, history);
        let unanswered = record.unanswered().cloned();
        let mut open = Vec::new();
        for calls in record.calls {
            for call in &calls.calls {
                machine.adopt(&calls.run, call);
            }
            let is_open = calls.calls.iter().any(|item| match &item.kind {
                LiveItemKind::Call { call, .. } => machine.history().output_of(call).is_none(),
                _ => false,
            });
            if is_open {
                open.push(calls);
            }
        }
        machine.resumed(record.entries, unanswered);

        let (requests, inbox) = mpsc::channel(1024);
        let (closed_sender, closed) = watch::channel(None);
        let shared = Arc::new(Shared {
            fanout: Fanout::new(self.event_buffer),
            closing: CancellationToken::new(),
            leaving: Default::default(),
            dropped_input: Default::default(),
        });
        let handle = LiveSession::new(requests, shared.clone(), closed, self.session.clone());
        let (ready_sender, ready) = oneshot::channel();
        let actor = Actor::new(
            machine,
            resolved,
            super::actor::Ends { shared, inbox, closed: closed_sender, ready: Some(ready_sender) },
            self.plan,
            super::actor::Setting {
                app: self.context,
                model: self.model,
                settings: self.settings,
                session: self.session,
                root: self.agent,
                receipts: SharedReceipts::default(),
                journal_at: record.entries,
            },
        );
        tokio::spawn(actor.run(connection, open));
        match ready.await {
            Ok(Ok(())) => Ok(handle),
            Ok(Err(error)) => {
                handle.close().await;
                Err(error)
            }
            Err(_) => Err(EnterError::Refused("the session ended before it had begun".to_owned())),
        }
    }

    /// An agent that can be reached from the first.
    async fn named(&self, name: &windlass::core::AgentName) -> Result<Agent<C>, EnterError> {
        let root = self.agent.resolve_with(&self.session, self.context.clone(), &self.plan.known).await?;
        let unknown = || ConfigError::UnknownAgent { agent: name.clone() };
        Ok(root.reachable(name).cloned().ok_or_else(unknown)?)
    }
}

impl Realtime {
    /// A session of this agent with this model.
    pub fn new(agent: Agent, model: impl RealtimeModel) -> Self {
        Self::with(agent, model, ())
    }
}

/// Whether the model can be offered the agent's tools.
pub(super) fn supported<C: Send + Sync + 'static>(
    model: &dyn RealtimeModel,
    resolved: &Resolved<C>,
) -> Result<(), ConfigError> {
    for tool in resolved.tools() {
        model.supports(tool).map_err(|why| ConfigError::NotSupported {
            agent: resolved.agent().name().clone(),
            tool: tool.name.to_string(),
            why,
        })?;
    }
    Ok(())
}

/// What the model is told of an agent.
pub(super) fn configuration<C: Send + Sync + 'static>(
    resolved: &Resolved<C>,
    live: &LiveSettings,
) -> Configuration {
    Configuration {
        agent: resolved.agent().name().clone(),
        instructions: resolved.instructions().map(str::to_owned),
        tools: resolved.tools().to_vec(),
        handoffs: resolved.handoffs().to_vec(),
        model: resolved.settings().clone(),
        live: live.clone(),
    }
}

/// The first entry of a life of a session.
pub(super) fn opened(agent: &AgentKey) -> LiveEntry {
    LiveEntry::Opened { format: crate::journal::LIVE_FORMAT, agent: agent.name.clone() }
}

/// The first event of a session.
pub(super) const CONNECTED: LiveEvent = LiveEvent::Connected;
