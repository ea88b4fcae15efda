//! The server: connections through pipes or TCP, each with a conversation of its own.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::http::Uri;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::conversation::Conversation;
use super::ear::Ear;
use super::fault::{Fault, Misbehaviour, Moment, due};
use super::reply::{Answering, Reply, Said};
use crate::model::ConnectError;
use crate::openai::{Dial, OpenAi, ReadWrite};

/// A server that speaks the protocol. Copies stand for the same one.
#[derive(Clone)]
pub struct Loopback {
    shared: Arc<Shared>,
}

struct Shared {
    mind: Mutex<Mind>,
    faults: Mutex<Vec<Fault>>,
    refuse_connections: AtomicU64,
    connections: AtomicU64,
    forgets: AtomicBool,
    seen: Mutex<Vec<Seen>>,
    /// How many times all lines were cut.
    hung_up: watch::Sender<u64>,
}

/// What the server thinks with.
#[derive(Clone)]
pub(super) struct Mind {
    pub(super) think: Answering,
    pub(super) ear: Ear,
}

/// Something that went over the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Over which connection, from 1.
    pub connection: u64,
    /// From the client, or to it.
    pub from: From,
    /// The event.
    pub event: Value,
    /// Whether an answer was under way when it came.
    pub is_answering: bool,
}

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// How long the wire's memory is.
const REMEMBERED: usize = 100_000;

/// How long the server waits where nobody can be let in.
const BREATH: Duration = Duration::from_millis(50);

impl Loopback {
    /// A server that answers with these, one after another, and then with what was last said to it.
    pub fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies: Mutex<VecDeque<Reply>> = Mutex::new(replies.into_iter().collect());
        Self::thinking(move |said| {
            let next = lock(&replies).pop_front();
            next.unwrap_or_else(|| match said.new_outputs().as_slice() {
                [] => Reply::say(format!("You said: {}", said.last_user())),
                outputs => Reply::say(format!("The result is {}", outputs.join(", "))),
            })
        })
    }

    /// A server that answers as this function says.
    pub fn thinking(think: impl Fn(&Said) -> Reply + Send + Sync + 'static) -> Self {
        let ear: Ear = Arc::new(|samples: &[i16]| format!("{} ms of speech", samples.len() / 24));
        let mind = Mutex::new(Mind { think: Arc::new(think), ear });
        Self {
            shared: Arc::new(Shared {
                mind,
                faults: Mutex::default(),
                refuse_connections: AtomicU64::new(0),
                connections: AtomicU64::new(0),
                forgets: AtomicBool::new(false),
                seen: Mutex::default(),
                hung_up: watch::Sender::new(0),
            }),
        }
    }

    /// Writes down what it hears in this way.
    #[must_use]
    pub fn ear(self, ear: impl Fn(&[i16]) -> String + Send + Sync + 'static) -> Self {
        lock(&self.shared.mind).ear = Arc::new(ear);
        self
    }

    /// Misbehaves, once.
    pub fn fault(&self, fault: Fault) {
        lock(&self.shared.faults).push(fault);
    }

    /// Lets nobody in, so many times.
    pub fn refuse_connections(&self, times: u64) {
        self.shared.refuse_connections.store(times, Ordering::Relaxed);
    }

    /// Cuts every line that is open, without a word.
    pub fn hang_up(&self) {
        self.shared.hung_up.send_modify(|times| *times += 1);
    }

    /// A client's model that reaches this server through a pipe.
    pub fn model(&self) -> OpenAi {
        OpenAi::at("ws://loopback/v1/realtime").model("loopback").dial(self.clone())
    }

    /// Waits for clients on a port that the system picks. The task ends when it is aborted.
    pub async fn listen(&self) -> std::io::Result<(SocketAddr, JoinHandle<()>)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let server = self.clone();
        let task = tokio::spawn(async move {
            loop {
                let stream = match listener.accept().await {
                    Ok((stream, _)) => stream,
                    // One client that hung up, or too many files open, is not the end of the server.
                    Err(error) => {
                        tracing::warn!(%error, "a client could not be let in");
                        tokio::time::sleep(BREATH).await;
                        continue;
                    }
                };
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "small pieces may be held back");
                }
                tokio::spawn(server.clone().serve(stream));
            }
        });
        Ok((address, task))
    }

    /// How many connections there were.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Everything that went over the wire.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// What clients said, by type where one is given.
    pub fn said(&self, kind: Option<&str>) -> Vec<Value> {
        let is_it =
            |seen: &&Seen| seen.from == From::Client && kind.is_none_or(|kind| seen.event["type"] == kind);
        lock(&self.shared.seen).iter().filter(is_it).map(|seen| seen.event.clone()).collect()
    }

    /// Remembers nothing of what goes over the wire from now on: for sessions by the thousand.
    pub fn forget_all(&self) {
        self.shared.forgets.store(true, Ordering::Relaxed);
    }

    fn see(&self, connection: u64, from: From, event: &Value, is_answering: bool) {
        if self.shared.forgets.load(Ordering::Relaxed) {
            return;
        }
        let mut seen = lock(&self.shared.seen);
        // Audio is long, and nobody reads it here.
        let is_audio =
            event["type"] == "input_audio_buffer.append" || event["type"] == "response.output_audio.delta";
        if seen.len() < REMEMBERED && !is_audio {
            seen.push(Seen { connection, from, event: event.clone(), is_answering });
        }
    }

    async fn serve(self, stream: impl ReadWrite) {
        let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
        let connection = self.shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let mind = lock(&self.shared.mind).clone();
        let hung_up = self.shared.hung_up.subscribe();
        let mut line =
            Line { server: self, connection, later: Vec::new(), is_silent: false, socket, hung_up };
        let mut conversation = Conversation::new(mind, connection);
        // The conversation ends when the line does, whichever way.
        let _ = line.talk(&mut conversation).await;
    }
}

impl Dial for Loopback {
    fn dial<'a>(&'a self, _: &'a Uri) -> BoxFuture<'a, Result<Box<dyn ReadWrite>, ConnectError>> {
        let left = self.shared.refuse_connections.load(Ordering::Relaxed);
        if left > 0 {
            self.shared.refuse_connections.store(left - 1, Ordering::Relaxed);
            return std::future::ready(Err(ConnectError::new("nobody is let in"))).boxed();
        }
        let (client, server) = tokio::io::duplex(256 * 1024);
        tokio::spawn(self.clone().serve(server));
        std::future::ready(Ok(Box::new(client) as Box<dyn ReadWrite>)).boxed()
    }
}

/// The line is gone.
struct Gone;

/// One connection.
struct Line<S> {
    server: Loopback,
    connection: u64,
    later: Vec<(Instant, Value)>,
    is_silent: bool,
    socket: WebSocketStream<S>,
    hung_up: watch::Receiver<u64>,
}

impl<S: ReadWrite> Line<S> {
    async fn talk(&mut self, conversation: &mut Conversation) -> Result<(), Gone> {
        loop {
            for event in conversation.take_out() {
                conversation.note_sent(&event);
                self.say(event, conversation.is_answering()).await?;
            }
            let late = self.later.iter().map(|(at, _)| *at).min();
            let next = [conversation.due(), late].into_iter().flatten().min();
            tokio::select! {
                biased;
                Ok(()) = self.hung_up.changed() => return Err(Gone),
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => self.take(text.as_str(), conversation).await?,
                    Some(Ok(Message::Close(_))) => {
                        // The answer to a goodbye is a goodbye.
                        let _ = self.socket.flush().await;
                        return Ok(());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Err(Gone),
                },
                () = until(next) => {
                    let now = Instant::now();
                    let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|(at, _)| *at <= now);
                    self.later = later;
                    let due: Vec<(Instant, Value)> = due;
                    for (_, event) in due {
                        self.write(event).await?;
                    }
                    conversation.step(now);
                }
            }
        }
    }

    async fn take(&mut self, text: &str, conversation: &mut Conversation) -> Result<(), Gone> {
        let event: Value = serde_json::from_str(text).unwrap_or_default();
        self.server.see(self.connection, From::Client, &event, conversation.is_answering());
        let moment = Moment::receiving(event["type"].as_str().unwrap_or_default());
        let fault = due(&mut lock(&self.server.shared.faults), &moment);
        match fault {
            None | Some(Misbehaviour::Delay(_)) => conversation.take(&event),
            Some(Misbehaviour::Drop) => {}
            Some(Misbehaviour::Repeat) => {
                conversation.take(&event);
                conversation.take(&event);
            }
            Some(Misbehaviour::Refuse { code }) => conversation.refuse(&event, &code, "as the test wants it"),
            Some(Misbehaviour::Insert(other)) => {
                self.write(other).await?;
                conversation.take(&event);
            }
            Some(other) => self.misbehave(other).await?,
        }
        Ok(())
    }

    async fn say(&mut self, event: Value, is_answering: bool) -> Result<(), Gone> {
        let moment = Moment::sending(event["type"].as_str().unwrap_or_default());
        let fault = due(&mut lock(&self.server.shared.faults), &moment);
        if !matches!(fault, Some(Misbehaviour::Drop)) {
            self.server.see(self.connection, From::Server, &event, is_answering);
        }
        match fault {
            None | Some(Misbehaviour::Refuse { .. }) => self.write(event).await,
            Some(Misbehaviour::Drop) => Ok(()),
            Some(Misbehaviour::Repeat) => {
                self.write(event.clone()).await?;
                self.write(event).await
            }
            Some(Misbehaviour::Delay(by)) => {
                self.later.push((Instant::now() + by, event));
                Ok(())
            }
            Some(Misbehaviour::Insert(other)) => {
                self.write(other).await?;
                self.write(event).await
            }
            Some(other) => self.misbehave(other).await,
        }
    }

    async fn misbehave(&mut self, how: Misbehaviour) -> Result<(), Gone> {
        match how {
            Misbehaviour::Vanish => Err(Gone),
            Misbehaviour::Close(code) => {
                let frame = CloseFrame { code: code.into(), reason: "as the test wants it".into() };
                let _ = self.socket.send(Message::Close(Some(frame))).await;
                let _ = tokio::time::timeout(Duration::from_secs(1), self.socket.next()).await;
                Err(Gone)
            }
            Misbehaviour::FallSilent => {
                self.is_silent = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn write(&mut self, event: Value) -> Result<(), Gone> {
        if self.is_silent {
            return Ok(());
        }
        self.socket.send(Message::text(event.to_string())).await.map_err(|_| Gone)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
