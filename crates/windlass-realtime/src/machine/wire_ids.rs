//! Ids of the provider, which are valid for one connection, and the ids of this session, which are unique. A provider
//! may number its responses, items and calls from one again on each connection, and its items and calls in each response.

use std::collections::{BTreeMap, BTreeSet};

use windlass::core::id::CallId;
use windlass::core::item::Role;

use super::RealtimeMachine;
use crate::history::{RealtimeItem, RealtimeItemKind, RealtimeItemStatus};
use crate::id::{ItemId, ResponseId};
use crate::model::{RealtimeCommandKind, RealtimeModelEvent};

/// The ids that the provider uses on the current connection.
#[derive(Debug, Default)]
pub(super) struct WireIds {
    /// Session ids of the provider's responses.
    responses: BTreeMap<ResponseId, ResponseId>,
    /// Session ids of the provider's items in its responses.
    response_items: BTreeMap<(ItemId, ResponseId), ItemId>,
    /// The newest item of each id of the provider.
    newest_items: BTreeMap<ItemId, NewestItem>,
    /// The provider's ids of the items that have another id in this session.
    renamed_items: BTreeMap<ItemId, ItemId>,
    /// Session ids of the items that the provider created on this connection.
    provider_items: BTreeSet<ItemId>,
    /// Items that the session sent on this connection.
    sent_items: BTreeSet<ItemId>,
}

impl WireIds {
    /// Records items of an earlier process that the provider has.
    pub(super) fn adopt_items<'a>(&mut self, items: impl Iterator<Item = &'a ItemId>) {
        self.sent_items.extend(items.cloned());
    }

    /// Returns true if the provider created the item, or the session sent it.
    pub(super) fn is_at_provider(&self, item: &ItemId) -> bool {
        self.provider_items.contains(item) || self.sent_items.contains(item)
    }
}

/// The newest item that the provider created with an id.
#[derive(Clone, Debug)]
struct NewestItem {
    name: ItemId,
    /// The response that the item is known to belong to.
    response: Option<ResponseId>,
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
                    call.id = self.response_item_name(&call.id, response);
                }
            }
            RealtimeModelEvent::AudioDelta { response, item, .. }
            | RealtimeModelEvent::AudioEnded { response, item, .. }
            | RealtimeModelEvent::OutputTextDelta { response, item, .. }
            | RealtimeModelEvent::OutputTextEnded { response, item, .. } => {
                *response = self.response_name(response);
                *item = self.response_item_name(item, response);
            }
            RealtimeModelEvent::ArgumentsDelta { response, .. } => *response = self.response_name(response),
            RealtimeModelEvent::ItemChanged { item, after } => {
                if let Some(response) = &mut item.response {
                    *response = self.response_name(response);
                    item.id = self.response_item_name(&item.id, response);
                } else if !self.unconfirmed_items.values().any(|ours| *ours == item.id) {
                    item.id = self.announced_item_name(&item.id, item.status);
                }
                if let Some(after) = after {
                    *after = self.newest_item_name(after);
                }
            }
            RealtimeModelEvent::AudioCommitted { item, after } => {
                *item = self.speech_item_name(item);
                if let Some(after) = after {
                    *after = self.newest_item_name(after);
                }
            }
            RealtimeModelEvent::SpeechStarted { item } | RealtimeModelEvent::SpeechStopped { item } => {
                *item = self.speech_item_name(item);
            }
            RealtimeModelEvent::ItemDeleted { item }
            | RealtimeModelEvent::ItemTruncated { item, .. }
            | RealtimeModelEvent::InputTranscriptDelta { item, .. }
            | RealtimeModelEvent::InputTranscriptCompleted { item, .. }
            | RealtimeModelEvent::InputTranscriptFailed { item, .. } => {
                *item = self.newest_item_name(item);
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
                || self.is_response_ended(name)
                || self.calling_responses.contains(name)
        };
        let name = free_name(wire.as_str(), |name| is_taken(&ResponseId::from(name)));
        let name = ResponseId::from(name);
        if self.wire_ids.responses.len() >= MAX_RESPONSE_IDS {
            let turns = &self.turns;
            let ended: BTreeSet<&ResponseId> = self.ended_responses.iter().map(|(ended, _)| ended).collect();
            self.wire_ids.responses.retain(|_, name| turns.contains_key(name) || ended.contains(&*name));
        }
        self.wire_ids.responses.insert(wire.clone(), name.clone());
        name
    }

    /// Returns the session's id of an item of a response.
    fn response_item_name(&mut self, wire: &ItemId, response: &ResponseId) -> ItemId {
        let key = (wire.clone(), response.clone());
        if let Some(name) = self.wire_ids.response_items.get(&key) {
            return name.clone();
        }
        // The provider may have announced the item without its response before.
        let announced = self.wire_ids.newest_items.get(wire).filter(|newest| newest.response.is_none());
        let announced = announced.map(|newest| newest.name.clone()).filter(|name| !self.is_of_user(name));
        let name = announced.unwrap_or_else(|| self.name_new_item(wire, Some(response)));
        let newest = NewestItem { name: name.clone(), response: Some(response.clone()) };
        self.wire_ids.newest_items.insert(wire.clone(), newest);
        self.wire_ids.response_items.insert(key, name.clone());
        name
    }

    /// Returns the session's id of an item of the user's speech.
    fn speech_item_name(&mut self, wire: &ItemId) -> ItemId {
        match self.wire_ids.newest_items.get(wire) {
            Some(NewestItem { name, response: None }) => name.clone(),
            _ => self.name_new_item(wire, None),
        }
    }

    /// Returns the session's id of an item that the provider announces without a response: an item of this session that
    /// is confirmed, a known item of the provider, or one that the provider has just created. The session's own items are
    /// complete when it sends them.
    fn announced_item_name(&mut self, wire: &ItemId, status: RealtimeItemStatus) -> ItemId {
        let is_ours = self.wire_ids.sent_items.contains(wire) && status != RealtimeItemStatus::InProgress;
        match self.wire_ids.newest_items.get(wire) {
            Some(newest) => newest.name.clone(),
            None if is_ours => wire.clone(),
            None => self.name_new_item(wire, None),
        }
    }

    /// Returns the session's id of the newest item that the provider has given this id.
    fn newest_item_name(&self, wire: &ItemId) -> ItemId {
        self.wire_ids.newest_items.get(wire).map_or_else(|| wire.clone(), |newest| newest.name.clone())
    }

    /// Names an item that the provider has just created.
    fn name_new_item(&mut self, wire: &ItemId, response: Option<&ResponseId>) -> ItemId {
        let is_provided = |name: &ItemId| self.wire_ids.provider_items.contains(name);
        let is_other = |known: &RealtimeItem| response.is_none() || known.response.as_ref() != response;
        let name = match is_provided(wire) || self.history.get(wire).is_some_and(is_other) {
            false => wire.clone(),
            true => self.free_item_name(wire),
        };
        if name != *wire {
            self.wire_ids.renamed_items.insert(name.clone(), wire.clone());
        }
        self.wire_ids.provider_items.insert(name.clone());
        let newest = NewestItem { name: name.clone(), response: response.cloned() };
        self.wire_ids.newest_items.insert(wire.clone(), newest);
        name
    }

    /// Returns true if an item is a message of the user.
    fn is_of_user(&self, item: &ItemId) -> bool {
        let kind = self.history.get(item).map(|item| &item.kind);
        matches!(kind, Some(RealtimeItemKind::Message { role: Role::User, .. }))
    }

    /// Returns an id for an item that neither the history nor the current connection uses.
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
        self.wire_ids.renamed_items.get(name).unwrap_or(name).clone()
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

#[cfg(test)]
#[path = "wire_ids_tests.rs"]
mod tests;
