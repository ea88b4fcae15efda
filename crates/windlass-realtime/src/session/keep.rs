//! What is written down of a session, which has no secrets in it: those reach the body and the model, and nothing that
//! lasts.

use std::collections::BTreeSet;

use windlass::Item;
use windlass::agent::{Resolved, SecretsOf};
use windlass::core::CallId;

use super::actor::Actor;
use crate::history::{LiveItem, LiveItemKind};
use crate::journal::LiveEntry;

/// What stands in place of a secret.
const SECRET: &str = "[secret]";

/// Calls whose outputs are not written down.
#[derive(Debug, Default)]
pub(super) struct Secret(BTreeSet<CallId>);

impl<C: Send + Sync + 'static> Actor<C> {
    /// An entry as it may be written down.
    pub(super) fn for_keeping(&mut self, entry: LiveEntry) -> LiveEntry {
        match entry {
            LiveEntry::Item { item, after, answer } => {
                LiveEntry::Item { item: self.item_for_keeping(item), after, answer }
            }
            LiveEntry::Calls { run, response, agent, calls } => {
                let calls = calls.into_iter().map(|call| self.item_for_keeping(call)).collect();
                LiveEntry::Calls { run, response, agent, calls }
            }
            other => other,
        }
    }

    fn item_for_keeping(&mut self, mut item: LiveItem) -> LiveItem {
        let known = item.to_item();
        match &mut item.kind {
            LiveItemKind::Call { call, arguments, .. } => {
                let made_by = item.agent.as_ref();
                // The newest of the name: earlier ones are as they were when their calls were written down.
                let agents = self.agents.values().rev();
                let mut agents =
                    agents.filter(|agent| made_by.is_none_or(|name| agent.agent().name() == name));
                let secrets = agents.next().zip(known).map(|(agent, known)| secrets(agent, &known));
                let SecretsOf { open_arguments, is_output_secret, .. } = secrets.unwrap_or_default();
                if is_output_secret {
                    self.secret.0.insert(call.clone());
                }
                if let Some(open) = open_arguments {
                    *arguments = open;
                }
            }
            LiveItemKind::Output { call, text } if self.secret.0.contains(call) => {
                *text = SECRET.to_owned();
            }
            LiveItemKind::Output { .. } | LiveItemKind::Message { .. } | LiveItemKind::Other { .. } => {}
        }
        item
    }
}

/// What may be written down of an item, if it is a call.
pub(super) fn secrets<C: Send + Sync + 'static>(agent: &Resolved<C>, item: &Item) -> SecretsOf {
    match item {
        Item::Call(call) => agent.secrets_of(call),
        _ => SecretsOf::default(),
    }
}
