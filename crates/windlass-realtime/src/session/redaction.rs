//! Redaction of secrets in journal entries, events and relays. Invariant: secrets reach the tool's body and the model, and
//! no journal, event or relay; from the call on, every text that repeats the value of a secret argument is masked too.

use std::collections::{BTreeMap, BTreeSet};

use windlass::agent::{CallRedaction, ResolvedAgent, SharedConversation};
use windlass::core::id::CallId;
use windlass::core::item::Item;

use super::actor::SessionActor;
use crate::event::{RealtimeError, RealtimeEvent};
use crate::history::{HistoryChange, RealtimeContentPart, RealtimeHistory, RealtimeItem, RealtimeItemKind};
use crate::journal::RealtimeEntry;

/// The replacement of a secret output.
const REDACTED_OUTPUT: &str = "[secret]";

/// The calls of a session with secrets.
#[derive(Debug, Default)]
pub(super) struct RedactedCalls {
    /// The arguments without secrets, of the calls that have some.
    arguments: BTreeMap<CallId, String>,
    /// Calls whose outputs are secret.
    secret_outputs: BTreeSet<CallId>,
}

impl RedactedCalls {
    fn is_empty(&self) -> bool {
        self.arguments.is_empty() && self.secret_outputs.is_empty()
    }
}

impl<C: Send + Sync + 'static> SessionActor<C> {
    /// Returns the entry without secrets, and registers the secrets of the calls in it.
    pub(super) fn redact_entry(&mut self, mut entry: RealtimeEntry) -> RealtimeEntry {
        match &mut entry {
            RealtimeEntry::ItemChanged { item, .. } => self.register_and_redact(item),
            RealtimeEntry::CallsPlanned { calls, .. } => {
                calls.iter_mut().for_each(|call| self.register_and_redact(call))
            }
            _ => {}
        }
        entry
    }

    fn register_and_redact(&mut self, item: &mut RealtimeItem) {
        if matches!(item.kind, RealtimeItemKind::Call { .. }) {
            let made_by = item.agent.as_ref();
            // The newest agent of this name is the right one: the calls of earlier ones were journalled when they
            // were made.
            let mut agents = self.resolved_agents.values().rev();
            let agent = agents.find(|agent| made_by.is_none_or(|name| agent.agent().name() == name));
            if let Some(agent) = agent.cloned() {
                self.register_call(&agent, item);
            }
        }
        self.redact_item(item);
    }

    /// Registers the secrets of a call. Returns true if its secret arguments are lost already.
    pub(super) fn register_call(&mut self, agent: &ResolvedAgent<C>, item: &RealtimeItem) -> bool {
        let Some(Item::Call(made)) = item.to_item() else { return false };
        let CallRedaction { redacted_arguments, is_already_redacted, is_output_secret } =
            agent.redact_call(&made, &self.context.conversation);
        if is_output_secret {
            self.redacted_calls.secret_outputs.insert(made.id.clone());
        }
        if let Some(redacted) = redacted_arguments {
            self.redacted_calls.arguments.insert(made.id, redacted);
        }
        is_already_redacted
    }

    /// Returns an event without secrets. The deltas of texts are the model's own words.
    pub(super) fn redact_event(&self, mut event: RealtimeEvent) -> RealtimeEvent {
        let conversation = &self.context.conversation;
        if !conversation.has_secrets() && self.redacted_calls.is_empty() {
            return event;
        }
        match &mut event {
            RealtimeEvent::HistoryChanged(
                HistoryChange::Added { item, .. } | HistoryChange::Updated(item),
            ) => self.redact_item(item),
            RealtimeEvent::GuardrailTripped { text, .. } => {
                *text = conversation.mask_text(text.as_ref().to_owned()).into();
            }
            RealtimeEvent::SideResponseEnded { text, .. } => mask_in_place(conversation, text),
            RealtimeEvent::Disconnected { reason, .. } => mask_in_place(conversation, reason),
            RealtimeEvent::Error(error) => {
                if let Some(message) = error_message(error) {
                    mask_in_place(conversation, message);
                }
            }
            _ => {}
        }
        event
    }

    /// Returns the conversation without secrets.
    pub(super) fn redacted_history(&self) -> RealtimeHistory {
        let mut items = self.machine.history().items().to_vec();
        items.iter_mut().for_each(|item| self.redact_item(item));
        RealtimeHistory::new(items)
    }

    /// Removes the known secrets from an item.
    fn redact_item(&self, item: &mut RealtimeItem) {
        let conversation = &self.context.conversation;
        match &mut item.kind {
            RealtimeItemKind::Call { call, arguments, .. } => {
                if let Some(redacted) = self.redacted_calls.arguments.get(call) {
                    arguments.clone_from(redacted);
                }
                mask_in_place(conversation, arguments);
            }
            RealtimeItemKind::Output { call, text } => {
                match self.redacted_calls.secret_outputs.contains(call) {
                    true => *text = REDACTED_OUTPUT.to_owned(),
                    false => mask_in_place(conversation, text),
                }
            }
            RealtimeItemKind::Message { parts, .. } => {
                for part in parts {
                    match part {
                        RealtimeContentPart::Text { text: said }
                        | RealtimeContentPart::Audio { transcript: Some(said), .. }
                        | RealtimeContentPart::Image { url: said } => mask_in_place(conversation, said),
                        RealtimeContentPart::Audio { transcript: None, .. } => {}
                    }
                }
            }
            RealtimeItemKind::Other { raw } => *raw = conversation.mask_json(std::mem::take(raw)),
        }
    }
}

/// Masks the values of secret arguments in a text.
fn mask_in_place(conversation: &SharedConversation, text: &mut String) {
    if conversation.has_secrets() {
        *text = conversation.mask_text(std::mem::take(text));
    }
}

/// Returns the part of an error that others have worded: the provider, a tool or a guardrail.
fn error_message(error: &mut RealtimeError) -> Option<&mut String> {
    match error {
        RealtimeError::Provider { message, .. }
        | RealtimeError::ResponseAbandoned { message, .. }
        | RealtimeError::OutputRejected { message, .. }
        | RealtimeError::AgentChangeFailed { message, .. }
        | RealtimeError::CallsFailed { message, .. }
        | RealtimeError::GuardrailFailed { message, .. }
        | RealtimeError::JournalFailed { message } => Some(message),
        RealtimeError::ResponseStalled { .. }
        | RealtimeError::ResponseNotStarted
        | RealtimeError::ResponseUnconfigured { .. }
        | RealtimeError::SpeechLost { .. }
        | RealtimeError::CallIdReused { .. }
        | RealtimeError::CallLimitReached { .. } => None,
    }
}
