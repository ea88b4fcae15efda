//! The DevTools protocol over a pipe: no port is opened, and when this end closes the browser ends too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};

/// How many messages wait to be written.
const OUTGOING: usize = 1024;
/// How many events wait to be dealt with.
const EVENTS: usize = 4096;

/// Something that the browser tells of its own accord.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) session: Option<String>,
    pub(super) method: String,
    pub(super) params: Value,
}

/// Why a command did not work.
#[derive(Clone, Debug)]
pub(super) enum CommandError {
    /// The browser does not answer.
    Late(Duration),
    /// The browser is gone.
    Gone,
    /// It says no.
    Refused(String),
}

/// Whether a command is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Sent,
    Lost,
}

type Waiting = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Result<Value, CommandError>>>>>;

/// This end of the pipe.
pub(super) struct Pipe {
    outgoing: mpsc::Sender<Vec<u8>>,
    waiting: Waiting,
    next: AtomicU64,
}

#[derive(Deserialize)]
struct Message {
    id: Option<u64>,
    #[serde(default)]
    method: String,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    error: Option<Refusal>,
    #[serde(rename = "sessionId")]
    session: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    message: String,
}

impl Pipe {
    /// Speaks over a pair of pipes. Events come out of the receiver.
    pub(super) fn over(
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl AsyncRead + Send + Unpin + 'static,
    ) -> (Self, mpsc::Receiver<Event>) {
        let (outgoing, messages) = mpsc::channel(OUTGOING);
        let (events, told) = mpsc::channel(EVENTS);
        let waiting = Waiting::default();
        tokio::spawn(write(input, messages));
        tokio::spawn(read(output, waiting.clone(), events));
        (Self { outgoing, waiting, next: AtomicU64::new(1) }, told)
    }

    /// Sends a command and does not wait for its answer. A pipe that is full loses it, and says so.
    pub(super) fn tell(&self, session: Option<&str>, method: &str, params: Value) -> Told {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        match self.outgoing.try_send(message(id, session, method, &params)) {
            Ok(()) => Told::Sent,
            Err(_) => {
                tracing::debug!(method, "a command could not be sent");
                Told::Lost
            }
        }
    }

    /// Sends a command; its answer comes from the receiver. Commands arrive in the order in which they are sent.
    pub(super) async fn send(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<Pending, CommandError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        lock(&self.waiting).insert(id, sender);
        let pending = Pending { id, receiver, waiting: self.waiting.clone() };
        let sent = self.outgoing.send(message(id, session, method, &params)).await;
        sent.map(|()| pending).map_err(|_| CommandError::Gone)
    }

    /// Sends a command and waits for its answer, so long.
    pub(super) async fn call(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
        within: Duration,
    ) -> Result<Value, CommandError> {
        self.send(session, method, params).await?.answer(within).await
    }

    pub(super) fn is_closed(&self) -> bool {
        self.outgoing.is_closed()
    }
}

/// A command that was sent. Whoever drops it does not want its answer.
pub(super) struct Pending {
    id: u64,
    receiver: oneshot::Receiver<Result<Value, CommandError>>,
    waiting: Waiting,
}

impl Pending {
    pub(super) async fn answer(mut self, within: Duration) -> Result<Value, CommandError> {
        match tokio::time::timeout(within, &mut self.receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(CommandError::Gone),
            Err(_) => Err(CommandError::Late(within)),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        lock(&self.waiting).remove(&self.id);
    }
}

fn message(id: u64, session: Option<&str>, method: &str, params: &Value) -> Vec<u8> {
    let mut message = json!({ "id": id, "method": method, "params": params });
    if let Some(session) = session {
        message["sessionId"] = session.into();
    }
    let mut bytes = message.to_string().into_bytes();
    bytes.push(0);
    bytes
}

async fn write(mut input: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = messages.recv().await {
        if input.write_all(&message).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
}

async fn read(output: impl AsyncRead + Unpin, waiting: Waiting, events: mpsc::Sender<Event>) {
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
        let Ok(Message { id, method, params, result, error, session }) = serde_json::from_slice(&line) else {
            continue;
        };
        match id {
            Some(id) => {
                if let Some(sender) = lock(&waiting).remove(&id) {
                    let answer =
                        error.map_or(Ok(result), |refusal| Err(CommandError::Refused(refusal.message)));
                    // Nobody may want it any more.
                    let _ = sender.send(answer);
                }
            }
            None => {
                if events.send(Event { session, method, params }).await.is_err() {
                    break;
                }
            }
        }
    }
    // Dropping the senders tells those who wait.
    lock(&waiting).clear();
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
