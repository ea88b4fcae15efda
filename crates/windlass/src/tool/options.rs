//! How a tool may be run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use windlass_core::OutputContent;

use super::{RunContext, Tool, ToolContext, ToolError};

/// What a body's failure means for the run, and what the model is told of it.
pub enum OnFailure<C = ()> {
    /// The run goes on. The model is told that the call failed, and what the error was written to tell it.
    Hide,
    /// The run goes on. The model is told the error's text.
    Show,
    /// The run goes on. The model is told what this function says.
    Say(Say<C>),
    /// The run ends with the error.
    Fail,
}

/// Says what the model is told of a failure.
pub type Say<C> = Arc<dyn Fn(&ToolContext<C>, &ToolError) -> String + Send + Sync>;

impl<C> OnFailure<C> {
    /// The run goes on, and the model is told what `text` says.
    pub fn say(text: impl Fn(&ToolContext<C>, &ToolError) -> String + Send + Sync + 'static) -> Self {
        Self::Say(Arc::new(text))
    }
}

impl<C> Clone for OnFailure<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Hide => Self::Hide,
            Self::Show => Self::Show,
            Self::Say(text) => Self::Say(text.clone()),
            Self::Fail => Self::Fail,
        }
    }
}

impl<C> fmt::Debug for OnFailure<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hide => "Hide",
            Self::Show => "Show",
            Self::Say(_) => "Say",
            Self::Fail => "Fail",
        })
    }
}

/// What a timeout means for the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// The run goes on, and the model is told.
    #[default]
    Tell,
    /// The run ends.
    Fail,
}

/// How a failed body is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How many attempts there are in all.
    pub attempts: u32,
    /// How long to wait before the second; each further wait is twice as long, up to half a minute.
    pub base: Duration,
}

impl Retry {
    /// How long to wait after attempt number `attempt` failed; none where it was the last.
    pub(crate) fn wait_after(&self, attempt: u32) -> Option<Duration> {
        const LONGEST: Duration = Duration::from_secs(30);
        (attempt < self.attempts)
            .then(|| self.base.saturating_mul(1 << (attempt.saturating_sub(1)).min(16)).min(LONGEST))
    }
}

/// Who shares the results of an idempotent tool, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipts {
    /// Who shares them.
    pub scope: Scope,
    /// How long they last; for good where absent.
    pub expire_after: Option<Duration>,
}

/// Who shares the results of an idempotent tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Nobody: only a call that is run again, after a crash or a failure, has the same key.
    Call,
    /// The calls of one run, agents nested in it included.
    #[default]
    Run,
    /// The runs of one session, on the same store.
    Session,
    /// All runs on the same store.
    Store,
}

/// What a tool knows of a call that a crash interrupted.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconciled {
    /// It happened, with this result.
    Happened(OutputContent),
    /// It did not happen: run it.
    DidNotHappen,
    /// The tool cannot say: a person must.
    Unknown,
}

pub(crate) type Reconcile<C> = Arc<dyn Fn(ToolContext<C>) -> BoxFuture<'static, Reconciled> + Send + Sync>;

/// Whether a tool, or a handoff, is there.
pub(crate) enum Enabled<C> {
    Always,
    Never,
    If(Arc<dyn Fn(RunContext<C>) -> BoxFuture<'static, bool> + Send + Sync>),
}

impl<C> Clone for Enabled<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Always => Self::Always,
            Self::Never => Self::Never,
            Self::If(rule) => Self::If(rule.clone()),
        }
    }
}

impl<C> Enabled<C> {
    /// The answer, where nobody needs to be asked.
    pub(crate) fn fixed(&self) -> Option<bool> {
        match self {
            Self::Always => Some(true),
            Self::Never => Some(false),
            Self::If(_) => None,
        }
    }

    pub(crate) async fn ask(&self, ctx: &RunContext<C>) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::If(rule) => rule(ctx.clone()).await,
        }
    }
}

/// What calls that keep their order are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Each is a call of its own.
    Apart,
    /// They are steps of one plan.
    Steps,
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// Calls of one answer that keep their order ([`Tool::conflict`]) are steps of one plan: once one of them failed, was
    /// refused or was rejected, those after it do not run, and the model is told. Calls that only look run all the same.
    #[must_use]
    pub fn in_steps(mut self) -> Self {
        self.order = Order::Steps;
        self
    }
}
