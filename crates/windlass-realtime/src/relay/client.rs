//! The client's side of a relay: messages in both directions, within limits.

use std::fmt::Display;
use std::time::Duration;

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use serde_json::Value;

use super::{RelayEnd, RelayMessage};

/// Time for a client to take one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a client's message in bytes.
pub(super) const MAX_CLIENT_MESSAGE: usize = 256 * 1024;

/// A client behind a socket.
pub(super) struct RelayClient<S> {
    socket: S,
}

impl<S, E> RelayClient<S>
where
    S: Stream<Item = Result<RelayMessage, E>> + Sink<RelayMessage, Error = E> + Send + Unpin,
    E: Display,
{
    pub(super) fn new(socket: S) -> Self {
        Self { socket }
    }

    pub(super) async fn send(&mut self, message: RelayMessage) -> Result<(), RelayEnd> {
        match tokio::time::timeout(SEND_TIMEOUT, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(RelayEnd::SocketFailed(error.to_string())),
            Err(_) => Err(RelayEnd::ClientTooSlow),
        }
    }

    pub(super) async fn send_json(&mut self, value: &Value) -> Result<(), RelayEnd> {
        self.send(RelayMessage::Text(value.to_string())).await
    }

    /// Returns the client's next message.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no message is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Result<RelayMessage, RelayEnd> {
        match self.socket.next().await {
            None => Err(RelayEnd::ClientLeft),
            Some(Err(error)) => Err(RelayEnd::SocketFailed(error.to_string())),
            Some(Ok(message)) => {
                let length = match &message {
                    RelayMessage::Text(text) => text.len(),
                    RelayMessage::Binary(bytes) => bytes.len(),
                };
                if length > MAX_CLIENT_MESSAGE { Err(RelayEnd::MessageTooLong) } else { Ok(message) }
            }
        }
    }

    /// Closes the socket, if the client still takes messages.
    pub(super) async fn close(&mut self) {
        // The relay has ended, whatever the client replies.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.socket.close()).await;
    }
}
