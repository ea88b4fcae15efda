//! Dialects of Chat Completions: the points in which compatible providers differ.

use crate::wire::is_openai_host;

/// A dialect of the Chat Completions API.
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
    /// Names of settings that the provider lacks, although the API has them.
    pub unsupported_settings: &'static [&'static str],
}

impl ChatDialect {
    /// The dialect of most servers.
    pub(crate) const PLAIN: Self = Self {
        token_limit: TokenLimitField::ByHost,
        output_format: ChatOutputFormat::JsonSchema,
        call_ids: ChatCallIds::Any,
        seed_field: None,
        stream_usage: StreamUsageRequest::ByOption,
        cache_points: ChatCachePoints::Nowhere,
        unsupported_settings: &[],
    };
}

/// The field that limits the output tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
