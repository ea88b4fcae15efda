//! The conversation history, item by item, as the session and the model know it.
//!
//! Invariant: an interrupted item ends where the user stopped hearing it, and later updates from the provider
//! do not extend it again.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::core::item::Item;
use windlass::core::{
    id::{AgentName, CallId},
    item::{CallOutput, ContentPart, MediaSource, Message, OutputContent, Role, ToolCall},
};

use crate::id::{ItemId, ResponseId};

/// One item of a realtime conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RealtimeItem {
    /// The id of the item.
    pub id: ItemId,
    /// The kind of the item and its content.
    pub kind: RealtimeItemKind,
    /// The progress of the item.
    #[serde(default)]
    pub status: RealtimeItemStatus,
    /// The response that produced the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ResponseId>,
    /// The agent that produced the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
}

/// The kind of a conversation item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RealtimeItemKind {
    /// A message.
    Message {
        /// The author's role.
        role: Role,
        /// The content parts, in order.
        parts: Vec<RealtimeContentPart>,
    },
    /// A tool call of the model.
    Call {
        /// The model's id of the call.
        call: CallId,
        /// The tool's name.
        name: String,
        /// The arguments, as the model wrote them.
        arguments: String,
    },
    /// The output of a tool call.
    Output {
        /// Id of the call.
        call: CallId,
        /// The text sent to the model.
        text: String,
    },
    /// A provider-specific item, passed through unchanged.
    Other {
        /// The whole item.
        raw: Value,
    },
}

/// A content part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RealtimeContentPart {
    /// Written text.
    Text {
        /// The text.
        text: String,
    },
    /// Speech. The audio itself is not kept.
    Audio {
        /// The transcript, up to the point the user heard.
        transcript: Option<String>,
        /// Milliseconds the user heard; absent unless the speech was interrupted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        heard_ms: Option<u64>,
    },
    /// An image.
    Image {
        /// The image's URL, which may be a `data:` URL.
        url: String,
    },
}

/// The progress of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RealtimeItemStatus {
    /// The item is still being produced.
    InProgress,
    /// The item is complete.
    #[default]
    Completed,
    /// The item was interrupted and ends where the user stopped hearing it.
    Interrupted,
}

impl RealtimeItem {
    /// Creates a message.
    pub fn message(id: impl Into<ItemId>, role: Role, parts: Vec<RealtimeContentPart>) -> Self {
        Self::new(id, RealtimeItemKind::Message { role, parts })
    }

    /// Creates a completed item.
    pub fn new(id: impl Into<ItemId>, kind: RealtimeItemKind) -> Self {
        Self { id: id.into(), kind, status: RealtimeItemStatus::Completed, response: None, agent: None }
    }

    /// Returns the text of the item: its transcripts, written text, or tool output.
    pub fn text(&self) -> String {
        match &self.kind {
            RealtimeItemKind::Message { parts, .. } => {
                parts.iter().filter_map(RealtimeContentPart::as_text).collect()
            }
            RealtimeItemKind::Output { text, .. } => text.clone(),
            RealtimeItemKind::Call { .. } | RealtimeItemKind::Other { .. } => String::new(),
        }
    }

    /// Converts the item to a run's [`Item`], for sessions, exports and other models. Returns `None` for an
    /// empty message and for provider-specific items.
    pub fn to_item(&self) -> Option<Item> {
        match &self.kind {
            RealtimeItemKind::Message { role, parts } => {
                let content: Vec<ContentPart> =
                    parts.iter().filter_map(RealtimeContentPart::to_content).collect();
                let item_id = Some(self.id.to_string());
                let is_said = !content.is_empty();
                is_said.then_some(Item::Message(Message {
                    role: *role,
                    content,
                    item_id,
                    sources: Default::default(),
                }))
            }
            RealtimeItemKind::Call { call, name, arguments } => {
                let Item::Call(made) = Item::call(call.clone(), name.clone(), arguments.clone()) else {
                    return None;
                };
                Some(Item::Call(ToolCall { item_id: Some(self.id.to_string()), ..made }))
            }
            RealtimeItemKind::Output { call, text } => Some(Item::Output(CallOutput {
                call: call.clone(),
                content: OutputContent::Text(text.clone()),
                status: Default::default(),
                sources: Default::default(),
            })),
            RealtimeItemKind::Other { .. } => None,
        }
    }
}

impl RealtimeContentPart {
    /// Creates a part of written text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// Creates a part of speech with this transcript.
    pub fn transcript(transcript: impl Into<String>) -> Self {
        Self::Audio { transcript: Some(transcript.into()), heard_ms: None }
    }

    /// Returns the text or transcript; `None` for an image or untranscribed speech.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            Self::Audio { transcript, .. } => transcript.as_deref(),
            Self::Image { .. } => None,
        }
    }

    fn to_content(&self) -> Option<ContentPart> {
        match self {
            Self::Text { text } => Some(ContentPart::text(text.clone())),
            Self::Audio { transcript, .. } => transcript.clone().map(ContentPart::text),
            Self::Image { url } => {
                Some(ContentPart::Image(MediaSource { url: Some(url.clone()), ..MediaSource::default() }))
            }
        }
    }
}

/// The items of the conversation, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RealtimeHistory {
    items: Vec<RealtimeItem>,
}

/// A change of the history.
///
/// Exhaustive on purpose: a copy of the history must apply every change.
#[derive(Clone, Debug, PartialEq)]
pub enum HistoryChange {
    /// An item was added, after another one or at the beginning.
    Added {
        /// The item.
        item: RealtimeItem,
        /// The preceding item.
        after: Option<ItemId>,
    },
    /// An item was changed.
    Updated(RealtimeItem),
    /// An item was removed.
    Removed(ItemId),
}

impl RealtimeHistory {
    /// Creates a history of these items.
    pub fn new(items: Vec<RealtimeItem>) -> Self {
        Self { items }
    }

    /// Returns the items, oldest first.
    pub fn items(&self) -> &[RealtimeItem] {
        &self.items
    }

    /// Returns the item with this id.
    pub fn get(&self, id: &ItemId) -> Option<&RealtimeItem> {
        self.position_of(id).map(|place| &self.items[place])
    }

    /// Returns the output of a call, if the call has one.
    pub fn call_output(&self, call: &CallId) -> Option<&RealtimeItem> {
        self.items.iter().find(|item| match &item.kind {
            RealtimeItemKind::Output { call: answered, .. } => answered == call,
            _ => false,
        })
    }

    /// Converts the conversation to run items. Leaves out items that [`RealtimeItem::to_item`] cannot convert, calls
    /// without an output and outputs without a call, so that every model accepts the result.
    pub fn to_items(&self) -> Vec<Item> {
        let has_call = |wanted: &CallId| {
            self.items.iter().any(|item| match &item.kind {
                RealtimeItemKind::Call { call, .. } => call == wanted,
                _ => false,
            })
        };
        let is_paired = |item: &&RealtimeItem| match &item.kind {
            RealtimeItemKind::Call { call, .. } => self.call_output(call).is_some(),
            RealtimeItemKind::Output { call, .. } => has_call(call),
            _ => true,
        };
        self.items.iter().filter(is_paired).filter_map(RealtimeItem::to_item).collect()
    }

    /// Inserts an item, or merges it into the known item with the same id.
    pub(crate) fn upsert_item(
        &mut self,
        item: RealtimeItem,
        after: Option<&ItemId>,
    ) -> Option<HistoryChange> {
        match self.position_of(&item.id) {
            Some(place) => {
                let merged = merge_items(&self.items[place], item);
                if merged == self.items[place] {
                    return None;
                }
                self.items[place] = merged.clone();
                Some(HistoryChange::Updated(merged))
            }
            None => {
                let place = after
                    .and_then(|after| self.position_of(after))
                    .map_or(self.items.len(), |place| place + 1);
                self.items.insert(place, item.clone());
                let after = place.checked_sub(1).map(|before| self.items[before].id.clone());
                Some(HistoryChange::Added { item, after })
            }
        }
    }

    /// Inserts an item after another one, or at the beginning, or overwrites the known item with the same id.
    pub(crate) fn overwrite_item(
        &mut self,
        item: RealtimeItem,
        after: Option<&ItemId>,
    ) -> Option<HistoryChange> {
        match self.position_of(&item.id) {
            Some(place) => {
                self.items[place] = item.clone();
                Some(HistoryChange::Updated(item))
            }
            None if after.is_none() => {
                self.items.insert(0, item.clone());
                Some(HistoryChange::Added { item, after: None })
            }
            None => self.upsert_item(item, after),
        }
    }

    /// Edits an item, if it is known.
    pub(crate) fn edit_item(
        &mut self,
        id: &ItemId,
        edit: impl FnOnce(&mut RealtimeItem),
    ) -> Option<HistoryChange> {
        let place = self.position_of(id)?;
        let before = self.items[place].clone();
        edit(&mut self.items[place]);
        (self.items[place] != before).then(|| HistoryChange::Updated(self.items[place].clone()))
    }

    pub(crate) fn remove_item(&mut self, id: &ItemId) -> Option<HistoryChange> {
        let place = self.position_of(id)?;
        self.items.remove(place);
        Some(HistoryChange::Removed(id.clone()))
    }

    /// Returns the preceding item.
    pub(crate) fn preceding_item(&self, id: &ItemId) -> Option<&ItemId> {
        let place = self.position_of(id)?;
        place.checked_sub(1).map(|before| &self.items[before].id)
    }

    fn position_of(&self, id: &ItemId) -> Option<usize> {
        // Lookups are nearly always for one of the newest items.
        self.items.iter().rposition(|item| item.id == *id)
    }
}

/// Merges an update into a known item. Transcripts, heard durations and interruptions are kept if the provider
/// does not repeat them.
fn merge_items(known: &RealtimeItem, new: RealtimeItem) -> RealtimeItem {
    let kind = match (&known.kind, new.kind) {
        (
            RealtimeItemKind::Message { role, parts: known_parts },
            RealtimeItemKind::Message { role: new_role, parts: new_parts },
        ) if *role == new_role => {
            if known.status == RealtimeItemStatus::Interrupted || new_parts.is_empty() {
                known.kind.clone()
            } else {
                let mut parts: Vec<RealtimeContentPart> = new_parts
                    .into_iter()
                    .enumerate()
                    .map(|(place, part)| merge_part(known_parts.get(place), part))
                    .collect();
                let rest = known_parts.iter().skip(parts.len());
                parts.extend(
                    rest.filter(|part| part.as_text().is_none_or(|words| !words.is_empty())).cloned(),
                );
                RealtimeItemKind::Message { role: new_role, parts }
            }
        }
        (_, new) => new,
    };
    let status = match known.status {
        RealtimeItemStatus::Interrupted => RealtimeItemStatus::Interrupted,
        // An announcement that comes late, or that is about a later item of the same id, opens nothing again.
        RealtimeItemStatus::Completed if new.status == RealtimeItemStatus::InProgress => {
            RealtimeItemStatus::Completed
        }
        RealtimeItemStatus::InProgress | RealtimeItemStatus::Completed => new.status,
    };
    RealtimeItem {
        id: new.id,
        kind,
        status,
        // An item does not change hands, whoever is current when the provider repeats it.
        response: known.response.clone().or(new.response),
        agent: known.agent.clone().or(new.agent),
    }
}

fn merge_part(known: Option<&RealtimeContentPart>, new: RealtimeContentPart) -> RealtimeContentPart {
    match (known, new) {
        (
            Some(known @ RealtimeContentPart::Audio { transcript: Some(_), .. }),
            RealtimeContentPart::Audio { transcript: None, .. },
        ) => known.clone(),
        (
            Some(RealtimeContentPart::Audio { heard_ms: Some(heard), .. }),
            RealtimeContentPart::Audio { transcript, heard_ms: None },
        ) => RealtimeContentPart::Audio { transcript, heard_ms: Some(*heard) },
        (Some(RealtimeContentPart::Text { text }), RealtimeContentPart::Text { text: new })
            if new.is_empty() =>
        {
            RealtimeContentPart::Text { text: text.clone() }
        }
        (_, new) => new,
    }
}
