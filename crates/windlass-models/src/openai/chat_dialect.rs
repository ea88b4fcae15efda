//! Dialects of Chat Completions: the points in which compatible providers differ.

use serde::Deserialize;

use crate::media_support::{ALL_FORMS, MediaForm, MediaSupport};
use crate::wire::is_openai_host;

/// A dialect of the Chat Completions API.
///
/// ```
/// use windlass_models::ModelProvider;
/// use windlass_models::protocol::{ChatDialect, ChatOutputFormat, ChatProtocol, TokenLimitField};
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let dialect = ChatDialect::default()
///     .token_limit(TokenLimitField::MaxTokens)
///     .output_format(ChatOutputFormat::JsonObject)
///     .unsupported_settings(&["seed"]);
/// let provider = ModelProvider::new("lab", "http://10.0.0.7:8000/v1");
/// let model = provider.model(ChatProtocol::with_dialect(dialect), "qwen3-32b")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatDialect {
    /// The field that limits the output tokens.
    pub token_limit: TokenLimitField,
    /// The form in which a typed output is requested.
    pub output_format: ChatOutputFormat,
    /// The form of the ids of calls that are sent.
    pub call_ids: ChatCallIds,
    /// The field of the sampling seed; `seed` if absent.
    pub seed_field: Option<&'static str>,
    /// The request for usage figures at the end of a stream.
    pub stream_usage: StreamUsageRequest,
    /// The models whose prompts have cache points.
    pub cache_points: ChatCachePoints,
    /// True if the provider fetches files by their URL. OpenAI accepts bytes and ids of uploaded files only.
    pub has_file_urls: bool,
    /// Names of settings that the provider lacks, although the API has them.
    pub unsupported_settings: &'static [&'static str],
}

impl ChatDialect {
    /// Returns the forms of images and files that the provider accepts.
    pub(super) fn media_support(&self) -> MediaSupport {
        let files: &[MediaForm] =
            if self.has_file_urls { ALL_FORMS } else { &[MediaForm::FileId, MediaForm::Bytes] };
        MediaSupport { api: "Chat Completions", images: &[MediaForm::Url, MediaForm::Bytes], files }
    }

    /// The dialect of most servers.
    pub(crate) const PLAIN: Self = Self {
        token_limit: TokenLimitField::ByHost,
        output_format: ChatOutputFormat::JsonSchema,
        call_ids: ChatCallIds::Any,
        seed_field: None,
        stream_usage: StreamUsageRequest::ByOption,
        cache_points: ChatCachePoints::Nowhere,
        has_file_urls: false,
        unsupported_settings: &[],
    };

    /// Sets the field that limits the output tokens.
    #[must_use]
    pub fn token_limit(self, token_limit: TokenLimitField) -> Self {
        Self { token_limit, ..self }
    }

    /// Sets the form in which a typed output is requested.
    #[must_use]
    pub fn output_format(self, output_format: ChatOutputFormat) -> Self {
        Self { output_format, ..self }
    }

    /// Sets the form of the ids of calls that are sent.
    #[must_use]
    pub fn call_ids(self, call_ids: ChatCallIds) -> Self {
        Self { call_ids, ..self }
    }

    /// Sets the request for usage figures at the end of a stream.
    #[must_use]
    pub fn stream_usage(self, stream_usage: StreamUsageRequest) -> Self {
        Self { stream_usage, ..self }
    }

    /// Sets the models whose prompts have cache points.
    #[must_use]
    pub fn cache_points(self, cache_points: ChatCachePoints) -> Self {
        Self { cache_points, ..self }
    }

    /// Sets the field of the sampling seed.
    #[must_use]
    pub fn seed_field(self, name: &'static str) -> Self {
        Self { seed_field: Some(name), ..self }
    }

    /// Sets whether the provider fetches files by their URL.
    #[must_use]
    pub fn has_file_urls(self, has_file_urls: bool) -> Self {
        Self { has_file_urls, ..self }
    }

    /// Sets the names of the settings that the provider lacks, although the API has them.
    #[must_use]
    pub fn unsupported_settings(self, names: &'static [&'static str]) -> Self {
        Self { unsupported_settings: names, ..self }
    }
}

/// The field that limits the output tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenLimitField {
    /// The field of the host: OpenAI and Azure have another one than most servers.
    #[default]
    ByHost,
    /// `max_completion_tokens`, which OpenAI requires.
    MaxCompletionTokens,
    /// `max_tokens`, which other servers know.
    MaxTokens,
}

impl TokenLimitField {
    /// Returns the name of the field for a host.
    pub(super) fn name_for(self, host: &str) -> &'static str {
        match self {
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::ByHost if is_openai_host(host) => "max_completion_tokens",
            Self::ByHost | Self::MaxTokens => "max_tokens",
        }
    }
}

/// The form in which a typed output is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChatOutputFormat {
    /// `response_format` with the JSON Schema.
    #[default]
    JsonSchema,
    /// `response_format` asks for a JSON object, and a system message has the schema.
    JsonObject,
}

/// The form of the ids of calls that are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatCallIds {
    /// Any text.
    #[default]
    Any,
    /// Nine letters or digits. Ids of another form, such as those of another provider, are replaced consistently.
    NineLetters,
}

/// The request for usage figures at the end of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamUsageRequest {
    /// `stream_options` asks for them.
    #[default]
    ByOption,
    /// The provider sends them unasked and may refuse the option.
    Unasked,
}

/// The models whose prompts have cache points, as `cache_control` in the parts of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatCachePoints {
    /// None: the provider caches without being asked, or not at all.
    #[default]
    Nowhere,
    /// The models whose names begin with `anthropic/`.
    AnthropicModels,
}

/// Returns the id of a call in the form that a provider accepts.
pub(super) fn to_wire_call_id(id: &str, form: ChatCallIds) -> std::borrow::Cow<'_, str> {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let is_accepted = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if form == ChatCallIds::Any || is_accepted {
        return id.into();
    }
    // FNV-1a: the same id gives the same letters in every request.
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut letters = String::with_capacity(9);
    for _ in 0..9 {
        letters.push(char::from(LETTERS[(hash % 62) as usize]));
        hash /= 62;
    }
    letters.into()
}
