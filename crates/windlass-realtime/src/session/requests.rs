//! The application's requests, handled by the actor.

use tokio::sync::oneshot;
use windlass::agent::Agent;
use windlass::core::{
    decision::{Decision, DecisionScope},
    id::CallPath,
    item::Role,
};
use windlass::{core::decision::PendingCall, error::DecisionError};

use super::actor::SessionActor;
use crate::event::AgentChangeCause;
use crate::history::{RealtimeContentPart, RealtimeHistory};
use crate::id::ItemId;
use crate::machine::RespondWhen;
use crate::metrics::SessionMetrics;

/// A request of the application.
pub(super) enum SessionRequest<C> {
    SendMessage {
        role: Role,
        parts: Vec<RealtimeContentPart>,
        respond: RespondWhen,
        reply: oneshot::Sender<ItemId>,
    },
    AppendAudio(Vec<u8>),
    CommitAudio,
    ClearAudio,
    RequestResponse,
    Interrupt,
    ReportPlayed {
        item: ItemId,
        content_index: u32,
        played_ms: u64,
    },
    UpdateAgent {
        agent: Box<Agent<C>>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    PendingCalls(oneshot::Sender<Vec<PendingCall>>),
    Decide {
        call: CallPath,
        decision: Decision,
        scope: DecisionScope,
        decided_by: Option<String>,
        reply: oneshot::Sender<Result<(), DecisionError>>,
    },
    History(oneshot::Sender<RealtimeHistory>),
    EditHistory {
        edit: HistoryEdit,
        reply: oneshot::Sender<Option<ItemId>>,
    },
    ResendOutputs,
    SendRaw(serde_json::Value),
    Metrics(oneshot::Sender<SessionMetrics>),
}

/// An edit of the conversation.
pub(super) enum HistoryEdit {
    Delete(ItemId),
    Insert { role: Role, parts: Vec<RealtimeContentPart>, after: Option<ItemId> },
    Replace { item: ItemId, role: Role, parts: Vec<RealtimeContentPart> },
}

impl<C: Send + Sync + 'static> SessionActor<C> {
    pub(super) fn handle_request(&mut self, request: SessionRequest<C>) {
        let now = self.elapsed();
        let machine = self.machine.advance_to(now);
        // A caller that has stopped waiting does not need the reply, so send errors are ignored.
        match request {
            SessionRequest::SendMessage { role, parts, respond, reply } => {
                let _ = reply.send(machine.add_message(role, parts, respond));
            }
            SessionRequest::AppendAudio(bytes) => machine.append_audio(bytes),
            SessionRequest::CommitAudio => machine.commit_audio(),
            SessionRequest::ClearAudio => machine.clear_audio(),
            SessionRequest::RequestResponse => machine.request_response(),
            SessionRequest::Interrupt => machine.interrupt(),
            SessionRequest::ReportPlayed { item, content_index, played_ms } => {
                machine.report_played(&item, content_index, played_ms)
            }
            SessionRequest::UpdateAgent { agent, reply } => {
                self.start_agent_change(*agent, AgentChangeCause::Application, Some(reply));
            }
            SessionRequest::PendingCalls(reply) => {
                let _ = reply.send(self.pending_calls());
            }
            SessionRequest::Decide { call, decision, scope, decided_by, reply } => {
                let _ = reply.send(self.decide(&call, decision, scope, decided_by));
            }
            SessionRequest::History(reply) => {
                let _ = reply.send(machine.history().clone());
            }
            SessionRequest::EditHistory { edit, reply } => {
                let done = match edit {
                    HistoryEdit::Delete(item) => machine.delete_item(&item).then_some(item),
                    HistoryEdit::Insert { role, parts, after } => {
                        Some(machine.insert_message(role, parts, after))
                    }
                    HistoryEdit::Replace { item, role, parts } => machine.replace_message(&item, role, parts),
                };
                let _ = reply.send(done);
            }
            SessionRequest::ResendOutputs => machine.resend_outputs(),
            SessionRequest::SendRaw(raw) => machine.send_raw(raw),
            SessionRequest::Metrics(reply) => {
                let _ = reply.send(self.metrics());
            }
        }
    }
}
