//! The session as a pure state machine: events and the current time are its inputs, [`SessionEffect`]s its
//! output. It does no I/O, reads no clock and spawns no tasks, so that tests can try every order of events.
//!
//! **The driver's contract: feed events in the order in which they arrived, execute every [`SessionEffect`] in
//! order, and call [`RealtimeMachine::tick`] no later than [`RealtimeMachine::deadline`].**

mod agent_changes;
mod calls;
mod input;
mod model_events;
mod playback;
mod response_scheduler;
mod turns;

pub use input::RespondWhen;
pub use playback::PlaybackSource;

pub(crate) use calls::CallBatchStatus;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use windlass::core::id::{AgentName, CallId, RunId};
use windlass::{core::item::Item, core::usage::Usage};

use crate::event::{AgentChangeCause, RealtimeEvent};
use crate::history::{HistoryChange, RealtimeHistory, RealtimeItem, RealtimeItemStatus};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::journal::RealtimeEntry;
use crate::metrics::SessionMetrics;
use crate::model::{RealtimeCommand, RealtimeCommandKind, ResponseStatus};
use crate::settings::SessionConfiguration;

use self::calls::RealtimeCall;
use self::playback::PlaybackTracker;
use self::response_scheduler::{ResponseScheduler, ResponseTimeoutAction, ResponseTimeouts};
use self::turns::ResponseTurn;

/// An agent as resolved when it became current. An agent that becomes current twice has two activations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AgentActivation {
    pub(crate) number: u32,
    pub(crate) name: AgentName,
}

/// An agent with everything that the machine needs to make it current.
#[derive(Clone, Debug)]
pub(crate) struct AgentSetup {
    pub(crate) activation: AgentActivation,
    pub(crate) configuration: Arc<SessionConfiguration>,
    /// True if output guardrails check the agent's responses.
    pub(crate) has_guardrails: bool,
}

/// An action that the machine requests from its driver.
///
/// Exhaustive on purpose: the driver must execute every effect.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SessionEffect {
    /// Send a command to the model.
    SendCommand(RealtimeCommand),
    /// Report an event to the subscribers.
    EmitEvent(RealtimeEvent),
    /// Append an entry to the journal, before the effects that follow.
    AppendJournal(RealtimeEntry),
    /// Execute the calls of a response.
    ExecuteCalls(CallBatch),
    /// Run the guardrails on a text.
    CheckTranscript(TranscriptCheck),
    /// Report the result of an agent change.
    AgentChanged { agent: AgentActivation, result: Result<(), String> },
}

/// The tool calls of one response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallBatch {
    pub(crate) run: RunId,
    pub(crate) response: ResponseId,
    pub(crate) agent: AgentActivation,
    pub(crate) input: Vec<Item>,
    pub(crate) calls: Vec<Item>,
    pub(crate) usage: Option<Usage>,
}

/// A text of the model for the guardrails to check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TranscriptCheck {
    pub(crate) response: ResponseId,
    pub(crate) agent: AgentActivation,
    pub(crate) text: Arc<str>,
}

/// The settings of the machine.
#[derive(Clone, Debug)]
pub(crate) struct SessionPolicy {
    pub(crate) session_id: RunId,
    pub(crate) guardrail_debounce: usize,
    pub(crate) tool_call_mode: ToolCallMode,
    pub(crate) playback_source: PlaybackSource,
    pub(crate) response_timeouts: ResponseTimeouts,
    pub(crate) acknowledge_timeout: Duration,
    pub(crate) audio_release: AudioRelease,
    pub(crate) follow_up: GuardrailFollowUp,
}

/// The relation of tool calls to the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolCallMode {
    /// The conversation goes on while calls run.
    #[default]
    Background,
    /// No response is requested while calls run, and the calls of one response run after those of the previous
    /// one.
    Blocking,
}

/// The time at which speech is released to the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AudioRelease {
    /// Immediately; a guardrail may trip after the speech has been played.
    #[default]
    Immediate,
    /// After the guardrails have accepted its transcript. Playback starts later, and rejected speech is never
    /// heard.
    AfterGuardrails,
}

/// The message sent to the model after a guardrail tripped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GuardrailFollowUp {
    /// A message with the names of the guardrails; the model responds again.
    #[default]
    NameGuardrails,
    /// This message; the model responds again.
    CustomMessage(String),
    /// No message; the model does not respond again.
    NoMessage,
}

impl Default for SessionPolicy {
    fn default() -> Self {
        Self {
            session_id: RunId::from("session"),
            guardrail_debounce: 100,
            tool_call_mode: ToolCallMode::Background,
            playback_source: PlaybackSource::Clock,
            response_timeouts: ResponseTimeouts {
                start: Duration::from_secs(10),
                silence: Duration::from_secs(30),
                cancel: Duration::from_secs(5),
            },
            acknowledge_timeout: Duration::from_secs(10),
            audio_release: AudioRelease::Immediate,
            follow_up: GuardrailFollowUp::NameGuardrails,
        }
    }
}

/// The state of the connection to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Disconnected,
    Connected,
}

/// An agent change whose configuration is not in force yet.
#[derive(Clone, Debug)]
struct PendingAgentChange {
    agent: AgentSetup,
    cause: AgentChangeCause,
    sent_as: Option<CommandId>,
}

/// The state machine of a session; see the module's documentation for the driver's contract.
#[derive(Debug)]
pub(crate) struct RealtimeMachine {
    policy: SessionPolicy,
    pending_effects: Vec<SessionEffect>,
    now: Duration,
    connection_state: ConnectionState,
    history: RealtimeHistory,
    scheduler: ResponseScheduler,
    playback: PlaybackTracker,
    current_agent: AgentSetup,
    /// Configurations sent and not acknowledged, oldest first, with the time of sending.
    unacknowledged_configurations: VecDeque<(CommandId, Duration)>,
    pending_changes: VecDeque<PendingAgentChange>,
    turns: BTreeMap<ResponseId, ResponseTurn>,
    newest_response: Option<ResponseId>,
    /// Responses that have ended, the newest last.
    ended_responses: VecDeque<ResponseId>,
    calls: BTreeMap<CallId, RealtimeCall>,
    /// Runs in progress; `queued_batches` wait for them.
    active_runs: BTreeSet<RunId>,
    queued_batches: VecDeque<CallBatch>,
    /// Items sent and not confirmed by the model.
    unconfirmed_items: BTreeMap<CommandId, ItemId>,
    /// The result of the first configuration.
    ready_result: Option<Result<(), String>>,
    user_speaking_since: Option<Duration>,
    /// The end of the user's speech, or the time of the last response request.
    response_requested_at: Option<Duration>,
    /// The user's items since the last response that made calls.
    items_since_calls: Vec<ItemId>,
    /// Number of consecutive responses that were rejected by a guardrail and followed up.
    follow_ups: u32,
    command_count: u64,
    item_count: u64,
    metrics: SessionMetrics,
}

/// Longest speech of the user. After it, the `SpeechStopped` event is taken to be lost.
const MAX_SPEECH_DURATION: Duration = Duration::from_secs(120);

impl RealtimeMachine {
    pub(crate) fn new(policy: SessionPolicy, agent: AgentSetup, history: RealtimeHistory) -> Self {
        let output_format = agent.configuration.realtime_settings.output_audio_format;
        Self {
            scheduler: ResponseScheduler::new(policy.response_timeouts),
            playback: PlaybackTracker::new(policy.playback_source, output_format),
            policy,
            pending_effects: Vec::new(),
            now: Duration::ZERO,
            connection_state: ConnectionState::Disconnected,
            history,
            current_agent: agent,
            unacknowledged_configurations: VecDeque::new(),
            pending_changes: VecDeque::new(),
            turns: BTreeMap::new(),
            newest_response: None,
            ended_responses: VecDeque::new(),
            calls: BTreeMap::new(),
            active_runs: BTreeSet::new(),
            queued_batches: VecDeque::new(),
            unconfirmed_items: BTreeMap::new(),
            ready_result: None,
            user_speaking_since: None,
            response_requested_at: None,
            items_since_calls: Vec::new(),
            follow_ups: 0,
            command_count: 0,
            item_count: 0,
            metrics: SessionMetrics::default(),
        }
    }

    /// Starts all work that can start now, and returns the effects to execute, in order.
    pub(crate) fn take_effects(&mut self) -> Vec<SessionEffect> {
        self.start_due_work();
        std::mem::take(&mut self.pending_effects)
    }

    /// Sets the current time, which never goes back.
    pub(crate) fn advance_to(&mut self, now: Duration) -> &mut Self {
        self.now = self.now.max(now);
        self
    }

    /// Returns the time of the next [`tick`](Self::tick) at the latest.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.connection_state == ConnectionState::Disconnected {
            return None;
        }
        let configured =
            self.unacknowledged_configurations.front().map(|(_, at)| *at + self.policy.acknowledge_timeout);
        let speech = self.user_speaking_since.map(|since| since + MAX_SPEECH_DURATION);
        [self.scheduler.deadline(), configured, speech].into_iter().flatten().min()
    }

    /// Handles timeouts.
    pub(crate) fn tick(&mut self) {
        if self.connection_state == ConnectionState::Disconnected {
            return;
        }
        if self.user_speaking_since.is_some_and(|since| self.now >= since + MAX_SPEECH_DURATION) {
            self.user_speaking_since = None;
        }
        self.expire_configuration();
        match self.scheduler.elapsed_timeout(self.now) {
            None => {}
            Some(ResponseTimeoutAction::ReportNotStarted) => {
                self.emit_error(crate::event::RealtimeError::ResponseNotStarted)
            }
            Some(ResponseTimeoutAction::Cancel(response)) => {
                self.emit_error(crate::event::RealtimeError::ResponseStalled { response: response.clone() });
                self.send_command(RealtimeCommandKind::CancelResponse { response });
            }
            Some(ResponseTimeoutAction::Abandon(response)) => {
                self.on_response_ended(&response, ResponseStatus::Unknown, None, Vec::new());
            }
        }
    }

    /// Handles a new connection, the first one or a later one: sends the configuration and the whole history.
    pub(crate) fn on_connected(&mut self) {
        self.connection_state = ConnectionState::Connected;
        self.unacknowledged_configurations.clear();
        self.unconfirmed_items.clear();
        let configuration = Box::new((*self.current_agent.configuration).clone());
        let id = self.send_command(RealtimeCommandKind::Configure(configuration));
        self.unacknowledged_configurations.push_back((id, self.now));
        for item in self.history.items().to_vec() {
            // Speech without a transcript cannot be sent back.
            if !item.is_sendable() {
                continue;
            }
            let id = self.send_command(RealtimeCommandKind::CreateItem { item: item.clone(), after: None });
            self.unconfirmed_items.insert(id, item.id);
        }
        for change in &mut self.pending_changes {
            change.sent_as = None;
        }
    }

    /// Handles the loss of the connection.
    pub(crate) fn on_disconnected(&mut self) {
        self.connection_state = ConnectionState::Disconnected;
        self.user_speaking_since = None;
        self.interrupt_playback(None);
        let open: Vec<ResponseId> =
            self.turns.iter().filter(|(_, turn)| !turn.has_ended()).map(|(id, _)| id.clone()).collect();
        for response in open {
            // The response produced nothing, so it is requested again.
            let is_wanted = self.scheduler.active_response() == Some(&response)
                && self.turns.get(&response).is_some_and(ResponseTurn::is_empty);
            self.on_response_ended(&response, ResponseStatus::Unknown, None, Vec::new());
            if is_wanted {
                self.scheduler.demand_response(self.now, None);
            }
        }
        self.scheduler.on_disconnected();
        self.unacknowledged_configurations.clear();
    }

    pub(crate) fn history(&self) -> &RealtimeHistory {
        &self.history
    }

    pub(crate) fn agent(&self) -> &AgentActivation {
        &self.current_agent.activation
    }

    /// Returns the configuration of the current agent.
    pub(crate) fn configuration(&self) -> Arc<SessionConfiguration> {
        self.current_agent.configuration.clone()
    }

    pub(crate) fn metrics(&self) -> &SessionMetrics {
        &self.metrics
    }

    pub(crate) fn metrics_mut(&mut self) -> &mut SessionMetrics {
        &mut self.metrics
    }

    /// Returns the result of the first configuration, once it is known.
    pub(crate) fn ready_result(&self) -> Option<&Result<(), String>> {
        self.ready_result.as_ref()
    }

    /// Starts all work that can start now: an agent change, queued calls, a demanded response.
    fn start_due_work(&mut self) {
        if self.connection_state == ConnectionState::Disconnected {
            return;
        }
        self.send_next_change();
        self.start_queued_batches();
        let is_busy = !self.pending_changes.is_empty()
            || self.user_speaking_since.is_some()
            || (self.policy.tool_call_mode == ToolCallMode::Blocking && !self.active_runs.is_empty());
        if is_busy {
            return;
        }
        let (now, next) = (self.now, self.command_count + 1);
        if let Some(command) = self.scheduler.next_request(now, || command_id(next)) {
            self.command_count = next;
            self.pending_effects.push(SessionEffect::SendCommand(RealtimeCommand {
                id: command,
                kind: RealtimeCommandKind::CreateResponse(Default::default()),
            }));
        }
    }

    /// Sends a command if connected, and returns its id in any case.
    fn send_command(&mut self, kind: RealtimeCommandKind) -> CommandId {
        self.command_count += 1;
        let id = command_id(self.command_count);
        if self.connection_state == ConnectionState::Connected {
            self.pending_effects.push(SessionEffect::SendCommand(RealtimeCommand { id: id.clone(), kind }));
        }
        id
    }

    fn emit_event(&mut self, event: RealtimeEvent) {
        self.pending_effects.push(SessionEffect::EmitEvent(event));
    }

    fn emit_error(&mut self, error: crate::event::RealtimeError) {
        self.emit_event(RealtimeEvent::Error(error));
    }

    /// Reports a history change, and journals it unless the item is still in progress.
    fn record_change(&mut self, change: Option<HistoryChange>) {
        self.record_change_for(change, RespondWhen::Now);
    }

    /// Like [`record_change`](Self::record_change), with the time of the model's response to the item.
    fn record_change_for(&mut self, change: Option<HistoryChange>, respond: RespondWhen) {
        let Some(change) = change else { return };
        let entry = match &change {
            HistoryChange::Added { item, .. } | HistoryChange::Updated(item)
                if item.status == RealtimeItemStatus::InProgress =>
            {
                None
            }
            HistoryChange::Added { item, .. } | HistoryChange::Updated(item) => {
                let after = self.history.preceding_item(&item.id).cloned();
                Some(RealtimeEntry::ItemChanged { item: item.clone(), after, respond })
            }
            HistoryChange::Removed(item) => Some(RealtimeEntry::ItemRemoved { item: item.clone() }),
        };
        if let Some(entry) = entry {
            self.pending_effects.push(SessionEffect::AppendJournal(entry));
        }
        self.emit_event(RealtimeEvent::HistoryChanged(change));
    }

    /// Adds an item of this session to the history and sends it to the model.
    fn add_item(&mut self, item: RealtimeItem, after: Option<ItemId>, respond: RespondWhen) {
        let change = self.history.upsert_item(item.clone(), after.as_ref());
        self.record_change_for(change, respond);
        let id = self.send_command(RealtimeCommandKind::CreateItem { item: item.clone(), after });
        if self.connection_state == ConnectionState::Connected {
            self.unconfirmed_items.insert(id, item.id);
        }
    }

    fn next_item_id(&mut self) -> ItemId {
        self.item_count += 1;
        ItemId::from(format!("wl_{}_{}", self.short_session_id(), self.item_count))
    }

    /// Returns a short form of the session id; providers limit the length of item ids.
    fn short_session_id(&self) -> String {
        let text = self.policy.session_id.as_str();
        text.chars().rev().filter(char::is_ascii_alphanumeric).take(12).collect()
    }
}

fn command_id(number: u64) -> CommandId {
    CommandId::from(format!("wl_{number}"))
}

impl RealtimeItem {
    /// Returns true if the item can be sent to the model again.
    fn is_sendable(&self) -> bool {
        use crate::history::{RealtimeContentPart, RealtimeItemKind};
        match &self.kind {
            RealtimeItemKind::Message { parts, .. } => parts.iter().any(|part| match part {
                RealtimeContentPart::Text { text } => !text.is_empty(),
                RealtimeContentPart::Audio { transcript, .. } => {
                    transcript.as_ref().is_some_and(|text| !text.is_empty())
                }
                RealtimeContentPart::Image { .. } => true,
            }),
            RealtimeItemKind::Call { .. } | RealtimeItemKind::Output { .. } => true,
            RealtimeItemKind::Other { .. } => false,
        }
    }
}
