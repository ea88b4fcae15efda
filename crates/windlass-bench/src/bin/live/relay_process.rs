//! Sessions behind a relay, as `windlass talk` has them, and the browsers that use them, in a process of their own.

use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use windlass_bench::measure::BenchClock;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::relay::{serve_browser, upgraded_websocket};
use windlass_realtime::testing::tone;

use crate::session_client::connect_session;
use crate::stats::{ConnectionStats, resident_kib};
use crate::{CHUNK_MS, LiveBenchError, LiveLoad, client_timeout};

/// Relays as many sessions as there are browsers, and prints the memory and the CPU time of this process.
pub(crate) async fn relay_sessions(address: &str, load: LiveLoad) -> Result<(), LiveBenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut browsers = Command::new(std::env::current_exe()?)
        .args(["browser", &listener.local_addr()?.to_string()])
        .args([load.sessions.to_string(), load.seconds.to_string()])
        .spawn()?;
    // The first browser pays the one-time costs that all share.
    relay_next(&listener, address).await?.await??;
    let before = resident_kib();
    let clock = BenchClock::start();
    let middle = Duration::from_millis(load.sessions * 2 + load.seconds * 500);
    let memory = tokio::spawn(async move {
        tokio::time::sleep(middle).await;
        resident_kib().saturating_sub(before)
    });
    let mut relays = Vec::new();
    for _ in 0..load.sessions {
        relays.push(relay_next(&listener, address).await?);
    }
    for relay in relays {
        relay.await??;
    }
    let cpu_ms = clock.stop().cpu * 1000.0 / (load.sessions * load.seconds) as f64;
    println!("Relay: {} KiB each; {cpu_ms:.2} ms of CPU per second of speech", memory.await? / load.sessions);
    match browsers.wait()?.success() {
        true => Ok(()),
        false => Err("the browsers did not complete".into()),
    }
}

type RelayTask = tokio::task::JoinHandle<Result<(), LiveBenchError>>;

async fn relay_next(listener: &TcpListener, address: &str) -> Result<RelayTask, LiveBenchError> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let address = address.to_owned();
    Ok(tokio::spawn(async move {
        let session = connect_session(&address).await?;
        serve_browser(upgraded_websocket(stream).await, &session).await;
        session.close().await;
        Ok(())
    }))
}

/// A browser's side of a relay: it speaks, listens and reports what it played.
pub(crate) async fn run_browser_client(
    address: &str,
    seconds: u64,
) -> Result<ConnectionStats, LiveBenchError> {
    match tokio::time::timeout(client_timeout(seconds), exchange_audio(address, seconds)).await {
        Ok(seen) => seen,
        Err(_) => Err(format!("not finished within {:?}", client_timeout(seconds)).into()),
    }
}

async fn exchange_audio(address: &str, seconds: u64) -> Result<ConnectionStats, LiveBenchError> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let socket = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    let (mut sink, mut stream) = socket.split();
    while let Some(message) = stream.next().await {
        if matches!(message?, Message::Text(text) if text.as_str().contains(r#""type":"live""#)) {
            break;
        }
    }
    let began = Instant::now();
    sink.send(Message::text(json!({ "type": "text", "text": "Speak" }).to_string())).await?;
    let (played_sender, mut played) = tokio::sync::mpsc::unbounded_channel::<(u32, u64)>();
    let speaking = tokio::spawn(async move {
        let piece = AudioFormat::Pcm24k.encode(&tone(CHUNK_MS));
        let mut ticks = tokio::time::interval(Duration::from_millis(CHUNK_MS));
        for _ in 0..seconds * 1000 / CHUNK_MS {
            ticks.tick().await;
            sink.send(Message::binary(piece.clone())).await?;
            while let Ok((track, bytes)) = played.try_recv() {
                let report = json!({ "type": "played", "track": track, "bytes": bytes });
                sink.send(Message::text(report.to_string())).await?;
            }
        }
        Ok::<_, tokio_tungstenite::tungstenite::Error>(sink)
    });
    let mut seen = ConnectionStats::default();
    while let Some(message) = stream.next().await {
        match message? {
            Message::Binary(bytes) => {
                let (track, audio) = bytes.split_at_checked(4).ok_or("an audio message without a track")?;
                seen.record_chunk(began, audio.len() as u64);
                let track = u32::from_le_bytes(track.try_into()?);
                // The last reports may come after the last piece of the microphone.
                let _ = played_sender.send((track, seen.bytes));
            }
            Message::Text(text) => {
                let event: Value = serde_json::from_str(text.as_str())?;
                match event["type"].as_str() {
                    Some("turn_ended") => break,
                    Some("closed") => return Err(format!("the session ended: {event}").into()),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    speaking.await??.close().await?;
    Ok(seen)
}
