//! A session that speaks and is spoken to.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use windlass::Agent;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::openai::OpenAi;
use windlass_realtime::settings::{LiveSettings, TurnDetection};
use windlass_realtime::testing::tone;
use windlass_realtime::{LiveEvent, LiveSession, Realtime};

use crate::figures::Seen;
use crate::{Failure, PIECE_MS, bound};

pub(crate) async fn talk(address: &str, seconds: u64) -> Result<Seen, Failure> {
    let stage = Arc::new(Mutex::new("connecting".to_owned()));
    let is_at = |now: String| *stage.lock().unwrap_or_else(PoisonError::into_inner) = now;
    match tokio::time::timeout(bound(seconds), whole(address, seconds, is_at)).await {
        Ok(seen) => seen,
        Err(_) => {
            let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
            Err(format!("no end within {:?}: {stage}", bound(seconds)).into())
        }
    }
}

async fn whole(address: &str, seconds: u64, is_at: impl Fn(String)) -> Result<Seen, Failure> {
    let settings = LiveSettings { turns: TurnDetection::Application, ..LiveSettings::default() };
    let session = Realtime::new(Agent::new("guide"), OpenAi::at(address))
        .settings(settings)
        .patience(Duration::from_secs(60))
        .silence(Duration::from_secs(60), Duration::from_secs(60))
        .connect()
        .await?;
    let mut events = session.events();
    let began = Instant::now();
    is_at("saying something".to_owned());
    session.say("Speak").await?;
    let speaking = tokio::spawn(speak(session.clone(), seconds));
    let mut seen = Seen::default();
    while let Some(event) = events.next().await {
        match event {
            LiveEvent::Audio(chunk) => seen.piece(began, chunk.bytes.len() as u64),
            LiveEvent::TurnEnded { .. } => break,
            LiveEvent::Closed(reason) => return Err(format!("the session ended: {reason:?}").into()),
            other => is_at(format!("after {} bytes, {other:?}", seen.bytes)),
        }
    }
    is_at("closing".to_owned());
    speaking.await?;
    let report = session.close().await;
    seen.dropped = report.metrics.dropped_input + report.metrics.dropped_output;
    Ok(seen)
}

async fn speak(session: LiveSession, seconds: u64) {
    let piece = AudioFormat::Pcm24k.encode(&tone(PIECE_MS));
    let mut ticks = tokio::time::interval(Duration::from_millis(PIECE_MS));
    for _ in 0..seconds * 1000 / PIECE_MS {
        ticks.tick().await;
        if session.hear(piece.clone()).is_err() {
            return;
        }
    }
}
