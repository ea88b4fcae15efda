//! Plays a WAV file through a session and writes the spoken response to another. Needs no sound hardware and no
//! API key.
//!
//! `play_wav [question.wav] [answer.wav] [ws://address]`. Without a question, espeak-ng speaks one if it is
//! installed; otherwise a tone is sent. Without an address, an in-process server responds with the transcript
//! of what it heard.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::audio::{AudioFormat, WavAudio, resample};
use windlass_realtime::openai::OpenAiRealtime;
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{LoopbackReply, LoopbackServer, tone};
use windlass_realtime::{RealtimeEvent, RealtimeItemKind, RealtimeSessionBuilder};

type PlayWavError = Box<dyn std::error::Error>;

/// The state of an order.
#[tool(effect = pure)]
async fn order(number: u32) -> String {
    format!("order {number} is on its way")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), PlayWavError> {
    let mut words = std::env::args().skip(1);
    let question = match words.next() {
        Some(path) => WavAudio::from_bytes(&std::fs::read(path)?)?,
        None => synthesize_speech("What is a windlass?")?,
    };
    let answer = words.next().map_or_else(|| std::env::temp_dir().join("windlass-answer.wav"), PathBuf::from);
    let server = LoopbackServer::with_reply_function(|said| {
        let text = format!("I heard {}.", said.last_user_text());
        let speech = synthesize_speech(&text).map(|wav| resample(&wav.samples, wav.sample_rate, 24_000));
        LoopbackReply::speech(text, speech.unwrap_or_else(|_| tone(1000)))
    });
    let model = words.next().map_or_else(|| server.client_model(), OpenAiRealtime::with_url);

    let turns = TurnDetection::ServerVad(ServerVad::default());
    let settings = RealtimeSettings { turn_detection: turns, ..RealtimeSettings::default() };
    let agent = Agent::new("guide").instructions("Answer briefly.").tool(order);
    let session = RealtimeSessionBuilder::new(agent, model).settings(settings).connect().await?;
    let mut events = session.events();
    let microphone = {
        let session = session.clone();
        let samples = resample(&question.samples, question.sample_rate, 24_000);
        tokio::spawn(async move {
            // A microphone keeps sending after the speech; the silence is how the server detects the end of the
            // question.
            let silence = std::iter::repeat_n(vec![0; 480], 50 * 60);
            let pieces = samples.chunks(480).map(<[i16]>::to_vec).chain(silence);
            let mut ticks = tokio::time::interval(Duration::from_millis(20));
            for piece in pieces {
                ticks.tick().await;
                if session.send_audio(AudioFormat::Pcm24k.encode(&piece)).is_err() {
                    return;
                }
            }
        })
    };
    let mut heard = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            RealtimeEvent::Audio(chunk) => heard.extend(AudioFormat::Pcm24k.decode(&chunk.bytes)),
            RealtimeEvent::TurnEnded { metrics, .. } => {
                println!("first speech after {:?}", metrics.time_to_first_audio);
                if !heard.is_empty() {
                    break;
                }
            }
            RealtimeEvent::CallSettled { call, output, .. } => println!("call {call}: {}", output.text()),
            RealtimeEvent::Error(error) => println!("error: {error}"),
            RealtimeEvent::Disconnected { reason, .. } => println!("disconnected: {reason}"),
            RealtimeEvent::Closed(reason) => return Err(format!("the session ended: {reason:?}").into()),
            _ => {}
        }
    }
    let report = session.close().await;
    microphone.await?;
    for item in report.history.items() {
        if let RealtimeItemKind::Message { role, .. } = &item.kind {
            println!("{role:?}: {}", item.text());
        }
    }
    println!("{} ms of answer in {}", heard.len() / 24, answer.display());
    assert!(heard.len() > 24 * 300, "there was an answer");
    std::fs::write(answer, WavAudio { sample_rate: 24_000, samples: heard }.to_bytes())?;
    Ok(())
}

/// Synthesises speech with espeak-ng if it is installed, and returns a tone otherwise.
fn synthesize_speech(text: &str) -> Result<WavAudio, PlayWavError> {
    match Command::new("espeak-ng").args(["--stdout", text]).output() {
        Ok(output) if output.status.success() => Ok(WavAudio::from_bytes(&output.stdout)?),
        Ok(_) | Err(_) => Ok(WavAudio { sample_rate: 24_000, samples: tone(800) }),
    }
}
