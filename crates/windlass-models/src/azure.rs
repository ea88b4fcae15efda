//! OpenAI's models at Azure, with either form of address, and a key or a token of Entra.

use hyper::header::HeaderMap;
use windlass::model::{ModelError, ToolDefinition};

use crate::api_key::ApiKey;
use crate::endpoint::{ApiKeyHeader, EndpointConfig, endpoint_builder_methods, without_blank};
use crate::error::SetupError;
use crate::openai::{ChatProtocol, ResponsesModel, ResponsesProtocol};
use crate::protocol::{EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder};
use crate::provider_model::ProviderModel;

/// OpenAI's models at Azure. Models are named by their deployments.
///
/// ```
/// use windlass_models::AzureOpenAi;
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// // https://me.openai.azure.com/openai/v1/responses
/// let model = AzureOpenAi::new("https://me.openai.azure.com").key("…").responses("my-gpt-5")?;
/// // https://me.openai.azure.com/openai/deployments/my-gpt-5/chat/completions?api-version=2024-10-21
/// let azure = AzureOpenAi::new("https://me.openai.azure.com").key("…").api_version("2024-10-21");
/// let model = azure.chat("my-gpt-5")?;
/// # Ok(()) }
/// ```
///
/// For Entra, give a [`BearerTokenSigner`](crate::BearerTokenSigner) with `.signer(…)` instead of a key. Its scope is
/// `https://cognitiveservices.azure.com/.default`.
#[derive(Clone, Debug)]
pub struct AzureOpenAi {
    config: EndpointConfig,
    endpoint: String,
    api_version: Option<String>,
}

/// A model with Chat Completions at Azure.
pub type AzureChatModel = ProviderModel<DeploymentProtocol>;

impl AzureOpenAi {
    /// Creates a client of a resource, such as `https://me.openai.azure.com`. An endpoint that already ends with
    /// `/openai/v1` is accepted too.
    pub fn new(endpoint: &str) -> Self {
        let endpoint = endpoint.trim().trim_end_matches('/');
        let endpoint = endpoint
            .strip_suffix("/openai/v1")
            .or_else(|| endpoint.strip_suffix("/openai"))
            .unwrap_or(endpoint);
        let config = EndpointConfig::new("azure", endpoint, ApiKeyHeader::Named("api-key"))
            .with_variables("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT");
        Self { config, endpoint: endpoint.to_owned(), api_version: None }
    }

    /// Creates a client from the environment: `AZURE_OPENAI_ENDPOINT`, and `AZURE_OPENAI_API_KEY` or
    /// `AZURE_OPENAI_AD_TOKEN`. `OPENAI_API_VERSION` selects the addresses by deployment.
    ///
    /// # Errors
    ///
    /// Returns an error if the endpoint, or both the key and the token, are missing.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let var = without_blank(var);
        let missing = |variable: &str| SetupError::MissingKey {
            provider: "azure".to_owned(),
            variable: variable.to_owned(),
        };
        let endpoint = var("AZURE_OPENAI_ENDPOINT").ok_or_else(|| missing("AZURE_OPENAI_ENDPOINT"))?;
        let mut azure = Self::new(&endpoint);
        azure = match (var("AZURE_OPENAI_API_KEY"), var("AZURE_OPENAI_AD_TOKEN")) {
            (Some(key), _) => azure.key(ApiKey::new(key)),
            (None, Some(token)) => azure.entra_token(ApiKey::new(token)),
            (None, None) => return Err(missing("AZURE_OPENAI_API_KEY")),
        };
        azure.api_version = var("OPENAI_API_VERSION");
        Ok(azure)
    }

    endpoint_builder_methods!();

    /// Sets a fixed token of Entra in place of a key. It expires; a signer can renew it.
    #[must_use]
    pub fn entra_token(mut self, token: impl Into<ApiKey>) -> Self {
        self.config.key_header = ApiKeyHeader::Bearer;
        self.config.key_variable = "AZURE_OPENAI_AD_TOKEN".into();
        self.key(token)
    }

    /// Selects the addresses by deployment (`/openai/deployments/…?api-version=…`) in place of `/openai/v1`.
    #[must_use]
    pub fn api_version(mut self, version: &str) -> Self {
        self.api_version = Some(version.to_owned());
        self
    }

    /// Creates a model with the Responses API.
    pub fn responses(&self, deployment: &str) -> Result<ResponsesModel, SetupError> {
        let config = self.config_at(&match &self.api_version {
            // The Responses API names the deployment in the body in both forms.
            Some(version) => format!("{}/openai?api-version={version}", self.endpoint),
            None => format!("{}/openai/v1", self.endpoint),
        });
        Ok(ProviderModel::new(config.build()?, ResponsesProtocol::default(), deployment))
    }

    /// Creates a model with the Chat Completions API.
    pub fn chat(&self, deployment: &str) -> Result<AzureChatModel, SetupError> {
        let (url, address) = match &self.api_version {
            Some(version) => {
                (format!("{}/openai?api-version={version}", self.endpoint), DeploymentAddress::InPath)
            }
            None => (format!("{}/openai/v1", self.endpoint), DeploymentAddress::InBody),
        };
        let protocol = DeploymentProtocol { chat: ChatProtocol::default(), address };
        Ok(ProviderModel::new(self.config_at(&url).build()?, protocol, deployment))
    }

    fn config_at(&self, base_url: &str) -> EndpointConfig {
        EndpointConfig { base_url: base_url.to_owned(), ..self.config.clone() }
    }
}

/// The place of the deployment's name in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeploymentAddress {
    InPath,
    InBody,
}

/// Chat Completions at Azure, which may have the deployment in the path.
#[derive(Clone, Debug)]
pub struct DeploymentProtocol {
    chat: ChatProtocol,
    address: DeploymentAddress,
}

impl ModelProtocol for DeploymentProtocol {
    fn name(&self) -> &str {
        self.chat.name()
    }

    fn provider_name(&self) -> &str {
        "azure.ai.openai"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        let encoded = self.chat.encode(request)?;
        if self.address == DeploymentAddress::InBody {
            return Ok(encoded);
        }
        let path = format!("/deployments/{}{}", encode_path_segment(request.model), encoded.path);
        Ok(EncodedRequest { path: path.into(), headers: HeaderMap::new(), ..encoded })
    }

    fn decoder<'a>(&'a self, request: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a> {
        self.chat.decoder(request)
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        self.chat.check_tool_support(tool)
    }
}

/// Percent-encodes a segment of a path.
pub(crate) fn encode_path_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
