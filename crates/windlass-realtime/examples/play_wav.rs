//! Plays a WAV file through a session, and writes the answer as one. It needs no sound hardware and no key.
//!
//! `play_wav [question.wav] [answer.wav] [ws://address]`. Without a question, one is spoken by espeak-ng where that is
//! installed, and hummed otherwise. Without an address, a server of its own answers, which says what it heard.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::audio::{AudioFormat, Wav, resample};
use windlass_realtime::openai::OpenAi;
use windlass_realtime::settings::{LiveSettings, SilenceDetection, TurnDetection};
use windlass_realtime::testing::{Loopback, Reply, tone};
use windlass_realtime::{LiveEvent, LiveItemKind, Realtime};

type Failure = Box<dyn std::error::Error>;

/// The state of an order.
#[tool(effect = pure)]
async fn order(number: u32) -> String {
    format!("order {number} is on its way")
}

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
    let agent = Agent::new("guide").instructions("Answer briefly.").tools((order,));
    let session = Realtime::new(agent, model).settings(settings).connect().await?;
    let mut events = session.events();
    let microphone = {
        let session = session.clone();
        let samples = resample(&question.samples, question.rate, 24_000);
        tokio::spawn(async move {
            // A microphone goes on when nobody speaks, and that is how the end of the question is heard.
            let silence = std::iter::repeat_n(vec![0; 480], 50 * 60);
            let pieces = samples.chunks(480).map(<[i16]>::to_vec).chain(silence);
            let mut ticks = tokio::time::interval(Duration::from_millis(20));
            for piece in pieces {
                ticks.tick().await;
                if session.hear(AudioFormat::Pcm24k.encode(&piece)).is_err() {
                    return;
                }
            }
        })
    };
    let mut heard = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            LiveEvent::Audio(chunk) => heard.extend(AudioFormat::Pcm24k.decode(&chunk.bytes)),
            LiveEvent::TurnEnded { metrics, .. } => {
                println!("first speech after {:?}", metrics.to_first_audio);
                if !heard.is_empty() {
                    break;
                }
            }
            LiveEvent::CallSettled { call, output, .. } => println!("call {call}: {}", output.text()),
            LiveEvent::Error(error) => println!("error: {error}"),
            LiveEvent::Disconnected { reason, .. } => println!("disconnected: {reason}"),
            LiveEvent::Closed(reason) => return Err(format!("the session ended: {reason:?}").into()),
            _ => {}
        }
    }
    let report = session.close().await;
    microphone.await?;
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
