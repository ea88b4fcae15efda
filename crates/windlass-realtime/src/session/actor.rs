//! The task that owns a session: its state machine, its connection, and every task it spawned.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use windlass::agent::{Agent, GuardrailResult, ResolvedAgent, SharedConversation};
use windlass::core::budget::ReachedBudget;
use windlass::core::decision::PendingCall;
use windlass::core::id::{CallId, RunId};
use windlass::guardrail::OutputGuardrail;
use windlass::hook::Hook;
use windlass::price::PriceList;
use windlass::store::{ApproverSigner, Store};

use super::agent_change::AgentResolution;
use super::budgeted_requests::{BudgetedRequests, RequestNotice, next_request_notice};
use super::builder::{GuardrailFailurePolicy, ReconnectPolicy, SessionStartError};
use super::call_runs::{CallBatchRun, RunNotice};
use super::close::{CloseReport, SessionEndGuard};
use super::connection::{
    ConnectionInput, ReconnectFuture, ReconnectHistory, ReconnectResult, next_model_event, wait_reconnect,
    wait_write_failure,
};
use super::decisions::SessionDecision;
use super::handle::SharedSession;
use super::outbox::CommandOutbox;
use super::redaction::RedactedCalls;
use super::requests::SessionRequest;
use crate::event::{CloseReason, RealtimeError, RealtimeEvent};
use crate::id::ResponseId;
use crate::journal::{CallBatchRecord, REALTIME_JOURNAL_FORMAT, RealtimeEntry, RealtimeJournal};
use crate::machine::{RealtimeMachine, SessionEffect};
use crate::metrics::SessionMetrics;
use crate::model::{ModelEventSource, RealtimeConnection, RealtimeConnectionError, RealtimeModel};
use crate::settings::RealtimeSettings;
use crate::sync::sleep_until_deadline;

/// A function that writes the text for the model if a person rejects a call without a message.
pub(super) type RejectionMessage = Arc<dyn Fn(&PendingCall) -> String + Send + Sync>;

/// Settings of the actor, apart from those of the machine.
pub(super) struct ActorConfig<C> {
    pub(super) store: Option<Arc<dyn Store>>,
    /// Private key of the approver who decides through this session.
    pub(super) signer: Option<Arc<ApproverSigner>>,
    /// Artefacts of every run that executes calls.
    pub(super) run_artefacts: Vec<(String, Vec<u8>)>,
    pub(super) journal: Option<Arc<dyn RealtimeJournal>>,
    pub(super) known_agents: Vec<Agent<C>>,
    pub(super) guardrails: Vec<OutputGuardrail<C>>,
    pub(super) guardrail_failure_policy: GuardrailFailurePolicy,
    /// Names of the guardrails that fail closed.
    pub(super) strict_guardrails: BTreeSet<Arc<str>>,
    pub(super) rejection_message: Option<RejectionMessage>,
    pub(super) guardrail_timeout: Duration,
    pub(super) max_concurrent_calls: Option<usize>,
    pub(super) pre_approval_guardrails: bool,
    pub(super) approval_expiry: Option<Duration>,
    pub(super) lease_duration: Option<Duration>,
    pub(super) hooks: Vec<Hook<C>>,
    pub(super) drain_timeout: Duration,
    pub(super) ready_timeout: Duration,
    /// Timeout of each step of the closing handshake. Some servers never answer it.
    pub(super) close_timeout: Duration,
    pub(super) reconnect_policy: ReconnectPolicy,
    pub(super) audio_buffer: usize,
    /// True if the session has a budget.
    pub(super) has_budget: bool,
    pub(super) prices: Arc<PriceList>,
}

impl<C> Default for ActorConfig<C> {
    fn default() -> Self {
        Self {
            store: None,
            signer: None,
            run_artefacts: Vec::new(),
            journal: None,
            known_agents: Vec::new(),
            guardrails: Vec::new(),
            guardrail_failure_policy: GuardrailFailurePolicy::Skip,
            strict_guardrails: BTreeSet::new(),
            rejection_message: None,
            guardrail_timeout: Duration::from_secs(10),
            max_concurrent_calls: None,
            pre_approval_guardrails: false,
            approval_expiry: None,
            lease_duration: None,
            hooks: Vec::new(),
            drain_timeout: Duration::from_millis(250),
            ready_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(1),
            reconnect_policy: ReconnectPolicy::default(),
            audio_buffer: 256,
            has_budget: false,
            prices: PriceList::shipped(),
        }
    }
}

/// Number of events after which sources of a lower priority have their turn, so that a flood starves nobody.
const MAX_EVENTS_IN_ROW: u32 = 16;

/// The fixed parts of a session, and its position in the journal.
pub(super) struct SessionContext<C> {
    pub(super) app_context: Arc<C>,
    pub(super) model: Arc<dyn RealtimeModel>,
    pub(super) settings: RealtimeSettings,
    pub(super) session_id: RunId,
    pub(super) root_agent: Agent<C>,
    pub(super) conversation: SharedConversation,
    pub(super) next_entry_index: u64,
}

/// The actor's ends of the channels to the application.
pub(super) struct ActorChannels<C> {
    pub(super) shared: Arc<SharedSession>,
    pub(super) requests: mpsc::Receiver<SessionRequest<C>>,
    pub(super) close_report: watch::Sender<Option<Arc<CloseReport>>>,
    pub(super) ready_reply: Option<oneshot::Sender<Result<(), SessionStartError>>>,
}

/// The owner of a session's state and tasks.
pub(super) struct SessionActor<C> {
    pub(super) machine: RealtimeMachine,
    pub(super) channels: ActorChannels<C>,
    pub(super) config: ActorConfig<C>,
    pub(super) context: SessionContext<C>,
    /// The agents that were current, as resolved then, by activation number. Old ones are evicted.
    pub(super) resolved_agents: BTreeMap<u32, ResolvedAgent<C>>,
    pub(super) next_activation: u32,
    pub(super) runs: BTreeMap<RunId, CallBatchRun>,
    pub(super) standing_decisions: Vec<SessionDecision>,
    pub(super) redacted_calls: RedactedCalls,
    pub(super) notices: mpsc::Receiver<RunNotice>,
    pub(super) notice_sender: mpsc::Sender<RunNotice>,
    pub(super) background_tasks: JoinSet<()>,
    pub(super) check_tasks: JoinSet<Vec<GuardrailResult>>,
    pub(super) pending_checks: BTreeMap<Id, (ResponseId, Arc<str>)>,
    pub(super) resolve_tasks: JoinSet<AgentResolution<C>>,
    /// The changes that were requested, in this order, with the agents that are resolved.
    pub(super) requested_changes: VecDeque<(Id, Option<AgentResolution<C>>)>,
    pub(super) pending_change_replies: BTreeMap<u32, oneshot::Sender<Result<(), String>>>,
    pub(super) outbox: Option<CommandOutbox>,
    pub(super) model_events: Option<Box<dyn ModelEventSource>>,
    pub(super) reconnect_future: Option<ReconnectFuture>,
    /// The times of connection attempts within the window of the reconnect policy.
    pub(super) reconnect_history: ReconnectHistory,
    /// The run that asks a person for more, with the budget that is reached.
    pub(super) budget_question: Option<(RunId, ReachedBudget)>,
    /// The layer of the model requests inside calls, if the session has a budget.
    pub(super) budgeted_requests: Option<BudgetedRequests>,
    request_notices: Option<mpsc::Receiver<RequestNotice>>,
    /// Model requests inside calls that wait for their reservation.
    waiting_requests: BTreeMap<CallId, oneshot::Sender<Result<(), ReachedBudget>>>,
    /// Number of events since a request, a timeout and the model had their turn.
    events_in_row: u32,
    started_at: Instant,
    pub(super) close_reason: Option<CloseReason>,
}

/// An event that wakes the actor.
enum ActorEvent<C> {
    CloseRequested,
    ConnectionInput(ConnectionInput),
    RunNotice(RunNotice),
    RequestNotice(RequestNotice),
    CheckFinished(Result<(Id, Vec<GuardrailResult>), tokio::task::JoinError>),
    AgentResolved(Result<(Id, AgentResolution<C>), tokio::task::JoinError>),
    SessionRequest(Option<SessionRequest<C>>),
    ReconnectFinished(ReconnectResult),
    Tick,
}

impl<C: Send + Sync + 'static> SessionActor<C> {
    pub(super) fn new(
        machine: RealtimeMachine,
        resolved: ResolvedAgent<C>,
        channels: ActorChannels<C>,
        config: ActorConfig<C>,
        context: SessionContext<C>,
    ) -> Self {
        let (notice_sender, notices) = mpsc::channel(256);
        let (budgeted_requests, request_notices) = if config.has_budget {
            let (layer, receiver) = BudgetedRequests::new(config.prices.clone());
            (Some(layer), Some(receiver))
        } else {
            (None, None)
        };
        Self {
            machine,
            channels,
            config,
            context,
            resolved_agents: BTreeMap::from([(0, resolved)]),
            next_activation: 1,
            runs: BTreeMap::new(),
            standing_decisions: Vec::new(),
            redacted_calls: RedactedCalls::default(),
            notices,
            notice_sender,
            background_tasks: JoinSet::new(),
            check_tasks: JoinSet::new(),
            pending_checks: BTreeMap::new(),
            resolve_tasks: JoinSet::new(),
            requested_changes: VecDeque::new(),
            pending_change_replies: BTreeMap::new(),
            outbox: None,
            model_events: None,
            reconnect_future: None,
            reconnect_history: ReconnectHistory::default(),
            budget_question: None,
            budgeted_requests,
            request_notices,
            waiting_requests: BTreeMap::new(),
            events_in_row: 0,
            started_at: Instant::now(),
            close_reason: None,
        }
    }

    /// Runs the session until it ends. `open` are the unfinished calls of an earlier process.
    ///
    /// The actor is boxed, because a future has room for both the argument and the variable. Rare arms are boxed, so that
    /// they do not enlarge the future of every session.
    pub(super) async fn run(mut self: Box<Self>, connection: RealtimeConnection, open: Vec<CallBatchRecord>) {
        let guard = SessionEndGuard::new(&self.channels);
        self.attach_connection(connection);
        self.machine.on_connected(None);
        let agent = self.machine.agent().name.clone();
        self.append_journal(vec![RealtimeEntry::Opened { format: REALTIME_JOURNAL_FORMAT, agent }]).await;
        Box::pin(self.recover_runs(open)).await;
        let deadline = Instant::now() + self.config.ready_timeout;
        loop {
            self.execute_effects().await;
            self.report_ready(deadline);
            if self.close_reason.is_some() {
                break;
            }
            match self.next_event(deadline).await {
                ActorEvent::CloseRequested => break,
                ActorEvent::ConnectionInput(input) => self.on_connection_input(input),
                ActorEvent::RunNotice(RunNotice::RecoveryDue { run }) => {
                    Box::pin(self.retry_recovery(&run)).await
                }
                ActorEvent::RunNotice(notice) => self.on_run_notice(notice),
                ActorEvent::RequestNotice(notice) => self.on_request_notice(notice),
                ActorEvent::CheckFinished(done) => self.on_check_finished(done),
                ActorEvent::AgentResolved(done) => self.on_agent_resolved(done),
                ActorEvent::SessionRequest(Some(request)) => self.handle_request(request),
                ActorEvent::SessionRequest(None) => break,
                ActorEvent::ReconnectFinished(result) => self.on_reconnect_finished(result),
                ActorEvent::Tick => {
                    let now = self.elapsed();
                    self.machine.advance_to(now).tick();
                }
            }
        }
        Box::pin(self.shut_down()).await;
        drop(guard);
    }

    /// Returns an event of a lower priority, if one is ready and it is its turn: others must not starve it.
    async fn next_starved_event(&mut self, deadline: Option<Instant>) -> Option<ActorEvent<C>> {
        tokio::task::coop::consume_budget().await;
        if self.channels.shared.close_token.is_cancelled() {
            return None;
        }
        self.events_in_row += 1;
        if self.events_in_row == MAX_EVENTS_IN_ROW && deadline.is_some_and(|at| Instant::now() >= at) {
            return Some(ActorEvent::Tick);
        }
        if self.events_in_row == MAX_EVENTS_IN_ROW + 1
            && let Ok(request) = self.channels.requests.try_recv()
        {
            return Some(ActorEvent::SessionRequest(Some(request)));
        }
        if self.events_in_row > MAX_EVENTS_IN_ROW + 1 {
            self.events_in_row = 0;
            let input = next_model_event(&mut self.model_events).now_or_never().flatten();
            return input.map(ActorEvent::ConnectionInput);
        }
        None
    }

    /// Waits for the next event.
    async fn next_event(&mut self, ready_by: Instant) -> ActorEvent<C> {
        let deadline = self.machine.deadline().and_then(|deadline| self.started_at.checked_add(deadline));
        let deadline = match &self.channels.ready_reply {
            Some(_) => Some(deadline.map_or(ready_by, |deadline| deadline.min(ready_by))),
            None => deadline,
        };
        if let Some(event) = self.next_starved_event(deadline).await {
            return event;
        }
        let Self {
            channels,
            model_events,
            outbox,
            notices,
            request_notices,
            check_tasks,
            resolve_tasks,
            reconnect_future,
            reconnect_history,
            ..
        } = self;
        tokio::select! {
            biased;
            () = channels.shared.close_token.cancelled() => ActorEvent::CloseRequested,
            Some(notice) = notices.recv() => ActorEvent::RunNotice(notice),
            Some(notice) = next_request_notice(request_notices) => ActorEvent::RequestNotice(notice),
            Some(done) = check_tasks.join_next_with_id() => ActorEvent::CheckFinished(done),
            Some(done) = resolve_tasks.join_next_with_id() => ActorEvent::AgentResolved(done),
            Some(input) = wait_write_failure(outbox) => ActorEvent::ConnectionInput(input),
            Some(input) = next_model_event(model_events) => ActorEvent::ConnectionInput(input),
            Some(result) = wait_reconnect(reconnect_future, reconnect_history) => ActorEvent::ReconnectFinished(result),
            request = channels.requests.recv() => ActorEvent::SessionRequest(request),
            () = sleep_until_deadline(deadline) => ActorEvent::Tick,
        }
    }

    fn on_request_notice(&mut self, notice: RequestNotice) {
        let now = self.elapsed();
        let machine = self.machine.advance_to(now);
        match notice {
            RequestNotice::Reserve { request, estimate, reply } => {
                machine.queue_model_request(request.clone(), estimate);
                self.waiting_requests.insert(request, reply);
            }
            RequestNotice::Ended { request, usage, permit } => {
                drop(permit);
                machine.on_model_request_ended(request.clone(), usage);
                self.waiting_requests.remove(&request);
            }
        }
    }

    /// Refuses the model requests inside calls that wait for their reservation.
    pub(super) fn drop_waiting_requests(&mut self) {
        if let Some(notices) = &mut self.request_notices {
            notices.close();
        }
        self.waiting_requests.clear();
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Executes the machine's effects, in order, until there are none.
    pub(super) async fn execute_effects(&mut self) {
        loop {
            let now = self.elapsed();
            let mut effects = self.machine.advance_to(now).take_effects();
            if effects.is_empty() {
                return;
            }
            // Journal entries are written ahead: they are durable before any other effect of the batch happens.
            let is_entry = |effect: &mut SessionEffect| matches!(effect, SessionEffect::AppendJournal(_));
            let entries = effects.extract_if(.., is_entry).filter_map(|effect| match effect {
                SessionEffect::AppendJournal(entry) => Some(entry),
                _ => None,
            });
            let entries = entries.collect();
            self.append_journal(entries).await;
            for effect in effects {
                match effect {
                    SessionEffect::AppendJournal(_) => {}
                    // Nothing is sent that the journal does not have.
                    SessionEffect::SendCommand(_)
                        if matches!(self.close_reason, Some(CloseReason::JournalFailed(_))) => {}
                    SessionEffect::SendCommand(command) => {
                        let sent = self.outbox.as_ref().map(|outbox| outbox.push_command(command));
                        match sent {
                            Some(Ok(dropped)) => self.machine.metrics_mut().dropped_input_chunks += dropped,
                            Some(Err(lost)) => self.on_connection_lost(lost),
                            None => {}
                        }
                    }
                    SessionEffect::EmitEvent(event) => self.emit_event(event),
                    SessionEffect::ExecuteCalls(batch) if self.close_reason.is_none() => {
                        self.execute_batch(batch)
                    }
                    SessionEffect::ExecuteCalls(batch) => self.machine.forget_batch(&batch.run),
                    SessionEffect::CheckTranscript(check) => self.start_check(check),
                    SessionEffect::AskForBudget(question) if self.close_reason.is_none() => {
                        Box::pin(self.ask_for_budget(question)).await
                    }
                    SessionEffect::AskForBudget(_) => {}
                    SessionEffect::AdmitModelRequest { request, result } if self.close_reason.is_none() => {
                        if let Some(reply) = self.waiting_requests.remove(&request) {
                            let _ = reply.send(result);
                        }
                    }
                    SessionEffect::AdmitModelRequest { .. } => {}
                    SessionEffect::DropConnection(reason) => {
                        self.on_connection_lost(RealtimeConnectionError::new(reason));
                    }
                    SessionEffect::EndSession(reason) => {
                        self.close_reason.get_or_insert(reason);
                    }
                    SessionEffect::AgentChanged { agent, result } => {
                        if result.is_err() {
                            self.resolved_agents.remove(&agent.number);
                        }
                        if let Some(reply) = self.pending_change_replies.remove(&agent.number) {
                            let _ = reply.send(result);
                        }
                    }
                }
            }
        }
    }

    /// Appends entries to the journal. If that fails, the session ends before it does anything unrecorded.
    pub(super) async fn append_journal(&mut self, entries: Vec<RealtimeEntry>) {
        // The secrets of calls are registered even if there is no journal, for the events.
        let entries: Vec<_> = entries.into_iter().map(|entry| self.redact_entry(entry)).collect();
        let Some(journal) = self.config.journal.clone().filter(|_| !entries.is_empty()) else { return };
        let count = entries.len() as u64;
        let appending = journal.append(&self.context.session_id, self.context.next_entry_index, entries);
        let timeout = self.config.ready_timeout;
        let appended = match tokio::time::timeout(timeout, appending).await {
            Ok(appended) => appended.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the append timed out after {timeout:?}")),
        };
        match appended {
            Ok(()) => self.context.next_entry_index += count,
            Err(message) => {
                self.emit_event(RealtimeEvent::Error(RealtimeError::JournalFailed {
                    message: message.clone(),
                }));
                self.close_reason.get_or_insert(CloseReason::JournalFailed(message));
            }
        }
    }

    pub(super) fn emit_event(&self, event: RealtimeEvent) {
        let is_connected = &self.channels.shared.is_connected;
        match event {
            RealtimeEvent::Connected | RealtimeEvent::Reconnected { .. } => {
                is_connected.store(true, Ordering::Relaxed)
            }
            RealtimeEvent::Disconnected { .. } => is_connected.store(false, Ordering::Relaxed),
            _ => {}
        }
        self.channels.shared.fanout.publish(&self.redact_event(event));
    }

    pub(super) fn metrics(&self) -> SessionMetrics {
        let mut metrics = self.machine.metrics().clone();
        metrics.dropped_input_chunks += self.channels.shared.dropped_input.load(Ordering::Relaxed);
        metrics.dropped_output_chunks = self.channels.shared.fanout.dropped_audio();
        metrics
    }

    /// Reports to the caller of `connect` or `resume` that the session is ready or could not start.
    fn report_ready(&mut self, deadline: Instant) {
        let rejected = SessionStartError::ConfigurationRejected;
        let result = match (self.machine.ready_result(), &self.close_reason) {
            (_, Some(CloseReason::BudgetReached(reached))) => {
                Err(SessionStartError::BudgetReached(reached.clone()))
            }
            (_, Some(reason)) => Err(rejected(format!("the session ended before it was ready: {reason:?}"))),
            (Some(result), None) => result.clone().map_err(rejected),
            (None, None) if Instant::now() >= deadline => {
                Err(rejected("no acknowledgement in time".to_owned()))
            }
            (None, None) => return,
        };
        let Some(ready) = self.channels.ready_reply.take() else { return };
        match result {
            Ok(()) => {
                self.emit_event(RealtimeEvent::Connected);
                let _ = ready.send(Ok(()));
            }
            Err(error) => {
                self.close_reason.get_or_insert_with(|| CloseReason::ConnectionLost(error.to_string()));
                let _ = ready.send(Err(error));
            }
        }
    }
}
