//! Redaction of journal entries. Invariant: secrets reach the tool's body and the model, and no journal.

use std::collections::BTreeSet;

use windlass::agent::{CallRedaction, ResolvedAgent};
use windlass::core::id::CallId;
use windlass::core::item::Item;

use super::actor::SessionActor;
use crate::history::{RealtimeItem, RealtimeItemKind};
use crate::journal::RealtimeEntry;

/// The replacement of a secret output.
const REDACTED_OUTPUT: &str = "[secret]";

/// Calls whose outputs are not journalled.
#[derive(Debug, Default)]
pub(super) struct SecretOutputs(BTreeSet<CallId>);

impl<C: Send + Sync + 'static> SessionActor<C> {
    /// Returns the entry without secrets.
    pub(super) fn redact_entry(&mut self, entry: RealtimeEntry) -> RealtimeEntry {
        match entry {
            RealtimeEntry::ItemChanged { item, after, respond } => {
                RealtimeEntry::ItemChanged { item: self.redact_item(item), after, respond }
            }
            RealtimeEntry::CallsPlanned { run, response, agent, calls } => {
                let calls = calls.into_iter().map(|call| self.redact_item(call)).collect();
                RealtimeEntry::CallsPlanned { run, response, agent, calls }
            }
            other => other,
        }
    }

    fn redact_item(&mut self, mut item: RealtimeItem) -> RealtimeItem {
        let known = item.to_item();
        match &mut item.kind {
            RealtimeItemKind::Call { call, arguments, .. } => {
                let made_by = item.agent.as_ref();
                // The newest agent of this name is the right one: the calls of earlier ones were journalled
                // when they were made.
                let agents = self.resolved_agents.values().rev();
                let mut agents =
                    agents.filter(|agent| made_by.is_none_or(|name| agent.agent().name() == name));
                let secrets = agents.next().zip(known).map(|(agent, known)| item_redaction(agent, &known));
                let CallRedaction { redacted_arguments, is_output_secret, .. } = secrets.unwrap_or_default();
                if is_output_secret {
                    self.secret_outputs.0.insert(call.clone());
                }
                if let Some(redacted) = redacted_arguments {
                    *arguments = redacted;
                }
            }
            RealtimeItemKind::Output { call, text } if self.secret_outputs.0.contains(call) => {
                *text = REDACTED_OUTPUT.to_owned();
            }
            RealtimeItemKind::Output { .. }
            | RealtimeItemKind::Message { .. }
            | RealtimeItemKind::Other { .. } => {}
        }
        item
    }
}

/// Returns the redaction of an item; empty unless it is a tool call.
pub(super) fn item_redaction<C: Send + Sync + 'static>(
    agent: &ResolvedAgent<C>,
    item: &Item,
) -> CallRedaction {
    match item {
        Item::Call(call) => agent.call_redaction(call),
        _ => CallRedaction::default(),
    }
}
