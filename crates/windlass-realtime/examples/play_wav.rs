//! Plays a WAV file through a session, and writes the answer as one. It needs no sound hardware and no key.
//!
//! `play_wav [question.wav] [answer.wav] [ws://address]`. Without a question, one is spoken by espeak-ng where that is
//! installed, and hummed otherwise. Without an address, a server of its own answers, which says what it heard.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use windlass::agent::Agent;
use windlass_realtime::audio::{AudioFormat, Wav, resample};
use windlass_realtime::openai::OpenAi;
use windlass_realtime::settings::{LiveSettings, SilenceDetection, TurnDetection};
use windlass_realtime::testing::{Loopback, Reply, tone};
use windlass_realtime::{LiveEvent, LiveItemKind, Realtime};

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let question = match words.next() {
        Some(path) => Wav::read(&std::fs::read(path)?)?,
        None => spoken("What is a windlass?")?,
    };
    let answer = words.next().map_or_else(|| std::env::temp_dir().join("windlass-answer.wav"), PathBuf::from);
    let server = Loopback::thinking(|said| {
        let text = format!("I heard {}.", said.last_user());
        let speech = spoken(&text).map(|wav| resample(&wav.samples, wav.rate, 24_000));
        Reply::speak(text, speech.unwrap_or_else(|_| tone(1000)))
    });
    let model = words.next().map_or_else(|| server.model(), OpenAi::at);

    let turns = TurnDetection::Silence(SilenceDetection::default());
    let settings = LiveSettings { turns, ..LiveSettings::default() };
    let session = Realtime::new(Agent::new("guide"), model).settings(settings).connect().await?;
    let mut events = session.events();
    let microphone = {
        let session = session.clone();
        let mut samples = resample(&question.samples, question.rate, 24_000);
        // A microphone goes on when nobody speaks, and that is how the end of the question is heard.
        samples.extend(vec![0; 24_000]);
        tokio::spawn(async move {
            for piece in samples.chunks(480) {
                if session.hear(AudioFormat::Pcm24k.encode(piece)).is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    };
    let mut heard = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            LiveEvent::Audio(chunk) => heard.extend(AudioFormat::Pcm24k.decode(&chunk.bytes)),
            LiveEvent::TurnEnded { .. } => break,
            LiveEvent::Closed(reason) => return Err(format!("the session ended: {reason:?}").into()),
            _ => {}
        }
    }
    microphone.await?;
    let report = session.close().await;
    for item in report.history.items() {
        if let LiveItemKind::Message { role, .. } = &item.kind {
            println!("{role:?}: {}", item.text());
        }
    }
    println!("{} ms of answer in {}", heard.len() / 24, answer.display());
    assert!(heard.len() > 24 * 300, "there was an answer");
    std::fs::write(answer, Wav { rate: 24_000, samples: heard }.write())?;
    Ok(())
}

/// Speech, by espeak-ng where it is installed.
fn spoken(text: &str) -> Result<Wav, Failure> {
    match Command::new("espeak-ng").args(["--stdout", text]).output() {
        Ok(output) if output.status.success() => Ok(Wav::read(&output.stdout)?),
        Ok(_) | Err(_) => Ok(Wav { rate: 24_000, samples: tone(800) }),
    }
}
