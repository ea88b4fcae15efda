//! Model adapters for Windlass: the OpenAI Responses and Chat Completions APIs, servers compatible with them, and
//! the Anthropic Messages API.
//!
//! ```no_run
//! use windlass::prelude::*;
//!
//! # async fn show() -> Result<(), Box<dyn std::error::Error>> {
//! let agent = Agent::new("host").model(windlass_models::model("openai:gpt-5.2")?);
//! println!("{}", agent.run("Good morning.").await?.output_text()?);
//! # Ok(()) }
//! ```
//!
//! A model is selected by a string ([`model`]) or built from its provider ([`OpenAi`], [`Anthropic`]). Other
//! providers are added with a base URL and a signer ([`ModelProvider`]), a protocol ([`protocol::ModelProtocol`]) or a
//! HTTP client ([`net::HttpTransport`]) of the application's own.
//!
//! The crate sends requests and decodes responses; it does not retry, except for embeddings. Every error carries
//! advice about a retry, and the driver decides.

mod anthropic;
mod api_key;
mod azure;
mod bedrock;
mod call_ids;
mod cassette;
mod endpoint;
mod error;
mod exchange;
mod fallback;
mod gemini;
mod media_support;
mod openai;
mod prompt_cache;
pub mod protocol;
mod provider_model;
mod providers;
mod rate_limit;
mod registry;
mod renewal;
mod retry;
mod setting_support;
mod signer;
pub mod sse;
pub mod testing;
mod token_signer;
mod wire;

#[cfg(test)]
mod fuzz_tests;

pub use anthropic::{Anthropic, ComputerVersion, MessagesModel};
pub use api_key::ApiKey;
pub use azure::{AzureChatModel, AzureOpenAi, DeploymentProtocol};
#[cfg(feature = "sigv4")]
pub use bedrock::{AwsCredentials, SigV4Signer};
pub use bedrock::{Bedrock, ConverseModel, InvokeModel};
pub use call_ids::CallIdScope;
pub use cassette::{Cassette, CassetteError};
pub use endpoint::ProviderTimeouts;
pub use error::SetupError;
pub use fallback::FallbackModel;
pub use gemini::{Gemini, GeminiModel};
pub use openai::{ChatModel, ConversationState, EmbeddingsModel, OpenAi, ResponsesModel};
pub use provider_model::{ModelProvider, ProviderModel};
pub use rate_limit::RateLimit;
pub use registry::{ProviderInfo, ProviderRegistry, ProviderSettings, ServerApi, default_model, model};
pub use signer::{RequestSigner, SignError};
pub use token_signer::{AccessToken, BearerTokenSigner};
pub use windlass_net as net;

use windlass::model::DeltaSink;

/// The condition under which responses are streamed. The resulting items do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamingMode {
    /// Streams only if the run's deltas are consumed.
    #[default]
    WhenWatched,
    /// Streams always; for servers behind a proxy that closes idle connections.
    Always,
    /// Never streams.
    Never,
}

impl StreamingMode {
    pub(crate) fn is_enabled(self, deltas: &DeltaSink) -> bool {
        match self {
            Self::WhenWatched => deltas.is_watched(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}
