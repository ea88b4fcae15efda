//! How a model should answer.

use serde_json::{Map, Value};

/// How a model should answer. What is absent is left to the provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSettings {
    /// Which tools it may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may make several calls in one answer.
    pub parallel_calls: Option<bool>,
    /// How freely it picks words.
    pub temperature: Option<f64>,
    /// The share of likely words that it picks from.
    pub top_p: Option<f64>,
    /// The longest answer, in tokens.
    pub max_tokens: Option<u64>,
    /// How hard it should think: `low`, `medium`, `high`, as the provider has it.
    pub reasoning_effort: Option<String>,
    /// Fields of the request that only this provider knows.
    pub extra: Map<String, Value>,
}

/// Which tools a model may or must call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    Auto,
    /// At least one.
    Required,
    /// None.
    None,
    /// This one.
    Tool(String),
}

impl ToolChoice {
    /// The choice as providers write it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Auto => "auto",
            Self::Required => "required",
            Self::None => "none",
            Self::Tool(name) => name,
        }
    }
}

impl From<&str> for ToolChoice {
    fn from(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "required" => Self::Required,
            "none" => Self::None,
            name => Self::Tool(name.to_owned()),
        }
    }
}

impl ModelSettings {
    /// These settings, with those that `over` has in place of these.
    #[must_use]
    pub fn overridden_by(&self, over: &Self) -> Self {
        let mut extra = self.extra.clone();
        extra.extend(over.extra.iter().map(|(key, value)| (key.clone(), value.clone())));
        Self {
            tool_choice: over.tool_choice.clone().or_else(|| self.tool_choice.clone()),
            parallel_calls: over.parallel_calls.or(self.parallel_calls),
            temperature: over.temperature.or(self.temperature),
            top_p: over.top_p.or(self.top_p),
            max_tokens: over.max_tokens.or(self.max_tokens),
            reasoning_effort: over.reasoning_effort.clone().or_else(|| self.reasoning_effort.clone()),
            extra,
        }
    }
}
