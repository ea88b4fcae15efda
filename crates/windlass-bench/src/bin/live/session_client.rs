//! A session client that sends and receives audio.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use windlass::agent::Agent;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::openai::OpenAiRealtime;
use windlass_realtime::settings::{RealtimeSettings, TurnDetection};
use windlass_realtime::testing::tone;
use windlass_realtime::{RealtimeEvent, RealtimeSession, RealtimeSessionBuilder};

use crate::stats::ConnectionStats;
use crate::{CHUNK_MS, LiveBenchError, client_timeout};

pub(crate) async fn run_session_client(
    address: &str,
    seconds: u64,
) -> Result<ConnectionStats, LiveBenchError> {
    let stage = Arc::new(Mutex::new("connecting".to_owned()));
    let is_at = |now: String| *stage.lock().unwrap_or_else(PoisonError::into_inner) = now;
    match tokio::time::timeout(client_timeout(seconds), exchange_audio(address, seconds, is_at)).await {
        Ok(seen) => seen,
        Err(_) => {
            let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
            Err(format!("not finished within {:?}: {stage}", client_timeout(seconds)).into())
        }
    }
}

/// Connects a session whose turns the application detects.
pub(crate) async fn connect_session(address: &str) -> Result<RealtimeSession, LiveBenchError> {
    let settings =
        RealtimeSettings { turn_detection: TurnDetection::Application, ..RealtimeSettings::default() };
    let session = RealtimeSessionBuilder::new(Agent::new("guide"), OpenAiRealtime::with_url(address))
        .settings(settings)
        .ready_timeout(Duration::from_secs(60))
        .response_timeouts(Duration::from_secs(60), Duration::from_secs(60))
        .connect()
        .await?;
    Ok(session)
}

async fn exchange_audio(
    address: &str,
    seconds: u64,
    is_at: impl Fn(String),
) -> Result<ConnectionStats, LiveBenchError> {
    let session = connect_session(address).await?;
    let mut events = session.events();
    let began = Instant::now();
    is_at("saying something".to_owned());
    session.send_text("Speak").await?;
    let speaking = tokio::spawn(send_tone(session.clone(), seconds));
    let mut seen = ConnectionStats::default();
    while let Some(event) = events.next().await {
        match event {
            RealtimeEvent::Audio(chunk) => seen.record_chunk(began, chunk.bytes.len() as u64),
            RealtimeEvent::TurnEnded { .. } => break,
            RealtimeEvent::Closed(reason) => return Err(format!("the session ended: {reason:?}").into()),
            other => is_at(format!("after {} bytes, {other:?}", seen.bytes)),
        }
    }
    is_at("closing".to_owned());
    speaking.await?;
    let report = session.close().await;
    seen.dropped = report.metrics.dropped_input_chunks + report.metrics.dropped_output_chunks;
    Ok(seen)
}

async fn send_tone(session: RealtimeSession, seconds: u64) {
    let piece = AudioFormat::Pcm24k.encode(&tone(CHUNK_MS));
    let mut ticks = tokio::time::interval(Duration::from_millis(CHUNK_MS));
    for _ in 0..seconds * 1000 / CHUNK_MS {
        ticks.tick().await;
        if session.send_audio(piece.clone()).is_err() {
            return;
        }
    }
}
