//! Real models for Windlass: OpenAI Responses and Chat Completions, every server that speaks them, and Anthropic
//! Messages.
//!
//! ```no_run
//! use windlass::prelude::*;
//!
//! # async fn show() -> Result<(), Box<dyn std::error::Error>> {
//! let agent = Agent::new("host").model(windlass_models::model("openai:gpt-5.2")?);
//! println!("{}", agent.run("Good morning.").await?.text());
//! # Ok(()) }
//! ```
//!
//! A model is named by a string ([`model`]) or built from its provider ([`OpenAi`], [`Anthropic`]).

mod anthropic;
mod cassette;
mod endpoint;
mod error;
mod exchange;
mod fallback;
mod http;
mod limit;
mod openai;
mod retry;
mod secret;
mod spec;
pub mod sse;
pub mod testing;
mod wire;

#[cfg(test)]
mod fuzz_tests;

pub use anthropic::{Anthropic, ComputerVersion, MessagesModel, PromptCache};
pub use cassette::{Cassette, CassetteError};
pub use endpoint::Timeouts;
pub use error::SetupError;
pub use fallback::Fallback;
pub use limit::RateLimit;
pub use openai::{ChatModel, EmbeddingsModel, OpenAi, ResponsesModel, ServerState};
pub use secret::ApiKey;
pub use spec::{Providers, default_model, model};

use windlass::model::{Deltas, ModelError};

/// When answers are streamed. The items are the same either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streaming {
    /// Where somebody watches.
    #[default]
    WhenWatched,
    /// Always: for servers behind a proxy that cuts connections on which nothing comes for long.
    Always,
    /// Never.
    Never,
}

impl Streaming {
    pub(crate) fn is_on(self, deltas: &Deltas) -> bool {
        match self {
            Self::WhenWatched => deltas.wanted(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// A request's body, written.
pub(crate) fn written(body: &impl serde::Serialize) -> Result<Vec<u8>, ModelError> {
    serde_json::to_vec(body)
        .map_err(|error| ModelError::new("the request cannot be written as JSON").caused_by(error))
}

/// The samples of the guide compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/models.md")]
pub struct Guide;
