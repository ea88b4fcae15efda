//! What the application puts in.

use serde::{Deserialize, Serialize};
use windlass::core::Role;

use super::{Link, Machine};
use crate::history::{LiveItem, Part};
use crate::id::ItemId;
use crate::model::CommandKind;

/// Whether a message is to be answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is.
    #[default]
    Wanted,
    /// It is there for a later answer.
    NotYet,
}

impl Answer {
    pub(crate) fn is_wanted(&self) -> bool {
        *self == Self::Wanted
    }
}

impl Machine {
    /// Somebody says something in writing, with pictures where there are any.
    pub(crate) fn say(&mut self, role: Role, parts: Vec<Part>, answer: Answer) -> ItemId {
        let id = self.next_item();
        self.add(LiveItem::message(id.clone(), role, parts), None, answer);
        if role == Role::User {
            self.follow_ups = 0;
            self.since_answer.push(id.clone());
        }
        if answer == Answer::Wanted {
            self.asked_at = Some(self.now);
            self.gate.want(self.now, Some(id.clone()));
        }
        id
    }

    /// The user speaks.
    pub(crate) fn hear(&mut self, bytes: Vec<u8>) {
        if self.link == Link::Down {
            self.metrics.dropped_input += 1;
        }
        self.send(CommandKind::Audio(bytes));
    }

    /// The audio so far is a message. It is answered, unless the server decides about that.
    pub(crate) fn commit_audio(&mut self) {
        self.send(CommandKind::CommitAudio);
        let server_answers = self.configuration.live.turns.server().is_some_and(|server| server.answers);
        if !server_answers {
            self.asked_at = Some(self.now);
            self.gate.want(self.now, None);
        }
    }

    pub(crate) fn clear_audio(&mut self) {
        self.send(CommandKind::ClearAudio);
    }

    /// The model is to answer.
    pub(crate) fn respond(&mut self) {
        self.asked_at = Some(self.now);
        self.gate.want(self.now, None);
    }

    /// So much of an item was played.
    pub(crate) fn played(&mut self, item: &ItemId, content: u32, played_ms: u64) {
        self.playback.reported(item, content, played_ms);
    }

    /// An item is taken out of the conversation.
    pub(crate) fn delete(&mut self, item: &ItemId) -> bool {
        let change = self.history.remove(item);
        let was_there = change.is_some();
        self.changed(change);
        if was_there {
            self.send(CommandKind::Delete { item: item.clone() });
        }
        was_there
    }

    /// An item comes into the conversation, behind another one or at the end.
    pub(crate) fn insert(&mut self, role: Role, parts: Vec<Part>, after: Option<ItemId>) -> ItemId {
        let id = self.next_item();
        self.add(LiveItem::message(id.clone(), role, parts), after, Answer::NotYet);
        id
    }

    /// A message says something else from now on.
    pub(crate) fn replace(&mut self, item: &ItemId, role: Role, parts: Vec<Part>) -> Option<ItemId> {
        let before = self.history.before(item).cloned();
        self.delete(item).then(|| self.insert(role, parts, before))
    }

    pub(crate) fn raw(&mut self, raw: serde_json::Value) {
        self.send(CommandKind::Raw(raw));
    }
}
