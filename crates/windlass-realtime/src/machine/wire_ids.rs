//! Ids of the provider, which are valid for one connection, and the ids of this session, which are unique. A provider
//! may number its responses, items and calls from one again on each connection, and its calls in each response.

use std::collections::{BTreeMap, BTreeSet};

use windlass::core::id::CallId;

use super::RealtimeMachine;
use crate::history::{RealtimeItem, RealtimeItemKind, RealtimeItemStatus};
use crate::id::{ItemId, ResponseId};
use crate::model::{RealtimeCommandKind, RealtimeModelEvent};

/// The ids that the provider uses on the current connection.
#[derive(Debug, Default)]
pub(super) struct WireIds {
    /// Session ids of the provider's responses.
    responses: BTreeMap<ResponseId, ResponseId>,
    /// Session ids of the provider's items whose own ids were taken.
    renamed_items: BTreeMap<ItemId, ItemId>,
    /// Items that the provider created on this connection.
    provider_items: BTreeSet<ItemId>,
    /// Items that the session sent on this connection.
    sent_items: BTreeSet<ItemId>,
}

/// Maximum number of responses whose ids are remembered on one connection.
const MAX_RESPONSE_IDS: usize = 256;

impl RealtimeMachine {
    /// Replaces the provider's ids in an event by those of the session.
    pub(super) fn translate_event(&mut self, event: &mut RealtimeModelEvent) {
        match event {
            RealtimeModelEvent::ResponseStarted { response, .. } => *response = self.response_name(response),
            RealtimeModelEvent::ResponseEnded { response, calls, .. } => {
                *response = self.response_name(response);
                for call in calls {
                    call.response = Some(response.clone());
                    call.id = self.item_name(&call.id, Some(response));
                }
            }
            RealtimeModelEvent::AudioDelta { response, item, .. }
            | RealtimeModelEvent::AudioEnded { response, item, .. }
            | RealtimeModelEvent::OutputTextDelta { response, item, .. }
            | RealtimeModelEvent::OutputTextEnded { response, item, .. } => {
                *response = self.response_name(response);
                *item = self.item_name(item, Some(response));
            }
            RealtimeModelEvent::ArgumentsDelta { response, .. } => *response = self.response_name(response),
            RealtimeModelEvent::ItemChanged { item, after } => {
                if let Some(response) = &mut item.response {
                    *response = self.response_name(response);
                    item.id = self.item_name(&item.id, Some(&*response));
                } else if !self.unconfirmed_items.values().any(|ours| *ours == item.id) {
                    item.id = self.announced_item_name(&item.id, item.status);
                }
                if let Some(name) = after.as_ref().and_then(|after| self.wire_ids.renamed_items.get(after)) {
                    *after = Some(name.clone());
                }
            }
            RealtimeModelEvent::AudioCommitted { item, after } => {
                *item = self.item_name(item, None);
                if let Some(name) = after.as_ref().and_then(|after| self.wire_ids.renamed_items.get(after)) {
                    *after = Some(name.clone());
                }
            }
            RealtimeModelEvent::SpeechStarted { item } | RealtimeModelEvent::SpeechStopped { item } => {
                *item = self.item_name(item, None);
            }
            RealtimeModelEvent::ItemDeleted { item }
            | RealtimeModelEvent::ItemTruncated { item, .. }
            | RealtimeModelEvent::InputTranscriptDelta { item, .. }
            | RealtimeModelEvent::InputTranscriptCompleted { item, .. }
            | RealtimeModelEvent::InputTranscriptFailed { item, .. } => {
                if let Some(name) = self.wire_ids.renamed_items.get(item) {
                    *item = name.clone();
                }
            }
            RealtimeModelEvent::SessionCreated { .. }
            | RealtimeModelEvent::ConfigurationApplied { .. }
            | RealtimeModelEvent::AudioCleared
            | RealtimeModelEvent::IdleTimeout
            | RealtimeModelEvent::RateLimits(_)
            | RealtimeModelEvent::CommandRejected { .. }
            | RealtimeModelEvent::Raw(_)
            | RealtimeModelEvent::Unknown { .. } => {}
        }
    }

    /// Replaces the session's ids in a command by those that the provider uses on this connection.
    pub(super) fn translate_command(&self, kind: &mut RealtimeCommandKind) {
        match kind {
            RealtimeCommandKind::CancelResponse { response } => {
                let names = &self.wire_ids.responses;
                if let Some((wire, _)) = names.iter().find(|(_, name)| *name == response) {
                    *response = wire.clone();
                }
            }
            RealtimeCommandKind::DeleteItem { item } | RealtimeCommandKind::TruncateItem { item, .. } => {
                *item = self.wire_item(item);
            }
            RealtimeCommandKind::CreateItem { item, after } => {
                if let Some(after) = after {
                    *after = self.wire_item(after);
                }
                if let RealtimeItemKind::Output { call, .. } = &mut item.kind
                    && let Some(wire) = self.wire_call(call)
                {
                    *call = wire;
                }
            }
            RealtimeCommandKind::Configure(_)
            | RealtimeCommandKind::AppendAudio(_)
            | RealtimeCommandKind::CommitAudio
            | RealtimeCommandKind::ClearAudio
            | RealtimeCommandKind::CreateResponse(_)
            | RealtimeCommandKind::CreateRawResponse(_)
            | RealtimeCommandKind::Raw(_) => {}
        }
    }

    /// Returns the session's id of a response of the provider.
    fn response_name(&mut self, wire: &ResponseId) -> ResponseId {
        if let Some(name) = self.wire_ids.responses.get(wire) {
            return name.clone();
        }
        let is_taken = |name: &ResponseId| {
            self.turns.contains_key(name)
                || self.ended_responses.contains(name)
                || self.calling_responses.contains(name)
        };
        let name = free_name(wire.as_str(), |name| is_taken(&ResponseId::from(name)));
        let name = ResponseId::from(name);
        if self.wire_ids.responses.len() >= MAX_RESPONSE_IDS {
            let (turns, ended) = (&self.turns, &self.ended_responses);
            self.wire_ids.responses.retain(|_, name| turns.contains_key(name) || ended.contains(name));
        }
        self.wire_ids.responses.insert(wire.clone(), name.clone());
        name
    }

    /// Returns the session's id of an item that the provider created, in this response or for the user's speech.
    fn item_name(&mut self, wire: &ItemId, response: Option<&ResponseId>) -> ItemId {
        if let Some(name) = self.wire_ids.renamed_items.get(wire) {
            return name.clone();
        }
        if self.wire_ids.provider_items.contains(wire) {
            return wire.clone();
        }
        let is_other = |known: &RealtimeItem| response.is_none() || known.response.as_ref() != response;
        if self.history.get(wire).is_some_and(is_other) {
            let is_taken = |name: &str| self.history.get(&ItemId::from(name)).is_some();
            let name = ItemId::from(free_name(wire.as_str(), is_taken));
            self.wire_ids.renamed_items.insert(wire.clone(), name.clone());
            return name;
        }
        self.wire_ids.provider_items.insert(wire.clone());
        wire.clone()
    }

    /// Returns the session's id of an item that the provider announces without a response: an item of this session that
    /// is confirmed, or one that the provider has just created. The session's own items are complete when it sends them.
    fn announced_item_name(&mut self, wire: &ItemId, status: RealtimeItemStatus) -> ItemId {
        let is_ours = self.wire_ids.sent_items.contains(wire) && status != RealtimeItemStatus::InProgress;
        match self.wire_ids.renamed_items.get(wire) {
            Some(name) => name.clone(),
            None if is_ours => wire.clone(),
            None => self.item_name(wire, None),
        }
    }

    /// Returns an id for an item of a lost connection that neither the history nor the current connection uses.
    pub(super) fn free_item_name(&self, item: &ItemId) -> ItemId {
        let is_taken = |name: &str| {
            let name = ItemId::from(name);
            self.history.get(&name).is_some() || self.wire_ids.provider_items.contains(&name)
        };
        ItemId::from(free_name(item.as_str(), is_taken))
    }

    /// Records that the session sends an item of its own.
    pub(super) fn record_sent_item(&mut self, item: &ItemId) {
        self.wire_ids.sent_items.insert(item.clone());
    }

    /// Returns the provider's id of an item.
    fn wire_item(&self, name: &ItemId) -> ItemId {
        let mut renamed = self.wire_ids.renamed_items.iter();
        renamed.find(|(_, known)| *known == name).map_or_else(|| name.clone(), |(wire, _)| wire.clone())
    }

    /// Returns a session id for a call that the provider names `wire`.
    pub(super) fn call_name(&self, wire: &CallId) -> CallId {
        CallId::from(free_name(wire.as_str(), |name| self.calls.contains_key(&CallId::from(name))))
    }
}

/// Returns the id, or the id with the first number that makes it free.
fn free_name(id: &str, is_taken: impl Fn(&str) -> bool) -> String {
    if !is_taken(id) {
        return id.to_owned();
    }
    let mut number = 2_u64;
    loop {
        let name = format!("{id}.{number}");
        if !is_taken(&name) {
            return name;
        }
        number += 1;
    }
}
