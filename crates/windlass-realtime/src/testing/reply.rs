//! Scripted responses of the server's model.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

/// A scripted response.
#[derive(Clone, Debug, Default)]
pub struct LoopbackReply {
    /// The parts, in order.
    pub parts: Vec<LoopbackReplyPart>,
    /// Delay before the first event.
    pub start_delay: Duration,
    /// Speed of sending relative to real time; everything at once if absent.
    pub speed_factor: Option<u32>,
    /// True if the response starts and then sends nothing.
    pub is_stalled: bool,
}

/// A part of a scripted response.
#[derive(Clone, Debug)]
pub enum LoopbackReplyPart {
    /// A message. Without audio, the server sends a tone of the length that the text would take.
    Message {
        /// The text.
        text: String,
        /// The speech, at 24,000 samples per second.
        audio: Option<Arc<[i16]>>,
    },
    /// A tool call.
    Call {
        /// The id of the call.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments, as JSON text.
        arguments: String,
    },
}

/// The state of the conversation, as input of a [`ReplyFunction`].
#[derive(Clone, Debug, Default)]
pub struct ConversationView {
    /// The items, in wire format.
    pub items: Vec<Value>,
    /// The session's configuration.
    pub session: Value,
}

/// A function that computes the response to a conversation.
pub type ReplyFunction = Arc<dyn Fn(&ConversationView) -> LoopbackReply + Send + Sync>;

impl LoopbackReply {
    /// Creates a response with a message.
    pub fn message(text: impl Into<String>) -> Self {
        Self { parts: vec![LoopbackReplyPart::Message { text: text.into(), audio: None }], ..Self::default() }
    }

    /// Creates a response with a message and its speech, at 24,000 samples per second.
    pub fn speech(text: impl Into<String>, audio: impl Into<Arc<[i16]>>) -> Self {
        let part = LoopbackReplyPart::Message { text: text.into(), audio: Some(audio.into()) };
        Self { parts: vec![part], ..Self::default() }
    }

    /// Creates a response with a tool call.
    pub fn call(id: &str, name: &str, arguments: impl Into<String>) -> Self {
        Self::default().and_call(id, name, arguments)
    }

    /// Adds a tool call.
    #[must_use]
    pub fn and_call(mut self, id: &str, name: &str, arguments: impl Into<String>) -> Self {
        let (id, name, arguments) = (id.to_owned(), name.to_owned(), arguments.into());
        self.parts.push(LoopbackReplyPart::Call { id, name, arguments });
        self
    }

    /// Adds a message.
    #[must_use]
    pub fn and_message(mut self, text: impl Into<String>) -> Self {
        self.parts.push(LoopbackReplyPart::Message { text: text.into(), audio: None });
        self
    }

    /// Sets the delay before the first event.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.start_delay = delay;
        self
    }

    /// Sets the speed of sending relative to real time.
    #[must_use]
    pub fn with_speed(mut self, factor: u32) -> Self {
        self.speed_factor = Some(factor.max(1));
        self
    }

    /// Creates a response that starts and then sends nothing.
    pub fn stalled() -> Self {
        Self { is_stalled: true, ..Self::default() }
    }
}

impl ConversationView {
    /// Returns the text of the user's last message.
    pub fn last_user_text(&self) -> String {
        let is_user = |item: &&Value| item["role"] == "user";
        self.items.iter().rev().find(is_user).map(item_text).unwrap_or_default()
    }

    /// Returns the call outputs since the last message of the assistant.
    pub fn new_call_outputs(&self) -> Vec<String> {
        let newest = self.items.iter().rev().take_while(|item| item["role"] != "assistant");
        let outputs = newest.filter(|item| item["type"] == "function_call_output");
        let mut outputs: Vec<String> =
            outputs.map(|item| item["output"].as_str().unwrap_or_default().to_owned()).collect();
        outputs.reverse();
        outputs
    }
}

/// Returns the text of an item in wire format.
pub(super) fn item_text(item: &Value) -> String {
    let parts = item["content"].as_array().into_iter().flatten();
    parts
        .filter_map(|part| part["text"].as_str().or(part["transcript"].as_str()))
        .collect::<Vec<_>>()
        .join(" ")
}
