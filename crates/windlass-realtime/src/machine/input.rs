//! Inputs of the application to the machine.

use serde::{Deserialize, Serialize};
use windlass::core::item::Role;

use super::agent_changes::ConfigurationState;
use super::response_scheduler::RequestBody;
use super::{ConnectionState, RealtimeMachine};
use crate::history::{RealtimeContentPart, RealtimeItem};
use crate::id::ItemId;
use crate::model::{RealtimeCommandKind, ResponseOptions, ResponseScope};

/// The time of the model's response to a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RespondWhen {
    /// As soon as possible.
    #[default]
    Now,
    /// Not for this message; a later response takes it into account.
    Later,
}

impl RespondWhen {
    pub(crate) fn is_now(&self) -> bool {
        *self == Self::Now
    }
}

/// The result of sending a message in the provider's own format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawMessageResult {
    /// The message is sent, or waits for its turn.
    Accepted,
    /// Too many requests are waiting, or there is no connection for a response outside the conversation.
    TooManyRequests,
    /// There is no connection. The message is not kept for the next one, which may have another state.
    NotConnected,
}

impl RealtimeMachine {
    /// Adds a message of text and images.
    pub(crate) fn add_message(
        &mut self,
        role: Role,
        parts: Vec<RealtimeContentPart>,
        respond: RespondWhen,
    ) -> ItemId {
        let id = self.next_item_id();
        self.add_item(RealtimeItem::message(id.clone(), role, parts), None, respond);
        if role == Role::User {
            self.follow_ups = 0;
            self.call_rounds = 0;
            self.items_since_calls.push(id.clone());
        }
        if respond == RespondWhen::Now {
            self.response_requested_at = Some(self.now);
            self.scheduler.demand_response(self.now, Some(id.clone()));
        }
        id
    }

    /// Sends audio of the user. It is dropped while the model does not have the agent's configuration, because the
    /// model may respond to speech by itself.
    pub(crate) fn append_audio(&mut self, bytes: Vec<u8>) {
        if self.connection_state == ConnectionState::Disconnected
            || self.configuration_state == ConfigurationState::Unconfirmed
        {
            self.metrics.dropped_input_chunks += 1;
            return;
        }
        self.user_speech.record_audio(self.now);
        self.send_command(RealtimeCommandKind::AppendAudio(bytes));
    }

    /// Commits the input buffer as a message. Requests a response unless the server does that by itself.
    pub(crate) fn commit_audio(&mut self) {
        self.send_command(RealtimeCommandKind::CommitAudio);
        self.call_rounds = 0;
        let server_answers = self
            .current_agent
            .configuration
            .realtime_settings
            .turn_detection
            .server_actions()
            .is_some_and(|server| server.create_response);
        // The confirmation of the commit demands the response to speech.
        if !server_answers && !self.current_agent.answers_speech {
            self.response_requested_at = Some(self.now);
            self.scheduler.demand_response(self.now, None);
        }
    }

    /// Discards the input buffer. Speech that was in it will not end by itself.
    pub(crate) fn clear_audio(&mut self) {
        self.send_command(RealtimeCommandKind::ClearAudio);
        self.user_speech.end();
    }

    /// Requests a response.
    pub(crate) fn request_response(&mut self) {
        self.call_rounds = 0;
        self.response_requested_at = Some(self.now);
        self.scheduler.demand_response(self.now, None);
    }

    /// Requests a response now, even if the user counts as speaking.
    pub(crate) fn force_response(&mut self) {
        self.user_speech.end();
        self.request_response();
    }

    /// Requests a response with options. Returns false if too many requests are waiting.
    pub(crate) fn request_response_with(&mut self, options: ResponseOptions) -> bool {
        let is_side = options.scope == ResponseScope::OutOfBand
            || options.extra.get("conversation").is_some_and(|conversation| conversation == "none");
        self.queue_request(RequestBody::Options(Box::new(options)), is_side)
    }

    /// Queues a request in its turn, or sends it at once if the response is not part of the conversation.
    fn queue_request(&mut self, body: RequestBody, is_side: bool) -> bool {
        if is_side {
            return self.request_side_response(body);
        }
        self.response_requested_at = Some(self.now);
        self.call_rounds = 0;
        self.scheduler.queue_request(self.now, body)
    }

    /// Records the number of bytes of an item that the application has played.
    pub(crate) fn report_played_bytes(&mut self, item: &ItemId, content_index: u32, bytes: u64) {
        let format = self.current_agent.configuration.realtime_settings.output_format();
        self.report_played(item, content_index, format.duration_ms(bytes));
    }

    /// Records the part of an item that the application has played.
    pub(crate) fn report_played(&mut self, item: &ItemId, content_index: u32, played_ms: u64) {
        self.playback.record_played(item, content_index, played_ms);
    }

    /// Deletes an item from the conversation. Returns true if it existed.
    pub(crate) fn delete_item(&mut self, item: &ItemId) -> bool {
        let change = self.history.remove_item(item);
        let was_there = change.is_some();
        self.record_change(change);
        if was_there {
            self.send_command(RealtimeCommandKind::DeleteItem { item: item.clone() });
        }
        was_there
    }

    /// Inserts a message into the conversation, after an item or at the end.
    pub(crate) fn insert_message(
        &mut self,
        role: Role,
        parts: Vec<RealtimeContentPart>,
        after: Option<ItemId>,
    ) -> ItemId {
        let id = self.next_item_id();
        self.add_item(RealtimeItem::message(id.clone(), role, parts), after, RespondWhen::Later);
        id
    }

    /// Replaces a message by a new one. Returns the new id, or `None` if the old message did not exist.
    pub(crate) fn replace_message(
        &mut self,
        item: &ItemId,
        role: Role,
        parts: Vec<RealtimeContentPart>,
    ) -> Option<ItemId> {
        let before = self.history.preceding_item(item).cloned();
        self.delete_item(item).then(|| self.insert_message(role, parts, before))
    }

    /// Sends a message in the provider's own format. A response request waits for its turn.
    pub(crate) fn send_raw(&mut self, raw: serde_json::Value) -> RawMessageResult {
        if raw["type"] == "response.create" {
            let is_side = raw["response"]["conversation"] == "none";
            return match self.queue_request(RequestBody::Raw(raw), is_side) {
                true => RawMessageResult::Accepted,
                false => RawMessageResult::TooManyRequests,
            };
        }
        if self.connection_state == ConnectionState::Disconnected {
            return RawMessageResult::NotConnected;
        }
        if raw["type"] == "input_audio_buffer.clear" {
            self.user_speech.end();
        }
        self.send_command(RealtimeCommandKind::Raw(raw));
        RawMessageResult::Accepted
    }
}
