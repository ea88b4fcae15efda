//! Models: what answers. One method, streamed or not: a streamed answer is the same answer, seen sooner.

mod error;
mod layer;
mod scripted;
mod settings;

pub use error::{ModelError, ModelErrorKind, RetryAdvice};
pub use layer::{ModelLayer, NextModel};
pub use scripted::{RecordedRequest, Reply, ScriptedModel, item_line};
pub use settings::{ModelSettings, ToolChoice};

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass_core::{AgentName, CallId, Item, Usage};

use crate::error::readable;
use crate::event::{Emitter, EventKind};

/// Something that answers a conversation.
pub trait Model: Send + Sync + 'static {
    /// Answers. Pieces of the answer go to `deltas` as they come, where somebody watches
    /// ([`Deltas::wanted`]); the returned answer is complete either way.
    fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> impl Future<Output = Result<Answer, ModelError>> + Send + 'a;

    /// Whether it can be offered this tool; if not, why. Every model takes functions. It is asked when a run starts,
    /// of tools that are not functions, so that a provider that lacks one is known before anything has happened.
    fn supports(&self, tool: &OfferedTool) -> Result<(), String> {
        match &tool.kind {
            OfferedKind::Function => Ok(()),
            OfferedKind::Computer(_) => Err("it cannot use a computer".to_owned()),
            OfferedKind::Hosted(_) => Err("its provider does not run such a tool".to_owned()),
        }
    }
}

/// What a model is asked.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// The agent that asks.
    pub agent: &'a AgentName,
    /// Which turn of the run it is, from 1.
    pub turn: u32,
    /// The agent's instructions.
    pub instructions: Option<&'a str>,
    /// The conversation. Every call in it has its output.
    pub input: &'a [Arc<Item>],
    /// The tools offered.
    pub tools: &'a [OfferedTool],
    /// The handoffs offered; models see them as tools.
    pub handoffs: &'a [OfferedTool],
    /// How to answer.
    pub settings: &'a ModelSettings,
    /// The shape that the final answer must have.
    pub output: Option<&'a OutputShape>,
    /// The provider's id of the last answer, for providers that hold the conversation.
    pub previous_response: Option<&'a str>,
}

/// A tool as a model is offered it.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedTool {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Option<Arc<str>>,
    /// What it is for.
    pub description: Arc<str>,
    /// The JSON Schema of its arguments.
    pub parameters: Arc<Value>,
    /// Whether the schema is in the strict form.
    pub strict: bool,
    /// What kind of tool it is to the provider.
    pub kind: OfferedKind,
}

/// What kind of tool it is to the provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum OfferedKind {
    /// A function, with a schema.
    #[default]
    Function,
    /// A screen, by the provider's own computer tool.
    Computer(Display),
    /// A tool that the provider runs itself: its definition as the OpenAI Responses API has it, with its `type`.
    Hosted(Arc<Value>),
}

/// A screen, as a model is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Display {
    /// Its width in pixels.
    pub width: u32,
    /// Its height in pixels.
    pub height: u32,
    /// What it shows: `browser`, `linux`, `mac`, `windows`.
    pub environment: String,
}

/// The shape of a typed final answer.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputShape {
    /// A name for it.
    pub name: String,
    /// Its JSON Schema, in the strict form.
    pub schema: Value,
}

/// What a model answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Messages, reasoning and calls, in the model's order.
    pub items: Vec<Arc<Item>>,
    /// What it cost; absent where the provider did not say, which is not the same as nothing.
    pub usage: Option<Usage>,
    /// The provider's id of the answer.
    pub response_id: Option<String>,
    /// The provider's id of the request, for asking the provider about it.
    pub request_id: Option<String>,
    /// The model that answered, as the provider names it.
    pub model: Option<String>,
}

/// Where a model puts the pieces of its answer as they come.
#[derive(Clone, Debug)]
pub struct Deltas {
    emitter: Emitter,
}

impl Deltas {
    pub(crate) fn new(emitter: Emitter) -> Self {
        Self { emitter }
    }

    /// Deltas that nobody watches, for asking a model outside of a run.
    pub fn ignored() -> Self {
        Self { emitter: Emitter::silent() }
    }

    /// Whether anybody watches. A model need not stream for nobody.
    pub fn wanted(&self) -> bool {
        self.emitter.is_watched()
    }

    /// A piece of the message's text.
    pub async fn text(&self, delta: impl Into<String>) {
        self.emitter.emit(EventKind::TextDelta { delta: delta.into() }).await;
    }

    /// A piece of the reasoning that may be shown.
    pub async fn reasoning(&self, delta: impl Into<String>) {
        self.emitter.emit(EventKind::ReasoningDelta { delta: delta.into() }).await;
    }

    /// Something went wrong that the answer survives, such as a model that another one stands in for.
    pub async fn warning(&self, message: impl Into<String>) {
        self.emitter.emit(EventKind::Warning { message: readable(message.into()) }).await;
    }

    /// A piece of a call's arguments.
    pub async fn arguments(&self, call: impl Into<CallId>, delta: impl Into<String>) {
        self.emitter.emit(EventKind::ArgumentsDelta { call: call.into(), delta: delta.into() }).await;
    }
}

/// A model behind a pointer.
#[derive(Clone)]
pub struct SharedModel(Arc<dyn ErasedModel>);

impl SharedModel {
    /// Shares a model.
    pub fn new(model: impl Model) -> Self {
        Self(Arc::new(model))
    }

    /// Asks it.
    pub fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        self.0.answer(request, deltas)
    }

    /// Whether it can be offered this tool; if not, why.
    pub fn supports(&self, tool: &OfferedTool) -> Result<(), String> {
        self.0.supports(tool)
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
    fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> impl Future<Output = Result<Answer, ModelError>> + Send + 'a {
        (**self).answer(request, deltas)
    }

    fn supports(&self, tool: &OfferedTool) -> Result<(), String> {
        (**self).supports(tool)
    }
}

trait ErasedModel: Send + Sync {
    fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> BoxFuture<'a, Result<Answer, ModelError>>;

    fn supports(&self, tool: &OfferedTool) -> Result<(), String>;
}

impl<M: Model> ErasedModel for M {
    fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Model::answer(self, request, deltas).boxed()
    }

    fn supports(&self, tool: &OfferedTool) -> Result<(), String> {
        Model::supports(self, tool)
    }
}
