//! The server: connections through pipes or TCP, each with its own conversation.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::http::Uri;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use windlass_net::{ByteStream, StreamDialer, TransportError};

use super::conversation::LoopbackConversation;
use super::fault::{ErrorNames, FaultAction, FaultTrigger, WireFault, take_due_fault};
use super::reply::{ConversationView, LoopbackReply, ReplyFunction};
use super::speech::SpeechTranscriber;
use crate::openai::OpenAiRealtime;
use crate::sync::{lock, sleep_until_deadline};

/// An in-process server for OpenAI's Realtime API. Clones refer to the same server.
#[derive(Clone)]
pub struct LoopbackServer {
    shared: Arc<LoopbackState>,
}

/// State shared by all clones and connections of the server.
struct LoopbackState {
    behaviour: Mutex<LoopbackBehaviour>,
    faults: Mutex<Vec<WireFault>>,
    connections_to_refuse: AtomicU64,
    connections_to_stall: AtomicU64,
    stalled_count: AtomicU64,
    connection_count: AtomicU64,
    is_recording_disabled: AtomicBool,
    wire_log: Mutex<Vec<WireRecord>>,
    /// The conversation of the last connection, if conversations are kept.
    kept_conversation: Mutex<Option<LoopbackConversation>>,
    /// Number of times all connections were dropped.
    disconnect_count: watch::Sender<u64>,
    /// Number of times all connections were frozen.
    freeze_count: watch::Sender<u64>,
}

/// The scripted behaviour of the server.
#[derive(Clone)]
pub(super) struct LoopbackBehaviour {
    pub(super) respond: ReplyFunction,
    pub(super) transcribe: SpeechTranscriber,
    pub(super) has_restarting_ids: bool,
    pub(super) is_conversation_kept: bool,
}

/// A record of an event on the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct WireRecord {
    /// Number of the connection, from 1.
    pub connection: u64,
    /// The sender.
    pub sender: WireSender,
    /// The event.
    pub event: Value,
    /// The id of the response that was in progress before the event.
    pub active_response: Option<String>,
    /// The time.
    pub at: Instant,
}

impl WireRecord {
    /// Returns true if a response was in progress before the event.
    pub fn is_responding(&self) -> bool {
        self.active_response.is_some()
    }
}

/// The sender of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WireSender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// Maximum number of recorded events.
const MAX_WIRE_RECORDS: usize = 100_000;

/// Delay after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

impl LoopbackServer {
    /// Creates a server that sends these responses, one after another. Then it repeats the last message or the
    /// new call outputs.
    pub fn new(replies: impl IntoIterator<Item = LoopbackReply>) -> Self {
        let replies: Mutex<VecDeque<LoopbackReply>> = Mutex::new(replies.into_iter().collect());
        Self::with_reply_function(move |said| {
            let next = lock(&replies).pop_front();
            next.unwrap_or_else(|| match said.new_call_outputs().as_slice() {
                [] => LoopbackReply::message(format!("You said: {}", said.last_user_text())),
                outputs => LoopbackReply::message(format!("The result is {}", outputs.join(", "))),
            })
        })
    }

    /// Creates a server whose responses this function computes.
    pub fn with_reply_function(
        respond: impl Fn(&ConversationView) -> LoopbackReply + Send + Sync + 'static,
    ) -> Self {
        let transcribe: SpeechTranscriber =
            Arc::new(|samples: &[i16]| format!("{} ms of speech", samples.len() / 24));
        let behaviour = LoopbackBehaviour {
            respond: Arc::new(respond),
            transcribe,
            has_restarting_ids: false,
            is_conversation_kept: false,
        };
        Self {
            shared: Arc::new(LoopbackState {
                behaviour: Mutex::new(behaviour),
                faults: Mutex::default(),
                connections_to_refuse: AtomicU64::new(0),
                connections_to_stall: AtomicU64::new(0),
                stalled_count: AtomicU64::new(0),
                connection_count: AtomicU64::new(0),
                is_recording_disabled: AtomicBool::new(false),
                wire_log: Mutex::default(),
                kept_conversation: Mutex::default(),
                disconnect_count: watch::Sender::new(0),
                freeze_count: watch::Sender::new(0),
            }),
        }
    }

    /// Sets the function that transcribes the user's speech.
    #[must_use]
    pub fn with_transcriber(self, transcribe: impl Fn(&[i16]) -> String + Send + Sync + 'static) -> Self {
        lock(&self.shared.behaviour).transcribe = Arc::new(transcribe);
        self
    }

    /// Numbers responses and items from one again on each connection, as some providers do.
    #[must_use]
    pub fn with_restarting_ids(self) -> Self {
        lock(&self.shared.behaviour).has_restarting_ids = true;
        self
    }

    /// Keeps the conversation of a lost connection, and goes on with it, as a provider does with that of a telephone call.
    /// The next connection attaches to it.
    #[must_use]
    pub fn with_kept_conversation(self) -> Self {
        lock(&self.shared.behaviour).is_conversation_kept = true;
        self
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        lock(&self.shared.faults).clear();
    }

    /// Adds a fault.
    pub fn inject_fault(&self, fault: WireFault) {
        lock(&self.shared.faults).push(fault);
    }

    /// Refuses the next `count` connections.
    pub fn refuse_connections(&self, count: u64) {
        self.shared.connections_to_refuse.store(count, Ordering::Relaxed);
    }

    /// Leaves the next `count` connection attempts without an answer, as a network that drops every packet does.
    pub fn stall_connections(&self, count: u64) {
        self.shared.connections_to_stall.store(count, Ordering::Relaxed);
    }

    /// Returns the number of connection attempts that had no answer.
    pub fn stalled_count(&self) -> u64 {
        self.shared.stalled_count.load(Ordering::Relaxed)
    }

    /// Drops every open connection without a close frame.
    pub fn drop_connections(&self) {
        self.shared.disconnect_count.send_modify(|times| *times += 1);
    }

    /// Stops reading from and writing to every open connection, and keeps them open. Pings have no reply.
    pub fn freeze_connections(&self) {
        self.shared.freeze_count.send_modify(|times| *times += 1);
    }

    /// Returns a model that connects to this server through a pipe.
    pub fn client_model(&self) -> OpenAiRealtime {
        OpenAiRealtime::with_url("ws://loopback/v1/realtime").model("loopback").dialer(self.clone())
    }

    /// Accepts clients on a local port chosen by the system. Aborting the task stops it.
    pub async fn listen(&self) -> std::io::Result<(SocketAddr, JoinHandle<()>)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let server = self.clone();
        let task = tokio::spawn(async move {
            loop {
                let stream = match listener.accept().await {
                    Ok((stream, _)) => stream,
                    // A client that disconnected early, or too many open files, must not end the server.
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a client");
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                        continue;
                    }
                };
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "cannot set TCP_NODELAY; small messages may be delayed");
                }
                tokio::spawn(server.clone().serve_connection(stream));
            }
        });
        Ok((address, task))
    }

    /// Returns the number of connections so far.
    pub fn connection_count(&self) -> u64 {
        self.shared.connection_count.load(Ordering::Relaxed)
    }

    /// Returns all recorded events.
    pub fn wire_log(&self) -> Vec<WireRecord> {
        lock(&self.shared.wire_log).clone()
    }

    /// Returns the events of the clients, of one type if given.
    pub fn client_events(&self, kind: Option<&str>) -> Vec<Value> {
        let is_it = |seen: &&WireRecord| {
            seen.sender == WireSender::Client && kind.is_none_or(|kind| seen.event["type"] == kind)
        };
        lock(&self.shared.wire_log).iter().filter(is_it).map(|seen| seen.event.clone()).collect()
    }

    /// Stops recording events, for tests with thousands of sessions.
    pub fn disable_recording(&self) {
        self.shared.is_recording_disabled.store(true, Ordering::Relaxed);
    }

    async fn serve_connection(self, stream: impl ByteStream) {
        let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
        let connection = self.shared.connection_count.fetch_add(1, Ordering::Relaxed) + 1;
        let behaviour = lock(&self.shared.behaviour).clone();
        let disconnects = self.shared.disconnect_count.subscribe();
        let freezes = self.shared.freeze_count.subscribe();
        let mut link = LoopbackConnection {
            server: self,
            connection,
            delayed_events: Vec::new(),
            is_muted: false,
            socket,
            disconnects,
            freezes,
        };
        let is_kept = behaviour.is_conversation_kept;
        let kept = lock(&link.server.shared.kept_conversation).take();
        let mut conversation = match kept {
            Some(kept) => kept.reattached(Instant::now()),
            None => LoopbackConversation::new(behaviour, connection),
        };
        let _ = link.run_conversation(&mut conversation).await;
        if is_kept {
            *lock(&link.server.shared.kept_conversation) = Some(conversation);
        }
    }
}

impl StreamDialer for LoopbackServer {
    fn open_stream<'a>(&'a self, _: &'a Uri) -> BoxFuture<'a, Result<Box<dyn ByteStream>, TransportError>> {
        let left = self.shared.connections_to_refuse.load(Ordering::Relaxed);
        if left > 0 {
            self.shared.connections_to_refuse.store(left - 1, Ordering::Relaxed);
            let refused = TransportError::Unreachable("the server refuses connections".to_owned());
            return std::future::ready(Err(refused)).boxed();
        }
        let left = self.shared.connections_to_stall.load(Ordering::Relaxed);
        if left > 0 {
            self.shared.connections_to_stall.store(left - 1, Ordering::Relaxed);
            self.shared.stalled_count.fetch_add(1, Ordering::Relaxed);
            return std::future::pending().boxed();
        }
        let (client, server) = tokio::io::duplex(256 * 1024);
        tokio::spawn(self.clone().serve_connection(server));
        std::future::ready(Ok(Box::new(client) as Box<dyn ByteStream>)).boxed()
    }
}

/// The connection is gone.
struct ConnectionGone;

/// One connection.
struct LoopbackConnection<S> {
    server: LoopbackServer,
    connection: u64,
    delayed_events: Vec<(Instant, Value)>,
    is_muted: bool,
    socket: WebSocketStream<S>,
    disconnects: watch::Receiver<u64>,
    freezes: watch::Receiver<u64>,
}

impl<S: ByteStream> LoopbackConnection<S> {
    async fn run_conversation(
        &mut self,
        conversation: &mut LoopbackConversation,
    ) -> Result<(), ConnectionGone> {
        loop {
            for event in conversation.take_outgoing() {
                conversation.record_sent_item(&event);
                self.send_event(event, conversation).await?;
            }
            let late = self.delayed_events.iter().map(|(at, _)| *at).min();
            let next = [conversation.next_due(), late].into_iter().flatten().min();
            tokio::select! {
                biased;
                Ok(()) = self.disconnects.changed() => return Err(ConnectionGone),
                Ok(()) = self.freezes.changed() => {
                    let _ = self.disconnects.changed().await;
                    return Err(ConnectionGone);
                }
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => self.handle_message(text.as_str(), conversation).await?,
                    Some(Ok(Message::Close(_))) => {
                        // The flush sends the reply to the close frame.
                        let _ = self.socket.flush().await;
                        return Ok(());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Err(ConnectionGone),
                },
                () = sleep_until_deadline(next) => {
                    let now = Instant::now();
                    let (due, later) = std::mem::take(&mut self.delayed_events).into_iter().partition(|(at, _)| *at <= now);
                    self.delayed_events = later;
                    let due: Vec<(Instant, Value)> = due;
                    for (_, event) in due {
                        self.record_event(WireSender::Server, &event, conversation);
                        self.write_event(event).await?;
                    }
                    conversation.advance(now);
                }
            }
        }
    }

    fn record_event(&self, sender: WireSender, event: &Value, conversation: &LoopbackConversation) {
        let shared = &self.server.shared;
        if shared.is_recording_disabled.load(Ordering::Relaxed) {
            return;
        }
        let mut records = lock(&shared.wire_log);
        // Audio events are large and no test reads them.
        let is_audio =
            event["type"] == "input_audio_buffer.append" || event["type"] == "response.output_audio.delta";
        if records.len() < MAX_WIRE_RECORDS && !is_audio {
            records.push(WireRecord {
                connection: self.connection,
                sender,
                event: event.clone(),
                active_response: conversation.active_response().map(str::to_owned),
                at: Instant::now(),
            });
        }
    }

    async fn handle_message(
        &mut self,
        text: &str,
        conversation: &mut LoopbackConversation,
    ) -> Result<(), ConnectionGone> {
        let event: Value = serde_json::from_str(text).unwrap_or_default();
        self.record_event(WireSender::Client, &event, conversation);
        let trigger = FaultTrigger::on_receive(event["type"].as_str().unwrap_or_default());
        let fault = take_due_fault(&mut lock(&self.server.shared.faults), &trigger);
        match fault {
            None | Some(FaultAction::Delay(_)) => conversation.handle_event(&event),
            Some(FaultAction::Drop) => {}
            Some(FaultAction::Duplicate) => {
                conversation.handle_event(&event);
                conversation.handle_event(&event);
            }
            Some(FaultAction::Reject { code, names }) => {
                let event = if names == ErrorNames::Nothing { Value::Null } else { event };
                conversation.queue_error(&event, &code, "as the test wants it")
            }
            Some(FaultAction::Flood { event: other, count }) => {
                for _ in 0..count {
                    self.write_event(other.clone()).await?;
                }
                conversation.handle_event(&event);
            }
            Some(FaultAction::Insert(other)) => {
                self.record_event(WireSender::Server, &other, conversation);
                self.write_event(other).await?;
                conversation.handle_event(&event);
            }
            Some(other) => self.apply_fault(other).await?,
        }
        Ok(())
    }

    async fn send_event(
        &mut self,
        event: Value,
        conversation: &LoopbackConversation,
    ) -> Result<(), ConnectionGone> {
        let trigger = FaultTrigger::on_send(event["type"].as_str().unwrap_or_default());
        let fault = take_due_fault(&mut lock(&self.server.shared.faults), &trigger);
        if let Some(FaultAction::Insert(other)) = &fault {
            self.record_event(WireSender::Server, other, conversation);
        }
        // A delayed event is recorded when it is sent.
        if !matches!(fault, Some(FaultAction::Drop | FaultAction::Delay(_))) {
            self.record_event(WireSender::Server, &event, conversation);
        }
        match fault {
            None | Some(FaultAction::Reject { .. }) => self.write_event(event).await,
            Some(FaultAction::Drop) => Ok(()),
            Some(FaultAction::Duplicate) => {
                self.write_event(event.clone()).await?;
                self.write_event(event).await
            }
            Some(FaultAction::Delay(delay)) => {
                self.delayed_events.push((Instant::now() + delay, event));
                Ok(())
            }
            Some(FaultAction::Insert(other)) => {
                self.write_event(other).await?;
                self.write_event(event).await
            }
            Some(FaultAction::Flood { event: other, count }) => {
                for _ in 0..count {
                    self.write_event(other.clone()).await?;
                }
                self.write_event(event).await
            }
            Some(other) => self.apply_fault(other).await,
        }
    }

    async fn apply_fault(&mut self, action: FaultAction) -> Result<(), ConnectionGone> {
        match action {
            FaultAction::Disconnect => Err(ConnectionGone),
            FaultAction::Close(code) => {
                let frame = CloseFrame { code: code.into(), reason: "as the test wants it".into() };
                let _ = self.socket.send(Message::Close(Some(frame))).await;
                let _ = tokio::time::timeout(Duration::from_secs(1), self.socket.next()).await;
                Err(ConnectionGone)
            }
            FaultAction::StopSending => {
                self.is_muted = true;
                Ok(())
            }
            FaultAction::HalfClose => {
                self.is_muted = true;
                self.socket.get_mut().shutdown().await.map_err(|_| ConnectionGone)
            }
            _ => Ok(()),
        }
    }

    async fn write_event(&mut self, event: Value) -> Result<(), ConnectionGone> {
        if self.is_muted {
            return Ok(());
        }
        self.socket.send(Message::text(event.to_string())).await.map_err(|_| ConnectionGone)
    }
}
