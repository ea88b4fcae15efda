//! Hooks: the application is told of moments in a run, and waited for.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{AgentName, How, Item, OutputContent};

use crate::guardrail::panic_text;
use crate::tool::{RunContext, ToolContext};

/// Why a hook failed.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// A moment in a run. Copies of it are cheap.
pub enum Moment<C = ()> {
    /// An agent becomes current and is about to ask its model: at the start, after a resume, after a handoff.
    AgentStarted {
        /// The run.
        ctx: RunContext<C>,
    },
    /// An agent gave the final output.
    AgentEnded {
        /// The run.
        ctx: RunContext<C>,
        /// The output.
        output: Arc<str>,
    },
    /// The model is about to be asked.
    ModelAsked {
        /// The run.
        ctx: RunContext<C>,
        /// The turn, from 1.
        turn: u32,
    },
    /// The model answered.
    ModelAnswered {
        /// The run.
        ctx: RunContext<C>,
        /// Its answer.
        items: Arc<[Arc<Item>]>,
    },
    /// Control passes.
    HandedOff {
        /// The run, under the agent that asked.
        ctx: RunContext<C>,
        /// The agent that goes on.
        to: AgentName,
    },
    /// A call's guards have passed and its start is in the journal; its body is about to run.
    CallStarted {
        /// The call.
        ctx: ToolContext<C>,
    },
    /// A call that started has its output. Exactly one for every [`Moment::CallStarted`].
    CallEnded {
        /// The call.
        ctx: ToolContext<C>,
        /// How it came about.
        how: How,
        /// What the model is told.
        output: OutputContent,
        /// What it means for the run.
        then: Then,
    },
}

/// What the end of a call means for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It goes on.
    GoesOn,
    /// It ends: this call's failure ends it, or it was cancelled.
    Ends,
}

/// Told of every moment of the runs, or the agent, that it is given to.
///
/// What it is told before something happens, it can prevent by failing: a failed
/// [`Moment::CallStarted`] is that call's failure, a failed [`Moment::ModelAsked`] is the run's. What it is
/// told afterwards stands.
pub struct Hook<C = ()> {
    on: Arc<dyn Fn(Moment<C>) -> BoxFuture<'static, Result<(), HookError>> + Send + Sync>,
}

impl<C> Hook<C> {
    /// A hook from a function.
    pub fn new<Fut>(on: impl Fn(Moment<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        Self { on: Arc::new(move |moment| on(moment).boxed()) }
    }

    pub(crate) async fn tell(&self, moment: Moment<C>) -> Result<(), HookError> {
        let told = AssertUnwindSafe(async { (self.on)(moment).await }).catch_unwind().await;
        told.unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_text(&*panic)).into()))
    }
}

impl<C> Clone for Hook<C> {
    fn clone(&self) -> Self {
        Self { on: self.on.clone() }
    }
}

impl<C> fmt::Debug for Hook<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl<C> Moment<C> {
    /// The moment's name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AgentStarted { .. } => "agent_started",
            Self::AgentEnded { .. } => "agent_ended",
            Self::ModelAsked { .. } => "model_asked",
            Self::ModelAnswered { .. } => "model_answered",
            Self::HandedOff { .. } => "handed_off",
            Self::CallStarted { .. } => "call_started",
            Self::CallEnded { .. } => "call_ended",
        }
    }
}

impl<C> Clone for Moment<C> {
    fn clone(&self) -> Self {
        match self {
            Self::AgentStarted { ctx } => Self::AgentStarted { ctx: ctx.clone() },
            Self::AgentEnded { ctx, output } => Self::AgentEnded { ctx: ctx.clone(), output: output.clone() },
            Self::ModelAsked { ctx, turn } => Self::ModelAsked { ctx: ctx.clone(), turn: *turn },
            Self::ModelAnswered { ctx, items } => {
                Self::ModelAnswered { ctx: ctx.clone(), items: items.clone() }
            }
            Self::HandedOff { ctx, to } => Self::HandedOff { ctx: ctx.clone(), to: to.clone() },
            Self::CallStarted { ctx } => Self::CallStarted { ctx: ctx.clone() },
            Self::CallEnded { ctx, how, output, then } => {
                Self::CallEnded { ctx: ctx.clone(), how: how.clone(), output: output.clone(), then: *then }
            }
        }
    }
}
