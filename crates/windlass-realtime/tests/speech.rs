//! Speech that is real: spoken by espeak-ng, sent as audio, and heard by the server's side, sample by sample.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::audio::{AudioFormat, Wav, resample};
use windlass_realtime::settings::{LiveSettings, SilenceDetection, TurnDetection};
use windlass_realtime::testing::{Loopback, Reply};
use windlass_realtime::{LiveEvent, Realtime};

/// Speech at 24,000 samples a second, where there is somebody to speak.
fn spoken(text: &str) -> Option<Vec<i16>> {
    let output = Command::new("espeak-ng").args(["--stdout", text]).output().ok()?;
    let wav = Wav::read(&output.stdout).expect("espeak-ng writes a WAV file");
    Some(resample(&wav.samples, wav.rate, 24_000))
}

#[tokio::test(start_paused = true)]
async fn what_is_spoken_is_heard_and_what_is_answered_is_heard_back() {
    let (Some(question), Some(answer)) =
        (spoken("How heavy is the load?"), spoken("Two tons, and it holds."))
    else {
        let _ = writeln!(std::io::stderr(), "not shown: espeak-ng is not installed here");
        return;
    };
    let heard: Arc<Mutex<Vec<i16>>> = Arc::default();
    let hearing = heard.clone();
    let reply = Reply::speak("Two tons, and it holds.", answer.clone()).paced(1);
    let server = Loopback::new([reply]).ear(move |samples| {
        *hearing.lock().expect("is not poisoned") = samples.to_vec();
        "How heavy is the load?".to_owned()
    });
    let turns = TurnDetection::Silence(SilenceDetection {
        silence: Some(Duration::from_millis(700)),
        ..SilenceDetection::default()
    });
    let realtime = Realtime::new(Agent::new("guide"), server.model())
        .settings(LiveSettings { turns, ..LiveSettings::default() });
    let session = realtime.connect().await.expect("connects");
    let mut events = session.events();
    let mut sent = question.clone();
    sent.extend(vec![0; 24_000]);
    for piece in sent.chunks(480) {
        session.hear(AudioFormat::Pcm24k.encode(piece)).expect("is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut back = Vec::new();
    loop {
        match events.next().await.expect("the session goes on") {
            LiveEvent::Audio(chunk) => back.extend(AudioFormat::Pcm24k.decode(&chunk.bytes)),
            LiveEvent::TurnEnded { .. } => break,
            LiveEvent::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    assert_eq!(back, answer, "the answer is heard as it was spoken");
    let heard = heard.lock().expect("is not poisoned").clone();
    assert_eq!(heard[..question.len()], question[..], "the question is heard as it was spoken");
    let report = session.close().await;
    let said: Vec<String> = report.history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["How heavy is the load?", "Two tons, and it holds."]);
    assert_eq!(report.metrics.dropped_input, 0);
}
