//! The providers that are known by name.

use windlass::model::SharedModel;

use crate::anthropic::Anthropic;
use crate::api_key::ApiKey;
use crate::azure::AzureOpenAi;
use crate::bedrock::Bedrock;
use crate::endpoint::EndpointConfig;
use crate::error::SetupError;
use crate::gemini::Gemini;
use crate::openai::{
    ChatCachePoints, ChatCallIds, ChatDialect, ChatOutputFormat, ChatProtocol, OpenAi, StreamUsageRequest,
    TokenLimitField,
};
use crate::provider_model::ProviderModel;

/// A provider that is known by name.
pub(crate) struct KnownProvider {
    pub(crate) name: &'static str,
    /// The default address; empty if it depends on the configuration.
    pub(crate) base_url: &'static str,
    pub(crate) base_url_variable: &'static str,
    /// The variable of the key.
    pub(crate) key_variable: &'static str,
    /// The variables that it needs.
    pub(crate) required_variables: &'static [&'static str],
    /// The variables that it reads beside the address and the key.
    pub(crate) other_variables: &'static [&'static str],
    pub(crate) kind: ProviderKind,
}

/// The way in which models of a provider are created.
#[derive(Clone, Copy)]
pub(crate) enum ProviderKind {
    OpenAiResponses,
    OpenAiChat,
    Anthropic,
    AzureResponses,
    AzureChat,
    Gemini,
    Vertex,
    Bedrock,
    BedrockMessages,
    /// A server with Chat Completions in a dialect.
    Compatible(ChatDialect),
}

/// Returns a provider with its own API.
const fn own(
    (name, kind): (&'static str, ProviderKind),
    base_url: &'static str,
    (base_url_variable, key_variable): (&'static str, &'static str),
    required_variables: &'static [&'static str],
    other_variables: &'static [&'static str],
) -> KnownProvider {
    KnownProvider {
        name,
        kind,
        base_url,
        base_url_variable,
        key_variable,
        required_variables,
        other_variables,
    }
}

/// Returns a provider with Chat Completions that needs the variables `required`.
const fn chat(
    name: &'static str,
    base_url: &'static str,
    (base_url_variable, key_variable): (&'static str, &'static str),
    required_variables: &'static [&'static str],
    dialect: ChatDialect,
) -> KnownProvider {
    own(
        (name, ProviderKind::Compatible(dialect)),
        base_url,
        (base_url_variable, key_variable),
        required_variables,
        &[],
    )
}

/// The variables of OpenAI: address and key, those that it needs, and the others.
const OPENAI: (&str, &str) = ("OPENAI_BASE_URL", "OPENAI_API_KEY");
const OPENAI_KEY: &[&str] = &["OPENAI_API_KEY"];
const OPENAI_OTHERS: &[&str] =
    &["OPENAI_ORGANIZATION", "OPENAI_ORG_ID", "OPENAI_PROJECT", "OPENAI_PROJECT_ID"];
const OPENAI_URL: &str = "https://api.openai.com/v1";
const AZURE: (&str, &str) = ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY");
const AZURE_REQUIRED: &[&str] = &["AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"];
const AZURE_OTHERS: &[&str] = &["AZURE_OPENAI_AD_TOKEN", "OPENAI_API_VERSION"];
const GEMINI_URL: &str = "https://generativelanguage.googleapis.com/v1beta";
const VERTEX_REQUIRED: &[&str] = &["GOOGLE_CLOUD_PROJECT", "GOOGLE_ACCESS_TOKEN"];
const AWS: (&str, &str) = ("BEDROCK_BASE_URL", "AWS_BEARER_TOKEN_BEDROCK");
const AWS_REQUIRED: &[&str] = &["AWS_REGION", "AWS_BEARER_TOKEN_BEDROCK"];
const AWS_OTHERS: &[&str] =
    &["AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// The known providers: name, API, address, variables, dialect.
#[rustfmt::skip]
pub(crate) const KNOWN_PROVIDERS: [KnownProvider; 21] = [
    own(("openai", ProviderKind::OpenAiResponses), OPENAI_URL, OPENAI, OPENAI_KEY, OPENAI_OTHERS),
    own(("openai-responses", ProviderKind::OpenAiResponses), OPENAI_URL, OPENAI, OPENAI_KEY, OPENAI_OTHERS),
    own(("openai-chat", ProviderKind::OpenAiChat), OPENAI_URL, OPENAI, OPENAI_KEY, OPENAI_OTHERS),
    own(("anthropic", ProviderKind::Anthropic), "https://api.anthropic.com", ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"), &["ANTHROPIC_API_KEY"], &[]),
    own(("azure", ProviderKind::AzureResponses), "", AZURE, AZURE_REQUIRED, AZURE_OTHERS),
    own(("azure-chat", ProviderKind::AzureChat), "", AZURE, AZURE_REQUIRED, AZURE_OTHERS),
    own(("gemini", ProviderKind::Gemini), GEMINI_URL, ("GEMINI_BASE_URL", "GEMINI_API_KEY"), &["GEMINI_API_KEY"], &["GOOGLE_API_KEY"]),
    own(("vertex", ProviderKind::Vertex), "", ("VERTEX_BASE_URL", "GOOGLE_ACCESS_TOKEN"), VERTEX_REQUIRED, &["GOOGLE_CLOUD_LOCATION"]),
    own(("bedrock", ProviderKind::Bedrock), "", AWS, AWS_REQUIRED, AWS_OTHERS),
    own(("bedrock-anthropic", ProviderKind::BedrockMessages), "", AWS, AWS_REQUIRED, AWS_OTHERS),
    chat("mistral", "https://api.mistral.ai/v1", ("MISTRAL_BASE_URL", "MISTRAL_API_KEY"), &["MISTRAL_API_KEY"], MISTRAL),
    chat("groq", "https://api.groq.com/openai/v1", ("GROQ_BASE_URL", "GROQ_API_KEY"), &["GROQ_API_KEY"], GROQ),
    chat("openrouter", "https://openrouter.ai/api/v1", ("OPENROUTER_BASE_URL", "OPENROUTER_API_KEY"), &["OPENROUTER_API_KEY"], OPENROUTER),
    chat("deepseek", "https://api.deepseek.com/v1", ("DEEPSEEK_BASE_URL", "DEEPSEEK_API_KEY"), &["DEEPSEEK_API_KEY"], DEEPSEEK),
    chat("xai", "https://api.x.ai/v1", ("XAI_BASE_URL", "XAI_API_KEY"), &["XAI_API_KEY"], XAI),
    chat("together", "https://api.together.xyz/v1", ("TOGETHER_BASE_URL", "TOGETHER_API_KEY"), &["TOGETHER_API_KEY"], TOGETHER),
    chat("fireworks", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_BASE_URL", "FIREWORKS_API_KEY"), &["FIREWORKS_API_KEY"], FIREWORKS),
    chat("llamacpp", "http://127.0.0.1:8080/v1", ("LLAMACPP_BASE_URL", "LLAMACPP_API_KEY"), &[], ChatDialect::PLAIN),
    chat("lmstudio", "http://127.0.0.1:1234/v1", ("LMSTUDIO_BASE_URL", "LMSTUDIO_API_KEY"), &[], ChatDialect::PLAIN),
    chat("ollama", "http://127.0.0.1:11434/v1", ("OLLAMA_HOST", "OLLAMA_API_KEY"), &[], ChatDialect::PLAIN),
    chat("vllm", "http://127.0.0.1:8000/v1", ("VLLM_BASE_URL", "VLLM_API_KEY"), &[], ChatDialect::PLAIN),
];

// The fields of mistral, groq and together are those of the types in their official clients; the others are by
// their documentation.

const MISTRAL: ChatDialect = ChatDialect {
    token_limit: TokenLimitField::MaxTokens,
    call_ids: ChatCallIds::NineLetters,
    seed_field: Some("random_seed"),
    stream_usage: StreamUsageRequest::Unasked,
    unsupported_settings: &["verbosity", "safety_identifier", "prompt_cache_retention", "store"],
    ..ChatDialect::PLAIN
};

const GROQ: ChatDialect = ChatDialect {
    token_limit: TokenLimitField::MaxCompletionTokens,
    stream_usage: StreamUsageRequest::Unasked,
    unsupported_settings: &["verbosity", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"],
    ..ChatDialect::PLAIN
};

const OPENROUTER: ChatDialect = ChatDialect {
    token_limit: TokenLimitField::MaxTokens,
    cache_points: ChatCachePoints::AnthropicModels,
    has_file_urls: true,
    unsupported_settings: &["safety_identifier", "prompt_cache_key", "prompt_cache_retention", "store"],
    ..ChatDialect::PLAIN
};

const DEEPSEEK: ChatDialect = ChatDialect {
    token_limit: TokenLimitField::MaxTokens,
    output_format: ChatOutputFormat::JsonObject,
    unsupported_settings: &[
        "seed",
        "parallel_tool_calls",
        "reasoning_effort",
        "verbosity",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "store",
    ],
    ..ChatDialect::PLAIN
};

const XAI: ChatDialect = ChatDialect {
    token_limit: TokenLimitField::MaxCompletionTokens,
    unsupported_settings: &[
        "verbosity",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "store",
    ],
    ..ChatDialect::PLAIN
};

const TOGETHER: ChatDialect = ChatDialect {
    token_limit: TokenLimitField::MaxTokens,
    stream_usage: StreamUsageRequest::Unasked,
    unsupported_settings: &[
        "parallel_tool_calls",
        "verbosity",
        "top_logprobs",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "store",
    ],
    ..ChatDialect::PLAIN
};

const FIREWORKS: ChatDialect = ChatDialect {
    token_limit: TokenLimitField::MaxTokens,
    unsupported_settings: &["verbosity", "safety_identifier", "prompt_cache_retention", "store"],
    ..ChatDialect::PLAIN
};

impl KnownProvider {
    /// Returns the name of its API.
    pub(crate) fn api(&self) -> &'static str {
        match self.kind {
            ProviderKind::OpenAiResponses | ProviderKind::AzureResponses => "Responses",
            ProviderKind::Anthropic | ProviderKind::BedrockMessages => "Messages",
            ProviderKind::Gemini | ProviderKind::Vertex => "Gemini",
            ProviderKind::Bedrock => "Converse",
            ProviderKind::OpenAiChat | ProviderKind::AzureChat | ProviderKind::Compatible(_) => {
                "Chat Completions"
            }
        }
    }

    /// Creates a model, with the variables that `var` returns.
    pub(crate) fn model(
        &self,
        name: &str,
        var: impl Fn(&str) -> Option<String>,
    ) -> Result<SharedModel, SetupError> {
        Ok(match self.kind {
            ProviderKind::OpenAiResponses => OpenAi::from_vars(var)?.responses(name)?.into(),
            ProviderKind::OpenAiChat => OpenAi::from_vars(var)?.chat(name)?.into(),
            ProviderKind::Anthropic => Anthropic::from_vars(var)?.messages(name)?.into(),
            ProviderKind::AzureResponses => AzureOpenAi::from_vars(var)?.responses(name)?.into(),
            ProviderKind::AzureChat => AzureOpenAi::from_vars(var)?.chat(name)?.into(),
            ProviderKind::Gemini => Gemini::from_vars(var)?.model(name)?.into(),
            ProviderKind::Vertex => Gemini::vertex_from_vars(var)?.model(name)?.into(),
            ProviderKind::Bedrock => Bedrock::from_vars(var)?.converse(name)?.into(),
            ProviderKind::BedrockMessages => Bedrock::from_vars(var)?.messages(name)?.into(),
            ProviderKind::Compatible(dialect) => {
                let config = self.compatible_config(var)?;
                ProviderModel::new(config.build()?, ChatProtocol::with_dialect(dialect), name).into()
            }
        })
    }

    /// Returns the base URL that the value of the provider's variable stands for.
    pub(crate) fn complete_base_url(&self, address: &str) -> String {
        match self.kind {
            ProviderKind::Compatible(_) => {
                normalise_base_url(address, (self.name == "ollama").then_some(OLLAMA_PORT))
            }
            _ => address.to_owned(),
        }
    }

    fn compatible_config(&self, var: impl Fn(&str) -> Option<String>) -> Result<EndpointConfig, SetupError> {
        let address = var(self.base_url_variable);
        let (key, is_needed) = (var(self.key_variable), !self.required_variables.is_empty());
        if key.is_none() && address.is_none() && is_needed {
            return Err(SetupError::MissingKey {
                provider: self.name.to_owned(),
                variable: self.key_variable.to_owned(),
            });
        }
        let address =
            address.map_or_else(|| self.base_url.to_owned(), |address| self.complete_base_url(&address));
        let server =
            OpenAi::named(self.name, &address).with_variables(self.key_variable, self.base_url_variable);
        let mut config = server.into_config();
        config.key = key.map(ApiKey::new);
        Ok(config)
    }
}

/// The port of Ollama, unless its variable names another one.
const OLLAMA_PORT: u16 = 11434;

/// Completes a base URL. Ollama's variable may contain only a host, or a host and a port, and `0.0.0.0` if its server
/// listens on every address. `port` is the usual port of the provider's server.
pub(crate) fn normalise_base_url(address: &str, port: Option<u16>) -> String {
    let address = address.trim().trim_end_matches('/');
    let address = if address.contains("://") {
        address.to_owned()
    } else {
        let (host, path) = address.split_at(address.find(['/', '?']).unwrap_or(address.len()));
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = port.filter(|_| !has_port).map_or(String::new(), |port| format!(":{port}"));
        let host = match host.strip_prefix("0.0.0.0") {
            Some(rest) => format!("127.0.0.1{rest}"),
            None => host.to_owned(),
        };
        format!("http://{host}{port}{path}")
    };
    let (address, query) = match address.split_once('?') {
        Some((address, query)) => (address.trim_end_matches('/').to_owned(), format!("?{query}")),
        None => (address, String::new()),
    };
    let path =
        address.split_once("://").map_or("", |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
    if path.is_empty() { format!("{address}/v1{query}") } else { format!("{address}{query}") }
}
