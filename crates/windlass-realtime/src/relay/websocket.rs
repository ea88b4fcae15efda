//! WebSockets of a server, on any connection whose HTTP request was upgraded.

use std::future::ready;

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::RelayMessage;
use super::client::MAX_CLIENT_MESSAGE;

/// Size of the read buffer.
const READ_BUFFER_SIZE: usize = 16 * 1024;

/// Returns the value of the header `Sec-WebSocket-Accept` for a client's `Sec-WebSocket-Key`.
pub fn websocket_accept_key(client_key: &str) -> String {
    derive_accept_key(client_key.as_bytes())
}

/// Returns the socket of a connection whose HTTP request was answered with status 101 and
/// [`websocket_accept_key`]: a TCP or TLS stream, or the upgraded connection of a web server.
///
/// The caller has checked the request: its path, its `Host`, its `Origin` and its authorisation.
pub async fn upgraded_websocket<S: AsyncRead + AsyncWrite + Send + Unpin>(
    stream: S,
) -> impl Stream<Item = Result<RelayMessage, Error>> + Sink<RelayMessage, Error = Error> + Send + Unpin {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_SIZE)
        .max_message_size(Some(MAX_CLIENT_MESSAGE))
        .max_frame_size(Some(MAX_CLIENT_MESSAGE));
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let socket = socket.with(|message: RelayMessage| {
        ready(Ok(match message {
            RelayMessage::Text(text) => Message::text(text),
            RelayMessage::Binary(bytes) => Message::binary(bytes),
        }))
    });
    socket.filter_map(|message: Result<Message, Error>| {
        ready(match message {
            Ok(Message::Text(text)) => Some(Ok(RelayMessage::Text(text.as_str().to_owned()))),
            Ok(Message::Binary(bytes)) => Some(Ok(RelayMessage::Binary(bytes.to_vec()))),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_)) => None,
            Err(error) => Some(Err(error)),
        })
    })
}
