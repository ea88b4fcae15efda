//! A model that answers from a script: for tests, examples and demonstrations, with no key and no network.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use windlass_core::{AgentName, Item, Usage};

use super::{Answer, Deltas, Model, ModelError, ModelRequest, ModelSettings, OfferedTool};

/// A model that answers from a script, and remembers what it was asked.
///
/// Clones share one script and one memory, so a test keeps a clone to look at.
///
/// ```
/// use windlass::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = ScriptedModel::new([Reply::text("Good morning.")]);
/// let agent = Agent::new("host").model(model.clone());
/// assert_eq!(agent.run("Hello").await?.text(), "Good morning.");
/// assert_eq!(model.requests()[0].input_text(), ["user: Hello"]);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct ScriptedModel {
    script: Arc<Mutex<Script>>,
}

#[derive(Default)]
struct Script {
    replies: VecDeque<Reply>,
    requests: Vec<RecordedRequest>,
}

/// One answer of a script.
#[derive(Debug)]
pub struct Reply {
    items: Vec<Item>,
    error: Option<ModelError>,
    usage: Option<Usage>,
    delay: Option<Duration>,
    chunk: usize,
}

impl Reply {
    /// A message.
    pub fn text(text: impl Into<String>) -> Self {
        Self::empty().and_text(text)
    }

    /// A call. Arguments are a value (`json!({"city": "Oslo"})`).
    pub fn call(id: &str, tool: &str, arguments: Value) -> Self {
        Self::empty().and_call(id, tool, arguments)
    }

    /// An error in place of an answer.
    pub fn error(error: ModelError) -> Self {
        Self { error: Some(error), ..Self::empty() }
    }

    /// These items.
    pub fn items(items: impl IntoIterator<Item = Item>) -> Self {
        Self { items: items.into_iter().collect(), ..Self::empty() }
    }

    fn empty() -> Self {
        Self { items: Vec::new(), error: None, usage: Some(Usage::tokens(10, 5)), delay: None, chunk: 4 }
    }

    /// And a message.
    #[must_use]
    pub fn and_text(self, text: impl Into<String>) -> Self {
        self.and_item(Item::assistant(text))
    }

    /// And a call.
    #[must_use]
    pub fn and_call(self, id: &str, tool: &str, arguments: Value) -> Self {
        self.and_item(Item::call(id, tool, arguments.to_string()))
    }

    /// And a call whose arguments are this text, which need not be JSON.
    #[must_use]
    pub fn and_raw_call(self, id: &str, tool: &str, arguments: &str) -> Self {
        self.and_item(Item::call(id, tool, arguments))
    }

    /// And an item.
    #[must_use]
    pub fn and_item(mut self, item: Item) -> Self {
        self.items.push(item);
        self
    }

    /// What the answer costs; `None` where the provider does not say.
    #[must_use]
    pub fn usage(mut self, usage: Option<Usage>) -> Self {
        self.usage = usage;
        self
    }

    /// How long the model thinks first.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// How many characters each streamed piece of text has.
    #[must_use]
    pub fn in_chunks_of(mut self, characters: usize) -> Self {
        self.chunk = characters.max(1);
        self
    }
}

/// What a scripted model was asked.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    /// The agent that asked.
    pub agent: AgentName,
    /// Its instructions.
    pub instructions: Option<String>,
    /// The conversation.
    pub input: Vec<Arc<Item>>,
    /// The names of the tools offered.
    pub tools: Vec<String>,
    /// The names of the handoffs offered.
    pub handoffs: Vec<String>,
    /// The settings.
    pub settings: ModelSettings,
}

impl RecordedRequest {
    /// The conversation, a line for each item: `user: …`, `assistant: …`, `call ID TOOL ARGUMENTS`,
    /// `output ID TEXT`.
    pub fn input_text(&self) -> Vec<String> {
        self.input.iter().map(|item| item_line(item)).collect()
    }
}

/// An item in one line: for tests and logs.
pub fn item_line(item: &Item) -> String {
    match item {
        Item::Message(message) => {
            let role = match message.role {
                windlass_core::Role::System => "system",
                windlass_core::Role::User => "user",
                windlass_core::Role::Assistant => "assistant",
            };
            format!("{role}: {}", message.text())
        }
        Item::Call(call) => format!("call {} {} {}", call.id, call.name, call.arguments),
        Item::Output(output) => format!("output {} {}", output.call, output.content.text()),
        Item::Handoff(handoff) => format!("output {} {}", handoff.call, handoff.text()),
        Item::Reasoning(reasoning) => format!("reasoning: {}", reasoning.summary),
        Item::Hosted(carried) | Item::Unknown(carried) => format!("{}: {}", carried.kind, carried.raw),
        _ => format!("{item:?}"),
    }
}

impl ScriptedModel {
    /// A model that gives these answers, one after another.
    pub fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let script = Script { replies: replies.into_iter().collect(), requests: Vec::new() };
        Self { script: Arc::new(Mutex::new(script)) }
    }

    /// Adds an answer to the end of the script.
    pub fn push(&self, reply: Reply) {
        self.locked(|script| script.replies.push_back(reply));
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.locked(|script| script.requests.clone())
    }

    /// How many answers are left.
    pub fn remaining(&self) -> usize {
        self.locked(|script| script.replies.len())
    }

    fn locked<T>(&self, act: impl FnOnce(&mut Script) -> T) -> T {
        act(&mut self.script.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedModel({} answers left)", self.remaining())
    }
}

impl Model for ScriptedModel {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        let reply = self.locked(|script| {
            script.requests.push(RecordedRequest {
                agent: request.agent.clone(),
                instructions: request.instructions.map(str::to_owned),
                input: request.input.to_vec(),
                tools: request.tools.iter().map(|tool| tool.name.to_string()).collect(),
                handoffs: request.handoffs.iter().map(|tool| tool.name.to_string()).collect(),
                settings: request.settings.clone(),
            });
            (script.replies.pop_front(), script.requests.len())
        });
        let (Some(reply), _) = reply else {
            let asked = reply.1;
            return Err(ModelError::new(format!("the script has no answer left for request {asked}")));
        };
        if let Some(delay) = reply.delay {
            tokio::time::sleep(delay).await;
        }
        if deltas.wanted() {
            stream(&reply, deltas).await;
        }
        if let Some(error) = reply.error {
            return Err(error);
        }
        Ok(Answer {
            items: reply.items.into_iter().map(Arc::new).collect(),
            usage: reply.usage,
            ..Answer::default()
        })
    }

    /// A script can stand for any provider.
    fn supports(&self, _: &OfferedTool) -> Result<(), String> {
        Ok(())
    }
}

async fn stream(reply: &Reply, deltas: &Deltas) {
    for item in &reply.items {
        match item {
            Item::Message(message) => {
                let characters: Vec<char> = message.text().chars().collect();
                for chunk in characters.chunks(reply.chunk) {
                    deltas.text(chunk.iter().collect::<String>()).await;
                }
            }
            Item::Call(call) => deltas.arguments(call.id.clone(), call.arguments.as_str()).await,
            _ => {}
        }
    }
}
