//! Why a tool's body failed: one text for the operator, and maybe another for the model.

use std::any::Any;
use std::fmt;

use windlass_core::{Content, OutputContent, Question};

/// Why a tool's body failed.
///
/// What was written for the model ([`ToolError::tell`], or a plain string as the error type) reaches it. The
/// text of any other error is for the operator alone, because it may hold addresses, paths and secrets that
/// nobody meant to show; `on_failure = show` lifts that for one tool.
///
/// It deliberately is not a [`std::error::Error`], so that `?` turns every error that is one into it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolError {
    message: String,
    audience: Audience,
    question: Option<Box<Question>>,
    shown: Vec<Content>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    Operator,
    Model,
}

impl ToolError {
    /// A failure that the model is told of in these words.
    pub fn tell(message: impl Into<String>) -> Self {
        Self { message: message.into(), audience: Audience::Model, question: None, shown: Vec::new() }
    }

    /// A failure whose words are for the operator alone.
    pub fn hidden(message: impl Into<String>) -> Self {
        Self { message: message.into(), audience: Audience::Operator, question: None, shown: Vec::new() }
    }

    /// No failure: the body needs a person's answer before it can go on. The call waits, and so does the run once
    /// nothing else moves. With the answer the body runs again from its beginning, and finds it in
    /// [`ToolContext::reply`](crate::ToolContext::reply). A body asks before it has any effect.
    pub fn ask(question: Question) -> Self {
        let message = format!("it asks: {}", question.text);
        Self { message, audience: Audience::Operator, question: Some(Box::new(question)), shown: Vec::new() }
    }

    /// What the body asks; or itself, where it is a failure.
    pub(crate) fn asked(self) -> Result<Question, Self> {
        match self.question {
            Some(question) => Ok(*question),
            None => Err(self),
        }
    }

    /// Shows the model this beside the words, such as the last picture of a screen.
    #[must_use]
    pub fn showing(mut self, content: Content) -> Self {
        self.shown.push(content);
        self
    }

    /// These words, with what is shown beside them.
    pub(crate) fn output(&self, text: String) -> OutputContent {
        if self.shown.is_empty() {
            return OutputContent::Text(text);
        }
        OutputContent::Parts(std::iter::once(Content::text(text)).chain(self.shown.iter().cloned()).collect())
    }

    /// What the operator sees.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What was written for the model.
    pub fn for_model(&self) -> Option<&str> {
        match self.audience {
            Audience::Model => Some(&self.message),
            Audience::Operator => None,
        }
    }

    /// The same error in other words.
    pub(crate) fn map(self, change: impl FnOnce(&str) -> String) -> Self {
        Self { message: change(&self.message), ..self }
    }

    /// Takes whatever a body returned as its error.
    pub(crate) fn of<E: fmt::Display + 'static>(error: E) -> Self {
        let any: &dyn Any = &error;
        if let Some(own) = any.downcast_ref::<Self>() {
            own.clone()
        } else if let Some(text) = any.downcast_ref::<String>() {
            Self::tell(text.as_str())
        } else if let Some(text) = any.downcast_ref::<&'static str>() {
            Self::tell(*text)
        } else {
            // Errors that hold their causes print them in this form.
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
