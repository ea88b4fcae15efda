//! Relays between a person's device and a session: a browser ([`BrowserRelay`]) or a telephone ([`PhoneCall`]).
//!
//! A relay works on any socket that is a stream and a sink of [`RelayMessage`]s, so that every web server can mount it;
//! [`upgraded_websocket`] makes one of any connection whose HTTP request was upgraded.
//!
//! **Invariant:** a relay never outlives its session or its socket, holds a bounded amount of data, and gives the client
//! no power but the one that the application granted: by default a client speaks and listens, and sees and decides no
//! tool call.

mod browser;
mod browser_messages;
mod call_display;
mod client;
mod phone;
mod phone_messages;
mod websocket;

pub use browser::{BrowserRelay, serve_browser};
pub use call_display::CallDisplay;
pub use phone::{PhoneCall, PhoneCallError, PhoneCallStart};
pub use websocket::{upgraded_websocket, websocket_accept_key};

/// A message between a relay and its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayMessage {
    /// A JSON object as text.
    Text(String),
    /// Audio.
    Binary(Vec<u8>),
}

/// The reason for the end of a relay. The session goes on, unless it is the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayEnd {
    /// The client left.
    ClientLeft,
    /// The client did not take a message in time.
    ClientTooSlow,
    /// The client's socket failed.
    SocketFailed(String),
    /// The client sent a message that is too long.
    MessageTooLong,
    /// The session ended.
    SessionEnded,
}

/// Decodes a message of either kind of device, for the fuzz tests.
#[cfg(test)]
pub(crate) fn decode_device_message(text: &str) {
    let _ = serde_json::from_str::<browser_messages::BrowserMessage>(text);
    if let Ok(phone_messages::PhoneMessage::Start { start, .. }) = serde_json::from_str(text) {
        let _ = start.media_format.audio_format();
    }
}
