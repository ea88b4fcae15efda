//! Clients of a relay: WebSockets through a pipe.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use windlass_realtime::RealtimeSession;
use windlass_realtime::relay::{BrowserRelay, RelayEnd, upgraded_websocket};
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};

/// A timeout that is long enough on a paused clock.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);

/// The client's end of a socket.
pub(crate) struct TestClient(pub(crate) WebSocketStream<DuplexStream>);

impl TestClient {
    /// Creates the client, and returns the server's end of its connection.
    pub(crate) async fn new(buffer: usize) -> (Self, DuplexStream) {
        let (client, server) = tokio::io::duplex(buffer);
        (Self(WebSocketStream::from_raw_socket(client, Role::Client, None).await), server)
    }

    /// Connects a browser to a session.
    pub(crate) async fn connect(
        relay: BrowserRelay,
        session: &RealtimeSession,
    ) -> (Self, JoinHandle<RelayEnd>) {
        let (client, server) = Self::new(1 << 20).await;
        let session = session.clone();
        let serving =
            tokio::spawn(async move { relay.serve(upgraded_websocket(server).await, &session).await });
        (client, serving)
    }

    pub(crate) async fn send(&mut self, value: Value) {
        self.0.send(Message::text(value.to_string())).await.expect("the relay is there");
    }

    pub(crate) async fn send_audio(&mut self, audio: Vec<u8>) {
        self.0.send(Message::binary(audio)).await.expect("the relay is there");
    }

    /// Returns the next message; `None` after the close frame.
    pub(crate) async fn next(&mut self) -> Option<ClientMessage> {
        loop {
            let message = tokio::time::timeout(TEST_TIMEOUT, self.0.next()).await.expect("in time");
            match message {
                Some(Ok(Message::Text(text))) => {
                    let value = serde_json::from_str(text.as_str()).expect("it is JSON");
                    return Some(ClientMessage::Json(value));
                }
                Some(Ok(Message::Binary(bytes))) => return Some(ClientMessage::Audio(bytes.to_vec())),
                Some(Ok(Message::Close(_))) | None => return None,
                Some(Ok(_)) => {}
                Some(Err(error)) => panic!("{error}"),
            }
        }
    }

    /// Returns the messages up to the first object with this field and value, inclusive.
    pub(crate) async fn until(&mut self, field: &str, wanted: &str) -> Vec<ClientMessage> {
        let mut seen = Vec::new();
        while let Some(message) = self.next().await {
            let is_it = matches!(&message, ClientMessage::Json(value) if value[field] == wanted);
            seen.push(message);
            if is_it {
                return seen;
            }
        }
        panic!("no message with {field} = {wanted}: {seen:?}")
    }

    /// Returns the first object with this type.
    pub(crate) async fn expect(&mut self, kind: &str) -> Value {
        match self.until("type", kind).await.pop() {
            Some(ClientMessage::Json(value)) => value,
            other => panic!("{other:?}"),
        }
    }
}

/// A message of the relay.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClientMessage {
    Json(Value),
    Audio(Vec<u8>),
}

/// Returns the objects among messages.
pub(crate) fn json_messages(messages: &[ClientMessage]) -> Vec<Value> {
    let value = |message: &ClientMessage| match message {
        ClientMessage::Json(value) => Some(value.clone()),
        ClientMessage::Audio(_) => None,
    };
    messages.iter().filter_map(value).collect()
}

/// Returns settings by which the test server detects the user's turns.
pub(crate) fn voice_settings() -> RealtimeSettings {
    let turn_detection = TurnDetection::ServerVad(ServerVad::default());
    RealtimeSettings { turn_detection, ..RealtimeSettings::default() }
}
