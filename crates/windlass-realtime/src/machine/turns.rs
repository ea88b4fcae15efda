//! Responses: their text and speech, guardrail checks, interruptions and ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::id::AgentName;
use windlass::core::item::Role;

use super::calls::{CallPermission, CallingResponse};
use super::{
    AgentSetup, AudioRelease, ConnectionState, GuardrailFollowUp, RealtimeMachine, RespondWhen,
    SessionEffect, ToolCallMode, TranscriptCheck,
};
use crate::event::{AudioChunk, RealtimeEvent};
use crate::history::{RealtimeContentPart, RealtimeItem, RealtimeItemKind, RealtimeItemStatus};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::metrics::TurnMetrics;
use crate::model::{OutputTextKind, RealtimeUsage, ResponseScope, ResponseStatus};

/// Number of consecutive responses that may be followed up before the user speaks again.
const MAX_FOLLOW_UPS: u32 = 3;

/// Number of ended responses kept, so that late events do not start them again.
const MAX_ENDED_RESPONSES: usize = 64;

/// Time during which complete calls of a response are collected, so that calls that arrive together run together.
const CALL_WINDOW: Duration = Duration::from_millis(10);

/// One response.
#[derive(Debug)]
pub(super) struct ResponseTurn {
    /// The agent whose configuration the response was requested with.
    agent: AgentSetup,
    /// Number of the connection on which the response is made.
    connection: u64,
    started_at: Duration,
    /// Time of the request or of the end of the user's speech.
    requested_at: Option<Duration>,
    /// The text so far, by item and content part, in the order of arrival.
    texts: Vec<((ItemId, u32), String)>,
    character_count: usize,
    /// Number of characters that the last check covered.
    checked_characters: usize,
    pending_checks: u32,
    /// True if a guardrail tripped and the session has reacted.
    is_tripped: bool,
    /// True if later output is no longer passed on.
    is_suppressed: bool,
    interrupted_at: Option<Duration>,
    metrics: TurnMetrics,
    held_audio: Vec<(usize, AudioChunk)>,
    /// Items that have started and are not complete.
    open_items: BTreeSet<ItemId>,
    /// True if at least one item is complete.
    has_complete_item: bool,
    /// Complete calls that are not accepted yet.
    complete_calls: Vec<RealtimeItem>,
    /// Calls that became complete after the response was interrupted.
    late_calls: Vec<RealtimeItem>,
    /// Time at which the complete calls start.
    calls_due_at: Option<Duration>,
    /// Number of runs that execute calls of this response.
    run_count: u32,
    end: Option<ResponseEnd>,
}

/// The end of a response, kept until its guardrail checks are complete.
#[derive(Debug)]
struct ResponseEnd {
    status: ResponseStatus,
    usage: Option<RealtimeUsage>,
}

impl ResponseTurn {
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns true if the response is still wanted when the connection is lost: nobody has stopped it, it is not
    /// complete, and it has no calls whose outputs demand a response of their own.
    pub(super) fn is_wanted_after_loss(&self) -> bool {
        let is_complete = self.has_complete_item && self.open_items.is_empty();
        let has_calls = self.run_count > 0 || !self.complete_calls.is_empty();
        self.end.is_none() && !self.is_cut() && !is_complete && !has_calls
    }

    /// Returns true if the response was interrupted or rejected.
    fn is_cut(&self) -> bool {
        self.is_suppressed || self.is_tripped || self.interrupted_at.is_some()
    }

    /// Passes on no further output of the response.
    pub(super) fn suppress_output(&mut self) {
        self.is_suppressed = true;
        self.held_audio.clear();
    }

    /// Marks the response as interrupted. Returns false if it was before.
    pub(super) fn mark_interrupted(&mut self, now: Duration) -> bool {
        let is_new = self.interrupted_at.is_none();
        self.interrupted_at.get_or_insert(now);
        is_new
    }

    /// Returns the text so far of a content part.
    pub(super) fn part_text(&self, item: &ItemId, content_index: u32) -> Option<&str> {
        let is_it = |((known, index), _): &&((ItemId, u32), String)| known == item && *index == content_index;
        self.texts.iter().find(is_it).map(|(_, text)| text.as_str())
    }

    fn text(&self) -> Arc<str> {
        self.texts.iter().map(|(_, words)| words.as_str()).collect::<String>().into()
    }

    /// Starts a guardrail check of the text so far, and returns its effect.
    fn start_check(&mut self, response: &ResponseId) -> SessionEffect {
        self.checked_characters = self.character_count;
        self.pending_checks += 1;
        let (response, agent, text) = (response.clone(), self.agent.activation.clone(), self.text());
        SessionEffect::CheckTranscript(TranscriptCheck { response, agent, text })
    }
}

impl RealtimeMachine {
    /// Handles the start of a response.
    pub(super) fn on_response_started(
        &mut self,
        response: ResponseId,
        requested_by: Option<&CommandId>,
        scope: ResponseScope,
    ) {
        if self.start_side_response(&response, requested_by, scope) {
            return;
        }
        if self.turns.contains_key(&response) || self.is_response_ended(&response) {
            // Output of the response arrived before its start event.
            if let Some(requested_by) = requested_by {
                self.scheduler.on_requester_reported(requested_by);
            }
            return;
        }
        self.unanswered_speech = None;
        if let Some(other) = self.scheduler.active_response().cloned() {
            // One response is active at a time, so the end event of the other one was lost.
            self.on_response_ended(&other, ResponseStatus::Unknown, None, Vec::new());
        }
        let unconfirmed: Vec<ItemId> = self.unconfirmed_items.values().cloned().collect();
        let wanted = self.scheduler.on_response_started(self.now, response.clone(), requested_by, |item| {
            !unconfirmed.contains(item)
        });
        let wanted = self.response_requested_at.take().or(wanted);
        // The response belongs to the agent whose configuration it was requested with.
        let requesting = self.requesting_agents.iter().find(|(command, _)| Some(command) == requested_by);
        let agent = requesting.map_or(&self.current_agent, |(_, agent)| agent).clone();
        let agent_name = agent.activation.name.clone();
        self.turns.insert(
            response.clone(),
            Box::new(ResponseTurn {
                agent,
                connection: self.connection_number,
                started_at: self.now,
                requested_at: wanted,
                texts: Vec::new(),
                character_count: 0,
                checked_characters: 0,
                pending_checks: 0,
                is_tripped: false,
                is_suppressed: false,
                interrupted_at: None,
                metrics: TurnMetrics {
                    time_to_response: wanted.map(|wanted| self.now.saturating_sub(wanted)),
                    ..TurnMetrics::default()
                },
                held_audio: Vec::new(),
                open_items: BTreeSet::new(),
                has_complete_item: false,
                complete_calls: Vec::new(),
                late_calls: Vec::new(),
                calls_due_at: None,
                run_count: 0,
                end: None,
            }),
        );
        self.newest_response = Some(response.clone());
        self.note_response_start(&response);
        self.emit_event(RealtimeEvent::TurnStarted { response, agent: agent_name });
    }

    /// Starts the response if its start event was lost.
    pub(super) fn ensure_response_started(&mut self, response: &ResponseId) {
        if !self.turns.contains_key(response) && !self.is_response_ended(response) {
            self.on_response_started(response.clone(), None, ResponseScope::InConversation);
        }
    }

    /// Returns the agent of an open response; the current agent if the response is not open.
    pub(super) fn responding_agent(&self, response: Option<&ResponseId>) -> &AgentSetup {
        response.and_then(|response| self.turns.get(response)).map_or(&self.current_agent, |turn| &turn.agent)
    }

    /// Records the progress of an item of a response. A complete call is collected, and starts after a short time,
    /// unless the order of the response's calls matters or a guardrail has yet to check the response.
    pub(super) fn record_item_progress(&mut self, response: &ResponseId, item: &RealtimeItem) {
        self.ensure_response_started(response);
        let is_early = self.policy.tool_call_mode == ToolCallMode::Background && !self.policy.has_call_limit;
        let Some(turn) = self.turns.get_mut(response).filter(|turn| turn.end.is_none()) else { return };
        if item.status == RealtimeItemStatus::InProgress {
            turn.open_items.insert(item.id.clone());
            return;
        }
        turn.open_items.remove(&item.id);
        if item.status == RealtimeItemStatus::Interrupted {
            return;
        }
        turn.has_complete_item = true;
        if !matches!(item.kind, RealtimeItemKind::Call { .. }) {
            return;
        }
        let is_cut = turn.is_cut();
        let calls = if is_cut { &mut turn.late_calls } else { &mut turn.complete_calls };
        if !calls.contains(item) {
            calls.push(item.clone());
        }
        if is_early && !is_cut && !turn.agent.has_guardrails && !turn.agent.has_ordered_tools {
            turn.calls_due_at.get_or_insert(self.now.saturating_add(CALL_WINDOW));
        }
    }

    /// Notes that an announced message is open until its response ends. Returns false for a new message without an open
    /// response: the announcement came late, and nothing would ever end the message. Its text adds it, if there is one.
    pub(super) fn open_announced_item(&mut self, response: Option<&ResponseId>, item: &RealtimeItem) -> bool {
        if item.status != RealtimeItemStatus::InProgress || self.history.get(&item.id).is_some() {
            return true;
        }
        let turn = response.and_then(|response| self.turns.get_mut(response));
        let Some(turn) = turn.filter(|turn| turn.end.is_none()) else { return false };
        turn.open_items.insert(item.id.clone());
        true
    }

    /// Returns the time at which complete calls start.
    pub(super) fn call_start_deadline(&self) -> Option<Duration> {
        self.turns.values().filter_map(|turn| turn.calls_due_at).min()
    }

    /// Starts the complete calls whose time has come. Handoffs wait for the end of their response.
    pub(super) fn start_due_calls(&mut self) {
        let is_due = |turn: &ResponseTurn| turn.calls_due_at.is_some_and(|at| at <= self.now);
        let due = self.turns.iter().filter(|(_, turn)| is_due(turn));
        let due: Vec<ResponseId> = due.map(|(response, _)| response.clone()).collect();
        for response in due {
            let Some(turn) = self.turns.get_mut(&response) else { continue };
            turn.calls_due_at = None;
            let (agent, connection, mut run_count) = (turn.agent.clone(), turn.connection, turn.run_count);
            let (later, now): (Vec<_>, Vec<_>) =
                std::mem::take(&mut turn.complete_calls).into_iter().partition(|call| agent.is_handoff(call));
            turn.complete_calls = later;
            let from = CallingResponse {
                response: &response,
                agent: &agent,
                connection,
                usage: None,
                run_count: &mut run_count,
            };
            self.accept_calls(from, now, CallPermission::Allowed);
            if let Some(turn) = self.turns.get_mut(&response) {
                turn.run_count = run_count;
            }
        }
    }

    /// Handles a chunk of speech: plays it, holds it for the guardrails, or suppresses it.
    pub(super) fn on_audio(&mut self, chunk: AudioChunk) {
        self.ensure_response_started(&chunk.response);
        self.scheduler.record_activity(self.now, &chunk.response);
        let Some(turn) = self.turns.get_mut(&chunk.response).filter(|turn| turn.end.is_none()) else {
            self.metrics.suppressed_output_chunks += 1;
            return;
        };
        if turn.metrics.time_to_first_audio.is_none() {
            let since = turn.requested_at.unwrap_or(turn.started_at);
            turn.metrics.time_to_first_audio = Some(self.now.saturating_sub(since));
        }
        if turn.is_suppressed {
            self.metrics.suppressed_output_chunks += 1;
            let AudioChunk { response, item, content_index, bytes, .. } = &chunk;
            let bytes = bytes.len() as u64;
            if self.playback.record_suppressed(response, item, *content_index, bytes) {
                self.truncate_item(response, item, *content_index, 0);
            }
        } else if self.policy.audio_release == AudioRelease::AfterGuardrails && turn.agent.has_guardrails {
            self.playback.record_held(&chunk.response, &chunk.item, chunk.content_index);
            turn.held_audio.push((turn.character_count, chunk));
        } else {
            self.play_chunk(chunk);
        }
    }

    fn play_chunk(&mut self, chunk: AudioChunk) {
        let AudioChunk { response, item, content_index, bytes, .. } = &chunk;
        let length = bytes.len() as u64;
        let position = self.playback.record_received(self.now, response, item, *content_index, length);
        self.emit_event(RealtimeEvent::Audio(AudioChunk { position, ..chunk }));
    }

    pub(super) fn on_audio_ended(&mut self, response: &ResponseId, item: &ItemId, content_index: u32) {
        self.scheduler.record_activity(self.now, response);
        let is_held = self.turns.get(response).is_some_and(|turn| !turn.held_audio.is_empty());
        if !is_held {
            self.playback.mark_complete(item, content_index);
        }
        self.truncate_transcript(response, item, content_index);
        if self.turns.get(response).is_some_and(|turn| !turn.is_suppressed) {
            self.emit_event(RealtimeEvent::AudioEnded { item: item.clone(), content_index });
        }
    }

    pub(super) fn on_text_delta(
        &mut self,
        response: &ResponseId,
        item: &ItemId,
        content_index: u32,
        delta: &str,
        kind: OutputTextKind,
    ) {
        self.ensure_response_started(response);
        self.scheduler.record_activity(self.now, response);
        let Some(turn) = self.turns.get_mut(response).filter(|turn| turn.end.is_none()) else { return };
        let place = (item.clone(), content_index);
        match turn.texts.iter_mut().find(|(known, _)| *known == place) {
            Some((_, words)) => words.push_str(delta),
            None => turn.texts.push((place, delta.to_owned())),
        }
        turn.character_count += delta.chars().count();
        let is_cut = turn.is_suppressed;
        self.update_history_text(response, item, content_index, kind);
        if !is_cut {
            self.emit_event(RealtimeEvent::OutputTextDelta { item: item.clone(), delta: delta.to_owned() });
            self.check_guardrails_if_due(response);
        }
    }

    /// Handles the whole text of a content part, and adds the fragments that were lost.
    pub(super) fn on_text_ended(
        &mut self,
        response: &ResponseId,
        item: &ItemId,
        content_index: u32,
        text: &str,
        kind: OutputTextKind,
    ) {
        self.scheduler.record_activity(self.now, response);
        let Some(turn) = self.turns.get_mut(response).filter(|turn| turn.end.is_none()) else { return };
        let place = (item.clone(), content_index);
        let known = turn.texts.iter().find(|(known, _)| *known == place).map(|(_, words)| words.as_str());
        match text.strip_prefix(known.unwrap_or_default()) {
            Some("") => {}
            Some(rest) => {
                let rest = rest.to_owned();
                self.on_text_delta(response, item, content_index, &rest, kind);
            }
            None => {
                let before = known.map_or(0, |known| known.chars().count());
                turn.character_count = turn.character_count - before + text.chars().count();
                turn.texts.retain(|(known, _)| *known != place);
                turn.texts.push((place, text.to_owned()));
                turn.checked_characters = turn.checked_characters.min(turn.character_count.saturating_sub(1));
                self.update_history_text(response, item, content_index, kind);
            }
        }
    }

    /// Updates the item's text in the history: all of it, or the heard part if the item was interrupted.
    fn update_history_text(
        &mut self,
        response: &ResponseId,
        item: &ItemId,
        content_index: u32,
        kind: OutputTextKind,
    ) {
        let Some(turn) = self.turns.get(response) else { return };
        let place = (item.clone(), content_index);
        let Some((_, whole)) = turn.texts.iter().find(|(known, _)| *known == place) else { return };
        let part = match kind {
            OutputTextKind::PlainText => RealtimeContentPart::text(whole.clone()),
            OutputTextKind::AudioTranscript => RealtimeContentPart::transcript(whole.clone()),
        };
        let (agent, response_id) = (turn.agent.activation.name.clone(), response.clone());
        if self.history.get(item).is_some_and(|known| known.status == RealtimeItemStatus::Interrupted) {
            self.truncate_transcript(response, item, content_index);
            return;
        }
        if self.history.get(item).is_none() {
            let mut new = RealtimeItem::message(item.clone(), Role::Assistant, Vec::new());
            new.status = RealtimeItemStatus::InProgress;
            (new.agent, new.response) = (Some(agent), Some(response_id));
            let change = self.history.upsert_item(new, None);
            self.record_change(change);
        }
        // Each fragment has its own event; the history change is reported when the item is complete.
        let _ = self.history.edit_item(item, |known| set_part(known, content_index, part));
    }

    /// Requests a guardrail check if enough text has arrived since the last one.
    fn check_guardrails_if_due(&mut self, response: &ResponseId) {
        let debounce = self.policy.guardrail_debounce.max(1);
        let Some(turn) = self.turns.get_mut(response) else { return };
        if turn.agent.has_guardrails && turn.character_count / debounce > turn.checked_characters / debounce {
            self.pending_effects.push(turn.start_check(response));
        }
    }

    /// Handles the result of a guardrail check: the names of the guardrails that tripped.
    pub(crate) fn on_check_result(
        &mut self,
        response: &ResponseId,
        text: &Arc<str>,
        objections: Vec<String>,
    ) {
        let Some(turn) = self.turns.get_mut(response) else { return };
        turn.pending_checks = turn.pending_checks.saturating_sub(1);
        if objections.is_empty() {
            self.release_audio(response, text.chars().count());
        } else if !turn.is_tripped {
            self.trip_guardrail(response, text, objections);
        }
        self.settle_turn(response);
    }

    /// Releases the held speech whose transcript the guardrails have accepted.
    fn release_audio(&mut self, response: &ResponseId, letters: usize) {
        let Some(turn) = self.turns.get_mut(response).filter(|turn| !turn.is_suppressed) else { return };
        let is_last = turn.end.is_some() && turn.pending_checks == 0;
        let (free, held) =
            std::mem::take(&mut turn.held_audio).into_iter().partition(|(at, _)| is_last || *at <= letters);
        turn.held_audio = held;
        let free: Vec<(usize, AudioChunk)> = free;
        for (_, chunk) in free {
            self.play_chunk(chunk);
        }
    }

    /// Handles a tripped guardrail, in this order: suppresses further output, reports the event, cancels the
    /// response, and sends the follow-up message to the model.
    fn trip_guardrail(&mut self, response: &ResponseId, text: &Arc<str>, guardrails: Vec<String>) {
        let Some(turn) = self.turns.get_mut(response) else { return };
        turn.is_tripped = true;
        turn.suppress_output();
        self.metrics.guardrail_trips += 1;
        let (text, names) = (text.clone(), guardrails.join(", "));
        self.emit_event(RealtimeEvent::GuardrailTripped { response: response.clone(), guardrails, text });
        let is_newest = self.newest_response.as_ref() == Some(response);
        if self.interrupt_playback(Some(response)) == 0 {
            self.report_heard_interruption(Some(response));
        }
        self.cancel_response(response);
        let message = match &self.policy.follow_up {
            GuardrailFollowUp::NameGuardrails => format!("guardrail triggered: {names}"),
            GuardrailFollowUp::CustomMessage(message) => message.clone(),
            GuardrailFollowUp::NoMessage => return,
        };
        // The number of follow-ups is limited, so that a model that keeps failing is not asked for ever.
        if is_newest && self.follow_ups < MAX_FOLLOW_UPS {
            self.follow_ups += 1;
            let id = self.next_item_id();
            let parts = vec![RealtimeContentPart::text(message)];
            self.add_item(RealtimeItem::message(id.clone(), Role::User, parts), None, RespondWhen::Now);
            self.scheduler.demand_response(self.now, Some(id));
        }
    }

    /// Handles the end of a response, reported or assumed.
    pub(super) fn on_response_ended(
        &mut self,
        response: &ResponseId,
        status: ResponseStatus,
        usage: Option<RealtimeUsage>,
        calls: Vec<RealtimeItem>,
    ) {
        self.ensure_response_started(response);
        if self.side_responses.remove(response).is_some() {
            return self.remember_ended_response(response);
        }
        self.scheduler.on_response_ended(self.now, response);
        let is_held = self.turns.get(response).is_some_and(|turn| !turn.held_audio.is_empty());
        if is_held && status == ResponseStatus::Cancelled {
            // What was stopped before it was released is never heard.
            self.interrupt_playback(Some(response));
        }
        if status == ResponseStatus::Completed {
            self.scheduler.record_complete_response();
        }
        let audio = self.playback.speech_duration(response);
        // A provider that keeps the conversation completes the response while nobody is connected.
        let goes_on = self.connection_state == ConnectionState::Disconnected && self.is_conversation_kept();
        let Some(turn) = self.turns.get_mut(response).filter(|turn| turn.end.is_none()) else {
            // The end event comes late, after the response was abandoned.
            return self.deny_unknown_calls(response, calls);
        };
        turn.calls_due_at = None;
        for call in calls {
            let is_known = |known: &RealtimeItem| known.id == call.id || known.kind == call.kind;
            if !turn.complete_calls.iter().chain(&turn.late_calls).any(is_known) {
                let is_complete = status == ResponseStatus::Completed && !turn.is_cut();
                let calls = if is_complete { &mut turn.complete_calls } else { &mut turn.late_calls };
                calls.push(call);
            }
        }
        let usage = self.price_usage(usage);
        self.spend_response(usage.as_ref());
        let Some(turn) = self.turns.get_mut(response) else { return };
        turn.metrics.duration = self.now.saturating_sub(turn.started_at);
        turn.metrics.audio_duration = audio;
        turn.metrics.interruption_latency = turn.interrupted_at.map(|at| self.now.saturating_sub(at));
        let is_whole = status == ResponseStatus::Completed && !turn.is_tripped;
        let is_tripped = turn.is_tripped;
        turn.end = Some(ResponseEnd { status, usage });
        self.remember_ended_response(response);
        let Some(turn) = self.turns.get_mut(response) else { return };
        let places: Vec<(ItemId, u32)> = turn.texts.iter().map(|(place, _)| place.clone()).collect();
        let without_end: Vec<ItemId> = turn.open_items.iter().cloned().collect();
        // A last check covers short responses and the ends of long ones.
        if turn.agent.has_guardrails && turn.character_count > turn.checked_characters && !turn.is_tripped {
            self.pending_effects.push(turn.start_check(response));
        }
        for (item, content_index) in places {
            if is_whole && self.turns.get(response).is_none_or(|turn| turn.held_audio.is_empty()) {
                self.playback.mark_complete(&item, content_index);
            }
            self.truncate_transcript(response, &item, content_index);
            let whole = if is_whole || (goes_on && !is_tripped) {
                RealtimeItemStatus::Completed
            } else {
                RealtimeItemStatus::Interrupted
            };
            let change = self.history.edit_item(&item, |known| {
                if known.status == RealtimeItemStatus::InProgress {
                    known.status = whole;
                }
            });
            self.record_change(change);
        }
        // An item of which nothing came but its announcement ends here, too.
        let unwritten = match goes_on && !is_tripped {
            true => RealtimeItemStatus::Completed,
            false => RealtimeItemStatus::Interrupted,
        };
        for item in without_end {
            let change = self.history.edit_item(&item, |known| {
                if known.status == RealtimeItemStatus::InProgress {
                    known.status = unwritten;
                }
            });
            self.record_change(change);
        }
        self.settle_turn(response);
    }

    /// Remembers the end of a response, so that late events do not start it again.
    pub(super) fn remember_ended_response(&mut self, response: &ResponseId) {
        if self.ended_responses.len() == MAX_ENDED_RESPONSES {
            self.ended_responses.pop_front();
        }
        let agent = self.turns.get(response).map(|turn| turn.agent.activation.name.clone());
        self.ended_responses.push_back((response.clone(), agent));
    }

    /// Returns true if the response has ended.
    pub(super) fn is_response_ended(&self, response: &ResponseId) -> bool {
        self.ended_responses.iter().any(|(ended, _)| ended == response)
    }

    /// Returns the name of the agent of a response that is open or has ended; of the current agent if there is none.
    pub(super) fn agent_name_of(&self, response: Option<&ResponseId>) -> AgentName {
        let ended = self.ended_responses.iter().rev().find(|(ended, _)| Some(ended) == response);
        match ended {
            Some((_, Some(agent))) => agent.clone(),
            _ => self.responding_agent(response).activation.name.clone(),
        }
    }

    /// Gives an output to the calls of an ended response that the session does not know.
    fn deny_unknown_calls(&mut self, response: &ResponseId, calls: Vec<RealtimeItem>) {
        if calls.is_empty() || self.turns.contains_key(response) {
            return;
        }
        let (agent, connection, mut run_count) = (self.current_agent.clone(), self.connection_number, 0);
        let run_count = &mut run_count;
        let from = CallingResponse { response, agent: &agent, connection, usage: None, run_count };
        self.accept_calls(from, calls, CallPermission::Denied);
    }

    /// Settles a response that has ended, without the checks that are not complete. Its held speech is not released.
    pub(super) fn settle_unchecked(&mut self, response: &ResponseId) {
        if let Some(turn) = self.turns.get_mut(response) {
            turn.pending_checks = 0;
            turn.suppress_output();
        }
        self.settle_turn(response);
    }

    /// Settles a response that has ended and whose checks are complete: releases its speech, reports its end,
    /// and accepts its calls.
    fn settle_turn(&mut self, response: &ResponseId) {
        let is_settled =
            self.turns.get(response).is_some_and(|turn| turn.end.is_some() && turn.pending_checks == 0);
        if !is_settled {
            return;
        }
        self.release_audio(response, usize::MAX);
        let Some(ResponseTurn {
            agent,
            connection,
            started_at,
            requested_at,
            metrics,
            end: Some(ResponseEnd { status, usage }),
            is_tripped,
            interrupted_at,
            texts: words,
            complete_calls,
            late_calls,
            mut run_count,
            ..
        }) = self.turns.remove(response).map(|turn| *turn)
        else {
            return;
        };
        if status == ResponseStatus::Completed {
            for ((item, content_index), _) in &words {
                self.playback.mark_complete(item, *content_index);
            }
        }
        self.metrics.record_turn(&metrics, usage.as_ref());
        // Calls that were complete when the end of the response was lost are made, unless somebody had stopped it.
        let has_calls = match status {
            ResponseStatus::Completed => true,
            ResponseStatus::Unknown => interrupted_at.is_none(),
            _ => false,
        };
        let is_whole = has_calls && !is_tripped && !self.is_finishing() && !self.is_ending;
        let permission = if is_whole { CallPermission::Allowed } else { CallPermission::Denied };
        let agent_name = agent.activation.name.clone();
        let tokens = usage.map(|usage| usage.total);
        let first_audio = metrics.time_to_first_audio.map(|delay| requested_at.unwrap_or(started_at) + delay);
        self.note_last_answer(first_audio.map_or(self.now, |at| self.now.max(at + metrics.audio_duration)));
        self.emit_event(RealtimeEvent::TurnEnded {
            response: response.clone(),
            agent: agent_name,
            status,
            usage,
            metrics,
        });
        for (calls, permission) in [(complete_calls, permission), (late_calls, CallPermission::Denied)] {
            let run_count = &mut run_count;
            let from = CallingResponse { response, agent: &agent, connection, usage: tokens, run_count };
            self.accept_calls(from, calls, permission);
        }
    }
}

/// Sets a content part, adding empty parts before it if they are missing.
pub(super) fn set_part(item: &mut RealtimeItem, content_index: u32, part: RealtimeContentPart) {
    let RealtimeItemKind::Message { parts, .. } = &mut item.kind else { return };
    let content_index = content_index.min(63) as usize;
    while parts.len() <= content_index {
        parts.push(match &part {
            RealtimeContentPart::Audio { .. } => {
                RealtimeContentPart::Audio { transcript: None, heard_ms: None }
            }
            RealtimeContentPart::Text { .. } | RealtimeContentPart::Image { .. } => {
                RealtimeContentPart::text("")
            }
        });
    }
    parts[content_index] = part;
}
