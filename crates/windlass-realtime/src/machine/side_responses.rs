//! Responses outside the conversation. Invariant: they change neither the history nor the current turn, and their calls
//! are not executed. A response that started while the model's configuration was not certain is one of them: its items are
//! deleted from the provider's conversation, so that it and the history stay the same.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass::core::{id::CallId, item::Role};

use super::agent_changes::ConfigurationState;
use super::response_scheduler::{RequestBody, RequeueResult};
use super::{ConnectionState, RealtimeMachine, command_id, request_command};
use crate::event::{RealtimeError, RealtimeEvent};
use crate::history::{RealtimeItem, RealtimeItemKind};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::model::{RealtimeCommandKind, RealtimeModelEvent, RealtimeUsage, ResponseScope, ResponseStatus};

/// A response that is not part of the conversation.
#[derive(Debug)]
pub(super) struct SideResponse {
    kind: SideResponseKind,
    /// The request that is reserved in the budgets.
    request: Option<CallId>,
    /// The text so far, by item and content part, in the order of arrival.
    texts: Vec<((ItemId, u32), String)>,
    items: BTreeSet<ItemId>,
}

/// The reason why a response is not part of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SideResponseKind {
    /// It was requested outside the conversation.
    OutOfBand,
    /// It started while the model's configuration was not certain, and was cancelled at this time.
    Unconfigured { cancelled_at: Duration },
}

/// Maximum number of open side responses and of requests for them.
const MAX_SIDE_RESPONSES: usize = 64;
/// Time after which a request for a side response counts as lost.
const SIDE_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

impl RealtimeMachine {
    /// Requests a response outside the conversation. Returns false if that is not possible now.
    pub(super) fn request_side_response(&mut self, body: RequestBody) -> bool {
        let now = self.now;
        let is_lost = |at: &Duration| now >= at.saturating_add(SIDE_REQUEST_TIMEOUT);
        for (command, _) in self.side_requests.extract_if(.., |_, at| is_lost(at)).collect::<Vec<_>>() {
            let request = self.move_reservation(Some(&command));
            self.spend_side_response(request, None);
        }
        let is_ready = self.connection_state == ConnectionState::Connected
            && self.configuration_state == ConfigurationState::Confirmed
            && self.side_requests.len() < MAX_SIDE_RESPONSES;
        if !is_ready || !self.reserve_side_response(&command_id(self.command_count + 1)) {
            return false;
        }
        let command = self.send_command(request_command(Some(body)));
        self.side_requests.insert(command, self.now);
        true
    }

    /// Returns true if the start of a response was that of a side response.
    pub(super) fn start_side_response(
        &mut self,
        response: &ResponseId,
        requested_by: Option<&CommandId>,
        scope: ResponseScope,
    ) -> bool {
        let is_late = scope == ResponseScope::OutOfBand && self.is_response_ended(response);
        if is_late || self.side_responses.contains_key(response) {
            return true;
        }
        let is_requested = requested_by.is_some_and(|by| self.side_requests.remove(by).is_some());
        let kind = match scope {
            _ if is_requested => SideResponseKind::OutOfBand,
            ResponseScope::OutOfBand => SideResponseKind::OutOfBand,
            ResponseScope::InConversation
                if !self.is_configuration_certain()
                    && !self.is_configuration_kept
                    && !self.is_response_ended(response)
                    && !self.turns.contains_key(response) =>
            {
                SideResponseKind::Unconfigured { cancelled_at: self.now }
            }
            ResponseScope::InConversation => return false,
        };
        if self.side_responses.len() >= MAX_SIDE_RESPONSES {
            self.side_responses.pop_first();
        }
        let request = self.move_reservation(requested_by);
        self.side_responses.insert(response.clone(), SideResponse::new(kind, request));
        if matches!(kind, SideResponseKind::Unconfigured { .. }) {
            self.emit_error(RealtimeError::ResponseUnconfigured { response: response.clone() });
            self.send_command(RealtimeCommandKind::CancelResponse { response: response.clone() });
            if self.is_configuration_changing() {
                self.demand_configured_response(requested_by);
            }
        }
        true
    }

    /// Demands a response in place of one that started while the configuration changed: the user still waits for it.
    fn demand_configured_response(&mut self, requested_by: Option<&CommandId>) {
        let is_open = requested_by.is_some() && requested_by == self.scheduler.open_request();
        match is_open.then(|| self.scheduler.requeue_request(self.now, requested_by)) {
            Some(RequeueResult::Requeued) => {}
            Some(RequeueResult::GivenUp { attempts }) => {
                let message = "the configuration changed each time".to_owned();
                self.emit_error(RealtimeError::ResponseAbandoned { attempts, message });
            }
            Some(RequeueResult::NotOpen) | None => {
                let is_user = |item: &&RealtimeItem| {
                    matches!(item.kind, RealtimeItemKind::Message { role: Role::User, .. })
                };
                let newest = self.history.items().iter().rev().find(is_user).map(|item| item.id.clone());
                self.scheduler.demand_response(self.now, newest);
            }
        }
    }

    /// Returns the time until which cancelled responses hold back requests.
    pub(super) fn cancellation_deadline(&self) -> Option<Duration> {
        let cancelled_at = |side: &SideResponse| match side.kind {
            SideResponseKind::Unconfigured { cancelled_at } => Some(cancelled_at),
            SideResponseKind::OutOfBand => None,
        };
        let newest = self.side_responses.values().filter_map(cancelled_at).max()?;
        let deadline = newest.saturating_add(self.policy.response_timeouts.cancel);
        (deadline > self.now).then_some(deadline)
    }

    /// Applies an event of a side response. Returns the event if it belongs to none.
    pub(super) fn take_side_event(&mut self, event: RealtimeModelEvent) -> Option<RealtimeModelEvent> {
        if let Some(response) = response_of(&event).cloned() {
            // The start event may be lost.
            match self.lost_side_request(&response) {
                Some(request) => {
                    self.start_side_response(&response, Some(&request), ResponseScope::OutOfBand)
                }
                None => self.start_side_response(&response, None, ResponseScope::InConversation),
            };
        }
        match &event {
            RealtimeModelEvent::OutputTextDelta { response, item, content_index, delta, .. } => {
                let Some(side) = self.side_responses.get_mut(response) else { return Some(event) };
                side.append_text((item.clone(), *content_index), delta);
            }
            RealtimeModelEvent::OutputTextEnded { response, item, content_index, text, .. } => {
                let Some(side) = self.side_responses.get_mut(response) else { return Some(event) };
                side.texts.retain(|(place, _)| *place != (item.clone(), *content_index));
                side.append_text((item.clone(), *content_index), text);
            }
            RealtimeModelEvent::AudioDelta { response, .. }
            | RealtimeModelEvent::AudioEnded { response, .. }
            | RealtimeModelEvent::ArgumentsDelta { response, .. } => {
                if !self.side_responses.contains_key(response) {
                    return Some(event);
                }
            }
            RealtimeModelEvent::ItemChanged { item, .. } => {
                let Some(response) = &item.response else {
                    let is_side = self.side_responses.values().any(|side| side.items.contains(&item.id));
                    return (!is_side).then_some(event);
                };
                let Some(side) = self.side_responses.get_mut(response) else {
                    return self.take_late_side_item(response, &item.id).then_some(event);
                };
                side.items.insert(item.id.clone());
            }
            RealtimeModelEvent::ResponseEnded { response, status, usage, .. } => {
                let Some(side) = self.side_responses.remove(response) else { return Some(event) };
                let (response, status, usage) = (response.clone(), status.clone(), *usage);
                self.remember_ended_response(&response);
                if self.ended_side_responses.len() >= MAX_SIDE_RESPONSES {
                    self.ended_side_responses.pop_front();
                }
                self.ended_side_responses.push_back((response.clone(), side.kind, side.items.clone()));
                self.end_side_response(response, side, status, usage);
            }
            _ => return Some(event),
        }
        None
    }

    /// Returns the request that an unknown response, whose start was lost, is taken for: the oldest one for a response outside
    /// the conversation, if another response is active in the conversation, where there is one at a time, or if none is
    /// expected there.
    fn lost_side_request(&self, response: &ResponseId) -> Option<CommandId> {
        let is_known = self.side_responses.contains_key(response)
            || self.turns.contains_key(response)
            || self.is_response_ended(response);
        let is_expected = self.scheduler.open_request().is_some() || self.unanswered_speech.is_some();
        if is_known || (is_expected && self.scheduler.active_response().is_none()) {
            return None;
        }
        self.side_requests.iter().min_by_key(|(_, at)| **at).map(|(request, _)| request.clone())
    }

    /// Handles an item of a response whose side response may have ended: an item that comes late is not part of the history
    /// either. Returns true if it was none.
    fn take_late_side_item(&mut self, response: &ResponseId, item: &ItemId) -> bool {
        let ended = self.ended_side_responses.iter_mut().find(|(known, _, _)| known == response);
        let Some((_, kind, items)) = ended else { return true };
        if items.insert(item.clone()) && matches!(kind, SideResponseKind::Unconfigured { .. }) {
            self.send_command(RealtimeCommandKind::DeleteItem { item: item.clone() });
        }
        false
    }

    fn end_side_response(
        &mut self,
        response: ResponseId,
        side: SideResponse,
        status: ResponseStatus,
        usage: Option<RealtimeUsage>,
    ) {
        let usage = self.price_usage(usage);
        self.spend_side_response(side.request, usage.as_ref());
        self.metrics.usage.add(&usage.unwrap_or_else(RealtimeUsage::of_unknown_request));
        match side.kind {
            SideResponseKind::OutOfBand => {
                let text = side.texts.into_iter().map(|(_, text)| text).collect();
                self.emit_event(RealtimeEvent::SideResponseEnded { response, status, text, usage });
            }
            SideResponseKind::Unconfigured { .. } => {
                for item in side.items {
                    self.send_command(RealtimeCommandKind::DeleteItem { item });
                }
            }
        }
    }

    /// Ends the side responses of a lost connection. They are not requested again.
    pub(super) fn end_side_responses(&mut self) {
        for command in std::mem::take(&mut self.side_requests).into_keys() {
            let request = self.move_reservation(Some(&command));
            self.spend_side_response(request, None);
        }
        for (response, side) in std::mem::take(&mut self.side_responses) {
            self.end_side_response(response, side, ResponseStatus::Unknown, None);
        }
    }
}

/// Returns the response that an event of its output or its end belongs to.
fn response_of(event: &RealtimeModelEvent) -> Option<&ResponseId> {
    match event {
        RealtimeModelEvent::OutputTextDelta { response, .. }
        | RealtimeModelEvent::OutputTextEnded { response, .. }
        | RealtimeModelEvent::AudioDelta { response, .. }
        | RealtimeModelEvent::AudioEnded { response, .. }
        | RealtimeModelEvent::ArgumentsDelta { response, .. }
        | RealtimeModelEvent::ResponseEnded { response, .. } => Some(response),
        RealtimeModelEvent::ItemChanged { item, .. } => item.response.as_ref(),
        _ => None,
    }
}

impl SideResponse {
    fn new(kind: SideResponseKind, request: Option<CallId>) -> Self {
        Self { kind, request, texts: Vec::new(), items: BTreeSet::new() }
    }

    fn append_text(&mut self, place: (ItemId, u32), text: &str) {
        match self.texts.iter_mut().find(|(known, _)| *known == place) {
            Some((_, known)) => known.push_str(text),
            None => self.texts.push((place, text.to_owned())),
        }
    }
}
