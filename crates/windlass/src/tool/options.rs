//! Policies for the execution of a tool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use windlass_core::item::OutputContent;

use super::{RunContext, Tool, ToolContext, ToolError};

/// The reaction to a failure of a body: for the run and for the model.
pub enum OnFailure<C = ()> {
    /// The run continues. The model is informed of the failure, with the error's text only if it was written
    /// for the model.
    HideError,
    /// The run continues. The model sees the text of the error.
    ShowError,
    /// The run continues. The model sees the text that this function returns.
    CustomMessage(FailureMessageFunction<C>),
    /// The run fails with the error.
    FailRun,
}

/// A function that returns the text that the model sees for a failure.
pub type FailureMessageFunction<C> = Arc<dyn Fn(&ToolContext<C>, &ToolError) -> String + Send + Sync>;

impl<C> OnFailure<C> {
    /// Creates the reaction from a function that returns the text for the model.
    pub fn custom_message(
        text: impl Fn(&ToolContext<C>, &ToolError) -> String + Send + Sync + 'static,
    ) -> Self {
        Self::CustomMessage(Arc::new(text))
    }
}

impl<C> Clone for OnFailure<C> {
    fn clone(&self) -> Self {
        match self {
            Self::HideError => Self::HideError,
            Self::ShowError => Self::ShowError,
            Self::CustomMessage(text) => Self::CustomMessage(text.clone()),
            Self::FailRun => Self::FailRun,
        }
    }
}

impl<C> fmt::Debug for OnFailure<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HideError => "HideError",
            Self::ShowError => "ShowError",
            Self::CustomMessage(_) => "CustomMessage",
            Self::FailRun => "FailRun",
        })
    }
}

/// The reaction to a timeout of a body.
#[derive(Default)]
pub enum OnTimeout<C = ()> {
    /// The run continues, and the model is informed.
    #[default]
    TellModel,
    /// The run continues. The model sees the text that this function returns. If the body could not be stopped, the
    /// model is also told that it may still take effect.
    CustomMessage(TimeoutMessageFunction<C>),
    /// The run fails.
    FailRun,
}

/// A function that returns the text that the model sees for a timeout.
pub type TimeoutMessageFunction<C> = Arc<dyn Fn(&ToolContext<C>, &ToolTimeout) -> String + Send + Sync>;

/// The timeout of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolTimeout {
    /// The time that the body had.
    pub timeout: Duration,
    /// True if the body could not be stopped and may still take effect.
    pub is_still_running: bool,
}

impl<C> OnTimeout<C> {
    /// Creates the reaction from a function that returns the text for the model.
    pub fn custom_message(
        text: impl Fn(&ToolContext<C>, &ToolTimeout) -> String + Send + Sync + 'static,
    ) -> Self {
        Self::CustomMessage(Arc::new(text))
    }
}

impl<C> Clone for OnTimeout<C> {
    fn clone(&self) -> Self {
        match self {
            Self::TellModel => Self::TellModel,
            Self::CustomMessage(text) => Self::CustomMessage(text.clone()),
            Self::FailRun => Self::FailRun,
        }
    }
}

impl<C> fmt::Debug for OnTimeout<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TellModel => "TellModel",
            Self::CustomMessage(_) => "CustomMessage",
            Self::FailRun => "FailRun",
        })
    }
}

/// The retry policy for a failed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolRetryPolicy {
    /// Maximum number of attempts, including the first.
    pub max_attempts: u32,
    /// Delay before the second attempt; it doubles with every further attempt, up to 30 seconds.
    pub base_delay: Duration,
}

impl ToolRetryPolicy {
    /// Returns the delay after a failed attempt, or `None` if it was the last.
    pub(crate) fn delay_after(&self, attempt: u32) -> Option<Duration> {
        const MAX_DELAY: Duration = Duration::from_secs(30);
        (attempt < self.max_attempts)
            .then(|| self.base_delay.saturating_mul(1 << (attempt.saturating_sub(1)).min(16)).min(MAX_DELAY))
    }
}

/// The scope and lifetime of an idempotent tool's receipts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiptPolicy {
    /// Scope within which receipts are shared.
    pub scope: ReceiptScope,
    /// Lifetime of a receipt; unlimited if absent.
    pub expire_after: Option<Duration>,
}

/// The scope within which identical calls of an idempotent tool by one agent share their idempotency key and receipt.
///
/// A run that lacks the session or the store of a scope is refused
/// ([`ConfigError::ReceiptScopeUnavailable`](crate::error::ConfigError::ReceiptScopeUnavailable)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiptScope {
    /// A single call: only its own attempts, after a crash or a failure, have the same key.
    Call,
    /// The calls of one run, including nested agents.
    #[default]
    Run,
    /// The runs of one session, in the same store. The run needs a session and a store. A session that is not in the
    /// store of its runs is known by its id alone.
    Session,
    /// All runs in the same store. The run needs a store.
    Store,
}

/// The result of reconciling a call that a crash interrupted.
#[derive(Clone, Debug, PartialEq)]
pub enum ReconcileOutcome {
    /// The call was executed, with this output.
    Executed(OutputContent),
    /// The call was not executed, and runs now.
    NotExecuted,
    /// The tool cannot tell: a person decides.
    Unknown,
}

pub(crate) type ReconcileFunction<C> =
    Arc<dyn Fn(ToolContext<C>) -> BoxFuture<'static, ReconcileOutcome> + Send + Sync>;

/// The rule that enables a tool or a handoff.
pub(crate) enum EnabledRule<C> {
    Always,
    Never,
    ByFunction(Arc<dyn Fn(RunContext<C>) -> BoxFuture<'static, bool> + Send + Sync>),
}

impl<C> Clone for EnabledRule<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Always => Self::Always,
            Self::Never => Self::Never,
            Self::ByFunction(rule) => Self::ByFunction(rule.clone()),
        }
    }
}

impl<C> EnabledRule<C> {
    /// Returns the value if it does not depend on the run.
    pub(crate) fn static_value(&self) -> Option<bool> {
        match self {
            Self::Always => Some(true),
            Self::Never => Some(false),
            Self::ByFunction(_) => None,
        }
    }

    pub(crate) async fn evaluate(&self, ctx: &RunContext<C>) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::ByFunction(rule) => rule(ctx.clone()).await,
        }
    }
}

/// The relation between calls with the same conflict key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictOrder {
    /// The calls are independent.
    Independent,
    /// The calls are steps of one plan.
    PlanSteps,
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// Treats calls of one response with the same conflict key ([`Tool::conflict_key`]) as steps of one plan:
    /// after a step that failed, was blocked or was rejected, later steps do not run, and the model is
    /// informed. Pure calls run in any case.
    #[must_use]
    pub fn plan_steps(mut self) -> Self {
        self.conflict_order = ConflictOrder::PlanSteps;
        self
    }

    /// Declares that runs with this tool take many small turns, as those on a screen do: the default limit of a run, or of
    /// a nested agent, is at least this number of turns. A limit that is set on the run takes precedence.
    #[must_use]
    pub fn default_max_turns(mut self, turns: u32) -> Self {
        self.default_max_turns = Some(turns);
        self
    }
}
