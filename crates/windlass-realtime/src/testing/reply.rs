//! What the server's model answers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

/// One answer.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// What it is made of, in order.
    pub parts: Vec<ReplyPart>,
    /// How long until it begins to speak.
    pub think: Duration,
    /// How much faster than it is heard speech is sent; none sends it all at once.
    pub pace: Option<u32>,
    /// It says that it begins, and then nothing any more.
    pub stalls: bool,
}

/// A part of an answer.
#[derive(Clone, Debug)]
pub enum ReplyPart {
    /// It says this. Where there is no audio, it hums as long as it would take to say it.
    Say {
        /// The words.
        text: String,
        /// The speech, at 24,000 samples a second.
        audio: Option<Arc<[i16]>>,
    },
    /// It asks for a tool.
    Call {
        /// The id of the call.
        id: String,
        /// The tool.
        name: String,
        /// The arguments, as text.
        arguments: String,
    },
}

/// What the conversation says, for whoever thinks up an answer.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// The items, as they are on the wire.
    pub items: Vec<Value>,
    /// The session's configuration.
    pub session: Value,
}

/// Thinks up answers.
pub type Answering = Arc<dyn Fn(&Said) -> Reply + Send + Sync>;

impl Reply {
    /// Says something.
    pub fn say(text: impl Into<String>) -> Self {
        Self { parts: vec![ReplyPart::Say { text: text.into(), audio: None }], ..Self::default() }
    }

    /// Says something with this speech, at 24,000 samples a second.
    pub fn speak(text: impl Into<String>, audio: impl Into<Arc<[i16]>>) -> Self {
        let part = ReplyPart::Say { text: text.into(), audio: Some(audio.into()) };
        Self { parts: vec![part], ..Self::default() }
    }

    /// Asks for a tool.
    pub fn call(id: &str, name: &str, arguments: impl Into<String>) -> Self {
        Self::default().and_call(id, name, arguments)
    }

    /// And asks for a tool.
    #[must_use]
    pub fn and_call(mut self, id: &str, name: &str, arguments: impl Into<String>) -> Self {
        let (id, name, arguments) = (id.to_owned(), name.to_owned(), arguments.into());
        self.parts.push(ReplyPart::Call { id, name, arguments });
        self
    }

    /// Takes so long to begin.
    #[must_use]
    pub fn after(mut self, think: Duration) -> Self {
        self.think = think;
        self
    }

    /// Speech is sent so much faster than it is heard.
    #[must_use]
    pub fn paced(mut self, times: u32) -> Self {
        self.pace = Some(times.max(1));
        self
    }

    /// Begins, and says nothing any more.
    pub fn stall() -> Self {
        Self { stalls: true, ..Self::default() }
    }
}

impl Said {
    /// The text of the last message of the user.
    pub fn last_user(&self) -> String {
        let is_user = |item: &&Value| item["role"] == "user";
        self.items.iter().rev().find(is_user).map(words_of).unwrap_or_default()
    }

    /// The outputs of calls that came after the last answer.
    pub fn new_outputs(&self) -> Vec<String> {
        let newest = self.items.iter().rev().take_while(|item| item["role"] != "assistant");
        let outputs = newest.filter(|item| item["type"] == "function_call_output");
        let mut outputs: Vec<String> =
            outputs.map(|item| item["output"].as_str().unwrap_or_default().to_owned()).collect();
        outputs.reverse();
        outputs
    }
}

/// The words of an item on the wire.
pub(super) fn words_of(item: &Value) -> String {
    let parts = item["content"].as_array().into_iter().flatten();
    parts
        .filter_map(|part| part["text"].as_str().or(part["transcript"].as_str()))
        .collect::<Vec<_>>()
        .join(" ")
}
