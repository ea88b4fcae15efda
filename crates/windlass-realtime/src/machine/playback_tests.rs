use std::time::Duration;

use super::{HeardOf, Playback, PlaybackSource, heard_text};
use crate::audio::AudioFormat;
use crate::id::{ItemId, ResponseId};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn play(playback: &mut Playback, now: u64, item: &str, ms: u64) {
    playback.received(at(now), &ResponseId::from("r"), &ItemId::from(item), 0, ms * 48);
}

fn cuts(playback: &mut Playback, now: u64) -> Vec<(String, u64)> {
    playback.cut(at(now), None).into_iter().map(|cut| (cut.item.to_string(), cut.heard_ms)).collect()
}

#[test]
fn speech_plays_one_piece_after_another() {
    let mut playback = Playback::new(PlaybackSource::Clock, AudioFormat::Pcm24k);
    play(&mut playback, 0, "a", 1000);
    play(&mut playback, 10, "b", 1000);
    playback.completed(&ItemId::from("a"), 0);
    playback.completed(&ItemId::from("b"), 0);
    // `a` is heard, half of `b` is.
    assert_eq!(cuts(&mut playback, 1500), [("b".to_owned(), 500)]);
    assert_eq!(cuts(&mut playback, 1600), [], "what was cut is cut");
}

#[test]
fn a_gap_in_the_stream_is_a_gap_in_what_is_heard() {
    let mut playback = Playback::new(PlaybackSource::Clock, AudioFormat::Pcm24k);
    play(&mut playback, 0, "a", 100);
    play(&mut playback, 1000, "a", 100);
    assert_eq!(cuts(&mut playback, 1050), [("a".to_owned(), 150)]);
    // What comes afterwards is counted, and not heard.
    play(&mut playback, 1060, "a", 400);
    let heard = playback.heard(at(9000), &ItemId::from("a"), 0).expect("is known");
    assert_eq!(heard, HeardOf { heard_ms: 150, received_ms: 600, is_complete: false });
}

#[test]
fn what_is_reported_counts_and_never_more_than_there_is() {
    let mut playback = Playback::new(PlaybackSource::Reported, AudioFormat::Pcm24k);
    play(&mut playback, 0, "a", 1000);
    playback.reported(&ItemId::from("a"), 0, 300);
    playback.reported(&ItemId::from("a"), 0, 200);
    assert_eq!(playback.heard(at(5000), &ItemId::from("a"), 0).expect("is known").heard_ms, 300);
    playback.reported(&ItemId::from("a"), 0, 9000);
    assert_eq!(cuts(&mut playback, 0), [("a".to_owned(), 1000)]);
}

#[test]
fn words_are_kept_as_far_as_they_were_heard() {
    let heard = |heard_ms, received_ms, is_complete| HeardOf { heard_ms, received_ms, is_complete };
    let text = "one two three four";
    assert_eq!(heard_text(text, heard(1000, 1000, true)), text);
    assert_eq!(heard_text(text, heard(0, 1000, true)), "");
    assert_eq!(heard_text(text, heard(500, 1000, true)), "one two");
    // More is to come, and the words were ahead of the speech.
    assert_eq!(heard_text(text, heard(200, 200, false)), "one");
    assert_eq!(heard_text("", heard(1, 2, true)), "");
    assert_eq!(heard_text("ünïcödé wörds", heard(700, 1000, true)), "ünïcödé");
}
