//! A telephone call over a media stream.

use data_encoding::BASE64;
use futures_util::SinkExt;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use windlass::prelude::*;
use windlass_realtime::audio::{AudioFormat, resample};
use windlass_realtime::relay::{PhoneCall, PhoneCallError, PhoneCallStart, RelayEnd, upgraded_websocket};
use windlass_realtime::settings::RealtimeSettings;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer, tone};
use windlass_realtime::{PlaybackSource, RealtimeSession, RealtimeSessionBuilder};

use crate::support::{ClientMessage, TestClient, voice_settings};

fn twilio_start() -> Value {
    json!({
        "event": "start", "sequenceNumber": "1", "streamSid": "MZ1",
        "start": {
            "accountSid": "AC1", "streamSid": "MZ1", "callSid": "CA1", "tracks": ["inbound"],
            "mediaFormat": { "encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1 },
            "customParameters": { "customer": "17" },
        },
    })
}

async fn connect(server: &LoopbackServer, settings: RealtimeSettings) -> RealtimeSession {
    RealtimeSessionBuilder::new(Agent::new("desk"), server.client_model())
        .settings(settings)
        .playback_source(PlaybackSource::Reported)
        .connect()
        .await
        .expect("connects")
}

/// Begins a call, and relays it to a session with its formats or with those given.
async fn call(
    server: &LoopbackServer,
    start: Value,
    settings: Option<RealtimeSettings>,
) -> (TestClient, PhoneCallStart, RealtimeSession, JoinHandle<RelayEnd>) {
    let (mut client, stream) = TestClient::new(1 << 20).await;
    client.send(json!({ "event": "connected", "protocol": "Call", "version": "1.0.0" })).await;
    client.send(start).await;
    let accepted = PhoneCall::accept(upgraded_websocket(stream).await).await.expect("it begins");
    let start = accepted.start().clone();
    let settings = settings.unwrap_or_else(|| start.apply_format(voice_settings()));
    let session = connect(server, settings).await;
    let relayed = session.clone();
    let serving = tokio::spawn(async move { accepted.serve(&relayed).await });
    (client, start, session, serving)
}

/// Speaks into the telephone, in pieces of 20 ms.
async fn speak(client: &mut TestClient, format: AudioFormat, speech_ms: u64, silence_ms: u64) {
    let mut samples = resample(&tone(speech_ms), 24_000, 8_000);
    samples.extend(vec![0; silence_ms as usize * 8]);
    for piece in samples.chunks(160) {
        let payload = BASE64.encode(&format.encode(piece));
        client.send(json!({ "event": "media", "media": { "track": "inbound", "payload": payload } })).await;
    }
}

/// Reads media until `bytes` of it arrived, and returns the names of the marks.
async fn hear(client: &mut TestClient, bytes: usize) -> Vec<String> {
    let (mut heard, mut marks) = (0, Vec::new());
    while heard < bytes || marks.is_empty() {
        let Some(ClientMessage::Json(value)) = client.next().await else { panic!("no message") };
        match value["event"].as_str() {
            Some("media") => {
                let payload = value["media"]["payload"].as_str().expect("audio");
                heard += BASE64.decode(payload.as_bytes()).expect("base64").len();
            }
            Some("mark") => marks.push(value["mark"]["name"].as_str().expect("a name").to_owned()),
            other => panic!("{other:?}"),
        }
    }
    marks
}

#[tokio::test(start_paused = true)]
async fn a_caller_speaks_hears_interrupts_and_hangs_up() {
    let server = LoopbackServer::new([LoopbackReply::speech("A long tale", tone(20_000)).with_speed(1)]);
    let (mut client, start, session, serving) = call(&server, twilio_start(), None).await;
    assert_eq!(
        (start.stream_id.as_str(), start.call_id.as_deref(), &start.parameters["customer"], start.format),
        ("MZ1", Some("CA1"), &json!("17"), AudioFormat::Ulaw)
    );
    let update = &server.client_events(Some("session.update"))[0]["session"]["audio"];
    assert_eq!(
        (&update["input"]["format"]["type"], &update["output"]["format"]["type"]),
        (&json!("audio/pcmu"), &json!("audio/pcmu"))
    );

    speak(&mut client, start.format, 500, 1000).await;
    // The agent's own speech, which a stream of both tracks repeats, is not the caller's.
    let own = BASE64.encode(&start.format.encode(&resample(&tone(300), 24_000, 8_000)));
    client.send(json!({ "event": "media", "media": { "track": "outbound", "payload": own } })).await;
    client.send(json!({ "event": "dtmf", "dtmf": { "digit": "5" } })).await;
    // Three seconds arrive, and the provider has played two of them.
    let marks = hear(&mut client, 24_000).await;
    for name in &marks[..20] {
        client.send(json!({ "event": "mark", "streamSid": "MZ1", "mark": { "name": name } })).await;
    }
    speak(&mut client, start.format, 300, 0).await;
    loop {
        let Some(ClientMessage::Json(value)) = client.next().await else { panic!("no message") };
        if value["event"] == "clear" {
            assert_eq!(value, json!({ "event": "clear", "streamSid": "MZ1" }));
            break;
        }
    }
    // The provider returns the marks of cleared audio too; they do not count.
    for name in &marks[20..] {
        client.send(json!({ "event": "mark", "streamSid": "MZ1", "mark": { "name": name } })).await;
    }
    assert_eq!(server.client_events(Some("conversation.item.truncate"))[0]["audio_end_ms"], 2000);
    client.send(json!({ "event": "stop", "streamSid": "MZ1" })).await;
    assert_eq!(serving.await.expect("ends"), RelayEnd::ClientLeft);
    let report = session.close().await;
    assert_eq!(report.metrics.dropped_input_chunks, 0);
}

/// A media stream that begins in the middle of an answer, as after a transfer, reports positions in the whole answer.
#[tokio::test(start_paused = true)]
async fn marks_of_a_later_stream_count_from_its_beginning() {
    let server = LoopbackServer::new([LoopbackReply::speech("A long tale", tone(20_000)).with_speed(1)]);
    let (mut client, start, session, serving) = call(&server, twilio_start(), None).await;
    session.send_text("Tell").await.expect("is there");
    hear(&mut client, 16_000).await;
    client.send(json!({ "event": "stop", "streamSid": "MZ1" })).await;
    serving.await.expect("ends");

    let (mut client, stream) = TestClient::new(1 << 20).await;
    client.send(twilio_start()).await;
    let accepted = PhoneCall::accept(upgraded_websocket(stream).await).await.expect("it begins");
    let relayed = session.clone();
    let _serving = tokio::spawn(async move { accepted.serve(&relayed).await });
    let marks = hear(&mut client, 8_000).await;
    client.send(json!({ "event": "mark", "mark": { "name": marks[marks.len() - 1] } })).await;
    speak(&mut client, start.format, 300, 0).await;
    while server.client_events(Some("conversation.item.truncate")).is_empty() {
        client.next().await;
    }
    let cut = &server.client_events(Some("conversation.item.truncate"))[0];
    assert!(
        cut["audio_end_ms"].as_u64().is_some_and(|ms| ms >= 2800),
        "two seconds before, and one here: {cut}"
    );
}

#[tokio::test(start_paused = true)]
async fn another_providers_names_and_another_format_are_understood() {
    let server = LoopbackServer::new([LoopbackReply::speech("Hello", tone(1000))]);
    let start = json!({
        "event": "start", "stream_id": "s-1",
        "start": { "call_control_id": "c-1", "media_format": { "encoding": "PCMA", "sample_rate": 8000 } },
    });
    // The session has its own format, and the relay converts.
    let (mut client, start, session, serving) = call(&server, start, Some(voice_settings())).await;
    assert_eq!((start.format, session.input_format()), (AudioFormat::Alaw, AudioFormat::Pcm24k));
    speak(&mut client, start.format, 500, 1000).await;
    // One second, in eight bits at 8 kHz.
    let marks = hear(&mut client, 8_000).await;
    client.send(json!({ "event": "mark", "mark": { "name": marks[marks.len() - 1] } })).await;
    session.close().await;
    assert_eq!(serving.await.expect("ends"), RelayEnd::SessionEnded);
}

#[tokio::test(start_paused = true)]
async fn calls_that_cannot_be_relayed_are_refused() {
    let format = |encoding: &str, rate: u32| {
        let mut start = twilio_start();
        start["start"]["mediaFormat"] = json!({ "encoding": encoding, "sampleRate": rate });
        start
    };
    for (message, is_format) in [
        (format("audio/l16", 16_000), true),
        (format("audio/x-mulaw", 16_000), true),
        (json!({ "event": "start", "start": {} }), false),
        (json!(["start"]), false),
    ] {
        let (mut client, stream) = TestClient::new(1 << 16).await;
        client.send(message.clone()).await;
        let error = PhoneCall::accept(upgraded_websocket(stream).await).await.expect_err("is refused");
        assert_eq!(matches!(error, PhoneCallError::UnsupportedFormat(_)), is_format, "{message}: {error}");
    }
    let (mut client, stream) = TestClient::new(1 << 16).await;
    client.0.send(Message::binary(vec![1, 2, 3])).await.expect("is there");
    let error = PhoneCall::accept(upgraded_websocket(stream).await).await.expect_err("is refused");
    assert!(matches!(error, PhoneCallError::NotMediaStream(_)), "{error}");
    // Nobody begins the stream.
    let (_client, stream) = TestClient::new(1 << 16).await;
    let error = PhoneCall::accept(upgraded_websocket(stream).await).await.expect_err("is refused");
    assert_eq!(error, PhoneCallError::NotStarted);
}
