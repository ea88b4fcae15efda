//! A provider for tests: a server on this machine that speaks the three protocols from a script, well or badly.
//!
//! ```
//! use windlass::prelude::*;
//! use windlass_models::testing::{FakeProvider, FakeReply};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let provider = FakeProvider::start([FakeReply::status(429).header("retry-after", "0"), FakeReply::text("Hello.")]).await?;
//! let agent = Agent::new("host").model(provider.openai().responses("any")?);
//!
//! assert_eq!(agent.run("Good morning").await?.text(), "Hello.");
//! assert_eq!(provider.requests().len(), 2);
//! # Ok(()) }
//! ```

mod render;
mod reply;
mod serve;
mod vectors;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::anthropic::Anthropic;
use crate::openai::OpenAi;

pub use reply::{FakeReply, Stop};

/// A reply as the protocol of this path has it.
#[cfg(test)]
pub(crate) fn rendered(reply: &FakeReply, path: &str, is_streamed: bool) -> Vec<u8> {
    let body = serde_json::json!({ "model": "fake-1", "stream": is_streamed });
    render::render(reply, &Received { path: path.to_owned(), headers: BTreeMap::new(), body }, 1).body
}

/// The key that the models of a fake provider send.
pub const FAKE_KEY: &str = "sk-fake-0123456789";

/// A provider that answers from a script, and remembers what it was asked. It ends when it is dropped.
#[derive(Debug)]
pub struct FakeProvider {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Script {
    replies: VecDeque<FakeReply>,
    requests: Vec<Received>,
    connections: usize,
}

/// A request that a fake provider was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// The path, such as `/v1/responses`.
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body; null where it is no JSON.
    pub body: Value,
}

impl FakeProvider {
    /// Starts a provider on a port of this machine that the system picks.
    pub async fn start(replies: impl IntoIterator<Item = FakeReply>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let script = Script { replies: replies.into_iter().collect(), ..Script::default() };
        let script = Arc::new(Mutex::new(script));
        let server = tokio::spawn(serve::accept(listener, script.clone()));
        Ok(Self { address, script, server })
    }

    /// The address for OpenAI's protocols.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.root_url())
    }

    /// The address without a path, which is the one for Anthropic's protocol.
    pub fn root_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client of its OpenAI protocols.
    pub fn openai(&self) -> OpenAi {
        OpenAi::new(FAKE_KEY).base_url(&self.base_url())
    }

    /// A client of its Anthropic protocol.
    pub fn anthropic(&self) -> Anthropic {
        Anthropic::at(&self.root_url()).key(FAKE_KEY)
    }

    /// Adds an answer to the end of the script.
    pub fn push(&self, reply: FakeReply) {
        self.locked(|script| script.replies.push_back(reply));
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<Received> {
        self.locked(|script| script.requests.clone())
    }

    /// How many connections were opened to it.
    pub fn connections(&self) -> usize {
        self.locked(|script| script.connections)
    }

    /// How many answers are left.
    pub fn remaining(&self) -> usize {
        self.locked(|script| script.replies.len())
    }

    fn locked<T>(&self, act: impl FnOnce(&mut Script) -> T) -> T {
        act(&mut self.script.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for FakeProvider {
    fn drop(&mut self) {
        self.server.abort();
    }
}
