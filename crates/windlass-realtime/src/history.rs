//! What was said, item by item, as both sides know it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::Item;
use windlass::core::{AgentName, Call, CallId, Content, Media, Message, Output, OutputContent, Role};

use crate::id::{ItemId, ResponseId};

/// One item of a live conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveItem {
    /// Its id.
    pub id: ItemId,
    /// What it is.
    pub kind: LiveItemKind,
    /// How far it has come.
    #[serde(default)]
    pub status: ItemStatus,
    /// The answer that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ResponseId>,
    /// The agent that said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
}

/// What an item is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveItemKind {
    /// Something that was said.
    Message {
        /// By whom.
        role: Role,
        /// What it is made of.
        parts: Vec<Part>,
    },
    /// The model asks for a tool.
    Call {
        /// The model's id of the call.
        call: CallId,
        /// The tool's name.
        name: String,
        /// The arguments as the model wrote them.
        arguments: String,
    },
    /// What came of a call.
    Output {
        /// Which call.
        call: CallId,
        /// What the model is told.
        text: String,
    },
    /// A provider's own item, carried through.
    Other {
        /// All of it.
        raw: Value,
    },
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// Something written.
    Text {
        /// The text.
        text: String,
    },
    /// Something spoken. The audio itself is not kept.
    Audio {
        /// What was said, as far as it was heard.
        transcript: Option<String>,
        /// How much of it was heard, where it was cut off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        heard_ms: Option<u64>,
    },
    /// A picture.
    Image {
        /// Its address, `data:` addresses included.
        url: String,
    },
}

/// How far an item has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// It is being said.
    InProgress,
    /// It is whole.
    #[default]
    Completed,
    /// It was cut off, and ends where the user stopped hearing it.
    Interrupted,
}

impl LiveItem {
    /// A message.
    pub fn message(id: impl Into<ItemId>, role: Role, parts: Vec<Part>) -> Self {
        Self::new(id, LiveItemKind::Message { role, parts })
    }

    /// An item that is whole.
    pub fn new(id: impl Into<ItemId>, kind: LiveItemKind) -> Self {
        Self { id: id.into(), kind, status: ItemStatus::Completed, response: None, agent: None }
    }

    /// Its words, spoken and written.
    pub fn text(&self) -> String {
        match &self.kind {
            LiveItemKind::Message { parts, .. } => parts.iter().filter_map(Part::words).collect(),
            LiveItemKind::Output { text, .. } => text.clone(),
            LiveItemKind::Call { .. } | LiveItemKind::Other { .. } => String::new(),
        }
    }

    /// The same in the words of a run, for sessions, exports and models that are no live ones.
    pub fn to_item(&self) -> Option<Item> {
        match &self.kind {
            LiveItemKind::Message { role, parts } => {
                let content: Vec<Content> = parts.iter().filter_map(Part::to_content).collect();
                let item_id = Some(self.id.to_string());
                let is_said = !content.is_empty();
                is_said.then_some(Item::Message(Message { role: *role, content, item_id }))
            }
            LiveItemKind::Call { call, name, arguments } => {
                let Item::Call(made) = Item::call(call.clone(), name.clone(), arguments.clone()) else {
                    return None;
                };
                Some(Item::Call(Call { item_id: Some(self.id.to_string()), ..made }))
            }
            LiveItemKind::Output { call, text } => Some(Item::Output(Output {
                call: call.clone(),
                content: OutputContent::Text(text.clone()),
                status: Default::default(),
            })),
            LiveItemKind::Other { .. } => None,
        }
    }
}

impl Part {
    /// Something written.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// Something spoken.
    pub fn spoken(transcript: impl Into<String>) -> Self {
        Self::Audio { transcript: Some(transcript.into()), heard_ms: None }
    }

    /// Its words.
    pub fn words(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            Self::Audio { transcript, .. } => transcript.as_deref(),
            Self::Image { .. } => None,
        }
    }

    fn to_content(&self) -> Option<Content> {
        match self {
            Self::Text { text } => Some(Content::text(text.clone())),
            Self::Audio { transcript, .. } => transcript.clone().map(Content::text),
            Self::Image { url } => Some(Content::Image(Media { url: Some(url.clone()), ..Media::default() })),
        }
    }
}

/// The conversation, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    items: Vec<LiveItem>,
}

/// What a change did to a history.
#[derive(Clone, Debug, PartialEq)]
pub enum HistoryChange {
    /// An item came in, behind another one or at the beginning.
    Added {
        /// The item.
        item: LiveItem,
        /// The item before it.
        after: Option<ItemId>,
    },
    /// An item is another than it was.
    Updated(LiveItem),
    /// An item is gone.
    Removed(ItemId),
}

impl History {
    /// A history of these items.
    pub fn new(items: Vec<LiveItem>) -> Self {
        Self { items }
    }

    /// The items, oldest first.
    pub fn items(&self) -> &[LiveItem] {
        &self.items
    }

    /// One item.
    pub fn get(&self, id: &ItemId) -> Option<&LiveItem> {
        self.place(id).map(|place| &self.items[place])
    }

    /// The output of a call, where it has one.
    pub fn output_of(&self, call: &CallId) -> Option<&LiveItem> {
        let is_it =
            |item: &&LiveItem| matches!(&item.kind, LiveItemKind::Output { call: of, .. } if of == call);
        self.items.iter().find(is_it)
    }

    /// The conversation in the words of a run. Calls without an output, and outputs without a call, are left out,
    /// so that it is a history that any model takes.
    pub fn to_items(&self) -> Vec<Item> {
        let has = |wanted: &CallId, is_output: bool| {
            self.items.iter().any(|item| match &item.kind {
                LiveItemKind::Call { call, .. } => !is_output && call == wanted,
                LiveItemKind::Output { call, .. } => is_output && call == wanted,
                _ => false,
            })
        };
        let is_whole = |item: &&LiveItem| match &item.kind {
            LiveItemKind::Call { call, .. } => has(call, true),
            LiveItemKind::Output { call, .. } => has(call, false),
            _ => true,
        };
        self.items.iter().filter(is_whole).filter_map(LiveItem::to_item).collect()
    }

    /// Puts an item in, or what is new of it over what is there.
    pub(crate) fn put(&mut self, item: LiveItem, after: Option<&ItemId>) -> Option<HistoryChange> {
        match self.place(&item.id) {
            Some(place) => {
                let merged = merge(&self.items[place], item);
                if merged == self.items[place] {
                    return None;
                }
                self.items[place] = merged.clone();
                Some(HistoryChange::Updated(merged))
            }
            None => {
                let place =
                    after.and_then(|after| self.place(after)).map_or(self.items.len(), |place| place + 1);
                self.items.insert(place, item.clone());
                let after = place.checked_sub(1).map(|before| self.items[before].id.clone());
                Some(HistoryChange::Added { item, after })
            }
        }
    }

    /// Puts an item in as it is, over what is there.
    pub(crate) fn set(&mut self, item: LiveItem, after: Option<&ItemId>) -> Option<HistoryChange> {
        match self.place(&item.id) {
            Some(place) => {
                self.items[place] = item.clone();
                Some(HistoryChange::Updated(item))
            }
            None => self.put(item, after),
        }
    }

    /// Changes an item, where it is there.
    pub(crate) fn edit(&mut self, id: &ItemId, edit: impl FnOnce(&mut LiveItem)) -> Option<HistoryChange> {
        let place = self.place(id)?;
        let before = self.items[place].clone();
        edit(&mut self.items[place]);
        (self.items[place] != before).then(|| HistoryChange::Updated(self.items[place].clone()))
    }

    pub(crate) fn remove(&mut self, id: &ItemId) -> Option<HistoryChange> {
        let place = self.place(id)?;
        self.items.remove(place);
        Some(HistoryChange::Removed(id.clone()))
    }

    /// The item before another one.
    pub(crate) fn before(&self, id: &ItemId) -> Option<&ItemId> {
        let place = self.place(id)?;
        place.checked_sub(1).map(|before| &self.items[before].id)
    }

    fn place(&self, id: &ItemId) -> Option<usize> {
        // What is looked for is nearly always among the newest.
        self.items.iter().rposition(|item| item.id == *id)
    }
}

/// What is known of an item, with what came of it now. What was written down, heard or cut off before is not lost
/// because the other side does not repeat it.
fn merge(known: &LiveItem, new: LiveItem) -> LiveItem {
    let kind = match (&known.kind, new.kind) {
        (
            LiveItemKind::Message { role, parts: known_parts },
            LiveItemKind::Message { role: new_role, parts: new_parts },
        ) if *role == new_role => {
            if known.status == ItemStatus::Interrupted || new_parts.is_empty() {
                known.kind.clone()
            } else {
                let mut parts: Vec<Part> = new_parts
                    .into_iter()
                    .enumerate()
                    .map(|(place, part)| merge_part(known_parts.get(place), part))
                    .collect();
                let rest = known_parts.iter().skip(parts.len());
                parts.extend(rest.filter(|part| part.words().is_none_or(|words| !words.is_empty())).cloned());
                LiveItemKind::Message { role: new_role, parts }
            }
        }
        (_, new) => new,
    };
    let status = match known.status {
        ItemStatus::Interrupted => ItemStatus::Interrupted,
        ItemStatus::InProgress | ItemStatus::Completed => new.status,
    };
    LiveItem {
        id: new.id,
        kind,
        status,
        response: new.response.or_else(|| known.response.clone()),
        agent: new.agent.or_else(|| known.agent.clone()),
    }
}

fn merge_part(known: Option<&Part>, new: Part) -> Part {
    match (known, new) {
        (Some(known @ Part::Audio { transcript: Some(_), .. }), Part::Audio { transcript: None, .. }) => {
            known.clone()
        }
        (Some(Part::Audio { heard_ms: Some(heard), .. }), Part::Audio { transcript, heard_ms: None }) => {
            Part::Audio { transcript, heard_ms: Some(*heard) }
        }
        (Some(Part::Text { text }), Part::Text { text: new }) if new.is_empty() => {
            Part::Text { text: text.clone() }
        }
        (_, new) => new,
    }
}
