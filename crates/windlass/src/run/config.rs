//! How a run goes, where it may go one way or another.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{Failure, Item, OutputContent, RunId};

use crate::agent::Agent;
use crate::drive::Given;
use crate::guardrail::{InputGuardrail, OutputGuardrail};
use crate::hook::Hook;
use crate::model::{ModelLayer, ModelSettings, SharedModel};
use crate::session::Session;
use crate::store::{LEASE, Store};
use crate::tool::{RunContext, ToolContext, ToolError};

/// How many turns a run has, unless it is given another number.
const DEFAULT_TURNS: u32 = 10;
/// How long a cancelled body is waited for, unless the run says otherwise.
const DEFAULT_DRAIN: Duration = Duration::from_millis(250);
/// How many events wait for a slow watcher.
const DEFAULT_EVENT_BUFFER: usize = 256;

pub(crate) struct RunConfig<C> {
    pub(crate) given: Option<Box<Given<C>>>,
    pub(crate) run_id: Option<RunId>,
    pub(crate) max_turns: Option<u32>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) early_guardrails: bool,
    pub(crate) missing_tool: MissingTool,
    pub(crate) drain: Duration,
    pub(crate) model: Option<SharedModel>,
    /// Over those of the agents, where there are any.
    pub(crate) settings: Option<Box<ModelSettings>>,
    pub(crate) model_retry: ModelRetry,
    pub(crate) loops: LoopPolicy,
    pub(crate) approval_expiry: Option<Duration>,
    pub(crate) input_guardrails: Vec<InputGuardrail<C>>,
    pub(crate) output_guardrails: Vec<OutputGuardrail<C>>,
    pub(crate) hooks: Vec<Hook<C>>,
    pub(crate) model_layers: Vec<Arc<dyn ModelLayer>>,
    pub(crate) call_layers: Vec<CallLayer<C>>,
    pub(crate) input_filter: Option<InputFilter<C>>,
    pub(crate) handlers: RunHandlers<C>,
    pub(crate) session: Option<Session>,
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) lease: Duration,
    pub(crate) agents: Vec<Agent<C>>,
    pub(crate) on_drop: OnDrop,
    pub(crate) event_buffer: usize,
}

impl<C> Default for RunConfig<C> {
    fn default() -> Self {
        Self {
            given: None,
            run_id: None,
            max_turns: Some(DEFAULT_TURNS),
            concurrency: None,
            early_guardrails: false,
            missing_tool: MissingTool::default(),
            drain: DEFAULT_DRAIN,
            model: None,
            settings: None,
            model_retry: ModelRetry::default(),
            loops: LoopPolicy::default(),
            approval_expiry: None,
            input_guardrails: Vec::new(),
            output_guardrails: Vec::new(),
            hooks: Vec::new(),
            model_layers: Vec::new(),
            call_layers: Vec::new(),
            input_filter: None,
            handlers: RunHandlers::default(),
            session: None,
            store: None,
            lease: LEASE,
            agents: Vec::new(),
            on_drop: OnDrop::default(),
            event_buffer: DEFAULT_EVENT_BUFFER,
        }
    }
}

/// What happens where the model asks for a tool that is not there, or not enabled.
#[derive(Clone, Default)]
pub enum MissingTool {
    /// The model is told, with the names of the tools that there are. Other calls run.
    #[default]
    Tell,
    /// The model is told what this function makes of the name and of the names that there are.
    Say(Arc<dyn Fn(&str, &[String]) -> String + Send + Sync>),
    /// The run fails before any call of the answer has started.
    Fail,
}

impl MissingTool {
    /// The model is told what `text` says.
    pub fn say(text: impl Fn(&str, &[String]) -> String + Send + Sync + 'static) -> Self {
        Self::Say(Arc::new(text))
    }
}

/// How often a model is asked again that failed in a way that asking again may mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelRetry {
    /// How many times in all.
    pub attempts: u32,
    /// How long to wait before the second; each further wait is twice as long. A provider's own word beats it.
    pub base: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl Default for ModelRetry {
    fn default() -> Self {
        Self { attempts: 3, base: Duration::from_millis(500), longest: Duration::from_secs(30) }
    }
}

/// What happens where the model makes exactly the same calls turn after turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopPolicy {
    /// After how many identical turns watchers are warned.
    pub warn: u32,
    /// After how many the run fails.
    pub stop: u32,
}

impl Default for LoopPolicy {
    fn default() -> Self {
        Self { warn: 3, stop: 25 }
    }
}

/// What a run does when the stream that watches it is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDrop {
    /// It is cancelled, and settles.
    #[default]
    Cancel,
    /// It goes on to its end.
    GoOn,
}

/// What a model is about to be shown.
pub struct ModelInput {
    /// The instructions.
    pub instructions: Option<Arc<str>>,
    /// The conversation.
    pub items: Vec<Arc<Item>>,
}

/// Changes what a model is shown, right before it is asked. The history stays as it is.
pub type InputFilter<C> =
    Arc<dyn Fn(RunContext<C>, ModelInput) -> BoxFuture<'static, ModelInput> + Send + Sync>;

/// What a handler puts in place of a failure.
#[derive(Clone, Debug, PartialEq)]
pub struct Handled {
    /// The final output.
    pub output: String,
    /// Whether it joins the history, as a message of the agent.
    pub in_history: bool,
}

type Handler<C> = Arc<dyn Fn(RunContext<C>, Failure) -> BoxFuture<'static, Option<Handled>> + Send + Sync>;

/// What to do in place of failing, where the turns are used up, the model refuses, or its answer does not fit.
pub struct RunHandlers<C> {
    pub(crate) on_failure: Option<Handler<C>>,
}

impl<C> Default for RunHandlers<C> {
    fn default() -> Self {
        Self { on_failure: None }
    }
}

impl<C> RunHandlers<C> {
    pub(crate) fn new<Fut>(handler: impl Fn(RunContext<C>, Failure) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Option<Handled>> + Send + 'static,
    {
        Self { on_failure: Some(Arc::new(move |ctx, failure| handler(ctx, failure).boxed())) }
    }
}

/// Wraps the body of every call: around it, after the guards and inside the timeout.
pub type CallLayer<C> = Arc<
    dyn Fn(ToolContext<C>, NextCall) -> BoxFuture<'static, Result<OutputContent, ToolError>> + Send + Sync,
>;

/// The rest of a call, inside a layer.
pub struct NextCall(pub(crate) BoxFuture<'static, Result<OutputContent, ToolError>>);

impl NextCall {
    /// Runs it.
    pub async fn run(self) -> Result<OutputContent, ToolError> {
        self.0.await
    }
}
