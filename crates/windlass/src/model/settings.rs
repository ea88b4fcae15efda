//! Settings of model requests.

use serde_json::{Map, Value};

/// Settings of a model request. Absent values are left to the provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSettings {
    /// Tools that the model may or must call.
    pub tool_choice: Option<ToolChoice>,
    /// True if the model may make several tool calls in one response.
    pub parallel_tool_calls: Option<bool>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling threshold.
    pub top_p: Option<f64>,
    /// Maximum number of output tokens.
    pub max_tokens: Option<u64>,
    /// Reasoning effort: `low`, `medium`, `high`, as the provider defines it.
    pub reasoning_effort: Option<String>,
    /// Additional provider-specific fields of the request.
    pub extra: Map<String, Value>,
}

/// The tools that a model may or must call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// The model must call at least one tool.
    Required,
    /// The model must not call a tool.
    None,
    /// The model must call this tool.
    Tool(String),
}

impl ToolChoice {
    /// Returns the choice in the providers' notation.
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
    /// Returns these settings, overridden by the values that are present in `over`.
    #[must_use]
    pub fn with_overrides(&self, over: &Self) -> Self {
        let mut extra = self.extra.clone();
        extra.extend(over.extra.iter().map(|(key, value)| (key.clone(), value.clone())));
        Self {
            tool_choice: over.tool_choice.clone().or_else(|| self.tool_choice.clone()),
            parallel_tool_calls: over.parallel_tool_calls.or(self.parallel_tool_calls),
            temperature: over.temperature.or(self.temperature),
            top_p: over.top_p.or(self.top_p),
            max_tokens: over.max_tokens.or(self.max_tokens),
            reasoning_effort: over.reasoning_effort.clone().or_else(|| self.reasoning_effort.clone()),
            extra,
        }
    }
}
