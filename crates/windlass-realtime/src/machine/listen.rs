//! What the model says, taken in.

use windlass::core::Role;

use super::turns::set_part;
use super::{Answer, Machine};
use crate::event::{AudioChunk, LiveError, LiveEvent};
use crate::history::{ItemStatus, LiveItem, LiveItemKind, Part};
use crate::id::ItemId;
use crate::model::{ModelEvent, RefusalKind};

impl Machine {
    pub(crate) fn heard(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Opened { .. } => {}
            ModelEvent::Configured => self.configured(),
            ModelEvent::ResponseStarted { response, asked_by, place } => {
                self.response_started(response, asked_by.as_ref(), place);
            }
            ModelEvent::ResponseEnded { response, status, usage, calls } => {
                self.response_ended(&response, status, usage, calls);
            }
            ModelEvent::Audio { response, item, content, bytes } => {
                self.audio(AudioChunk { response, item, content, bytes: bytes.into() });
            }
            ModelEvent::AudioEnded { response, item, content } => self.audio_ended(&response, &item, content),
            ModelEvent::Words { response, item, content, delta, form } => {
                self.words(&response, &item, content, &delta, form);
            }
            ModelEvent::WordsEnded { response, item, content, text, form } => {
                self.words_ended(&response, &item, content, &text, form);
            }
            ModelEvent::Arguments { response, .. } => self.gate.heard(self.now, &response),
            ModelEvent::Item { item, after } => self.item(item, after),
            ModelEvent::ItemDeleted { item } => {
                let change = self.history.remove(&item);
                self.changed(change);
            }
            ModelEvent::ItemTruncated { .. } => {}
            ModelEvent::Heard { item, delta, .. } => self.emit(LiveEvent::Heard { item, delta }),
            ModelEvent::HeardAll { item, content, text } => self.heard_all(&item, content, text),
            ModelEvent::NotHeard { message, .. } => {
                self.error(LiveError::Provider { code: "transcription_failed".to_owned(), message });
            }
            ModelEvent::SpeechStarted { .. } => {
                self.speaking_since = Some(self.now);
                self.emit(LiveEvent::SpeechStarted);
                self.user_interrupts();
            }
            ModelEvent::SpeechStopped { .. } => {
                self.speaking_since = None;
                self.follow_ups = 0;
                self.asked_at = Some(self.now);
                self.emit(LiveEvent::SpeechStopped);
            }
            ModelEvent::AudioCommitted { item, after } => {
                self.speaking_since = None;
                self.user_item(&item, after.as_ref());
            }
            ModelEvent::IdleTimeout => self.emit(LiveEvent::IdleTimeout),
            ModelEvent::RateLimits(limits) => self.emit(LiveEvent::RateLimits(limits)),
            ModelEvent::Refused { command, code, message, why } => {
                self.refused(command, code, message, why);
            }
            ModelEvent::Unknown { kind, raw } => self.emit(LiveEvent::Unknown { kind, raw }),
        }
    }

    fn item(&mut self, mut item: LiveItem, after: Option<ItemId>) {
        let before = self.unconfirmed.len();
        self.unconfirmed.retain(|_, id| *id != item.id);
        if self.unconfirmed.len() != before {
            return;
        }
        if let Some(response) = item.response.as_ref().or(self.gate.active()).cloned() {
            self.gate.heard(self.now, &response);
        }
        match &item.kind {
            // Calls are taken when the answer has ended; until then they may still be taken back.
            LiveItemKind::Call { call, .. } if !self.calls.contains_key(call) => {
                item.status = ItemStatus::InProgress;
                item.agent = Some(self.agent.name.clone());
            }
            LiveItemKind::Call { .. } | LiveItemKind::Output { .. } => {
                if self.history.get(&item.id).is_some() {
                    return;
                }
            }
            LiveItemKind::Message { role: Role::Assistant, .. } => {
                item.agent = Some(self.agent.name.clone());
            }
            LiveItemKind::Message { role: Role::User, .. } => {
                if self.history.get(&item.id).is_none() {
                    self.since_answer.push(item.id.clone());
                }
            }
            LiveItemKind::Message { .. } | LiveItemKind::Other { .. } => {}
        }
        let change = self.history.put(item, after.as_ref());
        self.changed(change);
    }

    /// The user's audio is an item, of which it is not known yet what it says.
    fn user_item(&mut self, item: &ItemId, after: Option<&ItemId>) {
        if self.history.get(item).is_none() {
            let part = Part::Audio { transcript: None, heard_ms: None };
            let new = LiveItem::message(item.clone(), Role::User, vec![part]);
            self.since_answer.push(item.clone());
            let change = self.history.put(new, after);
            let server = self.configuration.live.turns.server();
            let is_answered = server.is_none_or(|server| server.answers);
            let answer = if is_answered { Answer::Wanted } else { Answer::NotYet };
            self.changed_for(change, answer);
        }
    }

    fn heard_all(&mut self, item: &ItemId, content: u32, text: String) {
        self.user_item(item, None);
        let change = self.history.edit(item, |known| {
            let heard_ms = None;
            set_part(known, content, Part::Audio { transcript: Some(text), heard_ms });
            known.status = ItemStatus::Completed;
        });
        self.changed(change);
    }

    fn refused(
        &mut self,
        command: Option<crate::id::CommandId>,
        code: String,
        message: String,
        why: RefusalKind,
    ) {
        let is_dealt_with = match (why, &command) {
            (RefusalKind::AlreadyAnswering, command) => self.gate.ask_again(self.now, command.as_ref()),
            // The answer ended by itself, just before it was stopped.
            (RefusalKind::NothingToCancel, _) => true,
            (RefusalKind::Other, Some(command)) => {
                if self.gate.refused(command) {
                    false
                } else {
                    self.configuration_refused(command, &message) || self.item_refused(command, &message)
                }
            }
            (RefusalKind::Other, None) => false,
        };
        if !is_dealt_with {
            self.error(LiveError::Provider { code, message });
        }
    }
}
