//! A fake provider for tests: a local server that implements the three protocols, replies from a script, and can
//! misbehave on request.
//!
//! ```
//! use windlass::prelude::*;
//! use windlass_models::testing::{FakeProvider, FakeReply};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let replies = [FakeReply::status(429).header("retry-after", "0"), FakeReply::text("Hello.")];
//! let provider = FakeProvider::start(replies).await?;
//! let agent = Agent::new("host").model(provider.openai().responses("any")?);
//!
//! assert_eq!(agent.run("Good morning").await?.output_text()?, "Hello.");
//! assert_eq!(provider.requests().len(), 2);
//! # Ok(()) }
//! ```

mod embeddings;
mod render;
mod reply;
mod serve;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::anthropic::Anthropic;
use crate::openai::OpenAi;

pub use reply::{FakeReply, FakeStopReason};

/// The delivery of a response: in one body or as a stream of events.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyDelivery {
    Plain,
    Streamed,
}

/// Renders a reply in the protocol of `path`.
#[cfg(test)]
pub(crate) fn render_body(reply: &FakeReply, path: &str, delivery: BodyDelivery) -> Vec<u8> {
    let is_streamed = delivery == BodyDelivery::Streamed;
    let body = serde_json::json!({ "model": "fake-1", "stream": is_streamed });
    render::render_reply(reply, &ReceivedRequest { path: path.to_owned(), headers: BTreeMap::new(), body }, 1)
        .body
}

/// The API key that clients of a fake provider send.
pub const FAKE_KEY: &str = "sk-fake-0123456789";

/// A server that replies from a script and records the requests it receives. Dropping it stops the server.
#[derive(Debug)]
pub struct FakeProvider {
    address: SocketAddr,
    state: Arc<Mutex<FakeProviderState>>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct FakeProviderState {
    replies: VecDeque<FakeReply>,
    requests: Vec<ReceivedRequest>,
    connections: usize,
}

/// A request that a fake provider received.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedRequest {
    /// The path, such as `/v1/responses`.
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body; null if it is not JSON.
    pub body: Value,
}

/// Encodes an event in the binary framing of Amazon Bedrock, for a reply with the content type
/// `application/vnd.amazon.eventstream`.
pub fn encode_amazon_event(event_type: &str, payload: &[u8]) -> Vec<u8> {
    let headers =
        [(":event-type", event_type), (":content-type", "application/json"), (":message-type", "event")];
    crate::bedrock::encode_event(&headers, payload)
}

impl FakeProvider {
    /// Starts a provider on a free local port.
    pub async fn start(replies: impl IntoIterator<Item = FakeReply>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let script =
            FakeProviderState { replies: replies.into_iter().collect(), ..FakeProviderState::default() };
        let script = Arc::new(Mutex::new(script));
        let server = tokio::spawn(serve::accept_connections(listener, script.clone()));
        Ok(Self { address, state: script, server })
    }

    /// Returns the base URL for OpenAI's protocols.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.root_url())
    }

    /// Returns the base URL for Anthropic's protocol, which has no path.
    pub fn root_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Creates a client for OpenAI's protocols.
    pub fn openai(&self) -> OpenAi {
        OpenAi::new(FAKE_KEY).base_url(&self.base_url())
    }

    /// Creates a client for Anthropic's protocol.
    pub fn anthropic(&self) -> Anthropic {
        Anthropic::at(&self.root_url()).key(FAKE_KEY)
    }

    /// Appends a reply to the script.
    pub fn push(&self, reply: FakeReply) {
        self.with_state(|script| script.replies.push_back(reply));
    }

    /// Returns the requests received so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.with_state(|script| script.requests.clone())
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.with_state(|script| script.connections)
    }

    /// Returns the number of replies left in the script.
    pub fn remaining(&self) -> usize {
        self.with_state(|script| script.replies.len())
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut FakeProviderState) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for FakeProvider {
    fn drop(&mut self) {
        self.server.abort();
    }
}
