//! Events of the model, applied to the machine.

use windlass::core::item::Role;

use super::agent_changes::RejectionCertainty;
use super::response_scheduler::RequeueResult;
use super::turns::set_part;
use super::{RealtimeMachine, RespondWhen};
use crate::event::{AudioChunk, RealtimeError, RealtimeEvent};
use crate::history::{RealtimeContentPart, RealtimeItem, RealtimeItemKind, RealtimeItemStatus};
use crate::id::{CommandId, ItemId};
use crate::model::{RealtimeModelEvent, RejectionKind, RejectionSubject};

impl RealtimeMachine {
    /// Applies an event of the model.
    pub(crate) fn on_model_event(&mut self, mut event: RealtimeModelEvent) {
        self.translate_event(&mut event);
        let Some(event) = self.take_side_event(event) else { return };
        match event {
            RealtimeModelEvent::SessionCreated { .. } => {}
            RealtimeModelEvent::ConfigurationApplied { command } => {
                self.on_configuration_applied(command.as_ref());
            }
            RealtimeModelEvent::ResponseStarted { response, requested_by, scope } => {
                self.on_response_started(response, requested_by.as_ref(), scope);
            }
            RealtimeModelEvent::ResponseEnded { response, status, usage, calls } => {
                self.on_response_ended(&response, status, usage, calls);
            }
            RealtimeModelEvent::AudioDelta { response, item, content_index, bytes } => {
                self.on_audio(AudioChunk { response, item, content_index, position: 0, bytes: bytes.into() });
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
                self.user_speech.start(self.now);
                self.emit_event(RealtimeEvent::SpeechStarted);
                self.on_user_speech();
            }
            RealtimeModelEvent::SpeechStopped { .. } => {
                self.user_speech.end();
                self.follow_ups = 0;
                self.call_rounds = 0;
                self.response_requested_at = Some(self.now);
                self.emit_event(RealtimeEvent::SpeechStopped);
            }
            RealtimeModelEvent::AudioCommitted { item, after } => {
                self.user_speech.end();
                self.record_committed_speech(&item);
                self.add_user_speech(&item, after.as_ref());
            }
            RealtimeModelEvent::AudioCleared => self.user_speech.end(),
            RealtimeModelEvent::IdleTimeout => self.emit_event(RealtimeEvent::IdleTimeout),
            RealtimeModelEvent::RateLimits(limits) => self.emit_event(RealtimeEvent::RateLimits(limits)),
            RealtimeModelEvent::CommandRejected { command, code, message, kind, subject } => {
                let certainty = match command {
                    Some(_) => RejectionCertainty::Named,
                    None => RejectionCertainty::Inferred,
                };
                let command = command.or_else(|| self.rejected_command(kind, subject));
                self.on_command_rejected(command, certainty, code, message, kind);
            }
            RealtimeModelEvent::Raw(raw) => self.emit_event(RealtimeEvent::Raw(raw)),
            RealtimeModelEvent::Unknown { kind, raw } => {
                self.emit_event(RealtimeEvent::Unknown { kind, raw })
            }
        }
    }

    fn on_item_changed(&mut self, mut item: RealtimeItem, after: Option<ItemId>) {
        let before = self.unconfirmed_items.len();
        self.unconfirmed_items.retain(|_, id| *id != item.id);
        if self.unconfirmed_items.len() != before {
            return self.on_item_confirmed(&item.id);
        }
        if let Some(response) = item.response.as_ref().or(self.scheduler.active_response()).cloned() {
            self.scheduler.record_activity(self.now, &response);
        }
        if let Some(response) = item.response.clone() {
            self.record_item_progress(&response, &item);
        }
        match &item.kind {
            // A call is added to the history when it is accepted; until then the model may withdraw it.
            RealtimeItemKind::Call { .. } => return,
            // The session knows its own outputs. One that counted as rejected because of an error without a command
            // was accepted after all.
            RealtimeItemKind::Output { .. } => return self.on_item_confirmed(&item.id),
            RealtimeItemKind::Message { role: Role::Assistant, .. } => {
                let response = item.response.as_ref().or(self.scheduler.active_response()).cloned();
                if !self.open_announced_item(response.as_ref(), &item) {
                    return;
                }
                item.agent = Some(self.agent_name_of(response.as_ref()));
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
            let answers_speech = self.current_agent.answers_speech;
            let is_answered = answers_speech || server.is_none_or(|server| server.create_response);
            let answer = if is_answered { RespondWhen::Now } else { RespondWhen::Later };
            self.record_change_for(change, answer);
            if answers_speech {
                self.scheduler.demand_response(self.now, Some(item.clone()));
            }
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

    /// Returns the command that an error without a command id is about, if there is only one candidate.
    fn rejected_command(&self, kind: RejectionKind, subject: RejectionSubject) -> Option<CommandId> {
        if kind != RejectionKind::Other {
            return None;
        }
        let mut candidates = Vec::new();
        if matches!(subject, RejectionSubject::Unspecified | RejectionSubject::Configuration) {
            candidates.extend(self.configuration_command());
        }
        if matches!(subject, RejectionSubject::Unspecified | RejectionSubject::Response) {
            candidates.extend(self.scheduler.open_request().filter(|_| self.scheduler.is_requested()));
            candidates.extend(self.side_requests.keys());
        }
        if matches!(subject, RejectionSubject::Unspecified | RejectionSubject::Item) {
            candidates.extend(self.unconfirmed_items.keys());
        }
        match candidates.as_slice() {
            [only] => Some((*only).clone()),
            // Nothing else has been acknowledged on this connection, so the first configuration failed.
            _ if self.ready_result.is_none() => self.configuration_command().cloned(),
            _ => None,
        }
    }

    /// Handles a rejected command; reports it unless another part of the machine has dealt with it.
    fn on_command_rejected(
        &mut self,
        command: Option<CommandId>,
        certainty: RejectionCertainty,
        code: String,
        message: String,
        kind: RejectionKind,
    ) {
        let is_dealt_with = match (kind, &command) {
            (RejectionKind::ResponseAlreadyActive, command) => {
                match self.scheduler.requeue_request(self.now, command.as_ref()) {
                    RequeueResult::NotOpen => false,
                    RequeueResult::Requeued => {
                        self.release_response_request();
                        true
                    }
                    RequeueResult::GivenUp { attempts } => {
                        self.release_response_request();
                        self.give_up_response();
                        let message = message.clone();
                        self.emit_error(RealtimeError::ResponseAbandoned { attempts, message });
                        true
                    }
                }
            }
            // The response ended by itself just before it was cancelled.
            (RejectionKind::NothingToCancel, _) => true,
            (RejectionKind::Other, Some(command)) => {
                if self.side_requests.remove(command).is_some() {
                    let request = self.move_reservation(Some(command));
                    self.release_side_request(request);
                    false
                } else if self.scheduler.drop_request(command) {
                    self.release_response_request();
                    self.give_up_response();
                    false
                } else {
                    self.on_configuration_rejected(command, &message, certainty)
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
