//! Models. One method serves streamed and plain responses: a streamed response is the same response, delivered
//! earlier.

mod error;
mod layer;
mod response_details;
mod sample_arguments;
mod scripted;
mod settings;

pub use error::{ModelError, ModelErrorKind, RetryAdvice};
pub use layer::{ModelLayer, NextModel};
pub use response_details::{FinishReason, RateLimitBudget, ResponseDetails};
pub use scripted::{RecordedRequest, ScriptedModel, ScriptedResponse, describe_item};
pub use settings::{LengthLimitPolicy, ModelSettings, PromptCaching, ToolChoice, ToolSearchPlace};

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass_core::{
    id::{AgentName, CallId},
    item::Item,
    usage::Usage,
};

use crate::error::truncate_message;
use crate::event::{EventEmitter, RunEventKind};

/// A model that responds to a conversation.
pub trait Model: Send + Sync + 'static {
    /// Responds to a request. If a watcher is connected ([`DeltaSink::is_watched`]), the model sends deltas to
    /// `deltas` as they arrive; the returned response is complete in either case.
    fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> impl Future<Output = Result<ModelResponse, ModelError>> + Send + 'a;

    /// Checks that the model supports this tool, and returns the reason if it does not. Every model supports
    /// functions. The driver checks all other tools when a run starts, so that an unsupported tool is reported
    /// before anything is executed.
    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        match &tool.kind {
            ToolKind::Function => Ok(()),
            ToolKind::Computer(_) => Err("it cannot use a computer".to_owned()),
            ToolKind::Hosted(_) => Err("its provider does not run such a tool".to_owned()),
            ToolKind::ProviderDefined(_) => Err("its provider does not define such a tool".to_owned()),
        }
    }

    /// Returns the size of the model's context window in tokens, if it is known. The history of a run is compacted before
    /// a request exceeds it: see [`ContextPolicy`](crate::context::ContextPolicy).
    fn context_window(&self) -> Option<u64> {
        None
    }

    /// Returns the maximum of output tokens that a request with these settings asks for, if it asks for one. Providers
    /// count it as a part of the context window. The default is `max_tokens` of the settings.
    fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        settings.max_tokens
    }

    /// Returns the name by which the provider knows the model, if it is known before a response names it. The cost of a
    /// request is estimated with the price of this model.
    fn name(&self) -> Option<&str> {
        None
    }

    /// Returns the name of the provider in the semantic conventions of OpenTelemetry, such as `openai`, for traces.
    fn provider(&self) -> Option<&str> {
        None
    }

    /// Returns true if the next request names a conversation that the provider stores, because the model is set up in that
    /// way. `last_response_id` is the id of the last response of the run. Such a history is not compacted: the provider
    /// would not see it.
    fn has_stored_conversation(&self, _last_response_id: Option<&str>) -> bool {
        false
    }
}

/// A request to a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// The agent that makes the request.
    pub agent: &'a AgentName,
    /// Number of the turn in the run, starting at 1.
    pub turn: u32,
    /// The agent's instructions.
    pub instructions: Option<&'a str>,
    /// The conversation. Every call in it has its output.
    pub input: &'a [Arc<Item>],
    /// Definitions of the available tools.
    pub tools: &'a [ToolDefinition],
    /// Definitions of tools that the provider searches and loads itself. Empty unless the settings ask for that: see
    /// [`ToolSearchPlace::Provider`].
    pub deferred_tools: &'a [ToolDefinition],
    /// Definitions of the available handoffs; models see them as tools.
    pub handoffs: &'a [ToolDefinition],
    /// The settings of the request.
    pub settings: &'a ModelSettings,
    /// The schema of the final output; absent if the output is text.
    pub output_schema: Option<&'a OutputSchema>,
    /// The provider's id of the previous response, for providers that store the conversation.
    pub previous_response_id: Option<&'a str>,
    /// Id of the session, or of the run if it has none: requests with the same id and agent begin alike, so that prompt
    /// caches can serve them.
    pub conversation_id: Option<&'a str>,
}

/// The definition of a tool, as the model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// Name of the tool.
    pub name: Arc<str>,
    /// Namespace of the tool, if it has one.
    pub namespace: Option<Arc<str>>,
    /// Description of the tool.
    pub description: Arc<str>,
    /// JSON Schema of the arguments.
    pub parameters: Arc<Value>,
    /// True if the schema is in the strict form.
    pub is_strict: bool,
    /// The kind of tool.
    pub kind: ToolKind,
}

/// The kind of a tool from the provider's point of view.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ToolKind {
    /// A function with a schema.
    #[default]
    Function,
    /// A display, controlled through the provider's own computer tool.
    Computer(ComputerDisplay),
    /// A tool that the provider executes: its definition in the provider's format, with its `type`.
    Hosted(Arc<Value>),
    /// A tool that the provider defines and the application executes, such as a shell: its definition in the
    /// provider's format, with its `type`. Calls have the kind
    /// [`CallKind::ProviderDefined`](windlass_core::item::CallKind::ProviderDefined) or are function calls, as the
    /// provider prescribes.
    ProviderDefined(Arc<Value>),
}

/// The display of a computer tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputerDisplay {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The environment: `browser`, `linux`, `mac` or `windows`.
    pub environment: String,
}

/// The schema of a typed final output.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSchema {
    /// Name of the schema.
    pub name: String,
    /// The JSON Schema.
    pub schema: Value,
    /// True if the schema is in the strict form. A schema with maps has none.
    pub is_strict: bool,
}

/// The response of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelResponse {
    /// Messages, reasoning and calls, in the model's order.
    pub items: Vec<Arc<Item>>,
    /// The usage; absent if the provider did not report it, which is not the same as zero.
    pub usage: Option<Usage>,
    /// The provider's id of the response.
    pub response_id: Option<String>,
    /// The provider's id of the request, for support inquiries.
    pub request_id: Option<String>,
    /// Name of the model that responded, as the provider reports it.
    pub model: Option<String>,
    /// Facts about the response beside its items.
    pub details: ResponseDetails,
}

/// The receiver of the deltas of a model's response.
#[derive(Clone, Debug)]
pub struct DeltaSink {
    emitter: EventEmitter,
}

impl DeltaSink {
    pub(crate) fn new(emitter: EventEmitter) -> Self {
        Self { emitter }
    }

    /// Creates a sink that drops all deltas, for model requests outside of a run.
    pub fn discarding() -> Self {
        Self { emitter: EventEmitter::disabled() }
    }

    /// True if a watcher is connected. Otherwise a model need not stream.
    pub fn is_watched(&self) -> bool {
        self.emitter.is_watched()
    }

    /// Sends a delta of the message's text.
    pub async fn emit_text(&self, delta: impl Into<String>) {
        self.emitter.emit(RunEventKind::TextDelta { delta: delta.into() }).await;
    }

    /// Sends a delta of the reasoning that may be shown.
    pub async fn emit_reasoning(&self, delta: impl Into<String>) {
        self.emitter.emit(RunEventKind::ReasoningDelta { delta: delta.into() }).await;
    }

    /// Sends a warning about a problem that does not prevent the response, such as a fallback to another model.
    pub async fn emit_warning(&self, message: impl Into<String>) {
        self.emitter.emit(RunEventKind::Warning { message: truncate_message(message.into()) }).await;
    }

    /// Says that the deltas so far are void, because the response begins anew: another model is asked for it, for example.
    pub async fn discard_deltas(&self) {
        self.emitter.emit(RunEventKind::DeltasDiscarded).await;
    }

    /// Sends a delta of a call's arguments.
    pub async fn emit_arguments(&self, call: impl Into<CallId>, delta: impl Into<String>) {
        self.emitter.emit(RunEventKind::ArgumentsDelta { call: call.into(), delta: delta.into() }).await;
    }
}

/// A reference-counted, type-erased model.
#[derive(Clone)]
pub struct SharedModel(Arc<dyn ErasedModel>);

impl SharedModel {
    /// Wraps a model.
    pub fn new(model: impl Model) -> Self {
        Self(Arc::new(model))
    }

    /// Responds to a request: see [`Model::respond`].
    pub fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> BoxFuture<'a, Result<ModelResponse, ModelError>> {
        self.0.respond_boxed(request, deltas)
    }

    /// Checks that the model supports this tool: see [`Model::check_tool_support`].
    pub fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        self.0.check_support(tool)
    }

    /// Returns the size of the model's context window in tokens, if it is known: see [`Model::context_window`].
    pub fn context_window(&self) -> Option<u64> {
        self.0.window()
    }

    /// Returns the maximum of output tokens that a request asks for: see [`Model::max_output_tokens`].
    pub fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        self.0.max_output(settings)
    }

    /// Returns the name by which the provider knows the model: see [`Model::name`].
    pub fn name(&self) -> Option<&str> {
        self.0.model_name()
    }

    /// Returns the name of the provider: see [`Model::provider`].
    pub fn provider(&self) -> Option<&str> {
        self.0.provider_name()
    }

    /// Returns true if the provider stores the conversation: see [`Model::has_stored_conversation`].
    pub fn has_stored_conversation(&self, last_response_id: Option<&str>) -> bool {
        self.0.is_stored(last_response_id)
    }
}

impl fmt::Debug for SharedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedModel")
    }
}

impl<M: Model> From<M> for SharedModel {
    fn from(model: M) -> Self {
        Self::new(model)
    }
}

impl<M: Model> Model for Arc<M> {
    fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> impl Future<Output = Result<ModelResponse, ModelError>> + Send + 'a {
        (**self).respond(request, deltas)
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        (**self).check_tool_support(tool)
    }

    fn context_window(&self) -> Option<u64> {
        (**self).context_window()
    }

    fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        (**self).max_output_tokens(settings)
    }

    fn name(&self) -> Option<&str> {
        (**self).name()
    }

    fn provider(&self) -> Option<&str> {
        (**self).provider()
    }

    fn has_stored_conversation(&self, last_response_id: Option<&str>) -> bool {
        (**self).has_stored_conversation(last_response_id)
    }
}

trait ErasedModel: Send + Sync {
    fn respond_boxed<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> BoxFuture<'a, Result<ModelResponse, ModelError>>;

    fn check_support(&self, tool: &ToolDefinition) -> Result<(), String>;

    fn window(&self) -> Option<u64>;

    fn max_output(&self, settings: &ModelSettings) -> Option<u64>;

    fn model_name(&self) -> Option<&str>;

    fn provider_name(&self) -> Option<&str>;

    fn is_stored(&self, last_response_id: Option<&str>) -> bool;
}

impl<M: Model> ErasedModel for M {
    fn respond_boxed<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> BoxFuture<'a, Result<ModelResponse, ModelError>> {
        Model::respond(self, request, deltas).boxed()
    }

    fn check_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        Model::check_tool_support(self, tool)
    }

    fn window(&self) -> Option<u64> {
        Model::context_window(self)
    }

    fn max_output(&self, settings: &ModelSettings) -> Option<u64> {
        Model::max_output_tokens(self, settings)
    }

    fn model_name(&self) -> Option<&str> {
        Model::name(self)
    }

    fn provider_name(&self) -> Option<&str> {
        Model::provider(self)
    }

    fn is_stored(&self, last_response_id: Option<&str>) -> bool {
        Model::has_stored_conversation(self, last_response_id)
    }
}
