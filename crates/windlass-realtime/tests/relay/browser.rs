//! Speech, text and the end of a browser's relay.

use serde_json::json;
use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::relay::{
    BrowserRelay, RelayEnd, serve_browser, upgraded_websocket, websocket_accept_key,
};
use windlass_realtime::testing::{LoopbackReply, LoopbackServer, tone};
use windlass_realtime::{PlaybackSource, RealtimeEvent, RealtimeSession, RealtimeSessionBuilder};

use crate::support::{ClientMessage, TestClient, json_messages, voice_settings};

async fn connect(server: &LoopbackServer) -> RealtimeSession {
    RealtimeSessionBuilder::new(Agent::new("desk"), server.client_model())
        .settings(voice_settings())
        .playback_source(PlaybackSource::Reported)
        .connect()
        .await
        .expect("connects")
}

/// Speaks for half a second, and is silent for a second.
async fn speak(client: &mut TestClient) {
    let mut samples = tone(500);
    samples.extend(vec![0; 24_000]);
    for piece in samples.chunks(480) {
        client.send_audio(AudioFormat::Pcm24k.encode(piece)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_browser_speaks_hears_and_interrupts() {
    let speech = tone(20_000);
    let server = LoopbackServer::new([LoopbackReply::speech("A long tale", speech).with_speed(1)])
        .with_transcriber(|_| "Tell me a tale".to_owned());
    let session = connect(&server).await;
    let (mut client, serving) = TestClient::connect(BrowserRelay::new().notice("a test"), &session).await;
    let ready = client.expect("ready").await;
    assert_eq!((&ready["notice"], &ready["can_decide"]), (&json!("a test"), &json!(false)));
    assert_eq!(ready["input"], json!({ "format": "pcm24k", "sample_rate": 24_000 }));
    client.expect("live").await;

    speak(&mut client).await;
    client.expect("speech_started").await;
    let track = client.expect("track").await["track"].as_u64().expect("a number");
    // Two seconds arrive, and one and a half are played.
    let mut received = 0;
    while received < 96_000 {
        if let Some(ClientMessage::Audio(bytes)) = client.next().await {
            assert_eq!(u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])), track);
            received += bytes.len() - 4;
        }
    }
    client.send(json!({ "type": "played", "track": track, "bytes": 72_000 })).await;
    client.send_audio(AudioFormat::Pcm24k.encode(&tone(300))).await;
    let cut = client.expect("audio_interrupted").await;
    assert_eq!((cut["track"].as_u64(), &cut["heard_ms"]), (Some(track), &json!(1500)));
    assert_eq!(server.client_events(Some("conversation.item.truncate"))[0]["audio_end_ms"], 1500);
    // No audio of the interrupted speech follows.
    client.send(json!({ "type": "text", "text": "Stop" })).await;
    let seen = client.until("text", "Stop").await;
    assert!(!seen.iter().any(|message| matches!(message, ClientMessage::Audio(_))), "{seen:?}");

    client.0.close(None).await.expect("closes");
    while client.next().await.is_some() {}
    assert_eq!(serving.await.expect("ends"), RelayEnd::ClientLeft);
    assert!(!session.is_closed(), "the session goes on without its client");
}

/// A page that is loaded again in the middle of an answer reports positions of its own, which count from there.
#[tokio::test(start_paused = true)]
async fn an_answer_that_two_clients_heard_in_turn_was_heard() {
    let server = LoopbackServer::new([LoopbackReply::speech("A short tale", tone(4_000)).with_speed(1)]);
    let session = connect(&server).await;
    let (mut client, serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    client.expect("live").await;
    client.send(json!({ "type": "text", "text": "Tell" })).await;
    let mut heard = 0;
    while heard < 48_000 {
        if let Some(ClientMessage::Audio(bytes)) = client.next().await {
            heard += bytes.len() - 4;
        }
    }
    client.send(json!({ "type": "played", "track": 1, "bytes": heard })).await;
    client.0.close(None).await.expect("closes");
    while client.next().await.is_some() {}
    serving.await.expect("ends");

    let (mut client, _serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    client.expect("live").await;
    let seen = client.until("type", "audio_ended").await;
    let rest: usize = seen
        .iter()
        .map(|message| match message {
            ClientMessage::Audio(bytes) => bytes.len() - 4,
            ClientMessage::Json(_) => 0,
        })
        .sum();
    assert!(rest <= 192_000 - 48_000, "this client gets the rest: {rest}");
    client.send(json!({ "type": "played", "track": 1, "bytes": rest })).await;
    speak(&mut client).await;
    client.expect("speech_stopped").await;
    assert_eq!(server.client_events(Some("conversation.item.truncate")), Vec::<serde_json::Value>::new());
    let history = session.history().await.expect("is there");
    assert!(history.items().iter().any(|item| item.text() == "A short tale"), "{history:?}");
}

/// A client that connects while the provider's connection is lost is told so.
#[tokio::test(start_paused = true)]
async fn a_client_is_told_that_the_provider_is_lost() {
    let server = LoopbackServer::new([]);
    let session = connect(&server).await;
    server.stall_connections(1);
    let mut events = session.events();
    server.drop_connections();
    while !matches!(events.next().await, Some(RealtimeEvent::Disconnected { .. })) {}
    let (mut client, _serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    assert_eq!(client.expect("live").await["is_connected"], false);
    client.expect("reconnected").await;
    let (mut later, _serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    assert_eq!(later.expect("live").await["is_connected"], true);
}

#[tokio::test(start_paused = true)]
async fn text_is_escaped_and_the_conversation_is_shown_to_a_client_that_comes_later() {
    let server = LoopbackServer::new([LoopbackReply::message("<b>pay \u{202e}001</b>\u{200b}")]);
    let session = connect(&server).await;
    let (mut client, _serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    client.expect("live").await;
    client.send(json!({ "type": "text", "text": "How\u{7} much?" })).await;
    let seen = json_messages(&client.until("type", "turn_ended").await);
    let deltas: String = seen.iter().filter_map(|value| value["delta"].as_str()).collect();
    assert_eq!(deltas, "<b>pay \\u{202e}001</b>\\u{200b}");
    assert!(!json!(seen).to_string().contains('\u{202e}'));

    let (mut later, _serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    let items: Vec<(String, String)> = json_messages(&later.until("type", "live").await)
        .iter()
        .filter(|value| value["type"] == "item")
        .map(|value| {
            let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
            (text("role"), text("text"))
        })
        .collect();
    let expected = [("user", "How\\u{7} much?"), ("assistant", "<b>pay \\u{202e}001</b>\\u{200b}")];
    assert_eq!(items, expected.map(|(role, text)| (role.to_owned(), text.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_reconnection_to_the_provider_is_shown() {
    let server = LoopbackServer::new([]);
    let session = connect(&server).await;
    let (mut client, _serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    client.expect("live").await;
    server.drop_connections();
    assert_eq!(client.expect("disconnected").await["reconnects"], true);
    client.expect("reconnected").await;
    client.send(json!({ "type": "text", "text": "Still there?" })).await;
    client.until("text", "You said: Still there?").await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_session_closes_the_socket() {
    let server = LoopbackServer::new([]);
    let session = connect(&server).await;
    let (mut client, serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    client.expect("live").await;
    session.close().await;
    client.expect("closed").await;
    assert_eq!(client.next().await, None, "a closing handshake");
    assert_eq!(serving.await.expect("ends"), RelayEnd::SessionEnded);
    // A client that comes too late is sent away.
    let (mut late, serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    late.expect("ready").await;
    assert_eq!(late.next().await, None);
    assert_eq!(serving.await.expect("ends"), RelayEnd::SessionEnded);
}

#[tokio::test(start_paused = true)]
async fn bad_clients_are_refused_or_cut_off() {
    let server = LoopbackServer::new([]);
    let session = connect(&server).await;
    let (mut client, serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    client.expect("live").await;
    for bad in [json!([]), json!({ "type": "moon" }), json!({ "type": "text", "text": 1 })] {
        client.send(bad).await;
        client.expect("refused").await;
    }
    // Of a track that does not exist.
    client.send(json!({ "type": "played", "track": 77, "bytes": 1 })).await;
    client.send_audio(vec![0; 300 * 1024]).await;
    assert!(matches!(serving.await.expect("ends"), RelayEnd::SocketFailed(_) | RelayEnd::MessageTooLong));
    assert!(!session.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_cut_off_and_the_session_goes_on() {
    let server = LoopbackServer::new([LoopbackReply::speech("Long", tone(20_000))]);
    let session = connect(&server).await;
    let (_client, stream) = TestClient::new(1024).await;
    let served = session.clone();
    let serving = tokio::spawn(async move { serve_browser(upgraded_websocket(stream).await, &served).await });
    session.send_text("Go").await.expect("is there");
    assert_eq!(serving.await.expect("ends"), RelayEnd::ClientTooSlow);
    assert!(!session.is_closed());
}

#[test]
fn the_accept_key_is_that_of_the_standard() {
    assert_eq!(websocket_accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}
