//! Events of the model, applied to the machine.

use windlass::core::item::Role;

use super::turns::set_part;
use super::{RealtimeMachine, RespondWhen};
use crate::event::{AudioChunk, RealtimeError, RealtimeEvent};
use crate::history::{RealtimeContentPart, RealtimeItem, RealtimeItemKind, RealtimeItemStatus};
use crate::id::ItemId;
use crate::model::{RealtimeModelEvent, RejectionKind};

impl RealtimeMachine {
    /// Applies an event of the model.
    pub(crate) fn on_model_event(&mut self, event: RealtimeModelEvent) {
        match event {
            RealtimeModelEvent::SessionCreated { .. } => {}
            RealtimeModelEvent::ConfigurationApplied => self.on_configuration_applied(),
            RealtimeModelEvent::ResponseStarted { response, requested_by, scope } => {
                self.on_response_started(response, requested_by.as_ref(), scope);
            }
            RealtimeModelEvent::ResponseEnded { response, status, usage, calls } => {
                self.on_response_ended(&response, status, usage, calls);
            }
            RealtimeModelEvent::AudioDelta { response, item, content_index, bytes } => {
                self.on_audio(AudioChunk { response, item, content_index, bytes: bytes.into() });
            }
            RealtimeModelEvent::AudioEnded { response, item, content_index } => {
                self.on_audio_ended(&response, &item, content_index)
            }
            RealtimeModelEvent::OutputTextDelta { response, item, content_index, delta, kind } => {
                self.on_text_delta(&response, &item, content_index, &delta, kind);
            }
            RealtimeModelEvent::OutputTextEnded { response, item, content_index, text, kind } => {
                self.on_text_ended(&response, &item, content_index, &text, kind);
            }
            RealtimeModelEvent::ArgumentsDelta { response, .. } => {
                self.scheduler.record_activity(self.now, &response)
            }
            RealtimeModelEvent::ItemChanged { item, after } => self.on_item_changed(item, after),
            RealtimeModelEvent::ItemDeleted { item } => {
                let change = self.history.remove_item(&item);
                self.record_change(change);
            }
            RealtimeModelEvent::ItemTruncated { .. } => {}
            RealtimeModelEvent::InputTranscriptDelta { item, delta, .. } => {
                self.emit_event(RealtimeEvent::InputTranscriptDelta { item, delta })
            }
            RealtimeModelEvent::InputTranscriptCompleted { item, content_index, text } => {
                self.on_transcript_completed(&item, content_index, text)
            }
            RealtimeModelEvent::InputTranscriptFailed { message, .. } => {
                self.emit_error(RealtimeError::Provider { code: "transcription_failed".to_owned(), message });
            }
            RealtimeModelEvent::SpeechStarted { .. } => {
                self.user_speaking_since = Some(self.now);
                self.emit_event(RealtimeEvent::SpeechStarted);
                self.on_user_speech();
            }
            RealtimeModelEvent::SpeechStopped { .. } => {
                self.user_speaking_since = None;
                self.follow_ups = 0;
                self.response_requested_at = Some(self.now);
                self.emit_event(RealtimeEvent::SpeechStopped);
            }
            RealtimeModelEvent::AudioCommitted { item, after } => {
                self.user_speaking_since = None;
                self.add_user_speech(&item, after.as_ref());
            }
            RealtimeModelEvent::IdleTimeout => self.emit_event(RealtimeEvent::IdleTimeout),
            RealtimeModelEvent::RateLimits(limits) => self.emit_event(RealtimeEvent::RateLimits(limits)),
            RealtimeModelEvent::CommandRejected { command, code, message, kind } => {
                self.on_command_rejected(command, code, message, kind);
            }
            RealtimeModelEvent::Unknown { kind, raw } => {
                self.emit_event(RealtimeEvent::Unknown { kind, raw })
            }
        }
    }

    fn on_item_changed(&mut self, mut item: RealtimeItem, after: Option<ItemId>) {
        let before = self.unconfirmed_items.len();
        self.unconfirmed_items.retain(|_, id| *id != item.id);
        if self.unconfirmed_items.len() != before {
            return;
        }
        if let Some(response) = item.response.as_ref().or(self.scheduler.active_response()).cloned() {
            self.scheduler.record_activity(self.now, &response);
        }
        match &item.kind {
            // Calls are accepted when the response has ended; until then the model may withdraw them.
            RealtimeItemKind::Call { call, .. } if !self.calls.contains_key(call) => {
                item.status = RealtimeItemStatus::InProgress;
                item.agent = Some(self.current_agent.activation.name.clone());
            }
            RealtimeItemKind::Call { .. } | RealtimeItemKind::Output { .. } => {
                if self.history.get(&item.id).is_some() {
                    return;
                }
            }
            RealtimeItemKind::Message { role: Role::Assistant, .. } => {
                item.agent = Some(self.current_agent.activation.name.clone());
            }
            RealtimeItemKind::Message { role: Role::User, .. } => {
                if self.history.get(&item.id).is_none() {
                    self.items_since_calls.push(item.id.clone());
                }
            }
            RealtimeItemKind::Message { .. } | RealtimeItemKind::Other { .. } => {}
        }
        let change = self.history.upsert_item(item, after.as_ref());
        self.record_change(change);
    }

    /// Adds the user's speech as an item whose transcript is not known yet.
    fn add_user_speech(&mut self, item: &ItemId, after: Option<&ItemId>) {
        if self.history.get(item).is_none() {
            let part = RealtimeContentPart::Audio { transcript: None, heard_ms: None };
            let new = RealtimeItem::message(item.clone(), Role::User, vec![part]);
            self.items_since_calls.push(item.clone());
            let change = self.history.upsert_item(new, after);
            let server = self.current_agent.configuration.realtime_settings.turn_detection.server_actions();
            let is_answered = server.is_none_or(|server| server.create_response);
            let answer = if is_answered { RespondWhen::Now } else { RespondWhen::Later };
            self.record_change_for(change, answer);
        }
    }

    fn on_transcript_completed(&mut self, item: &ItemId, content_index: u32, text: String) {
        self.add_user_speech(item, None);
        let change = self.history.edit_item(item, |known| {
            let heard_ms = None;
            set_part(known, content_index, RealtimeContentPart::Audio { transcript: Some(text), heard_ms });
            known.status = RealtimeItemStatus::Completed;
        });
        self.record_change(change);
    }

    /// Handles a rejected command; reports it unless another part of the machine has dealt with it.
    fn on_command_rejected(
        &mut self,
        command: Option<crate::id::CommandId>,
        code: String,
        message: String,
        kind: RejectionKind,
    ) {
        let is_dealt_with = match (kind, &command) {
            (RejectionKind::ResponseAlreadyActive, command) => {
                self.scheduler.requeue_request(self.now, command.as_ref())
            }
            // The response ended by itself just before it was cancelled.
            (RejectionKind::NothingToCancel, _) => true,
            (RejectionKind::Other, Some(command)) => {
                if self.scheduler.drop_request(command) {
                    false
                } else {
                    self.on_configuration_rejected(command, &message)
                        || self.on_item_rejected(command, &message)
                }
            }
            (RejectionKind::Other, None) => false,
        };
        if !is_dealt_with {
            self.emit_error(RealtimeError::Provider { code, message });
        }
    }
}
