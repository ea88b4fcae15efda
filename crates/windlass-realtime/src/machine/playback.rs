//! What the user has really heard: reported by whoever plays it, or worked out from the time that has passed.

use std::collections::VecDeque;
use std::time::Duration;

use crate::audio::AudioFormat;
use crate::id::{ItemId, ResponseId};

/// So many pieces of speech are remembered; older ones have long been heard.
const REMEMBERED: usize = 16;

/// How it is known what was heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlaybackSource {
    /// Speech is played as soon as it comes, one piece after another.
    #[default]
    Clock,
    /// The application says how much it has played.
    Reported,
}

#[derive(Debug)]
pub(crate) struct Playback {
    source: PlaybackSource,
    format: AudioFormat,
    tracks: VecDeque<Track>,
    /// When all that came will have been played.
    dry: Duration,
}

#[derive(Debug)]
struct Track {
    response: ResponseId,
    item: ItemId,
    content: u32,
    bytes: u64,
    reported_ms: u64,
    is_complete: bool,
    heard_at_cut: Option<u64>,
}

/// Speech that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) response: ResponseId,
    pub(crate) item: ItemId,
    pub(crate) content: u32,
    pub(crate) heard_ms: u64,
}

/// How much of some speech came, and how much of that was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeardOf {
    pub(crate) heard_ms: u64,
    pub(crate) received_ms: u64,
    pub(crate) is_complete: bool,
}

impl Playback {
    pub(crate) fn new(source: PlaybackSource, format: AudioFormat) -> Self {
        Self { source, format, tracks: VecDeque::new(), dry: Duration::ZERO }
    }

    /// Speech came, and is played.
    pub(crate) fn received(
        &mut self,
        now: Duration,
        response: &ResponseId,
        item: &ItemId,
        content: u32,
        bytes: u64,
    ) {
        let place = match self.place(item, content) {
            Some(place) => place,
            None => {
                if self.tracks.len() == REMEMBERED {
                    self.tracks.pop_front();
                }
                self.tracks.push_back(Track {
                    response: response.clone(),
                    item: item.clone(),
                    content,
                    bytes: 0,
                    reported_ms: 0,
                    is_complete: false,
                    heard_at_cut: None,
                });
                self.tracks.len() - 1
            }
        };
        let track = &mut self.tracks[place];
        track.bytes += bytes;
        if track.heard_at_cut.is_none() {
            let micros = bytes * 1000 / self.format.bytes_per_ms();
            self.dry = self.dry.max(now) + Duration::from_micros(micros);
        }
    }

    /// No more of this comes.
    pub(crate) fn completed(&mut self, item: &ItemId, content: u32) {
        if let Some(place) = self.place(item, content) {
            self.tracks[place].is_complete = true;
        }
    }

    /// The application has played so much of an item.
    pub(crate) fn reported(&mut self, item: &ItemId, content: u32, played_ms: u64) {
        if let Some(place) = self.place(item, content) {
            let track = &mut self.tracks[place];
            track.reported_ms = track.reported_ms.max(played_ms);
        }
    }

    /// Cuts off what has not been heard, of one answer or of all. What was heard to its end stays as it is.
    pub(crate) fn cut(&mut self, now: Duration, only: Option<&ResponseId>) -> Vec<Cut> {
        let heard = self.heard_of_each(now);
        let mut cuts = Vec::new();
        for (track, heard_ms) in self.tracks.iter_mut().zip(heard) {
            let is_over = track.is_complete && heard_ms >= self.format.millis(track.bytes);
            let is_meant = only.is_none_or(|only| *only == track.response);
            if track.heard_at_cut.is_none() && !is_over && is_meant {
                track.heard_at_cut = Some(heard_ms);
                let Track { response, item, content, .. } = track;
                cuts.push(Cut {
                    response: response.clone(),
                    item: item.clone(),
                    content: *content,
                    heard_ms,
                });
            }
        }
        if !cuts.is_empty() {
            // Whoever plays it stops now.
            self.dry = now;
        }
        cuts
    }

    /// What was heard of an item that was spoken.
    pub(crate) fn heard(&self, now: Duration, item: &ItemId, content: u32) -> Option<HeardOf> {
        let place = self.place(item, content)?;
        let track = &self.tracks[place];
        let heard_ms = self.heard_of_each(now).get(place).copied().unwrap_or_default();
        Some(HeardOf {
            heard_ms,
            received_ms: self.format.millis(track.bytes),
            is_complete: track.is_complete,
        })
    }

    /// How much speech of an answer came.
    pub(crate) fn length_of(&self, response: &ResponseId) -> Duration {
        let bytes: u64 =
            self.tracks.iter().filter(|track| track.response == *response).map(|track| track.bytes).sum();
        Duration::from_millis(self.format.millis(bytes))
    }

    fn heard_of_each(&self, now: Duration) -> Vec<u64> {
        let mut unplayed = u64::try_from(self.dry.saturating_sub(now).as_millis()).unwrap_or(u64::MAX);
        let mut heard: Vec<u64> = self
            .tracks
            .iter()
            .rev()
            .map(|track| {
                let received = self.format.millis(track.bytes);
                if let Some(heard) = track.heard_at_cut {
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

    fn place(&self, item: &ItemId, content: u32) -> Option<usize> {
        self.tracks.iter().rposition(|track| track.item == *item && track.content == content)
    }
}

/// As a rule speech has at least so many milliseconds a letter. Words come before the speech that says them, so while
/// more speech is to come, this bounds what was heard.
const MS_PER_LETTER: u64 = 50;

/// The part of a text that was heard, up to the last whole word.
pub(crate) fn heard_text(whole: &str, heard: HeardOf) -> String {
    let letters = whole.chars().count() as u64;
    let length = match heard.is_complete {
        true => heard.received_ms,
        false => heard.received_ms.max(letters * MS_PER_LETTER),
    };
    if heard.heard_ms >= length {
        return whole.to_owned();
    }
    let kept = usize::try_from(letters * heard.heard_ms / length.max(1)).unwrap_or(usize::MAX);
    let end = whole.char_indices().nth(kept).map_or(whole.len(), |(at, _)| at);
    let is_whole_word = whole[end..].starts_with(char::is_whitespace);
    let end = if is_whole_word { end } else { whole[..end].rfind(char::is_whitespace).unwrap_or(0) };
    whole[..end].trim_end().to_owned()
}

#[cfg(test)]
#[path = "playback_tests.rs"]
mod tests;
