//! What the application asks of a session, taken in by the session's task.

use tokio::sync::oneshot;
use windlass::agent::Agent;
use windlass::core::{CallPath, Decision, Reach, Role};
use windlass::{DecideError, Pending};

use super::actor::Actor;
use crate::event::ChangeCause;
use crate::history::{History, Part};
use crate::id::ItemId;
use crate::machine::Answer;
use crate::metrics::SessionMetrics;

pub(super) enum Request<C> {
    Say {
        role: Role,
        parts: Vec<Part>,
        answer: Answer,
        reply: oneshot::Sender<ItemId>,
    },
    Hear(Vec<u8>),
    CommitAudio,
    ClearAudio,
    Respond,
    Interrupt,
    Played {
        item: ItemId,
        content: u32,
        played_ms: u64,
    },
    UpdateAgent {
        agent: Box<Agent<C>>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    Pending(oneshot::Sender<Vec<Pending>>),
    Decide {
        call: CallPath,
        decision: Decision,
        reach: Reach,
        by: Option<String>,
        reply: oneshot::Sender<Result<(), DecideError>>,
    },
    History(oneshot::Sender<History>),
    Edit {
        edit: Edit,
        reply: oneshot::Sender<Option<ItemId>>,
    },
    Resend,
    Raw(serde_json::Value),
    Metrics(oneshot::Sender<SessionMetrics>),
}

pub(super) enum Edit {
    Delete(ItemId),
    Insert { role: Role, parts: Vec<Part>, after: Option<ItemId> },
    Replace { item: ItemId, role: Role, parts: Vec<Part> },
}

impl<C: Send + Sync + 'static> Actor<C> {
    pub(super) fn take(&mut self, request: Request<C>) {
        let now = self.now();
        let machine = self.machine.at(now);
        // Whoever asked and does not wait for the answer any more does not need it.
        match request {
            Request::Say { role, parts, answer, reply } => {
                let _ = reply.send(machine.say(role, parts, answer));
            }
            Request::Hear(bytes) => machine.hear(bytes),
            Request::CommitAudio => machine.commit_audio(),
            Request::ClearAudio => machine.clear_audio(),
            Request::Respond => machine.respond(),
            Request::Interrupt => machine.interrupt(),
            Request::Played { item, content, played_ms } => machine.played(&item, content, played_ms),
            Request::UpdateAgent { agent, reply } => {
                self.resolve(*agent, ChangeCause::Application, Some(reply));
            }
            Request::Pending(reply) => {
                let _ = reply.send(self.pending());
            }
            Request::Decide { call, decision, reach, by, reply } => {
                let _ = reply.send(self.decide(&call, decision, reach, by));
            }
            Request::History(reply) => {
                let _ = reply.send(machine.history().clone());
            }
            Request::Edit { edit, reply } => {
                let done = match edit {
                    Edit::Delete(item) => machine.delete(&item).then_some(item),
                    Edit::Insert { role, parts, after } => Some(machine.insert(role, parts, after)),
                    Edit::Replace { item, role, parts } => machine.replace(&item, role, parts),
                };
                let _ = reply.send(done);
            }
            Request::Resend => machine.resend_outputs(),
            Request::Raw(raw) => machine.raw(raw),
            Request::Metrics(reply) => {
                let _ = reply.send(self.metrics());
            }
        }
    }
}
