//! Real speech: synthesised by espeak-ng, sent as audio, and received by the server sample by sample.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::audio::{AudioFormat, WavAudio, resample};
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{LoopbackReply, LoopbackServer};
use windlass_realtime::{RealtimeEvent, RealtimeSessionBuilder};

/// Returns speech at 24,000 samples per second, if espeak-ng is installed.
fn synthesize_speech(text: &str) -> Option<Vec<i16>> {
    let output = Command::new("espeak-ng").args(["--stdout", text]).output().ok()?;
    let wav = WavAudio::from_bytes(&output.stdout).expect("espeak-ng writes a WAV file");
    Some(resample(&wav.samples, wav.sample_rate, 24_000))
}

#[tokio::test(start_paused = true)]
async fn what_is_spoken_is_heard_and_what_is_answered_is_heard_back() {
    let (Some(question), Some(answer)) =
        (synthesize_speech("How heavy is the load?"), synthesize_speech("Two tons, and it holds."))
    else {
        let _ = writeln!(std::io::stderr(), "not shown: espeak-ng is not installed here");
        return;
    };
    let heard: Arc<Mutex<Vec<i16>>> = Arc::default();
    let hearing = heard.clone();
    let reply = LoopbackReply::speech("Two tons, and it holds.", answer.clone()).with_speed(1);
    let server = LoopbackServer::new([reply]).with_transcriber(move |samples| {
        *hearing.lock().expect("is not poisoned") = samples.to_vec();
        "How heavy is the load?".to_owned()
    });
    let turns = TurnDetection::ServerVad(ServerVad {
        silence_duration: Some(Duration::from_millis(700)),
        ..ServerVad::default()
    });
    let realtime = RealtimeSessionBuilder::new(Agent::new("guide"), server.client_model())
        .settings(RealtimeSettings { turn_detection: turns, ..RealtimeSettings::default() });
    let session = realtime.connect().await.expect("connects");
    let mut events = session.events();
    let mut sent = question.clone();
    sent.extend(vec![0; 24_000]);
    for piece in sent.chunks(480) {
        session.send_audio(AudioFormat::Pcm24k.encode(piece)).expect("is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut back = Vec::new();
    loop {
        match events.next().await.expect("the session goes on") {
            RealtimeEvent::Audio(chunk) => back.extend(AudioFormat::Pcm24k.decode(&chunk.bytes)),
            RealtimeEvent::TurnEnded { .. } => break,
            RealtimeEvent::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    assert_eq!(back, answer, "the answer is heard as it was spoken");
    let heard = heard.lock().expect("is not poisoned").clone();
    assert_eq!(heard[..question.len()], question[..], "the question is heard as it was spoken");
    let report = session.close().await;
    let said: Vec<String> = report.history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["How heavy is the load?", "Two tons, and it holds."]);
    assert_eq!(report.metrics.dropped_input_chunks, 0);
}
