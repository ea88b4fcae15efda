//! Prompts that a server offers: texts with places, made into messages when a client asks.

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
use windlass::ToolError;

/// A prompt that clients may ask for.
#[derive(Clone)]
pub struct Prompt {
    pub(super) name: String,
    description: String,
    arguments: Vec<Argument>,
    make: Make,
}

/// A place in a prompt.
#[derive(Clone, Debug)]
pub struct Argument {
    pub(super) name: String,
    description: String,
    need: Need,
    pub(super) suggestions: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Required,
    Optional,
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Message {
    /// The user says this.
    User(String),
    /// The assistant says this.
    Assistant(String),
    /// The user shows a picture.
    Image {
        /// Its bytes, in base64.
        base64: String,
        /// Its media type.
        media_type: String,
    },
    /// The user shows what is at an address.
    Resource {
        /// The address.
        uri: String,
        /// The media type of the text.
        media_type: String,
        /// What is there.
        text: String,
    },
}

type Make = Arc<
    dyn Fn(BTreeMap<String, String>) -> BoxFuture<'static, Result<Vec<Message>, ToolError>> + Send + Sync,
>;

impl Prompt {
    /// A prompt, and the function that makes its messages from what stands in its places.
    pub fn new<Fut>(
        name: impl Into<String>,
        description: impl Into<String>,
        make: impl Fn(BTreeMap<String, String>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Vec<Message>, ToolError>> + Send + 'static,
    {
        Self {
            name: name.into(),
            description: description.into(),
            arguments: Vec::new(),
            make: Arc::new(move |given| make(given).boxed()),
        }
    }

    /// Adds a place.
    #[must_use]
    pub fn argument(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    pub(super) fn listed(&self) -> model::Prompt {
        let arguments = self.arguments.iter().map(|argument| {
            PromptArgument::new(&*argument.name)
                .with_description(&*argument.description)
                .with_required(argument.need == Need::Required)
        });
        let arguments: Vec<PromptArgument> = arguments.collect();
        model::Prompt::new(&*self.name, Some(&*self.description), Some(arguments))
    }

    pub(super) fn suggests(&self) -> bool {
        self.arguments.iter().any(|argument| !argument.suggestions.is_empty())
    }

    pub(super) fn suggestions(&self, argument: &str) -> &[String] {
        let found = self.arguments.iter().find(|known| known.name == argument);
        found.map(|argument| argument.suggestions.as_slice()).unwrap_or_default()
    }

    /// The prompt with what a client gave for its places.
    pub(super) async fn made(&self, given: Option<JsonObject>) -> Result<GetPromptResult, ErrorData> {
        let given = given.unwrap_or_default().into_iter().map(|(name, value)| match value {
            Value::String(text) => (name, text),
            other => (name, other.to_string()),
        });
        let given: BTreeMap<String, String> = given.collect();
        let missing = self
            .arguments
            .iter()
            .find(|argument| argument.need == Need::Required && !given.contains_key(&argument.name));
        if let Some(missing) = missing {
            let why = format!("prompt `{}` needs `{}`", self.name, missing.name);
            return Err(ErrorData::invalid_params(why, None));
        }
        let messages = (self.make)(given).await.map_err(|error| {
            tracing::warn!(prompt = %self.name, %error, "a prompt could not be made");
            ErrorData::internal_error(error.for_model().unwrap_or("it cannot be made now").to_owned(), None)
        })?;
        let messages = messages.into_iter().map(Message::told).collect();
        Ok(GetPromptResult::new(messages).with_description(&*self.description))
    }
}

impl Argument {
    /// A place that must be filled.
    pub fn required(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            need: Need::Required,
            suggestions: Vec::new(),
        }
    }

    /// A place that may be left empty.
    pub fn optional(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self { need: Need::Optional, ..Self::required(name, description) }
    }

    /// What a client may offer a person for it.
    #[must_use]
    pub fn suggest<S: Into<String>>(mut self, values: impl IntoIterator<Item = S>) -> Self {
        self.suggestions = values.into_iter().map(Into::into).collect();
        self
    }
}

impl Message {
    fn told(self) -> PromptMessage {
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

impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prompt").field("name", &self.name).finish_non_exhaustive()
    }
}
