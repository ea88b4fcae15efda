//! The Chrome DevTools Protocol, over a pipe or over a WebSocket. With a pipe no port is opened, and the
//! browser exits when this end of the pipe closes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// Capacity of the queue of outgoing messages.
const OUTGOING_CAPACITY: usize = 1024;
/// Capacity of the queue of incoming messages.
const INCOMING_CAPACITY: usize = 4096;

/// An event sent by the browser.
#[derive(Debug)]
pub(super) struct CdpEvent {
    pub(super) session: Option<String>,
    pub(super) method: String,
    pub(super) params: Value,
}

/// A message of the browser. The messages are handled in the order in which the browser sent them, so that whoever
/// gets a response knows the events before it.
pub(super) enum CdpIncoming {
    Event(CdpEvent),
    Reply(CdpReply),
}

/// The response to a command, and the caller that waits for it.
pub(super) struct CdpReply {
    caller: oneshot::Sender<Result<Value, CdpCommandError>>,
    answer: Result<Value, CdpCommandError>,
}

impl CdpReply {
    /// Hands the response to its caller.
    pub(super) fn deliver(self) {
        // The caller may have been cancelled.
        let _ = self.caller.send(self.answer);
    }
}

/// The reason why a DevTools command failed.
#[derive(Clone, Debug)]
pub(super) enum CdpCommandError {
    /// The browser did not respond within this time.
    TimedOut(Duration),
    /// The browser closed the pipe.
    PipeClosed,
    /// The browser returned an error with this message.
    Rejected(String),
}

/// The result of sending a command without waiting for its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CdpSendStatus {
    Sent,
    Dropped,
}

type CdpReplySenders = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Result<Value, CdpCommandError>>>>>;

/// The client end of the DevTools pipe.
pub(super) struct CdpPipe {
    outgoing: mpsc::Sender<Vec<u8>>,
    reply_senders: CdpReplySenders,
    is_closed: watch::Receiver<bool>,
    next_id: AtomicU64,
}

/// The messages from the browser, delivered to their receivers.
struct IncomingMessages {
    reply_senders: CdpReplySenders,
    handled: mpsc::Sender<CdpIncoming>,
    closed: watch::Sender<bool>,
}

#[derive(Deserialize)]
struct CdpMessage {
    id: Option<u64>,
    #[serde(default)]
    method: String,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    error: Option<CdpErrorObject>,
    #[serde(rename = "sessionId")]
    session: Option<String>,
}

#[derive(Deserialize)]
struct CdpErrorObject {
    message: String,
}

impl CdpPipe {
    /// Starts the protocol on a pair of pipes. The receiver yields the browser's messages;
    /// no response reaches its caller unless they are handled.
    pub(super) fn start(
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl AsyncRead + Send + Unpin + 'static,
    ) -> (Self, mpsc::Receiver<CdpIncoming>) {
        let (pipe, messages, incoming, told) = Self::with_channels();
        tokio::spawn(write_messages(input, messages));
        tokio::spawn(read_messages(output, incoming));
        (pipe, told)
    }

    /// Starts the protocol on a WebSocket. The receiver yields the browser's messages;
    /// no response reaches its caller unless they are handled.
    pub(super) fn start_websocket<S>(socket: WebSocketStream<S>) -> (Self, mpsc::Receiver<CdpIncoming>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (pipe, mut messages, incoming, told) = Self::with_channels();
        let (mut sink, mut stream) = socket.split();
        tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                let text = String::from_utf8(message).unwrap_or_default();
                if sink.send(Message::text(text)).await.is_err() {
                    break;
                }
            }
            let _ = sink.close().await;
        });
        tokio::spawn(async move {
            while let Some(Ok(message)) = stream.next().await {
                if let Message::Text(text) = message
                    && incoming.handle_message(text.as_bytes()).await.is_err()
                {
                    break;
                }
            }
            incoming.close();
        });
        (pipe, told)
    }

    fn with_channels() -> (Self, mpsc::Receiver<Vec<u8>>, IncomingMessages, mpsc::Receiver<CdpIncoming>) {
        let (outgoing, messages) = mpsc::channel(OUTGOING_CAPACITY);
        let (handled, told) = mpsc::channel(INCOMING_CAPACITY);
        let (closed, is_closed) = watch::channel(false);
        let reply_senders = CdpReplySenders::default();
        let incoming = IncomingMessages { reply_senders: reply_senders.clone(), handled, closed };
        (Self { outgoing, reply_senders, is_closed, next_id: AtomicU64::new(1) }, messages, incoming, told)
    }

    /// Sends a command without waiting for its response. The command is dropped if the queue is full.
    pub(super) fn send_without_reply(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> CdpSendStatus {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        match self.outgoing.try_send(encode_command(id, session, method, &params)) {
            Ok(()) => CdpSendStatus::Sent,
            Err(_) => {
                tracing::debug!(method, "a command could not be sent");
                CdpSendStatus::Dropped
            }
        }
    }

    /// Sends a command and returns a handle for its response. The browser receives commands in the order they
    /// are sent.
    pub(super) async fn send_command(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<PendingCdpCommand, CdpCommandError> {
        if self.is_closed() {
            return Err(CdpCommandError::PipeClosed);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        lock(&self.reply_senders).insert(id, sender);
        let pending = PendingCdpCommand { id, receiver, reply_senders: self.reply_senders.clone() };
        let sent = self.outgoing.send(encode_command(id, session, method, &params)).await;
        sent.map(|()| pending).map_err(|_| CdpCommandError::PipeClosed)
    }

    /// Sends a command and waits for its response, at most for `within`.
    pub(super) async fn call_command(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
        within: Duration,
    ) -> Result<Value, CdpCommandError> {
        self.send_command(session, method, params).await?.await_reply(within).await
    }

    pub(super) fn is_closed(&self) -> bool {
        self.outgoing.is_closed() || *self.is_closed.borrow()
    }
}

/// A command in flight. Dropping it discards its response.
pub(super) struct PendingCdpCommand {
    id: u64,
    receiver: oneshot::Receiver<Result<Value, CdpCommandError>>,
    reply_senders: CdpReplySenders,
}

impl PendingCdpCommand {
    pub(super) async fn await_reply(mut self, within: Duration) -> Result<Value, CdpCommandError> {
        match tokio::time::timeout(within, &mut self.receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(CdpCommandError::PipeClosed),
            Err(_) => Err(CdpCommandError::TimedOut(within)),
        }
    }
}

impl Drop for PendingCdpCommand {
    fn drop(&mut self) {
        lock(&self.reply_senders).remove(&self.id);
    }
}

fn encode_command(id: u64, session: Option<&str>, method: &str, params: &Value) -> Vec<u8> {
    let mut message = json!({ "id": id, "method": method, "params": params });
    if let Some(session) = session {
        message["sessionId"] = session.into();
    }
    message.to_string().into_bytes()
}

async fn write_messages(mut input: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(mut message) = messages.recv().await {
        // Messages on a pipe end with a zero byte.
        message.push(0);
        if input.write_all(&message).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
}

async fn read_messages(output: impl AsyncRead + Unpin, incoming: IncomingMessages) {
    let mut output = BufReader::with_capacity(1 << 16, output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match output.read_until(0, &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if line.last() == Some(&0) {
            line.pop();
        }
        if incoming.handle_message(&line).await.is_err() {
            break;
        }
    }
    incoming.close();
}

/// The receiver of the messages is gone.
struct ReceiverGone;

impl IncomingMessages {
    async fn handle_message(&self, message: &[u8]) -> Result<(), ReceiverGone> {
        let Ok(CdpMessage { id, method, params, result, error, session }) = serde_json::from_slice(message)
        else {
            return Ok(());
        };
        let message = match id {
            Some(id) => {
                let Some(caller) = lock(&self.reply_senders).remove(&id) else { return Ok(()) };
                let answer =
                    error.map_or(Ok(result), |refusal| Err(CdpCommandError::Rejected(refusal.message)));
                CdpIncoming::Reply(CdpReply { caller, answer })
            }
            None => CdpIncoming::Event(CdpEvent { session, method, params }),
        };
        self.handled.send(message).await.map_err(|_| ReceiverGone)
    }

    /// Wakes all callers with an error.
    fn close(&self) {
        self.closed.send_replace(true);
        lock(&self.reply_senders).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "cdp_fuzz_tests.rs"]
mod cdp_fuzz_tests;
