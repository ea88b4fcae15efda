//! Prompts of a server: templates with arguments, rendered into messages on request.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::ErrorData;
use rmcp::model::{
    self, ContentBlock, GetPromptResult, JsonObject, PromptArgument, PromptMessage, ResourceContents, Role,
};
use serde_json::Value;
use windlass::tool::ToolError;

/// A prompt that clients can get.
#[derive(Clone)]
pub struct McpPrompt {
    pub(super) name: String,
    description: String,
    arguments: Vec<McpPromptArgument>,
    render_fn: PromptRenderFn,
}

/// An argument of a prompt.
#[derive(Clone, Debug)]
pub struct McpPromptArgument {
    pub(super) name: String,
    description: String,
    requirement: ArgumentRequirement,
    pub(super) suggestions: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentRequirement {
    Required,
    Optional,
}

/// A message of a rendered prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum McpPromptMessage {
    /// A text of the user.
    User(String),
    /// A text of the assistant.
    Assistant(String),
    /// An image of the user.
    Image {
        /// The image bytes, in base64.
        base64: String,
        /// The media type of the image.
        media_type: String,
    },
    /// An embedded resource of the user.
    Resource {
        /// The URI of the resource.
        uri: String,
        /// The media type of the text.
        media_type: String,
        /// The text of the resource.
        text: String,
    },
}

type PromptRenderFn = Arc<
    dyn Fn(BTreeMap<String, String>) -> BoxFuture<'static, Result<Vec<McpPromptMessage>, ToolError>>
        + Send
        + Sync,
>;

impl McpPrompt {
    /// Creates a prompt with the function that renders its messages from the arguments.
    pub fn new<Fut>(
        name: impl Into<String>,
        description: impl Into<String>,
        make: impl Fn(BTreeMap<String, String>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Vec<McpPromptMessage>, ToolError>> + Send + 'static,
    {
        Self {
            name: name.into(),
            description: description.into(),
            arguments: Vec::new(),
            render_fn: Arc::new(move |given| make(given).boxed()),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: McpPromptArgument) -> Self {
        self.arguments.push(argument);
        self
    }

    pub(super) fn to_protocol(&self) -> model::Prompt {
        let arguments = self.arguments.iter().map(|argument| {
            PromptArgument::new(&*argument.name)
                .with_description(&*argument.description)
                .with_required(argument.requirement == ArgumentRequirement::Required)
        });
        let arguments: Vec<PromptArgument> = arguments.collect();
        model::Prompt::new(&*self.name, Some(&*self.description), Some(arguments))
    }

    pub(super) fn has_suggestions(&self) -> bool {
        self.arguments.iter().any(|argument| !argument.suggestions.is_empty())
    }

    pub(super) fn suggestions(&self, argument: &str) -> &[String] {
        let found = self.arguments.iter().find(|known| known.name == argument);
        found.map(|argument| argument.suggestions.as_slice()).unwrap_or_default()
    }

    /// Renders the prompt with a client's arguments.
    ///
    /// # Errors
    ///
    /// Returns an error if a required argument is missing or the render function fails.
    pub(super) async fn render(&self, given: Option<JsonObject>) -> Result<GetPromptResult, ErrorData> {
        let given = given.unwrap_or_default().into_iter().map(|(name, value)| match value {
            Value::String(text) => (name, text),
            other => (name, other.to_string()),
        });
        let given: BTreeMap<String, String> = given.collect();
        let missing = self.arguments.iter().find(|argument| {
            argument.requirement == ArgumentRequirement::Required && !given.contains_key(&argument.name)
        });
        if let Some(missing) = missing {
            let why = format!("prompt `{}` needs `{}`", self.name, missing.name);
            return Err(ErrorData::invalid_params(why, None));
        }
        let messages = (self.render_fn)(given).await.map_err(|error| {
            tracing::warn!(prompt = %self.name, %error, "an MCP prompt could not be rendered");
            ErrorData::internal_error(
                error.model_message().unwrap_or("it cannot be made now").to_owned(),
                None,
            )
        })?;
        let messages = messages.into_iter().map(McpPromptMessage::into_protocol).collect();
        Ok(GetPromptResult::new(messages).with_description(&*self.description))
    }
}

impl McpPromptArgument {
    /// Creates a required argument.
    pub fn required(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            requirement: ArgumentRequirement::Required,
            suggestions: Vec::new(),
        }
    }

    /// Creates an optional argument.
    pub fn optional(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self { requirement: ArgumentRequirement::Optional, ..Self::required(name, description) }
    }

    /// Sets the values that the server suggests for the argument (`completion/complete`).
    #[must_use]
    pub fn suggest<S: Into<String>>(mut self, values: impl IntoIterator<Item = S>) -> Self {
        self.suggestions = values.into_iter().map(Into::into).collect();
        self
    }
}

impl McpPromptMessage {
    fn into_protocol(self) -> PromptMessage {
        match self {
            Self::User(text) => PromptMessage::new_text(Role::User, text),
            Self::Assistant(text) => PromptMessage::new_text(Role::Assistant, text),
            Self::Image { base64, media_type } => {
                PromptMessage::new(Role::User, ContentBlock::image(base64, media_type))
            }
            Self::Resource { uri, media_type, text } => {
                let mime_type = Some(media_type);
                let contents = ResourceContents::TextResourceContents { uri, mime_type, text, meta: None };
                PromptMessage::new(Role::User, ContentBlock::resource(contents))
            }
        }
    }
}

impl fmt::Debug for McpPrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpPrompt").field("name", &self.name).finish_non_exhaustive()
    }
}
