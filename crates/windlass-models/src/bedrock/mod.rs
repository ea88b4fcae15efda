//! Amazon Bedrock: the Converse API for all models, and the Messages API of Anthropic's models.

mod converse_decode;
mod converse_encode;
mod event_stream;
mod invoke;
#[cfg(feature = "sigv4")]
mod sigv4;

use windlass::model::{ModelError, ToolDefinition, ToolKind};

use crate::api_key::ApiKey;
use crate::azure::encode_path_segment;
use crate::endpoint::{ApiKeyHeader, EndpointConfig, endpoint_builder_methods, without_blank};
use crate::error::SetupError;
use crate::protocol::{EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder};
use crate::provider_model::ProviderModel;
use crate::setting_support::check_settings;
use crate::wire::{RequestBase, WireProtocol, encode_body};

pub(crate) use converse_decode::ConverseDecoder;
pub(crate) use event_stream::{EventStreamDecoder, encode_event};
pub use invoke::InvokeProtocol;
#[cfg(feature = "sigv4")]
pub use sigv4::{AwsCredentials, SigV4Signer};

/// The settings of Converse beside the common ones.
const CONVERSE_SETTINGS: [&str; 5] =
    ["stop", "metadata", "service_tier", "reasoning_effort", "prompt_cache_retention"];

/// Amazon Bedrock in one region; the builder of [`ConverseModel`] and [`InvokeModel`].
///
/// Requests are authorised by a key of Bedrock (`.key(…)`), or signed with AWS credentials (`SigV4Signer`, feature
/// `sigv4`).
///
/// ```
/// use windlass_models::Bedrock;
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let model = Bedrock::new("eu-central-1").key("bedrock-api-key-…").converse("eu.amazon.nova-lite-v1:0")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Bedrock {
    config: EndpointConfig,
}

/// A model with the Converse API.
pub type ConverseModel = ProviderModel<ConverseProtocol>;
/// A model of Anthropic with its Messages API.
pub type InvokeModel = ProviderModel<InvokeProtocol>;

impl Bedrock {
    /// Creates a client of a region, without authorisation.
    pub fn new(region: &str) -> Self {
        Self::at(&format!("https://bedrock-runtime.{region}.amazonaws.com"))
    }

    /// Creates a client at this base URL, without authorisation.
    pub fn at(base_url: &str) -> Self {
        let config = EndpointConfig::new("bedrock", base_url, ApiKeyHeader::Bearer)
            .with_variables("AWS_BEARER_TOKEN_BEDROCK", "BEDROCK_BASE_URL");
        Self { config }
    }

    /// Creates a client from the environment: `AWS_REGION` (or `AWS_DEFAULT_REGION`), and `AWS_BEARER_TOKEN_BEDROCK`, or
    /// with the feature `sigv4` `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`. `BEDROCK_BASE_URL`
    /// overrides the address.
    ///
    /// # Errors
    ///
    /// Returns [`SetupError::MissingKey`] if the region or the authorisation is missing.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let var = without_blank(var);
        let missing = |variable: &str| SetupError::MissingKey {
            provider: "bedrock".to_owned(),
            variable: variable.to_owned(),
        };
        let region =
            var("AWS_REGION").or_else(|| var("AWS_DEFAULT_REGION")).ok_or_else(|| missing("AWS_REGION"))?;
        let bedrock = var("BEDROCK_BASE_URL").map_or_else(|| Self::new(&region), |url| Self::at(&url));
        if let Some(key) = var("AWS_BEARER_TOKEN_BEDROCK") {
            return Ok(bedrock.key(ApiKey::new(key)));
        }
        #[cfg(feature = "sigv4")]
        if let Some(credentials) = AwsCredentials::from_vars(&var) {
            return Ok(bedrock.signer(SigV4Signer::new(&region, credentials)));
        }
        Err(missing("AWS_BEARER_TOKEN_BEDROCK"))
    }

    endpoint_builder_methods!();

    /// Creates a model with the Converse API.
    pub fn converse(&self, model: &str) -> Result<ConverseModel, SetupError> {
        Ok(ProviderModel::new(self.config.build()?, ConverseProtocol::default(), model))
    }

    /// Creates a model of Anthropic with its Messages API.
    pub fn messages(&self, model: &str) -> Result<InvokeModel, SetupError> {
        Ok(ProviderModel::new(self.config.build()?, InvokeProtocol::default(), model))
    }
}

/// The Converse API.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConverseProtocol {}

impl ModelProtocol for ConverseProtocol {
    fn name(&self) -> &str {
        "converse"
    }

    fn provider_name(&self) -> &str {
        "aws.bedrock"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        check_settings("Bedrock", request.request.settings, &CONVERSE_SETTINGS, &["parallel_tool_calls"])?;
        converse_encode::CONVERSE_MEDIA.check(&request.request)?;
        let base = RequestBase::new(request, WireProtocol::Converse);
        let method = if request.is_streamed { "converse-stream" } else { "converse" };
        let path = format!("/model/{}/{method}", encode_path_segment(request.model));
        Ok(EncodedRequest::new(path, encode_body(&converse_encode::ConverseRequestBody { base })?))
    }

    fn decoder<'a>(&'a self, request: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a> {
        Box::new(ConverseDecoder::new(RequestBase::new(&request, WireProtocol::Converse)))
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        match &tool.kind {
            ToolKind::Function => Ok(()),
            _ => Err("the Converse API has only functions".to_owned()),
        }
    }
}
