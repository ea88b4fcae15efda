//! Google's Gemini API, at Google AI and at Vertex AI.

mod decode;
mod encode;

use windlass::model::{ModelError, ToolDefinition, ToolKind};

use crate::api_key::ApiKey;
use crate::azure::encode_path_segment;
use crate::endpoint::{ApiKeyHeader, EndpointConfig, endpoint_builder_methods, without_blank};
use crate::error::SetupError;
use crate::protocol::{EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder};
use crate::provider_model::ProviderModel;
use crate::setting_support::check_settings;
use crate::wire::{RequestBase, WireProtocol, encode_body};

pub(crate) use decode::GeminiDecoder;

/// Base URL of Google AI.
const GEMINI_BASE_URL: &str = "https://generativelanguage.googleapis.com/v1beta";
/// Types of tools that the provider runs.
const SERVER_TOOLS: [&str; 6] =
    ["google_search", "code_execution", "url_context", "google_maps", "file_search", "enterprise_web_search"];
/// The settings of Gemini beside the common ones.
const GEMINI_SETTINGS: [&str; 9] = [
    "stop",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
    "reasoning_summary",
    "thinking_budget",
    "top_logprobs",
    "metadata",
];

/// Google's Gemini models; the builder of [`GeminiModel`].
///
/// ```
/// use windlass_models::Gemini;
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let model = Gemini::new("key").model("gemini-3-pro")?;
/// // With a token of Google Cloud: see `BearerTokenSigner`.
/// let vertex = Gemini::vertex("my-project", "europe-west4").key("token").model("gemini-2.5-flash")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Gemini {
    config: EndpointConfig,
    host: GeminiHost,
}

/// A model with the Gemini API.
pub type GeminiModel = ProviderModel<GeminiProtocol>;

impl Gemini {
    /// Creates a client of Google AI with this key.
    pub fn new(key: impl Into<ApiKey>) -> Self {
        Self::at(GEMINI_BASE_URL).key(key)
    }

    /// Creates a client of a compatible server at this base URL, without a key.
    pub fn at(base_url: &str) -> Self {
        let config = EndpointConfig::new("gemini", base_url, ApiKeyHeader::Named("x-goog-api-key"))
            .with_variables("GEMINI_API_KEY", "GEMINI_BASE_URL");
        Self { config, host: GeminiHost::GoogleAi }
    }

    /// Creates a client of Vertex AI. The key is a token of Google Cloud; a signer can renew it. The location may be
    /// `global`.
    pub fn vertex(project: &str, location: &str) -> Self {
        let host = match location {
            "global" => "aiplatform.googleapis.com".to_owned(),
            location => format!("{location}-aiplatform.googleapis.com"),
        };
        Self::vertex_at(&format!("https://{host}/v1"), project, location)
    }

    /// As [`vertex`](Self::vertex), at this base URL.
    pub fn vertex_at(base_url: &str, project: &str, location: &str) -> Self {
        let base_url = base_url.trim_end_matches('/');
        let base_url = format!("{base_url}/projects/{project}/locations/{location}/publishers/google");
        let config = EndpointConfig::new("vertex", &base_url, ApiKeyHeader::Bearer)
            .with_variables("GOOGLE_ACCESS_TOKEN", "VERTEX_BASE_URL");
        Self { config, host: GeminiHost::Vertex }
    }

    /// Creates a client of Google AI from the environment: `GEMINI_API_KEY` or `GOOGLE_API_KEY`, and `GEMINI_BASE_URL`.
    ///
    /// # Errors
    ///
    /// Returns [`SetupError::MissingKey`] if neither a key nor a base URL is set.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let var = without_blank(var);
        let gemini = Self::at(GEMINI_BASE_URL);
        let either = |name: &str| match name {
            "GEMINI_API_KEY" => var(name).or_else(|| var("GOOGLE_API_KEY")),
            name => var(name),
        };
        Ok(Self { config: gemini.config.read_vars(either)?, ..gemini })
    }

    /// Creates a client of Vertex AI from the environment: `GOOGLE_CLOUD_PROJECT`, `GOOGLE_CLOUD_LOCATION` (or `global`),
    /// `GOOGLE_ACCESS_TOKEN` and `VERTEX_BASE_URL`.
    ///
    /// # Errors
    ///
    /// Returns [`SetupError::MissingKey`] if the project or the token is missing.
    pub fn vertex_from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let var = without_blank(var);
        let missing = |variable: &str| SetupError::MissingKey {
            provider: "vertex".to_owned(),
            variable: variable.to_owned(),
        };
        let project = var("GOOGLE_CLOUD_PROJECT").ok_or_else(|| missing("GOOGLE_CLOUD_PROJECT"))?;
        let location = var("GOOGLE_CLOUD_LOCATION").unwrap_or_else(|| "global".to_owned());
        let vertex = match var("VERTEX_BASE_URL") {
            Some(url) => Self::vertex_at(&url, &project, &location),
            None => Self::vertex(&project, &location),
        };
        let token = var("GOOGLE_ACCESS_TOKEN").ok_or_else(|| missing("GOOGLE_ACCESS_TOKEN"))?;
        Ok(vertex.key(ApiKey::new(token)))
    }

    endpoint_builder_methods!();

    /// Creates a model.
    pub fn model(&self, model: &str) -> Result<GeminiModel, SetupError> {
        Ok(ProviderModel::new(self.config.build()?, GeminiProtocol { host: self.host }, model))
    }
}

/// The service that hosts the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeminiHost {
    /// Google AI.
    #[default]
    GoogleAi,
    /// Vertex AI, which has labels.
    Vertex,
}

/// The Gemini API.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GeminiProtocol {
    /// The service that hosts the API.
    pub host: GeminiHost,
}

impl ModelProtocol for GeminiProtocol {
    fn name(&self) -> &str {
        "gemini"
    }

    fn provider_name(&self) -> &str {
        "gcp.gemini"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        let unsupported: &[&str] = match self.host {
            GeminiHost::GoogleAi => &["metadata", "parallel_tool_calls"],
            GeminiHost::Vertex => &["parallel_tool_calls"],
        };
        check_settings("Gemini", request.request.settings, &GEMINI_SETTINGS, unsupported)?;
        encode::GEMINI_MEDIA.check(&request.request)?;
        let base = RequestBase::new(request, WireProtocol::Gemini);
        let method = if request.is_streamed { "streamGenerateContent?alt=sse" } else { "generateContent" };
        let model = request.model.strip_prefix("models/").unwrap_or(request.model);
        let path = format!("/models/{}:{method}", encode_path_segment(model));
        Ok(EncodedRequest::new(path, encode_body(&encode::GeminiRequestBody { base })?))
    }

    fn decoder<'a>(&'a self, request: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a> {
        Box::new(GeminiDecoder::new(RequestBase::new(&request, WireProtocol::Gemini)))
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        match &tool.kind {
            ToolKind::Function => Ok(()),
            ToolKind::Hosted(definition)
                if definition["type"].as_str().is_some_and(|kind| SERVER_TOOLS.contains(&kind)) =>
            {
                Ok(())
            }
            ToolKind::Hosted(_) => Err(format!("Gemini runs these tools: {}", SERVER_TOOLS.join(", "))),
            ToolKind::Computer(_) | ToolKind::ProviderDefined(_) => {
                Err("Gemini has only functions and tools that it runs itself".to_owned())
            }
        }
    }
}
