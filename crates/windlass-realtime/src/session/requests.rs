//! The application's requests, handled by the actor.

use tokio::sync::oneshot;
use windlass::agent::Agent;
use windlass::core::canonical::Digest;
use windlass::core::{
    decision::{Decision, DecisionScope},
    id::{CallPath, RunId},
    item::Role,
};

use super::actor::SessionActor;
use super::decisions::{DecisionReply, MadeDecision};
use crate::event::{AgentChangeCause, HeldCall};
use crate::history::{RealtimeContentPart, RealtimeHistory};
use crate::id::ItemId;
use crate::machine::{RawMessageResult, RespondWhen};
use crate::metrics::SessionMetrics;
use crate::model::ResponseOptions;

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
    ForceResponse,
    RequestResponseWith {
        options: Box<ResponseOptions>,
        reply: oneshot::Sender<bool>,
    },
    Interrupt,
    ReportPlayed {
        item: ItemId,
        content_index: u32,
        played_ms: u64,
    },
    ReportPlayedBytes {
        item: ItemId,
        content_index: u32,
        bytes: u64,
    },
    UpdateAgent {
        agent: Box<Agent<C>>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    HeldCalls(oneshot::Sender<Vec<HeldCall>>),
    /// Boxed, because the queue has room for many requests and decisions are rare.
    Decide {
        decision: Box<RequestedDecision>,
        reply: DecisionReply,
    },
    History(oneshot::Sender<RealtimeHistory>),
    RedactedHistory(oneshot::Sender<RealtimeHistory>),
    EditHistory {
        edit: HistoryEdit,
        reply: oneshot::Sender<Option<ItemId>>,
    },
    ResendOutputs,
    SendRaw {
        raw: serde_json::Value,
        reply: oneshot::Sender<RawMessageResult>,
    },
    Metrics(oneshot::Sender<SessionMetrics>),
}

/// A decision about a held call.
pub(super) struct RequestedDecision {
    pub(super) call: CallPath,
    pub(super) decision: Decision,
    pub(super) scope: DecisionScope,
    pub(super) decided_by: Option<String>,
    pub(super) display: Option<DisplayedCall>,
}

/// The call that a person saw when deciding: the decision is about no other.
pub(super) struct DisplayedCall {
    pub(super) run: RunId,
    pub(super) attempt: u32,
    /// Digest of the call.
    pub(super) call_digest: Digest,
    /// Digest of the displayed text, to be recorded with the decision.
    pub(super) displayed: Option<Digest>,
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
            SessionRequest::ForceResponse => machine.force_response(),
            SessionRequest::RequestResponseWith { options, reply } => {
                let _ = reply.send(machine.request_response_with(*options));
            }
            SessionRequest::Interrupt => machine.interrupt(),
            SessionRequest::ReportPlayed { item, content_index, played_ms } => {
                machine.report_played(&item, content_index, played_ms)
            }
            SessionRequest::ReportPlayedBytes { item, content_index, bytes } => {
                machine.report_played_bytes(&item, content_index, bytes)
            }
            SessionRequest::UpdateAgent { agent, reply } => {
                self.start_agent_change(*agent, AgentChangeCause::Application, Some(reply));
            }
            SessionRequest::HeldCalls(reply) => {
                let _ = reply.send(self.held_calls());
            }
            SessionRequest::Decide { decision, reply } => {
                let RequestedDecision { call, decision, scope, decided_by, display } = *decision;
                let made = MadeDecision { decision, scope, decided_by, displayed: None };
                self.decide(&call, made, display, reply);
            }
            SessionRequest::History(reply) => {
                let _ = reply.send(machine.history().clone());
            }
            SessionRequest::RedactedHistory(reply) => {
                let _ = reply.send(self.redacted_history());
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
            SessionRequest::SendRaw { raw, reply } => {
                let _ = reply.send(machine.send_raw(raw));
            }
            SessionRequest::Metrics(reply) => {
                let _ = reply.send(self.metrics());
            }
        }
    }
}
