//! The WebSocket: frames in, frames out, and whether the other side is still there.

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

use super::dial::ReadWrite;
use super::read::Reader;
use super::write::write_command;
use crate::model::{Command, Commands, ConnectError, Connection, Lost, ModelEvent, ModelEvents};

type Socket = WebSocketStream<Box<dyn ReadWrite>>;
type Sink = Arc<Mutex<SplitSink<Socket, Message>>>;

pub(super) fn connection(socket: Socket, model: Option<String>, keep_alive: Duration) -> Connection {
    let (sink, stream) = socket.split();
    let sink = Arc::new(Mutex::new(sink));
    let events = Events {
        stream,
        sink: sink.clone(),
        reader: Reader::default(),
        read: VecDeque::new(),
        keep_alive,
        heard: Instant::now(),
        asked: false,
    };
    Connection { commands: Box::new(Writer { sink, model }), events: Box::new(events) }
}

struct Writer {
    sink: Sink,
    model: Option<String>,
}

impl Commands for Writer {
    fn send(&mut self, command: Command) -> BoxFuture<'_, Result<(), Lost>> {
        async move {
            let text = write_command(&command, self.model.as_deref()).to_string();
            self.sink.lock().await.send(Message::text(text)).await.map_err(|error| lost(&error))
        }
        .boxed()
    }

    fn close(&mut self) -> BoxFuture<'_, Result<(), Lost>> {
        async move {
            let goodbye = CloseFrame { code: CloseCode::Normal, reason: "".into() };
            let mut sink = self.sink.lock().await;
            sink.send(Message::Close(Some(goodbye))).await.map_err(|error| lost(&error))
        }
        .boxed()
    }
}

struct Events {
    stream: SplitStream<Socket>,
    sink: Sink,
    reader: Reader,
    read: VecDeque<ModelEvent>,
    keep_alive: Duration,
    heard: Instant,
    asked: bool,
}

impl ModelEvents for Events {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelEvent, Lost>>> {
        async move {
            loop {
                if let Some(event) = self.read.pop_front() {
                    return Some(Ok(event));
                }
                let patience = if self.asked { self.keep_alive * 2 } else { self.keep_alive };
                let message = tokio::select! {
                    biased;
                    message = self.stream.next() => message,
                    () = tokio::time::sleep_until(self.heard + patience) => {
                        if self.asked {
                            return Some(Err(Lost::new("the other side has gone silent")));
                        }
                        self.asked = true;
                        // A writer that holds the sink finds out by itself whether anybody is there. One that takes
                        // nothing must not keep us from hearing what it said.
                        if let Ok(mut sink) = self.sink.try_lock() {
                            let ping = sink.send(Message::Ping(Default::default()));
                            if let Ok(Err(error)) = tokio::time::timeout(self.keep_alive, ping).await {
                                return Some(Err(lost(&error)));
                            }
                        }
                        continue;
                    }
                };
                (self.heard, self.asked) = (Instant::now(), false);
                match message {
                    Some(Ok(Message::Text(text))) => self.read.extend(self.reader.read(text.as_str())),
                    Some(Ok(Message::Close(frame))) => return closed(frame),
                    Some(Ok(
                        Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_),
                    )) => {}
                    Some(Err(error)) => return Some(Err(lost(&error))),
                    None => return Some(Err(Lost::new("the connection ended without a goodbye"))),
                }
            }
        }
        .boxed()
    }
}

/// What a goodbye means.
fn closed(frame: Option<CloseFrame>) -> Option<Result<ModelEvent, Lost>> {
    let Some(CloseFrame { code, reason }) = frame else {
        return Some(Err(Lost::new("the other side closed without a reason")));
    };
    let message = format!("the other side closed with {}: {reason}", u16::from(code));
    match u16::from(code) {
        1000 => None,
        1001 | 1005 | 1006 | 1011..=1013 | 1015 => Some(Err(Lost::new(message))),
        _ => Some(Err(Lost::fatal(message))),
    }
}

fn lost(error: &Error) -> Lost {
    match error {
        Error::Capacity(_) | Error::Protocol(_) if !is_cut_off(error) => Lost::fatal(error.to_string()),
        _ => Lost::new(error.to_string()),
    }
}

fn is_cut_off(error: &Error) -> bool {
    use tokio_tungstenite::tungstenite::error::ProtocolError;
    matches!(error, Error::Protocol(ProtocolError::ResetWithoutClosingHandshake))
}

pub(super) fn connect_error(error: &Error) -> ConnectError {
    match error {
        Error::Http(response) => {
            let status = response.status();
            let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let body: String = body.chars().take(500).collect();
            let message = format!("the server answered {status}: {body}");
            match status.as_u16() {
                408 | 409 | 425 | 429 | 500.. => ConnectError::new(message),
                _ => ConnectError::fatal(message),
            }
        }
        Error::Url(_) | Error::HttpFormat(_) => ConnectError::fatal(error.to_string()),
        _ => ConnectError::new(error.to_string()),
    }
}
