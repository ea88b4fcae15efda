//! The serialisable reason why a run failed.

use serde::{Deserialize, Serialize};

use crate::budget::ReachedBudget;
use crate::id::CallId;
use crate::plan::ModelProtocolError;

/// The reason why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunFailure {
    /// The run used its maximum number of turns.
    #[error("the run used all of its {max_turns} turns without a final answer")]
    MaxTurnsExceeded {
        /// The maximum number of turns.
        max_turns: u32,
    },
    /// A budget does not allow the next model request.
    #[error("{reached}")]
    BudgetReached {
        /// The budget.
        reached: ReachedBudget,
    },
    /// The model made the same calls repeatedly.
    #[error("the model made the same calls {repetitions} times in a row")]
    LoopDetected {
        /// Number of identical consecutive turns.
        repetitions: u32,
    },
    /// The model's response violated the tool-call protocol.
    #[error("{0}")]
    ModelProtocolError(ModelProtocolError),
    /// The model request failed, and was not retried or exhausted its retries.
    #[error("the model failed: {message}")]
    ModelRequestFailed {
        /// The provider's or the model's message.
        message: String,
    },
    /// The model refused to answer.
    #[error("the model refused to answer: {message}")]
    ModelRefused {
        /// The provider's or the model's message.
        message: String,
    },
    /// The final output does not match the agent's output type.
    #[error("the final answer does not fit the output type: {message}")]
    InvalidOutput {
        /// The mismatch.
        message: String,
    },
    /// A tool failed, and its failure policy ends the run.
    #[error("tool `{tool}` failed: {message}")]
    ToolFailed {
        /// The tool's name.
        tool: String,
        /// The call's id.
        call: CallId,
        /// The error message.
        message: String,
    },
    /// A tool's arguments were invalid, and its failure policy ends the run.
    #[error("the arguments for tool `{tool}` cannot be used: {problems}")]
    InvalidArguments {
        /// The tool's name.
        tool: String,
        /// The call's id.
        call: CallId,
        /// All schema violations, with their paths.
        problems: String,
    },
    /// A tool exceeded its timeout, and its failure policy ends the run.
    #[error("tool `{tool}` timed out after {seconds} seconds")]
    ToolTimeout {
        /// The tool's name.
        tool: String,
        /// The call's id.
        call: CallId,
        /// The timeout in seconds, as text.
        seconds: String,
    },
    /// A guardrail on a tool's input ended the run.
    #[error("guardrail `{guardrail}` stopped the run at the input of tool `{tool}`")]
    ToolInputGuardrailTripped {
        /// The guardrail's name.
        guardrail: String,
        /// The tool's name.
        tool: String,
        /// The call's id.
        call: CallId,
    },
    /// A guardrail on a tool's output ended the run.
    #[error("guardrail `{guardrail}` stopped the run at the output of tool `{tool}`")]
    ToolOutputGuardrailTripped {
        /// The guardrail's name.
        guardrail: String,
        /// The tool's name.
        tool: String,
        /// The call's id.
        call: CallId,
    },
    /// A guardrail on the run's input was triggered.
    #[error("guardrail `{guardrail}` refused the input")]
    InputGuardrailTripped {
        /// The guardrail's name.
        guardrail: String,
    },
    /// A guardrail on the run's output was triggered.
    #[error("guardrail `{guardrail}` refused the final output")]
    OutputGuardrailTripped {
        /// The guardrail's name.
        guardrail: String,
    },
    /// A guardrail of the run failed; guardrails fail closed.
    #[error("guardrail `{guardrail}` failed: {message}")]
    GuardrailFailed {
        /// The guardrail's name.
        guardrail: String,
        /// The error message.
        message: String,
    },
    /// A hook whose failure ends the run failed.
    #[error("hook `{hook}` failed: {message}")]
    HookFailed {
        /// The hook's name.
        hook: String,
        /// The error message.
        message: String,
    },
    /// A function of the application panicked: instructions, an enablement rule, a tool source, an input filter, a
    /// final-output function, a handoff callback or a failure handler.
    #[error("a function of the application panicked: {message}")]
    ApplicationPanicked {
        /// The message of the panic.
        message: String,
    },
    /// A handoff failed.
    #[error("the handoff to `{to}` failed: {message}")]
    HandoffFailed {
        /// The agent that was to take over.
        to: String,
        /// The error message.
        message: String,
    },
    /// A nested run was stopped, because the run around it failed or the timeout of that run passed.
    #[error("the run around it failed: {failure}")]
    OuterRunFailed {
        /// The failure of the run around it.
        failure: Box<Self>,
    },
}
