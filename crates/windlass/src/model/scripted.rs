//! A model with scripted responses, for tests, examples and demonstrations: no API key and no network.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use windlass_core::{id::AgentName, item::Item, usage::Usage};

use super::sample_arguments::sample_value;
use super::{
    DeltaSink, Model, ModelError, ModelRequest, ModelResponse, ModelSettings, ToolDefinition, ToolKind,
};

/// A model that returns scripted responses and records its requests.
///
/// Clones share the script and the recorded requests, so that a test can inspect them through a clone.
///
/// ```
/// use windlass::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = ScriptedModel::new([ScriptedResponse::text("Good morning.")]);
/// let agent = Agent::new("host").model(model.clone());
/// assert_eq!(agent.run("Hello").await?.output_text()?, "Good morning.");
/// assert_eq!(model.requests()[0].input_text(), ["user: Hello"]);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct ScriptedModel {
    script: Arc<Mutex<ScriptState>>,
}

#[derive(Default)]
struct ScriptState {
    replies: VecDeque<ScriptedResponse>,
    /// Computes the responses after those of the script.
    reply_function: Option<ReplyFunction>,
    requests: Vec<RecordedRequest>,
}

/// A function that computes the response to a request.
type ReplyFunction = Arc<dyn Fn(&RecordedRequest) -> ScriptedResponse + Send + Sync>;

/// One response of a script.
#[derive(Debug)]
pub struct ScriptedResponse {
    items: Vec<Item>,
    error: Option<ModelError>,
    usage: Option<Usage>,
    delay: Option<Duration>,
    chunk: usize,
}

impl ScriptedResponse {
    /// Creates a response with a message.
    pub fn text(text: impl Into<String>) -> Self {
        Self::empty().and_text(text)
    }

    /// Creates a response with a tool call. `arguments` is a JSON value (`json!({"city": "Oslo"})`).
    pub fn call(id: &str, tool: &str, arguments: Value) -> Self {
        Self::empty().and_call(id, tool, arguments)
    }

    /// Creates a response that is an error.
    pub fn error(error: ModelError) -> Self {
        Self { error: Some(error), ..Self::empty() }
    }

    /// Creates a response with these items.
    pub fn items(items: impl IntoIterator<Item = Item>) -> Self {
        Self { items: items.into_iter().collect(), ..Self::empty() }
    }

    fn empty() -> Self {
        Self { items: Vec::new(), error: None, usage: Some(Usage::of_tokens(10, 5)), delay: None, chunk: 4 }
    }

    /// Adds a message.
    #[must_use]
    pub fn and_text(self, text: impl Into<String>) -> Self {
        self.and_item(Item::assistant(text))
    }

    /// Adds a tool call.
    #[must_use]
    pub fn and_call(self, id: &str, tool: &str, arguments: Value) -> Self {
        self.and_item(Item::call(id, tool, arguments.to_string()))
    }

    /// Adds a tool call whose arguments are this text, which need not be JSON.
    #[must_use]
    pub fn and_raw_call(self, id: &str, tool: &str, arguments: &str) -> Self {
        self.and_item(Item::call(id, tool, arguments))
    }

    /// Adds an item.
    #[must_use]
    pub fn and_item(mut self, item: Item) -> Self {
        self.items.push(item);
        self
    }

    /// Sets the usage; `None` stands for a provider that does not report it.
    #[must_use]
    pub fn usage(mut self, usage: Option<Usage>) -> Self {
        self.usage = usage;
        self
    }

    /// Delays the response.
    #[must_use]
    pub fn delayed_by(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Sets the number of characters per streamed text delta.
    #[must_use]
    pub fn in_chunks_of(mut self, characters: usize) -> Self {
        self.chunk = characters.max(1);
        self
    }
}

/// A request that a scripted model received.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    /// The agent that made the request.
    pub agent: AgentName,
    /// The agent's instructions.
    pub instructions: Option<String>,
    /// The conversation.
    pub input: Vec<Arc<Item>>,
    /// Names of the available tools.
    pub tools: Vec<String>,
    /// Names of the tools that the provider searches itself.
    pub deferred_tools: Vec<String>,
    /// Definitions of the available tools, with their schemas.
    pub tool_definitions: Vec<ToolDefinition>,
    /// Names of the available handoffs.
    pub handoffs: Vec<String>,
    /// The settings of the request.
    pub settings: ModelSettings,
}

impl RecordedRequest {
    /// Returns the conversation, one line per item: `user: …`, `assistant: …`, `call ID TOOL ARGUMENTS`,
    /// `output ID TEXT`.
    pub fn input_text(&self) -> Vec<String> {
        self.input.iter().map(|item| describe_item(item)).collect()
    }
}

/// Describes an item in one line, for tests and logs.
pub fn describe_item(item: &Item) -> String {
    match item {
        Item::Message(message) => {
            let role = match message.role {
                windlass_core::item::Role::System => "system",
                windlass_core::item::Role::User => "user",
                windlass_core::item::Role::Assistant => "assistant",
            };
            format!("{role}: {}", message.text())
        }
        Item::Call(call) => format!("call {} {} {}", call.id, call.name, call.arguments),
        Item::Output(output) => format!("output {} {}", output.call, output.content.text()),
        Item::Handoff(handoff) => format!("output {} {}", handoff.call, handoff.output_text()),
        Item::Reasoning(reasoning) => format!("reasoning: {}", reasoning.summary),
        Item::HostedTool(carried) | Item::Unknown(carried) => format!("{}: {}", carried.kind, carried.raw),
        _ => format!("{item:?}"),
    }
}

impl ScriptedModel {
    /// Creates a model that returns these responses in order.
    pub fn new(replies: impl IntoIterator<Item = ScriptedResponse>) -> Self {
        let script = ScriptState { replies: replies.into_iter().collect(), ..ScriptState::default() };
        Self { script: Arc::new(Mutex::new(script)) }
    }

    /// Creates a model whose responses a function computes from the request.
    ///
    /// ```
    /// use windlass::prelude::*;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let model = ScriptedModel::from_fn(|request| {
    ///     let last = request.input_text().pop().unwrap_or_default();
    ///     ScriptedResponse::text(format!("heard {last}"))
    /// });
    /// assert_eq!(Agent::new("echo").model(model).run("Hello").await?.output_text()?, "heard user: Hello");
    /// # Ok(()) }
    /// ```
    pub fn from_fn(reply: impl Fn(&RecordedRequest) -> ScriptedResponse + Send + Sync + 'static) -> Self {
        let script = ScriptState { reply_function: Some(Arc::new(reply)), ..ScriptState::default() };
        Self { script: Arc::new(Mutex::new(script)) }
    }

    /// Creates a model that calls every function tool once in its first response, with the smallest arguments that each
    /// schema accepts, and then responds with the outputs. A test of an agent finds the tools that fail or do not
    /// return.
    pub fn calling_every_tool() -> Self {
        Self::from_fn(|request| {
            let outputs: Vec<String> =
                request.input_text().into_iter().filter(|line| line.starts_with("output ")).collect();
            if !outputs.is_empty() {
                return ScriptedResponse::text(outputs.join("\n"));
            }
            let functions =
                request.tool_definitions.iter().filter(|definition| definition.kind == ToolKind::Function);
            functions.fold(ScriptedResponse::empty(), |response, definition| {
                let id = format!("every-{}", definition.name);
                response.and_call(&id, &definition.name, sample_value(&definition.parameters))
            })
        })
    }

    /// Appends a response to the script.
    pub fn push(&self, reply: ScriptedResponse) {
        self.lock_script(|script| script.replies.push_back(reply));
    }

    /// Returns the requests received so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.lock_script(|script| script.requests.clone())
    }

    /// Returns the number of remaining responses.
    pub fn remaining(&self) -> usize {
        self.lock_script(|script| script.replies.len())
    }

    fn lock_script<T>(&self, act: impl FnOnce(&mut ScriptState) -> T) -> T {
        act(&mut self.script.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedModel({} responses left)", self.remaining())
    }
}

impl Model for ScriptedModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let reply = self.lock_script(|script| {
            script.requests.push(RecordedRequest {
                agent: request.agent.clone(),
                instructions: request.instructions.map(str::to_owned),
                input: request.input.to_vec(),
                tools: request.tools.iter().map(|tool| tool.name.to_string()).collect(),
                deferred_tools: request.deferred_tools.iter().map(|tool| tool.name.to_string()).collect(),
                tool_definitions: request.tools.to_vec(),
                handoffs: request.handoffs.iter().map(|tool| tool.name.to_string()).collect(),
                settings: request.settings.clone(),
            });
            (script.replies.pop_front(), script.reply_function.clone(), script.requests.last().cloned())
        });
        let reply = match reply {
            (Some(reply), ..) => reply,
            // The function is called outside the lock, so that it can inspect the model.
            (None, Some(function), Some(request)) => function(&request),
            (None, ..) => {
                let count = self.lock_script(|script| script.requests.len());
                return Err(ModelError::new(format!("the script has no response left for request {count}")));
            }
        };
        if let Some(delay) = reply.delay {
            tokio::time::sleep(delay).await;
        }
        if deltas.is_watched() {
            emit_chunks(&reply, deltas).await;
        }
        if let Some(error) = reply.error {
            return Err(error);
        }
        Ok(ModelResponse {
            items: reply.items.into_iter().map(Arc::new).collect(),
            usage: reply.usage,
            ..ModelResponse::default()
        })
    }

    /// Accepts every tool: a script can stand for any provider.
    fn check_tool_support(&self, _: &ToolDefinition) -> Result<(), String> {
        Ok(())
    }
}

async fn emit_chunks(reply: &ScriptedResponse, deltas: &DeltaSink) {
    for item in &reply.items {
        match item {
            Item::Message(message) => {
                let characters: Vec<char> = message.text().chars().collect();
                for chunk in characters.chunks(reply.chunk) {
                    deltas.emit_text(chunk.iter().collect::<String>()).await;
                }
            }
            Item::Call(call) => deltas.emit_arguments(call.id.clone(), call.arguments.as_str()).await,
            _ => {}
        }
    }
}
