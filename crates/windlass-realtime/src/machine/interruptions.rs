//! Interruptions: by the user, the application, a guardrail or a lost connection. Invariant: speech that was not heard is
//! truncated at the provider and in the history, and the application is told.

use super::RealtimeMachine;
use super::playback::heard_text;
use super::turns::set_part;
use crate::event::RealtimeEvent;
use crate::history::{RealtimeContentPart, RealtimeItemStatus};
use crate::id::{ItemId, ResponseId};
use crate::model::RealtimeCommandKind;

impl RealtimeMachine {
    /// Cancels a response, if it is active.
    pub(super) fn cancel_response(&mut self, response: &ResponseId) {
        if self.scheduler.active_response() == Some(response) {
            self.scheduler.record_cancel(self.now, response);
            self.record_interruption(response);
            self.send_command(RealtimeCommandKind::CancelResponse { response: response.clone() });
        }
    }

    fn record_interruption(&mut self, response: &ResponseId) {
        let now = self.now;
        if self.turns.get_mut(response).is_some_and(|turn| turn.mark_interrupted(now)) {
            self.metrics.interruptions += 1;
        }
    }

    /// Interrupts the model on the application's request.
    pub(crate) fn interrupt(&mut self) {
        let active = self.scheduler.active_response().cloned();
        let cuts = self.interrupt_playback(None);
        if let Some(turn) = active.as_ref().and_then(|active| self.turns.get_mut(active)) {
            turn.suppress_output();
        }
        if cuts == 0 {
            self.report_heard_interruption(active.as_ref());
        }
        if let Some(active) = active {
            self.cancel_response(&active);
        }
    }

    /// Handles the start of the user's speech, which may interrupt the model.
    pub(super) fn on_user_speech(&mut self) {
        let Some(server) = self.current_agent.configuration.realtime_settings.turn_detection.server_actions()
        else {
            return self.interrupt();
        };
        let cuts = self.interrupt_playback(None);
        let active = self.scheduler.active_response().cloned();
        if cuts == 0 {
            self.report_heard_interruption(active.as_ref());
        }
        let Some(active) = active else { return };
        if server.interrupt_response {
            // The server cancels the response by itself and may have sent more of it before.
            if cuts > 0 {
                self.record_interruption(&active);
            }
        } else if cuts > 0 {
            self.cancel_response(&active);
        }
    }

    /// Reports an interruption although all received speech should have been heard: the response is cut all the same,
    /// and the application may be behind with its playback. Without an active response, the newest speech counts for a
    /// short time after its end.
    pub(super) fn report_heard_interruption(&mut self, active: Option<&ResponseId>) {
        let Some((item, content_index, heard_ms)) = self.playback.newest_track(self.now, active) else {
            return;
        };
        self.emit_event(RealtimeEvent::AudioInterrupted { item, content_index, heard_ms });
    }

    /// Stops the playback of unheard speech, of one response or of all, and truncates the items. Returns the
    /// number of truncated content parts.
    pub(super) fn interrupt_playback(&mut self, only: Option<&ResponseId>) -> usize {
        let cuts = self.playback.truncate_unheard(self.now, only);
        for cut in &cuts {
            if let Some(turn) = self.turns.get_mut(&cut.response) {
                turn.suppress_output();
            }
            let (item, content_index, heard_ms) = (cut.item.clone(), cut.content_index, cut.heard_ms);
            self.emit_event(RealtimeEvent::AudioInterrupted { item: item.clone(), content_index, heard_ms });
            self.truncate_item(&cut.response, &item, content_index, heard_ms);
        }
        cuts.len()
    }

    /// Truncates an item at the provider and in the history to the part that the user heard.
    pub(super) fn truncate_item(
        &mut self,
        response: &ResponseId,
        item: &ItemId,
        content_index: u32,
        heard_ms: u64,
    ) {
        self.send_command(RealtimeCommandKind::TruncateItem { item: item.clone(), content_index, heard_ms });
        let change = self.history.edit_item(item, |known| known.status = RealtimeItemStatus::Interrupted);
        if change.is_some() {
            self.truncate_transcript(response, item, content_index);
        }
    }

    /// Truncates the transcript of an interrupted item to the part the user heard.
    pub(super) fn truncate_transcript(&mut self, response: &ResponseId, item: &ItemId, content_index: u32) {
        let Some(known) =
            self.history.get(item).filter(|known| known.status == RealtimeItemStatus::Interrupted)
        else {
            return;
        };
        let Some(heard) = self.playback.position(self.now, item, content_index) else { return };
        let said = self.turns.get(response).and_then(|turn| turn.part_text(item, content_index));
        let whole = said.map_or_else(|| known.text(), str::to_owned);
        let transcript = Some(heard_text(&whole, heard));
        let part = RealtimeContentPart::Audio { transcript, heard_ms: Some(heard.heard_ms) };
        let edited = self.history.edit_item(item, |known| set_part(known, content_index, part));
        self.record_change(edited);
    }
}
