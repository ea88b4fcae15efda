//! The WebSocket connection: sending and receiving of messages, and liveness checks by ping.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use windlass_net::ByteStream;

use super::decode::RealtimeEventDecoder;
use super::encode::encode_command;
use super::sent_configurations::SentConfigurations;
use crate::model::{
    CommandSink, ModelEventSource, RealtimeCommand, RealtimeCommandKind, RealtimeConnection,
    RealtimeConnectionError, RealtimeModelEvent,
};
use crate::sync::sleep_until_deadline;

type RealtimeSocket = WebSocketStream<Box<dyn ByteStream>>;
type SharedSocketSink = Arc<Mutex<SplitSink<RealtimeSocket, Message>>>;

/// Settings of a WebSocket connection.
#[derive(Clone, Debug)]
pub(super) struct SocketSettings {
    /// The model named in each configuration.
    pub(super) model: Option<String>,
    /// Silence after which the server is pinged.
    pub(super) ping_interval: Duration,
    /// Silence after a ping after which the connection counts as lost; it never does if absent.
    pub(super) ping_timeout: Option<Duration>,
    /// True if every event is also passed on unchanged.
    pub(super) has_raw_events: bool,
}

pub(super) fn into_connection(socket: RealtimeSocket, settings: SocketSettings) -> RealtimeConnection {
    let (sink, stream) = socket.split();
    let sink = Arc::new(Mutex::new(sink));
    let sent_configurations = SentConfigurations::default();
    let model = settings.model.clone();
    let events = SocketEventSource {
        stream,
        sink: sink.clone(),
        decoder: RealtimeEventDecoder::with_sent_configurations(sent_configurations.clone()),
        decoded_events: VecDeque::new(),
        settings,
        last_received: Instant::now(),
        is_ping_sent: false,
    };
    let commands = SocketCommandSink { sink, model, sent_configurations };
    RealtimeConnection { commands: Box::new(commands), events: Box::new(events) }
}

/// Time to send the reply to a close frame.
const CLOSE_REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The sending half of a WebSocket connection.
struct SocketCommandSink {
    sink: SharedSocketSink,
    model: Option<String>,
    sent_configurations: SentConfigurations,
}

impl CommandSink for SocketCommandSink {
    fn send(&mut self, command: RealtimeCommand) -> BoxFuture<'_, Result<(), RealtimeConnectionError>> {
        async move {
            let mut event = encode_command(&command, self.model.as_deref());
            if matches!(command.kind, RealtimeCommandKind::Configure(_)) {
                self.sent_configurations.record_sent(&command.id, &mut event["session"]);
            }
            let text = event.to_string();
            self.sink.lock().await.send(Message::text(text)).await.map_err(|error| to_connection_lost(&error))
        }
        .boxed()
    }

    fn close(&mut self) -> BoxFuture<'_, Result<(), RealtimeConnectionError>> {
        async move {
            let goodbye = CloseFrame { code: CloseCode::Normal, reason: "".into() };
            let mut sink = self.sink.lock().await;
            sink.send(Message::Close(Some(goodbye))).await.map_err(|error| to_connection_lost(&error))
        }
        .boxed()
    }
}

/// The receiving half of a WebSocket connection.
struct SocketEventSource {
    stream: SplitStream<RealtimeSocket>,
    sink: SharedSocketSink,
    decoder: RealtimeEventDecoder,
    decoded_events: VecDeque<RealtimeModelEvent>,
    settings: SocketSettings,
    last_received: Instant,
    is_ping_sent: bool,
}

impl ModelEventSource for SocketEventSource {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<RealtimeModelEvent, RealtimeConnectionError>>> {
        async move {
            loop {
                if let Some(event) = self.decoded_events.pop_front() {
                    return Some(Ok(event));
                }
                let SocketSettings { ping_interval, ping_timeout, .. } = self.settings;
                let silence = match (self.is_ping_sent, ping_timeout) {
                    (false, _) => Some(ping_interval),
                    (true, Some(timeout)) => Some(ping_interval.saturating_add(timeout)),
                    (true, None) => None,
                };
                let deadline = silence.and_then(|silence| self.last_received.checked_add(silence));
                let message = tokio::select! {
                    biased;
                    message = self.stream.next() => message,
                    () = sleep_until_deadline(deadline) => {
                        if self.is_ping_sent {
                            return Some(Err(RealtimeConnectionError::new("the server stopped responding")));
                        }
                        self.is_ping_sent = true;
                        // If the writer holds the sink, it detects a dead connection itself. A server that does
                        // not read must not keep us from receiving its messages.
                        if let Ok(mut sink) = self.sink.try_lock() {
                            let ping = sink.send(Message::Ping(Default::default()));
                            if let Ok(Err(error)) = tokio::time::timeout(ping_interval, ping).await {
                                return Some(Err(to_connection_lost(&error)));
                            }
                        }
                        continue;
                    }
                };
                (self.last_received, self.is_ping_sent) = (Instant::now(), false);
                match message {
                    Some(Ok(Message::Text(text))) => {
                        if self.settings.has_raw_events
                            && let Ok(raw) = serde_json::from_str(text.as_str())
                        {
                            self.decoded_events.push_back(RealtimeModelEvent::Raw(raw));
                        }
                        self.decoded_events.extend(self.decoder.decode(text.as_str()))
                    }
                    Some(Ok(Message::Close(frame))) => {
                        // The flush sends the reply to the close frame.
                        if let Ok(mut sink) = self.sink.try_lock() {
                            let _ = tokio::time::timeout(CLOSE_REPLY_TIMEOUT, sink.flush()).await;
                        }
                        return interpret_close(frame);
                    }
                    Some(Ok(
                        Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_),
                    )) => {}
                    Some(Err(error)) => return Some(Err(to_connection_lost(&error))),
                    None => {
                        return Some(Err(RealtimeConnectionError::new(
                            "the connection ended without a close frame",
                        )));
                    }
                }
            }
        }
        .boxed()
    }
}

/// Interprets a close frame: `None` for an orderly close, otherwise the loss of the connection.
fn interpret_close(frame: Option<CloseFrame>) -> Option<Result<RealtimeModelEvent, RealtimeConnectionError>> {
    let Some(CloseFrame { code, reason }) = frame else {
        return Some(Err(RealtimeConnectionError::new("the server closed the connection without a reason")));
    };
    let message = format!("the server closed the connection with code {}: {reason}", u16::from(code));
    match u16::from(code) {
        1000 => None,
        1001 | 1005 | 1006 | 1011..=1013 | 1015 => Some(Err(RealtimeConnectionError::new(message))),
        _ => Some(Err(RealtimeConnectionError::permanent(message))),
    }
}

fn to_connection_lost(error: &Error) -> RealtimeConnectionError {
    match error {
        Error::Capacity(_) | Error::Protocol(_) if !is_connection_reset(error) => {
            RealtimeConnectionError::permanent(error.to_string())
        }
        _ => RealtimeConnectionError::new(error.to_string()),
    }
}

fn is_connection_reset(error: &Error) -> bool {
    use tokio_tungstenite::tungstenite::error::ProtocolError;
    matches!(error, Error::Protocol(ProtocolError::ResetWithoutClosingHandshake))
}

pub(super) fn to_connect_error(error: &Error) -> RealtimeConnectionError {
    match error {
        Error::Http(response) => {
            let status = response.status();
            let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let body: String = body.chars().take(500).collect();
            let message = format!("the server responded with {status}: {body}");
            match status.as_u16() {
                408 | 409 | 425 | 429 | 500.. => RealtimeConnectionError::new(message),
                _ => RealtimeConnectionError::permanent(message),
            }
        }
        Error::Url(_) | Error::HttpFormat(_) => RealtimeConnectionError::permanent(error.to_string()),
        _ => RealtimeConnectionError::new(error.to_string()),
    }
}
