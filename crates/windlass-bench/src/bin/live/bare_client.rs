//! A bare client: it sends and receives the same messages as a session, with minimal processing.

use std::time::{Duration, Instant};

use data_encoding::BASE64;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::testing::tone;

use crate::stats::ConnectionStats;
use crate::{CHUNK_MS, LiveBenchError, client_timeout};

pub(crate) async fn run_bare_client(address: &str, seconds: u64) -> Result<ConnectionStats, LiveBenchError> {
    match tokio::time::timeout(client_timeout(seconds), exchange_audio(address, seconds)).await {
        Ok(seen) => seen,
        Err(_) => Err(format!("not finished within {:?}", client_timeout(seconds)).into()),
    }
}

async fn exchange_audio(address: &str, seconds: u64) -> Result<ConnectionStats, LiveBenchError> {
    let host = address.trim_start_matches("ws://").split('/').next().unwrap_or_default();
    let stream = tokio::net::TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    let (socket, _) = tokio_tungstenite::client_async(address, stream).await?;
    let (mut sink, mut stream) = socket.split();
    let turns = json!({ "type": "session.update", "session": { "type": "realtime", "audio": { "input": { "turn_detection": null } } } });
    sink.send(Message::text(turns.to_string())).await?;
    let content = json!([{ "type": "input_text", "text": "Speak" }]);
    let item = json!({ "type": "message", "role": "user", "content": content });
    let began = Instant::now();
    for event in
        [json!({ "type": "conversation.item.create", "item": item }), json!({ "type": "response.create" })]
    {
        sink.send(Message::text(event.to_string())).await?;
    }
    let speaking = tokio::spawn(async move {
        let audio = BASE64.encode(&AudioFormat::Pcm24k.encode(&tone(CHUNK_MS)));
        let piece = json!({ "type": "input_audio_buffer.append", "audio": audio }).to_string();
        let mut ticks = tokio::time::interval(Duration::from_millis(CHUNK_MS));
        for _ in 0..seconds * 1000 / CHUNK_MS {
            ticks.tick().await;
            sink.send(Message::text(piece.clone())).await?;
        }
        Ok::<_, tokio_tungstenite::tungstenite::Error>(sink)
    });
    let mut seen = ConnectionStats::default();
    while let Some(message) = stream.next().await {
        let Message::Text(text) = message? else { continue };
        let event: Value = serde_json::from_str(text.as_str())?;
        match event["type"].as_str() {
            Some("response.output_audio.delta") => {
                let bytes = BASE64.decode(event["delta"].as_str().unwrap_or_default().as_bytes())?;
                seen.record_chunk(began, bytes.len() as u64);
            }
            Some("response.done") => break,
            _ => {}
        }
    }
    speaking.await??.close().await?;
    Ok(seen)
}
