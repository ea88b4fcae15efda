//! The user's speech, as the provider reports it. While the user speaks, no response is requested. Invariant: speech
//! whose end is never reported holds a demanded response back for a bounded time, and the application is told. Speech that
//! the provider has not begun to answer when the connection is lost is answered on the next one, or reported as lost.

use std::time::Duration;

use super::RealtimeMachine;
use crate::event::{RealtimeError, RealtimeEvent};
use crate::history::RealtimeItem;
use crate::id::ItemId;

/// The state of the user's speech.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UserSpeech {
    since: Option<Duration>,
    /// The time of the last audio of the user, if the application sends it through this session.
    last_audio: Option<Duration>,
    /// The time since which a due response waits for the end of the speech.
    held_since: Option<Duration>,
}

/// Longest speech of the user. After it, the `SpeechStopped` event is taken to be lost.
const MAX_SPEECH_DURATION: Duration = Duration::from_secs(120);
/// Time without audio of the user after which the speech is taken to be over: the microphone was muted.
const MAX_AUDIO_PAUSE: Duration = Duration::from_secs(2);

impl UserSpeech {
    /// Records the start of the speech. A start that is repeated while a response waits does not renew its wait.
    pub(super) fn start(&mut self, now: Duration) {
        if self.held_since.is_none() {
            self.since = Some(now);
        }
    }

    pub(super) fn end(&mut self) {
        self.since = None;
        self.held_since = None;
    }

    pub(super) fn record_audio(&mut self, now: Duration) {
        self.last_audio = Some(now);
    }
}

impl RealtimeMachine {
    /// Returns true if a due response waits for the end of the user's speech, and reports that once.
    pub(super) fn is_held_by_speech(&mut self) -> bool {
        let is_speaking = self.user_speech.since.is_some();
        if is_speaking && self.user_speech.held_since.is_none() {
            self.user_speech.held_since = Some(self.now);
            self.emit_event(RealtimeEvent::ResponseHeld);
        }
        is_speaking
    }

    /// Returns the time at which the user's speech is taken to be over.
    pub(super) fn speech_deadline(&self) -> Option<Duration> {
        let UserSpeech { since, last_audio, held_since } = self.user_speech;
        let longest = since?.saturating_add(MAX_SPEECH_DURATION);
        let Some(held_since) = held_since else { return Some(longest) };
        let held = held_since.saturating_add(self.policy.speech_hold);
        let muted = last_audio.map(|last| held_since.max(last).saturating_add(MAX_AUDIO_PAUSE));
        [Some(longest), Some(held), muted].into_iter().flatten().min()
    }

    /// Records speech that the provider has, and that it answers by itself if it is configured so.
    pub(super) fn record_committed_speech(&mut self, item: &ItemId) {
        let settings = &self.current_agent.configuration.realtime_settings;
        let is_answered_by_provider =
            settings.turn_detection.server_actions().is_some_and(|server| server.create_response);
        if is_answered_by_provider && !self.current_agent.answers_speech {
            self.unanswered_speech = Some(item.clone());
        }
    }

    /// Demands a response to speech that the provider had not begun to answer when the connection was lost. Without its
    /// transcript the next connection does not get it.
    pub(super) fn demand_answer_to_lost_speech(&mut self) {
        let Some(item) = self.unanswered_speech.take() else { return };
        match self.history.get(&item).map(RealtimeItem::is_sendable) {
            Some(true) => self.scheduler.demand_response(self.now, Some(item)),
            Some(false) => self.emit_error(RealtimeError::SpeechLost { item }),
            // The application has deleted it.
            None => {}
        }
    }

    /// Ends speech that has lasted too long.
    pub(super) fn expire_user_speech(&mut self) {
        if self.speech_deadline().is_some_and(|deadline| self.now >= deadline) {
            self.user_speech.end();
        }
    }
}
