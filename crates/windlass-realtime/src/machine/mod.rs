//! The session as a pure state machine: events and the current time are its inputs, [`SessionEffect`]s its
//! output. It does no I/O, reads no clock and spawns no tasks, so that tests can try every order of events.
//!
//! **The driver's contract: feed events in the order in which they arrived, execute every [`SessionEffect`] in
//! order, and call [`RealtimeMachine::tick`] no later than [`RealtimeMachine::deadline`].**

mod agent_changes;
mod budget;
mod calls;
mod ending;
mod input;
mod interruptions;
mod model_events;
mod playback;
mod reattachment;
mod response_scheduler;
mod side_responses;
mod turns;
mod user_speech;
mod wire_ids;

pub use input::RespondWhen;
pub use playback::PlaybackSource;

pub(crate) use budget::{BudgetQuestion, SessionSpendingPolicy};
pub(crate) use calls::CallBatchStatus;
pub(crate) use input::RawMessageResult;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use windlass::core::budget::{ReachedBudget, SpendingBudget};
use windlass::core::id::{AgentName, CallId, RunId};
use windlass::{core::item::Item, core::usage::Usage};

use crate::event::{AgentChangeCause, CloseReason, RealtimeError, RealtimeEvent};
use crate::history::{HistoryChange, RealtimeHistory, RealtimeItem, RealtimeItemStatus};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::journal::RealtimeEntry;
use crate::metrics::SessionMetrics;
use crate::model::{ConversationLifetime, RealtimeCommand, RealtimeCommandKind, ResponseStatus};
use crate::settings::SessionConfiguration;

use self::agent_changes::{ConfigurationState, InFlightConfiguration};
use self::budget::SessionSpending;
use self::calls::{CollectedOutputs, RealtimeCall, RejectedOutput};
use self::playback::PlaybackTracker;
use self::response_scheduler::{RequestBody, ResponseScheduler, ResponseTimeoutAction, ResponseTimeouts};
use self::side_responses::{SideResponse, SideResponseKind};
use self::turns::ResponseTurn;
use self::user_speech::UserSpeech;
use self::wire_ids::WireIds;

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
    /// True if the order of the agent's calls matters to its tools, so that the calls of a response run together.
    pub(crate) has_ordered_tools: bool,
    /// The budget of the agent.
    pub(crate) budget: Option<SpendingBudget>,
    /// True if the session requests the response to the user's speech, because a budget must allow it first. Otherwise
    /// the provider makes it by itself.
    pub(crate) answers_speech: bool,
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
    /// Ask a person for more.
    AskForBudget(BudgetQuestion),
    /// Let a model request inside a call go on, or fail it.
    AdmitModelRequest { request: CallId, result: Result<(), ReachedBudget> },
    /// Replace the connection, which cannot be used any more.
    DropConnection(String),
    /// End the session.
    EndSession(CloseReason),
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
    pub(crate) conversation_lifetime: ConversationLifetime,
    pub(crate) guardrail_debounce: usize,
    pub(crate) tool_call_mode: ToolCallMode,
    /// True if the number of concurrent calls of a response is limited, so that its calls run together.
    pub(crate) has_call_limit: bool,
    /// Maximum number of responses with calls without an input of the user or a request of the application.
    pub(crate) max_call_rounds: u32,
    /// Longest time that a demanded response waits for the end of the user's speech.
    pub(crate) speech_hold: Duration,
    pub(crate) playback_source: PlaybackSource,
    pub(crate) response_timeouts: ResponseTimeouts,
    pub(crate) acknowledge_timeout: Duration,
    pub(crate) audio_release: AudioRelease,
    pub(crate) follow_up: GuardrailFollowUp,
    pub(crate) spending: SessionSpendingPolicy,
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
            conversation_lifetime: ConversationLifetime::Connection,
            guardrail_debounce: 100,
            tool_call_mode: ToolCallMode::Background,
            has_call_limit: false,
            max_call_rounds: 32,
            speech_hold: Duration::from_secs(10),
            playback_source: PlaybackSource::Clock,
            response_timeouts: ResponseTimeouts {
                start: Duration::from_secs(10),
                silence: Duration::from_secs(30),
                cancel: Duration::from_secs(5),
            },
            acknowledge_timeout: Duration::from_secs(10),
            audio_release: AudioRelease::Immediate,
            follow_up: GuardrailFollowUp::NameGuardrails,
            spending: SessionSpendingPolicy::default(),
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
}

/// The state machine of a session; see the module's documentation for the driver's contract.
#[derive(Debug)]
pub(crate) struct RealtimeMachine {
    policy: SessionPolicy,
    pending_effects: Vec<SessionEffect>,
    now: Duration,
    connection_state: ConnectionState,
    /// Number of the connection, from one.
    connection_number: u64,
    /// Number of attempts of a reconnection that is not reported yet.
    reconnect_attempts: Option<u32>,
    wire_ids: WireIds,
    history: RealtimeHistory,
    scheduler: ResponseScheduler,
    playback: PlaybackTracker,
    current_agent: AgentSetup,
    configuration_state: ConfigurationState,
    in_flight_configuration: Option<InFlightConfiguration>,
    /// The command of the configuration that the model acknowledged last.
    confirmed_configuration: Option<CommandId>,
    /// True if a configuration was not acknowledged in time on this connection, so that its acknowledgement may still
    /// arrive.
    has_expired_configuration: bool,
    /// True if the provider kept the current agent's configuration when the connection was lost.
    is_configuration_kept: bool,
    /// Edits of a conversation that the provider keeps, made while the connection was lost.
    deferred_edits: Vec<RealtimeCommandKind>,
    pending_changes: VecDeque<PendingAgentChange>,
    /// The agents with which responses were requested, newest last.
    requesting_agents: VecDeque<(CommandId, AgentSetup)>,
    /// Boxed, because a node of the map has room for eleven turns.
    turns: BTreeMap<ResponseId, Box<ResponseTurn>>,
    /// Requests for responses outside the conversation that have not started.
    side_requests: BTreeMap<CommandId, Duration>,
    /// Responses that are not part of the conversation.
    side_responses: BTreeMap<ResponseId, SideResponse>,
    /// Side responses that have ended, the newest last, with their items.
    ended_side_responses: VecDeque<(ResponseId, SideResponseKind, BTreeSet<ItemId>)>,
    newest_response: Option<ResponseId>,
    /// Responses that have ended, the newest last, with their agents. Side responses have none.
    ended_responses: VecDeque<(ResponseId, Option<AgentName>)>,
    calls: BTreeMap<CallId, RealtimeCall>,
    /// Ids of the calls in this session, by response and the provider's id.
    call_names: BTreeMap<(ResponseId, CallId), CallId>,
    /// Responses that made calls.
    calling_responses: BTreeSet<ResponseId>,
    /// Handoffs that have no output yet, with the time at which they were accepted.
    open_handoffs: BTreeMap<CallId, Duration>,
    /// Outputs that are sent within a short time, by run.
    collected_outputs: BTreeMap<RunId, CollectedOutputs>,
    rejected_outputs: BTreeMap<CallId, RejectedOutput>,
    /// Runs in progress with their calls, in the model's order; `queued_batches` wait for them.
    active_runs: BTreeMap<RunId, Vec<CallId>>,
    queued_batches: VecDeque<CallBatch>,
    /// Items sent and not confirmed by the model.
    unconfirmed_items: BTreeMap<CommandId, ItemId>,
    /// The result of the first configuration.
    ready_result: Option<Result<(), String>>,
    user_speech: UserSpeech,
    /// The speech of the user that the provider answers by itself and has not begun to answer.
    unanswered_speech: Option<ItemId>,
    /// The end of the user's speech, or the time of the last response request.
    response_requested_at: Option<Duration>,
    /// The user's items since the last response that made calls.
    items_since_calls: Vec<ItemId>,
    /// Number of consecutive responses that were rejected by a guardrail and followed up.
    follow_ups: u32,
    /// Number of responses with calls since the last input of the user or request of the application.
    call_rounds: u32,
    command_count: u64,
    item_count: u64,
    /// True if the session ends: no call begins any more.
    is_ending: bool,
    metrics: SessionMetrics,
    spending: SessionSpending,
}

/// Number of recent response requests whose agents are remembered.
const MAX_REQUESTING_AGENTS: usize = 8;

impl RealtimeMachine {
    pub(crate) fn new(policy: SessionPolicy, agent: AgentSetup, history: RealtimeHistory) -> Self {
        let output_format = agent.configuration.realtime_settings.output_format();
        Self {
            scheduler: ResponseScheduler::new(policy.response_timeouts),
            playback: PlaybackTracker::new(policy.playback_source, output_format),
            policy,
            pending_effects: Vec::new(),
            now: Duration::ZERO,
            connection_state: ConnectionState::Disconnected,
            connection_number: 0,
            reconnect_attempts: None,
            wire_ids: WireIds::default(),
            history,
            current_agent: agent,
            configuration_state: ConfigurationState::default(),
            in_flight_configuration: None,
            confirmed_configuration: None,
            has_expired_configuration: false,
            is_configuration_kept: false,
            deferred_edits: Vec::new(),
            pending_changes: VecDeque::new(),
            requesting_agents: VecDeque::new(),
            turns: BTreeMap::new(),
            side_requests: BTreeMap::new(),
            side_responses: BTreeMap::new(),
            ended_side_responses: VecDeque::new(),
            newest_response: None,
            ended_responses: VecDeque::new(),
            calls: BTreeMap::new(),
            call_names: BTreeMap::new(),
            calling_responses: BTreeSet::new(),
            open_handoffs: BTreeMap::new(),
            collected_outputs: BTreeMap::new(),
            rejected_outputs: BTreeMap::new(),
            active_runs: BTreeMap::new(),
            queued_batches: VecDeque::new(),
            unconfirmed_items: BTreeMap::new(),
            ready_result: None,
            user_speech: UserSpeech::default(),
            unanswered_speech: None,
            response_requested_at: None,
            items_since_calls: Vec::new(),
            follow_ups: 0,
            call_rounds: 0,
            command_count: 0,
            item_count: 0,
            is_ending: false,
            metrics: SessionMetrics::default(),
            spending: SessionSpending::default(),
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
        let calls = [self.output_deadline(), self.call_start_deadline(), self.budget_deadline()];
        if self.connection_state == ConnectionState::Disconnected {
            return calls.into_iter().flatten().min();
        }
        let connected = [
            self.scheduler.deadline(),
            self.configuration_deadline(),
            self.speech_deadline(),
            self.handoff_deadline(),
            self.cancellation_deadline(),
            // Outputs are sent again when the configuration is certain.
            self.resend_deadline().filter(|_| self.configuration_state == ConfigurationState::Confirmed),
        ];
        connected.into_iter().chain(calls).flatten().min()
    }

    /// Handles timeouts.
    pub(crate) fn tick(&mut self) {
        self.expire_budget();
        if self.connection_state == ConnectionState::Disconnected {
            return;
        }
        self.expire_user_speech();
        self.expire_configuration();
        self.expire_handoffs();
        match self.scheduler.elapsed_timeout(self.now) {
            None => {}
            Some(ResponseTimeoutAction::ReportNotStarted) => {
                self.emit_error(RealtimeError::ResponseNotStarted);
            }
            Some(ResponseTimeoutAction::ReportAbandoned { attempts }) => {
                self.give_up_response();
                let message = "the model did not start it in time".to_owned();
                self.emit_error(RealtimeError::ResponseAbandoned { attempts, message });
            }
            Some(ResponseTimeoutAction::Cancel(response)) => {
                self.emit_error(RealtimeError::ResponseStalled { response: response.clone() });
                self.send_command(RealtimeCommandKind::CancelResponse { response });
            }
            Some(ResponseTimeoutAction::Abandon(response)) => {
                self.on_response_ended(&response, ResponseStatus::Unknown, None, Vec::new());
            }
        }
    }

    /// Handles a new connection: sends the configuration and the whole history. `attempts` is the number of attempts of
    /// a reconnection.
    pub(crate) fn on_connected(&mut self, attempts: Option<u32>) {
        self.connection_state = ConnectionState::Connected;
        self.reconnect_attempts = attempts;
        if self.is_conversation_kept() {
            return self.reattach_conversation();
        }
        self.connection_number += 1;
        self.wire_ids = WireIds::default();
        self.unconfirmed_items.clear();
        self.demand_rejected_outputs();
        self.establish_configuration();
        let items = match self.policy.conversation_lifetime {
            ConversationLifetime::Connection => self.history.items().to_vec(),
            ConversationLifetime::Call => self.adopt_conversation(),
        };
        for item in items {
            self.send_item_again(item, None);
        }
    }

    /// Sends an item of the history on a new connection. Speech without a transcript cannot be sent back.
    fn send_item_again(&mut self, item: RealtimeItem, after: Option<ItemId>) {
        if item.is_sendable() {
            let id = self.send_command(RealtimeCommandKind::CreateItem { item: item.clone(), after });
            self.unconfirmed_items.insert(id, item.id);
        }
    }

    /// Handles the loss of the connection.
    pub(crate) fn on_disconnected(&mut self) {
        let is_kept = self.is_conversation_kept();
        self.is_configuration_kept = self.will_keep_configuration();
        self.connection_state = ConnectionState::Disconnected;
        self.user_speech = UserSpeech::default();
        self.configuration_state = ConfigurationState::Unconfirmed;
        self.in_flight_configuration = None;
        let active = self.scheduler.active_response().cloned();
        // A response that the loss cut off is demanded again, unless somebody had stopped it before or its calls
        // demand one anyway.
        let is_wanted = active
            .as_ref()
            .and_then(|active| self.turns.get(active))
            .is_some_and(|turn| turn.is_wanted_after_loss() && !is_kept);
        // A provider that keeps the conversation goes on speaking.
        if is_kept {
            self.unanswered_speech = None;
            self.playback.mark_all_complete();
        } else if self.interrupt_playback(None) == 0 && active.is_some() {
            self.report_heard_interruption(active.as_ref());
        }
        let open: Vec<ResponseId> =
            self.turns.iter().filter(|(_, turn)| !turn.has_ended()).map(|(id, _)| id.clone()).collect();
        for response in open {
            self.on_response_ended(&response, ResponseStatus::Unknown, None, Vec::new());
        }
        let mut abandoned = self.scheduler.on_disconnected();
        if is_wanted {
            abandoned = abandoned.or(self.scheduler.demand_after_loss(self.now));
        }
        if let Some(attempts) = abandoned {
            self.give_up_response();
            let message = "the connection was lost each time".to_owned();
            self.emit_error(RealtimeError::ResponseAbandoned { attempts, message });
        }
        self.demand_answer_to_lost_speech();
        self.end_side_responses();
    }

    pub(crate) fn history(&self) -> &RealtimeHistory {
        &self.history
    }

    pub(crate) fn agent(&self) -> &AgentActivation {
        &self.current_agent.activation
    }

    /// Returns true if the model has acknowledged a configuration on this connection.
    pub(crate) fn is_connection_acknowledged(&self) -> bool {
        self.ready_result.is_some() && self.reconnect_attempts.is_none()
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

    /// Starts all work that can start now: an agent change, complete calls, a demanded response.
    fn start_due_work(&mut self) {
        self.start_due_calls();
        self.send_due_outputs();
        self.start_queued_batches();
        self.expire_budget();
        self.reserve_model_requests();
        if self.connection_state == ConnectionState::Disconnected
            || self.configuration_state == ConfigurationState::Unconfirmed
        {
            return;
        }
        self.send_next_change();
        self.resend_due_outputs();
        let is_busy = !self.pending_changes.is_empty()
            || !self.open_handoffs.is_empty()
            || self.cancellation_deadline().is_some()
            || (self.policy.tool_call_mode == ToolCallMode::Blocking && !self.active_runs.is_empty());
        if is_busy || !self.scheduler.is_request_due(self.now) || self.is_held_by_speech() {
            return;
        }
        if !self.admit_response() {
            return;
        }
        let (now, next) = (self.now, self.command_count + 1);
        if let Some((command, body)) = self.scheduler.next_request(now, || command_id(next)) {
            self.command_count = next;
            if self.requesting_agents.len() == MAX_REQUESTING_AGENTS {
                self.requesting_agents.pop_front();
            }
            self.requesting_agents.push_back((command.clone(), self.current_agent.clone()));
            let kind = request_command(self.reserve_response(&command, body));
            self.pending_effects.push(SessionEffect::SendCommand(RealtimeCommand { id: command, kind }));
        }
    }

    /// Returns the time at which a handoff without a result no longer holds back responses.
    fn handoff_deadline(&self) -> Option<Duration> {
        let timeout = self.policy.acknowledge_timeout.saturating_mul(HANDOFF_STEPS);
        self.open_handoffs.values().min().map(|since| since.saturating_add(timeout))
    }

    /// Lets responses go on beside a handoff whose callback does not end.
    fn expire_handoffs(&mut self) {
        if self.handoff_deadline().is_some_and(|deadline| self.now >= deadline) {
            let oldest = self.open_handoffs.values().min().copied();
            self.open_handoffs.retain(|_, since| Some(*since) != oldest);
        }
    }

    /// Sends a command if connected, and returns its id in any case.
    fn send_command(&mut self, mut kind: RealtimeCommandKind) -> CommandId {
        self.command_count += 1;
        let id = command_id(self.command_count);
        if self.connection_state == ConnectionState::Connected {
            if let RealtimeCommandKind::CreateItem { item, .. } = &kind {
                let item = item.id.clone();
                self.record_sent_item(&item);
            }
            self.translate_command(&mut kind);
            self.pending_effects.push(SessionEffect::SendCommand(RealtimeCommand { id: id.clone(), kind }));
        } else {
            self.defer_edit(kind);
        }
        id
    }

    fn emit_event(&mut self, event: RealtimeEvent) {
        self.pending_effects.push(SessionEffect::EmitEvent(event));
    }

    fn emit_error(&mut self, error: RealtimeError) {
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

/// Number of steps of a handoff that have a timeout: its callback, its resolution, its configuration.
const HANDOFF_STEPS: u32 = 3;

/// Returns the command of a response request.
fn request_command(body: Option<RequestBody>) -> RealtimeCommandKind {
    match body {
        None => RealtimeCommandKind::CreateResponse(Box::default()),
        Some(RequestBody::Options(options)) => RealtimeCommandKind::CreateResponse(options),
        Some(RequestBody::Raw(raw)) => RealtimeCommandKind::CreateRawResponse(raw),
    }
}

fn command_id(number: u64) -> CommandId {
    CommandId::from(format!("wl_{number}"))
}

impl RealtimeItem {
    /// Returns true if the item can be sent to the model again.
    pub(super) fn is_sendable(&self) -> bool {
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
