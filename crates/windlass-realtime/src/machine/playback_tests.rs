use std::time::Duration;

use super::{PlaybackPosition, PlaybackSource, PlaybackTracker, heard_text};
use crate::audio::AudioFormat;
use crate::id::{ItemId, ResponseId};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn receive_speech(playback: &mut PlaybackTracker, now: u64, item: &str, ms: u64) {
    playback.record_received(at(now), &ResponseId::from("r"), &ItemId::from(item), 0, ms * 48);
}

fn truncate(playback: &mut PlaybackTracker, now: u64) -> Vec<(String, u64)> {
    playback
        .truncate_unheard(at(now), None)
        .into_iter()
        .map(|cut| (cut.item.to_string(), cut.heard_ms))
        .collect()
}

#[test]
fn speech_plays_one_piece_after_another() {
    let mut playback = PlaybackTracker::new(PlaybackSource::Clock, AudioFormat::Pcm24k);
    receive_speech(&mut playback, 0, "a", 1000);
    receive_speech(&mut playback, 10, "b", 1000);
    playback.mark_complete(&ItemId::from("a"), 0);
    playback.mark_complete(&ItemId::from("b"), 0);
    // `a` is heard to its end, and `b` by half.
    assert_eq!(truncate(&mut playback, 1500), [("b".to_owned(), 500)]);
    assert_eq!(truncate(&mut playback, 1600), [], "what was cut is cut");
}

#[test]
fn a_gap_in_the_stream_is_a_gap_in_what_is_heard() {
    let mut playback = PlaybackTracker::new(PlaybackSource::Clock, AudioFormat::Pcm24k);
    receive_speech(&mut playback, 0, "a", 100);
    receive_speech(&mut playback, 1000, "a", 100);
    assert_eq!(truncate(&mut playback, 1050), [("a".to_owned(), 150)]);
    // Later speech counts as received, and not as heard.
    receive_speech(&mut playback, 1060, "a", 400);
    let heard = playback.position(at(9000), &ItemId::from("a"), 0).expect("is known");
    assert_eq!(heard, PlaybackPosition { heard_ms: 150, received_ms: 600, is_complete: false });
}

#[test]
fn what_is_reported_counts_and_never_more_than_there_is() {
    let mut playback = PlaybackTracker::new(PlaybackSource::Reported, AudioFormat::Pcm24k);
    receive_speech(&mut playback, 0, "a", 1000);
    playback.record_played(&ItemId::from("a"), 0, 300);
    playback.record_played(&ItemId::from("a"), 0, 200);
    assert_eq!(playback.position(at(5000), &ItemId::from("a"), 0).expect("is known").heard_ms, 300);
    playback.record_played(&ItemId::from("a"), 0, 9000);
    assert_eq!(truncate(&mut playback, 0), [("a".to_owned(), 1000)]);
}

#[test]
fn words_are_kept_as_far_as_they_were_heard() {
    let complete = |heard_ms, received_ms| PlaybackPosition { heard_ms, received_ms, is_complete: true };
    let partial = |heard_ms, received_ms| PlaybackPosition { heard_ms, received_ms, is_complete: false };
    let text = "one two three four";
    assert_eq!(heard_text(text, complete(1000, 1000)), text);
    assert_eq!(heard_text(text, complete(0, 1000)), "");
    assert_eq!(heard_text(text, complete(500, 1000)), "one two");
    // More speech is to come, and the transcript is ahead of it.
    assert_eq!(heard_text(text, partial(200, 200)), "one");
    assert_eq!(heard_text("", complete(1, 2)), "");
    assert_eq!(heard_text("ünïcödé wörds", complete(700, 1000)), "ünïcödé");
}
