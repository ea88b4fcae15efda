//! Errors of tool bodies: a text for the operator, and optionally one for the model.

use std::any::Any;
use std::fmt;

use windlass_core::{
    decision::PersonQuestion,
    item::{ContentPart, OutputContent},
};

/// An error of a tool's body.
///
/// Text that was written for the model ([`ToolError::visible`], or a plain string as the error type) reaches
/// it. The text of any other error is for the operator only, because it may contain addresses, paths and
/// secrets; `on_failure = show_error` shows it to the model for one tool.
///
/// It deliberately does not implement [`std::error::Error`], so that `?` converts every type that does.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolError {
    message: String,
    audience: ErrorAudience,
    certainty: EffectCertainty,
    question: Option<Box<PersonQuestion>>,
    attachments: Vec<ContentPart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorAudience {
    Operator,
    Model,
}

/// The knowledge about the effect of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EffectCertainty {
    /// The body failed, and its error says all there is to know.
    Known,
    /// The call may have taken effect.
    Unknown,
}

impl ToolError {
    /// Creates an error whose text the model sees.
    pub fn visible(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            audience: ErrorAudience::Model,
            certainty: EffectCertainty::Known,
            question: None,
            attachments: Vec::new(),
        }
    }

    /// Creates an error, whose text the model sees, of a call that may have taken effect. The output of the call
    /// then asks the model not to repeat the call without checking, instead of inviting it to try again.
    pub fn effect_unknown(message: impl Into<String>) -> Self {
        Self { certainty: EffectCertainty::Unknown, ..Self::visible(message) }
    }

    /// Returns true if the call may have taken effect.
    pub fn is_effect_unknown(&self) -> bool {
        self.certainty == EffectCertainty::Unknown
    }

    /// Creates an error whose text only the operator sees.
    pub fn hidden(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            audience: ErrorAudience::Operator,
            certainty: EffectCertainty::Known,
            question: None,
            attachments: Vec::new(),
        }
    }

    /// Creates a question to a person, which is not a failure: the body needs an answer before it can continue.
    /// The call waits, and the run pauses once nothing else is running. After the answer, the body runs again
    /// from its start, and finds the answer in [`ToolContext::answer_to`](crate::tool::ToolContext::answer_to). A
    /// body must ask before it has any effect.
    pub fn ask_person(question: PersonQuestion) -> Self {
        let message = format!("it asks: {}", question.text);
        Self {
            message,
            audience: ErrorAudience::Operator,
            certainty: EffectCertainty::Known,
            question: Some(Box::new(question)),
            attachments: Vec::new(),
        }
    }

    /// Returns the question, if the error is one.
    pub fn question(&self) -> Option<&PersonQuestion> {
        self.question.as_deref()
    }

    /// Returns the question, or the error itself if it is a failure.
    pub(crate) fn into_question(self) -> Result<PersonQuestion, Self> {
        match self.question {
            Some(question) => Ok(*question),
            None => Err(self),
        }
    }

    /// Adds content that the model sees beside the text, such as the last screenshot.
    #[must_use]
    pub fn with_attachments(mut self, content: ContentPart) -> Self {
        self.attachments.push(content);
        self
    }

    /// Returns the output for the model: this text and the attachments.
    pub(crate) fn to_output(&self, text: String) -> OutputContent {
        if self.attachments.is_empty() {
            return OutputContent::Text(text);
        }
        OutputContent::Parts(
            std::iter::once(ContentPart::text(text)).chain(self.attachments.iter().cloned()).collect(),
        )
    }

    /// Returns the text for the operator.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the text for the model, if it was written for it.
    pub fn model_message(&self) -> Option<&str> {
        match self.audience {
            ErrorAudience::Model => Some(&self.message),
            ErrorAudience::Operator => None,
        }
    }

    /// Replaces the text of the error.
    pub(crate) fn map_message(self, change: impl FnOnce(&str) -> String) -> Self {
        Self { message: change(&self.message), ..self }
    }

    /// Converts the error type of a body.
    pub(crate) fn from_body_error<E: fmt::Display + 'static>(error: E) -> Self {
        let any: &dyn Any = &error;
        if let Some(own) = any.downcast_ref::<Self>() {
            own.clone()
        } else if let Some(text) = any.downcast_ref::<String>() {
            Self::visible(text.as_str())
        } else if let Some(text) = any.downcast_ref::<&'static str>() {
            Self::visible(*text)
        } else {
            // The alternate form of error types such as `anyhow::Error` includes their causes.
            Self::hidden(format!("{error:#}"))
        }
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        use fmt::Write;
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let written = write!(message, ": {error}");
            debug_assert!(written.is_ok(), "writing to a string does not fail");
            cause = error.source();
        }
        Self::hidden(message)
    }
}
