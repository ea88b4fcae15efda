//! Tracking of the speech that the user has heard: reported by the application, or estimated from the elapsed
//! time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::audio::AudioFormat;
use crate::id::{ItemId, ResponseId};

/// Number of tracks kept; older ones have been heard long ago.
const MAX_TRACKS: usize = 16;

/// Time by which an application's playback may be behind the clock.
const PLAYBACK_LAG: Duration = Duration::from_secs(2);

/// The source of the playback position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlaybackSource {
    /// The position is estimated: each chunk plays as soon as it arrives, one after another.
    #[default]
    Clock,
    /// The application reports the position.
    Reported,
}

/// The tracker of received and heard speech.
#[derive(Debug)]
pub(crate) struct PlaybackTracker {
    source: PlaybackSource,
    format: AudioFormat,
    tracks: VecDeque<PlaybackTrack>,
    /// Time at which all received speech will have been played.
    drained_at: Duration,
}

/// The speech of one content part.
#[derive(Debug)]
struct PlaybackTrack {
    response: ResponseId,
    item: ItemId,
    content_index: u32,
    bytes: u64,
    reported_ms: u64,
    is_complete: bool,
    truncated_at_ms: Option<u64>,
}

/// Speech that was truncated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TruncatedSpeech {
    pub(crate) response: ResponseId,
    pub(crate) item: ItemId,
    pub(crate) content_index: u32,
    pub(crate) heard_ms: u64,
}

/// The received and the heard duration of one content part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaybackPosition {
    pub(crate) heard_ms: u64,
    pub(crate) received_ms: u64,
    pub(crate) is_complete: bool,
}

impl PlaybackTracker {
    pub(crate) fn new(source: PlaybackSource, format: AudioFormat) -> Self {
        Self { source, format, tracks: VecDeque::new(), drained_at: Duration::ZERO }
    }

    /// Records received speech, which starts to play, and returns its position in its content part.
    pub(crate) fn record_received(
        &mut self,
        now: Duration,
        response: &ResponseId,
        item: &ItemId,
        content_index: u32,
        bytes: u64,
    ) -> u64 {
        let place = self.begin_track(response, item, content_index);
        let track = &mut self.tracks[place];
        let position = track.bytes;
        track.bytes += bytes;
        if track.truncated_at_ms.is_none() {
            let micros = bytes * 1000 / self.format.bytes_per_ms();
            self.drained_at = self.drained_at.max(now) + Duration::from_micros(micros);
        }
        position
    }

    /// Records received speech that the application does not have yet: it is unheard until it is released.
    pub(crate) fn record_held(&mut self, response: &ResponseId, item: &ItemId, content_index: u32) {
        self.begin_track(response, item, content_index);
    }

    /// Records received speech that the application never gets. Returns true if none of the content part was played, and
    /// this is its first speech.
    pub(crate) fn record_suppressed(
        &mut self,
        response: &ResponseId,
        item: &ItemId,
        content_index: u32,
        bytes: u64,
    ) -> bool {
        let is_new = self.track_index(item, content_index).is_none();
        let place = self.begin_track(response, item, content_index);
        let track = &mut self.tracks[place];
        if is_new {
            track.truncated_at_ms = Some(0);
        }
        if track.truncated_at_ms.is_some() {
            track.bytes += bytes;
        }
        is_new
    }

    /// Returns the index of the track of a content part, which is created if it is new.
    fn begin_track(&mut self, response: &ResponseId, item: &ItemId, content_index: u32) -> usize {
        if let Some(place) = self.track_index(item, content_index) {
            return place;
        }
        if self.tracks.len() == MAX_TRACKS {
            self.tracks.pop_front();
        }
        self.tracks.push_back(PlaybackTrack {
            response: response.clone(),
            item: item.clone(),
            content_index,
            bytes: 0,
            reported_ms: 0,
            is_complete: false,
            truncated_at_ms: None,
        });
        self.tracks.len() - 1
    }

    /// Records that the speech of a content part is complete.
    pub(crate) fn mark_complete(&mut self, item: &ItemId, content_index: u32) {
        if let Some(place) = self.track_index(item, content_index) {
            self.tracks[place].is_complete = true;
        }
    }

    /// Records that the rest of all speech is not received, and is played all the same.
    pub(crate) fn mark_all_complete(&mut self) {
        self.tracks.iter_mut().for_each(|track| track.is_complete = true);
    }

    /// Records the position that the application reports.
    pub(crate) fn record_played(&mut self, item: &ItemId, content_index: u32, played_ms: u64) {
        if let Some(place) = self.track_index(item, content_index) {
            let track = &mut self.tracks[place];
            track.reported_ms = track.reported_ms.max(played_ms);
        }
    }

    /// Returns the newest speech of a response and its heard duration; without a response, the newest speech that ended
    /// a short time ago.
    pub(crate) fn newest_track(
        &self,
        now: Duration,
        response: Option<&ResponseId>,
    ) -> Option<(ItemId, u32, u64)> {
        let heard = self.heard_per_track(now);
        let (track, heard_ms) = self.tracks.iter().zip(heard).next_back()?;
        let is_it = match response {
            Some(response) => track.response == *response,
            None => now < self.drained_at.saturating_add(PLAYBACK_LAG),
        };
        let is_new = is_it && track.truncated_at_ms.is_none();
        is_new.then(|| (track.item.clone(), track.content_index, heard_ms))
    }

    /// Truncates the unheard speech of one response or of all. Speech that was heard to its end is not
    /// affected.
    pub(crate) fn truncate_unheard(
        &mut self,
        now: Duration,
        only: Option<&ResponseId>,
    ) -> Vec<TruncatedSpeech> {
        let heard = self.heard_per_track(now);
        let mut cuts = Vec::new();
        for (track, heard_ms) in self.tracks.iter_mut().zip(heard) {
            let is_over = track.is_complete && heard_ms >= self.format.duration_ms(track.bytes);
            let is_meant = only.is_none_or(|only| *only == track.response);
            if track.truncated_at_ms.is_none() && !is_over && is_meant {
                track.truncated_at_ms = Some(heard_ms);
                let PlaybackTrack { response, item, content_index, .. } = track;
                cuts.push(TruncatedSpeech {
                    response: response.clone(),
                    item: item.clone(),
                    content_index: *content_index,
                    heard_ms,
                });
            }
        }
        if !cuts.is_empty() {
            // The application stops playback now.
            self.drained_at = now;
        }
        cuts
    }

    /// Returns the playback position of a content part; `None` if it has no speech.
    pub(crate) fn position(
        &self,
        now: Duration,
        item: &ItemId,
        content_index: u32,
    ) -> Option<PlaybackPosition> {
        let place = self.track_index(item, content_index)?;
        let track = &self.tracks[place];
        let heard_ms = self.heard_per_track(now).get(place).copied().unwrap_or_default();
        Some(PlaybackPosition {
            heard_ms,
            received_ms: self.format.duration_ms(track.bytes),
            is_complete: track.is_complete,
        })
    }

    /// Returns the duration of the received speech of a response.
    pub(crate) fn speech_duration(&self, response: &ResponseId) -> Duration {
        let bytes: u64 =
            self.tracks.iter().filter(|track| track.response == *response).map(|track| track.bytes).sum();
        Duration::from_millis(self.format.duration_ms(bytes))
    }

    /// Returns the heard duration of each track, in milliseconds.
    fn heard_per_track(&self, now: Duration) -> Vec<u64> {
        let mut unplayed = u64::try_from(self.drained_at.saturating_sub(now).as_millis()).unwrap_or(u64::MAX);
        let mut heard: Vec<u64> = self
            .tracks
            .iter()
            .rev()
            .map(|track| {
                let received = self.format.duration_ms(track.bytes);
                if let Some(heard) = track.truncated_at_ms {
                    return heard;
                }
                match self.source {
                    PlaybackSource::Reported => track.reported_ms.min(received),
                    PlaybackSource::Clock => {
                        let waiting = unplayed.min(received);
                        unplayed -= waiting;
                        received - waiting
                    }
                }
            })
            .collect();
        heard.reverse();
        heard
    }

    fn track_index(&self, item: &ItemId, content_index: u32) -> Option<usize> {
        self.tracks.iter().rposition(|track| track.item == *item && track.content_index == content_index)
    }
}

/// Minimum duration of speech per character. Transcripts arrive before their speech, so while more speech is to
/// come, this bounds the part that was heard.
const MIN_MS_PER_CHARACTER: u64 = 50;

/// Returns the part of a text that was heard, up to the last whole word.
pub(crate) fn heard_text(whole: &str, heard: PlaybackPosition) -> String {
    let letters = whole.chars().count() as u64;
    let length = match heard.is_complete {
        true => heard.received_ms,
        false => heard.received_ms.max(letters * MIN_MS_PER_CHARACTER),
    };
    // Nothing was heard of speech that was never released.
    let length = length.max(1);
    if heard.heard_ms >= length {
        return whole.to_owned();
    }
    let kept = usize::try_from(letters * heard.heard_ms / length).unwrap_or(usize::MAX);
    let end = whole.char_indices().nth(kept).map_or(whole.len(), |(at, _)| at);
    let is_whole_word = whole[end..].starts_with(char::is_whitespace);
    let end = if is_whole_word { end } else { whole[..end].rfind(char::is_whitespace).unwrap_or(0) };
    whole[..end].trim_end().to_owned()
}

#[cfg(test)]
#[path = "playback_tests.rs"]
mod tests;
